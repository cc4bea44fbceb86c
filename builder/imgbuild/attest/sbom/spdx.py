"""Writes SBOMs as SPDX 2.3 in JSON.

The bytes depend only on the `Sbom`. Unknown values and download locations are NOASSERTION, because
files are identified by purl and sha256.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from imgbuild import codec
from imgbuild.attest.sbom import licences
from imgbuild.attest.sbom.cyclonedx import NAMESPACE
from imgbuild.attest.sbom.document import OUTSIDE_KINDS, Component, ComponentKind, Sbom
from imgbuild.plan.image_digests import LayerDigests
from imgbuild.values import sha256

MEDIA_TYPE = "application/spdx+json"
NO_ASSERTION = "NOASSERTION"
DOCUMENT = "SPDXRef-DOCUMENT"
OWN_WORDS = "LicenseRef-imgbuild-"
PURPOSES = {
    ComponentKind.IMAGE: "CONTAINER",
    ComponentKind.SYSTEM: "OPERATING_SYSTEM",
    ComponentKind.BASE: "CONTAINER",
    ComponentKind.INTERPRETER: "APPLICATION",
    ComponentKind.LAYER: "FILE",
    ComponentKind.FILE: "FILE",
    ComponentKind.SDIST: "SOURCE",
}


def spdx_document(sbom: Sbom) -> bytes:
    """Return the SPDX document of `sbom`."""
    body: dict[str, Any] = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": DOCUMENT,
        "name": f"{sbom.target}-{sbom.arch}",
        "creationInfo": {"created": sbom.created, "creators": ["Tool: imgbuild"]},
        "packages": [_package(part, sbom.layers) for part in (sbom.image, *sbom.components)],
        "relationships": list(_relationships(sbom)),
    }
    if texts := _licence_texts(sbom):
        body["hasExtractedLicensingInfos"] = texts
    serial = uuid.uuid5(NAMESPACE, sha256(codec.encode_compact(body)))
    # The namespace form of the specification for creators without a website.
    space = f"https://spdx.org/spdxdocs/imgbuild-{sbom.target}-{sbom.arch}-{serial}"
    return codec.encode_compact({**body, "documentNamespace": space}) + b"\n"


def _package(part: Component, layers: Sequence[LayerDigests]) -> dict[str, Any]:
    package: dict[str, Any] = {
        "SPDXID": _id(part.id),
        "name": part.name,
        "downloadLocation": NO_ASSERTION,
        "filesAnalyzed": False,
        "licenseDeclared": _declared_licence(part),
        "primaryPackagePurpose": PURPOSES.get(part.kind, "LIBRARY"),
    }
    if part.version:
        package["versionInfo"] = part.version
    if part.file:
        package["packageFileName"] = part.file
    if part.sha256:
        package["checksums"] = [{"algorithm": "SHA256", "checksumValue": part.sha256}]
    if part.source:
        package["sourceInfo"] = f"built from the Debian source package {part.source}"
        package["supplier"] = "Organization: Debian"
    if part.layer is not None:
        package["comment"] = f"in the layer {part.layer.name}"
    if part.kind is ComponentKind.IMAGE:
        package["comment"] = "; ".join(f"layer {layer.name}: {layer.digest}" for layer in layers)
    references = (
        ("PACKAGE-MANAGER", "purl", part.purl),
        ("SECURITY", "cpe23Type", part.cpe),
    )
    if listed := [
        {"referenceCategory": category, "referenceType": kind, "referenceLocator": locator}
        for category, kind, locator in references
        if locator
    ]:
        package["externalRefs"] = listed
    return package


def _relationships(sbom: Sbom) -> Iterator[dict[str, str]]:
    yield _relation(DOCUMENT, "DESCRIBES", _id("image"))
    for part in sbom.components:
        if part.kind not in OUTSIDE_KINDS:
            yield _relation(_id("image"), "CONTAINS", _id(part.id))
    for name, others in sbom.needs.items():
        for other in others:
            yield _relation(_id(name), "DEPENDS_ON", _id(other))
    kinds = {part.id: part.kind for part in sbom.components}
    for built, origins in sorted(sbom.build_inputs.items()):
        for other in origins:
            if kinds[other] is ComponentKind.SDIST:
                yield _relation(_id(built), "GENERATED_FROM", _id(other))
            else:
                yield _relation(_id(other), "BUILD_TOOL_OF", _id(built))


def _relation(element: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": other}


def _declared_licence(part: Component) -> str:
    if part.licence.license_text:
        return _licence_reference(part.licence.license_text)
    return part.licence.expression or NO_ASSERTION


def _licence_reference(words: str) -> str:
    return OWN_WORDS + re.sub(r"[^A-Za-z0-9.]+", "-", words).strip("-")


def _licence_texts(sbom: Sbom) -> list[dict[str, str]]:
    words = {_licence_reference(part.licence.license_text): part.licence.license_text
             for part in sbom.components if part.licence.license_text}  # fmt: skip
    named: dict[str, list[str]] = {}
    for part in sbom.components:
        for reference in licences.licence_references(part.licence.expression):
            place = (
                f"/usr/share/doc/{part.name}/copyright"
                if part.kind is ComponentKind.DEB
                else part.file
            )
            named.setdefault(reference, []).append(place)
    texts = words | {reference: _license_comment(places) for reference, places in named.items()}
    return [
        {"licenseId": reference, "extractedText": text, "name": words.get(reference, reference)}
        for reference, text in sorted(texts.items())
    ]


def _license_comment(places: Sequence[str]) -> str:
    more = len(set(places)) - 1
    others = f"; {more} other packages with this license have their own copy" if more else ""
    return f"The license text is in {places[0]}{others}"


def _id(name: str) -> str:
    """Return a unique identifier of a component, made of letters, digits, dots and hyphens."""
    plain = re.sub(r"[^A-Za-z0-9.-]", lambda match: f".{ord(match[0]):02x}.", name)
    return f"SPDXRef-{plain.replace('.2f.', '-')}"
