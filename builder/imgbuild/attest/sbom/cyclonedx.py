"""Writes SBOMs as CycloneDX 1.6 in JSON.

The bytes depend only on the `Sbom`: the serial number is derived from the content, and the time is
the date of the lock. No library is used, because digests would change with its version.
"""

from __future__ import annotations

import uuid
from typing import Any

from imgbuild import codec
from imgbuild.attest.sbom.document import OUTSIDE_KINDS, Component, ComponentKind, Sbom
from imgbuild.values import sha256

MEDIA_TYPE = "application/vnd.cyclonedx+json"
TYPES = {
    ComponentKind.IMAGE: "container",
    ComponentKind.SYSTEM: "operating-system",
    ComponentKind.BASE: "container",
    ComponentKind.INTERPRETER: "platform",
    ComponentKind.LAYER: "file",
    ComponentKind.FILE: "file",
}
NAMESPACE = uuid.UUID("0b8a5f0e-61c3-5e0c-9b57-3f2f0e1d7a46")  # a fixed UUID for imgbuild's SBOMs


def cyclonedx_document(sbom: Sbom) -> bytes:
    """Return the CycloneDX document of `sbom`."""
    body: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": sbom.created,
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{"type": "application", "name": "imgbuild"}]},
            "component": _component(sbom.image)
            | {"properties": _properties(_image_properties(sbom))},
        },
        "components": [_component(part) for part in sbom.components],
        "dependencies": _dependencies(sbom),
    }
    if opaque := [part.id for part in sbom.components if part.kind is ComponentKind.BASE]:
        body["compositions"] = [{"aggregate": "unknown", "assemblies": opaque}]
    if sbom.build_inputs:
        body["formulation"] = _formulation(sbom)
    serial = uuid.uuid5(NAMESPACE, sha256(codec.encode_compact(body)))
    return codec.encode_compact({**body, "serialNumber": f"urn:uuid:{serial}"}) + b"\n"


def _component(part: Component) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": TYPES.get(part.kind, "library"),
        "bom-ref": part.id,
        "name": part.name,
    }
    if part.version:
        component["version"] = part.version
    if part.kind in OUTSIDE_KINDS:
        component["scope"] = "excluded"
    if part.sha256:
        component["hashes"] = [{"alg": "SHA-256", "content": part.sha256}]
    if part.licence.expression:
        component["licenses"] = [
            {"expression": part.licence.expression, "acknowledgement": "declared"}
        ]
    elif part.licence.license_text:
        component["licenses"] = [
            {"license": {"name": part.licence.license_text, "acknowledgement": "declared"}}
        ]
    if part.cpe:
        component["cpe"] = part.cpe
    if part.purl:
        component["purl"] = part.purl
    details = {"index": part.index, "source": part.source}
    if part.layer is not None:
        details["layer"] = part.layer.name
    if properties := _properties(details):
        component["properties"] = properties
    return component


def _image_properties(sbom: Sbom) -> dict[str, str]:
    layers = {
        f"layer.{layer.name}.{what}": value
        for layer in sbom.layers
        for what, value in (("digest", layer.digest), ("diff-id", layer.diff_id))
    }
    return {"arch": sbom.arch, "target": sbom.target, **layers}


def _properties(details: dict[str, str]) -> list[dict[str, str]]:
    return [
        {"name": f"imgbuild:{name}", "value": value}
        for name, value in sorted(details.items())
        if value
    ]


def _dependencies(sbom: Sbom) -> list[dict[str, Any]]:
    return [
        {"ref": name, "dependsOn": list(others)} if others else {"ref": name}
        for name, others in sbom.needs.items()
    ]


def _formulation(sbom: Sbom) -> list[dict[str, Any]]:
    return [
        {
            "bom-ref": f"build/{built}",
            "workflows": [
                {
                    "bom-ref": f"build/{built}/workflow",
                    "uid": built,
                    "name": f"build of {built}",
                    "taskTypes": ["build"],
                    "inputs": [{"resource": {"ref": other}} for other in origins],
                    "outputs": [{"type": "artifact", "resource": {"ref": built}}],
                }
            ],
        }
        for built, origins in sorted(sbom.build_inputs.items())
    ]
