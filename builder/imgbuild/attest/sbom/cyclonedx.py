"""A bill of materials as CycloneDX 1.6, in JSON.

Comes in: a `Bill`. Goes out: the document's bytes, which follow from the bill alone: its serial
number is made of what it says, its time is the lock's day. (A library's writer would let the bytes,
and with them the digest of what is attached to an image, follow the library's version; tests hold
this one against the published schema and read it back with that library.)
"""

from __future__ import annotations

import uuid
from typing import Any

from imgbuild import codec
from imgbuild.attest.sbom.document import OUTSIDE, Bill, Kind, Part
from imgbuild.values import sha256

MEDIA_TYPE = "application/vnd.cyclonedx+json"
TYPES = {
    Kind.IMAGE: "container",
    Kind.SYSTEM: "operating-system",
    Kind.BASE: "container",
    Kind.LAYER: "file",
    Kind.FILE: "file",
}
NAMESPACE = uuid.UUID("0b8a5f0e-61c3-5e0c-9b57-3f2f0e1d7a46")  # of imgbuild's bills; any will do


def document(bill: Bill) -> bytes:
    """The document of `bill`."""
    body: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": bill.created,
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{"type": "application", "name": "imgbuild"}]},
            "component": _component(bill.image) | {"properties": _properties(_about(bill))},
        },
        "components": [_component(part) for part in bill.parts],
        "dependencies": _dependencies(bill),
    }
    if opaque := [part.id for part in bill.parts if part.kind is Kind.BASE]:
        body["compositions"] = [{"aggregate": "unknown", "assemblies": opaque}]
    if bill.made:
        body["formulation"] = _formulation(bill)
    serial = uuid.uuid5(NAMESPACE, sha256(codec.compact(body)))
    return codec.compact({**body, "serialNumber": f"urn:uuid:{serial}"}) + b"\n"


def _component(part: Part) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": TYPES.get(part.kind, "library"),
        "bom-ref": part.id,
        "name": part.name,
    }
    if part.version:
        found["version"] = part.version
    if part.kind in OUTSIDE:
        found["scope"] = "excluded"
    if part.sha256:
        found["hashes"] = [{"alg": "SHA-256", "content": part.sha256}]
    if part.licence.expression:
        found["licenses"] = [{"expression": part.licence.expression, "acknowledgement": "declared"}]
    elif part.licence.words:
        found["licenses"] = [
            {"license": {"name": part.licence.words, "acknowledgement": "declared"}}
        ]
    if part.purl:
        found["purl"] = part.purl
    said = {"index": part.index, "source": part.source}
    if part.layer is not None:
        said["layer"] = part.layer.name
    if properties := _properties(said):
        found["properties"] = properties
    return found


def _about(bill: Bill) -> dict[str, str]:
    """What the image says of itself: each of its layers by the name that parts have it by."""
    layers = {
        f"layer.{layer.name}.{what}": value
        for layer in bill.layers
        for what, value in (("digest", layer.digest), ("diff-id", layer.diff_id))
    }
    return {"arch": bill.arch, "target": bill.target, **layers}


def _properties(said: dict[str, str]) -> list[dict[str, str]]:
    return [
        {"name": f"imgbuild:{name}", "value": value}
        for name, value in sorted(said.items())
        if value
    ]


def _dependencies(bill: Bill) -> list[dict[str, Any]]:
    return [
        {"ref": name, "dependsOn": list(others)} if others else {"ref": name}
        for name, others in bill.needs.items()
    ]


def _formulation(bill: Bill) -> list[dict[str, Any]]:
    """How wheels of sdists came to be: what went into each build."""
    return [
        {
            "bom-ref": f"build/{made}",
            "workflows": [
                {
                    "bom-ref": f"build/{made}/workflow",
                    "uid": made,
                    "name": f"build of {made}",
                    "taskTypes": ["build"],
                    "inputs": [{"resource": {"ref": other}} for other in origins],
                    "outputs": [{"type": "artifact", "resource": {"ref": made}}],
                }
            ],
        }
        for made, origins in sorted(bill.made.items())
    ]
