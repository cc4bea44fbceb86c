"""A bill of materials as SPDX 2.3, in JSON.

Comes in: a `Bill`. Goes out: the document's bytes, which follow from the bill alone. Where nothing
is known it says NOASSERTION, and so for every download location: files are named by purl and
sha256, wherever they are had from.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from imgbuild import codec
from imgbuild.attest.sbom import licences
from imgbuild.attest.sbom.cyclonedx import NAMESPACE
from imgbuild.attest.sbom.document import OUTSIDE, Bill, Kind, Part
from imgbuild.plan.seal import SealedLayer
from imgbuild.values import sha256

MEDIA_TYPE = "application/spdx+json"
UNKNOWN = "NOASSERTION"
DOCUMENT = "SPDXRef-DOCUMENT"
OWN_WORDS = "LicenseRef-imgbuild-"
PURPOSES = {
    Kind.IMAGE: "CONTAINER",
    Kind.SYSTEM: "OPERATING_SYSTEM",
    Kind.BASE: "CONTAINER",
    Kind.LAYER: "FILE",
    Kind.FILE: "FILE",
    Kind.SDIST: "SOURCE",
}


def document(bill: Bill) -> bytes:
    """The document of `bill`."""
    body: dict[str, Any] = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": DOCUMENT,
        "name": f"{bill.target}-{bill.arch}",
        "creationInfo": {"created": bill.created, "creators": ["Tool: imgbuild"]},
        "packages": [_package(part, bill.layers) for part in (bill.image, *bill.parts)],
        "relationships": list(_relationships(bill)),
    }
    if texts := _texts(bill):
        body["hasExtractedLicensingInfos"] = texts
    serial = uuid.uuid5(NAMESPACE, sha256(codec.compact(body)))
    # The form that the specification gives to those who keep no site of their own for documents.
    space = f"https://spdx.org/spdxdocs/imgbuild-{bill.target}-{bill.arch}-{serial}"
    return codec.compact({**body, "documentNamespace": space}) + b"\n"


def _package(part: Part, layers: Sequence[SealedLayer]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "SPDXID": _id(part.id),
        "name": part.name,
        "downloadLocation": UNKNOWN,
        "filesAnalyzed": False,
        "licenseDeclared": _declared(part),
        "primaryPackagePurpose": PURPOSES.get(part.kind, "LIBRARY"),
    }
    if part.version:
        found["versionInfo"] = part.version
    if part.file:
        found["packageFileName"] = part.file
    if part.sha256:
        found["checksums"] = [{"algorithm": "SHA256", "checksumValue": part.sha256}]
    if part.source:
        found["sourceInfo"] = f"built from the Debian source package {part.source}"
        found["supplier"] = "Organization: Debian"
    if part.layer is not None:
        found["comment"] = f"in the layer {part.layer.name}"
    if part.kind is Kind.IMAGE:
        found["comment"] = "; ".join(f"layer {layer.name}: {layer.digest}" for layer in layers)
    if part.purl:
        found["externalRefs"] = [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": part.purl,
            }
        ]
    return found


def _relationships(bill: Bill) -> Iterator[dict[str, str]]:
    yield _relation(DOCUMENT, "DESCRIBES", _id("image"))
    for part in bill.parts:
        if part.kind not in OUTSIDE:
            yield _relation(_id("image"), "CONTAINS", _id(part.id))
    for name, others in bill.needs.items():
        for other in others:
            yield _relation(_id(name), "DEPENDS_ON", _id(other))
    kinds = {part.id: part.kind for part in bill.parts}
    for made, origins in sorted(bill.made.items()):
        for other in origins:
            if kinds[other] is Kind.SDIST:
                yield _relation(_id(made), "GENERATED_FROM", _id(other))
            else:
                yield _relation(_id(other), "BUILD_TOOL_OF", _id(made))


def _relation(one: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


def _declared(part: Part) -> str:
    if part.licence.words:
        return _own_words(part.licence.words)
    return part.licence.expression or UNKNOWN


def _own_words(words: str) -> str:
    return OWN_WORDS + re.sub(r"[^A-Za-z0-9.]+", "-", words).strip("-")


def _texts(bill: Bill) -> list[dict[str, str]]:
    """What stands behind each licence that SPDX does not list: the words of those who named it."""
    words = {_own_words(part.licence.words): part.licence.words
             for part in bill.parts if part.licence.words}  # fmt: skip
    named: dict[str, list[str]] = {}
    for part in bill.parts:
        for reference in licences.references(part.licence.expression):
            place = f"/usr/share/doc/{part.name}/copyright" if part.kind is Kind.DEB else part.file
            named.setdefault(reference, []).append(place)
    texts = words | {reference: _told(places) for reference, places in named.items()}
    return [
        {"licenseId": reference, "extractedText": text, "name": words.get(reference, reference)}
        for reference, text in sorted(texts.items())
    ]


def _told(places: Sequence[str]) -> str:
    more = len(set(places)) - 1
    others = f"; {more} other packages that name it have it in their own" if more else ""
    return f"The text stands in {places[0]}{others}"


def _id(name: str) -> str:
    """An identifier of a part: letters, digits, dots and hyphens; no two parts share one."""
    plain = re.sub(r"[^A-Za-z0-9.-]", lambda found: f".{ord(found[0]):02x}.", name)
    return f"SPDXRef-{plain.replace('.2f.', '-')}"
