"""Writes known vulnerabilities of images as OpenVEX documents (openvex.dev, 0.2.0).

A vulnerability that the matrix accepts with a justification has the status not_affected; other
vulnerabilities have the status affected. Fixed vulnerabilities are not listed.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

import imgbuild
from imgbuild import codec
from imgbuild.attest.sbom import purl
from imgbuild.cves.check import CveReport, Vulnerability
from imgbuild.registry.image_reference import Repository
from imgbuild.values import Digest, sha256

MEDIA_TYPE = "application/vnd.openvex+json"
CONTEXT = "https://openvex.dev/ns/v0.2.0"
AFFECTED, NOT_AFFECTED = "affected", "not_affected"


class VexStatement(msgspec.Struct, frozen=True):
    """The fields of a VEX statement that are read from attached documents."""

    status: Literal["not_affected", "affected", "fixed", "under_investigation"]


class VexDocument(msgspec.Struct, frozen=True):
    """The fields of an attached VEX document that are read."""

    author: str
    timestamp: Annotated[datetime.datetime, msgspec.Meta(tz=True)]
    statements: tuple[VexStatement, ...]


def vex_document(
    reports: Sequence[tuple[CveReport, Digest]],
    author: str,
    now: datetime.datetime,
    repository: Repository | None = None,
) -> bytes:
    """Return the VEX document about images, which are given as reports and manifest digests.

    Products are named after `repository`, as in scanners, or else after the target. `author` is the
    author of the statements. Statements are sorted by vulnerability, and equal statements about
    several images are merged. The ID of the document depends on the author and the statements, but
    not on `now`.
    """
    statements: dict[str, dict[str, Any]] = {}
    for report, digest in reports:
        name, place = report.target, ""
        if repository is not None:
            name, place = repository.name.rpartition("/")[2], str(repository)
        product = purl.oci_purl(name, digest, arch=report.arch.oci, place=place)
        for finding in report.vulnerabilities:
            statement = _statement(finding)
            key = codec.encode_compact(statement).decode()
            parts = [{"@id": name} for name in finding.purls]
            statements.setdefault(key, {**statement, "products": []})["products"].append(
                {"@id": product, "subcomponents": parts}
            )
    ordered = sorted(
        statements.values(),
        key=lambda statement: (statement["vulnerability"]["name"], statement["status"]),
    )
    content = {
        "@context": CONTEXT,
        "@id": "https://openvex.dev/docs/public/vex-"
        f"{sha256(codec.encode_compact([author, ordered]))}",
        "author": author,
        "timestamp": now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "version": 1,
        "tooling": f"imgbuild/{imgbuild.__version__}",
        "statements": ordered,
    }
    return codec.encode(content)


def decode_vex(data: bytes, place: str) -> VexDocument:
    """Decode the document in `data` from `place`. Raises InputError if it is invalid."""
    return codec.decode(data, VexDocument, file=place, what="OpenVEX document")


def _statement(finding: Vulnerability) -> dict[str, Any]:
    aliases = [name for name in finding.ids if name != finding.id]
    vulnerability = {"name": finding.id, **({"aliases": aliases} if aliases else {})}
    accepted = finding.accepted
    if accepted is not None and accepted.justification is not None:
        return {
            "vulnerability": vulnerability,
            "status": NOT_AFFECTED,
            "justification": accepted.justification,
            "impact_statement": accepted.reason,
        }
    if accepted is not None:
        action = f"accepted until {accepted.expires}: {accepted.reason}"
    elif finding.fixed:
        action = f"update {finding.package} to {finding.fixed} or newer"
    else:
        action = f"no fixed version of {finding.package} is known"
    return {"vulnerability": vulnerability, "status": AFFECTED, "action_statement": action}
