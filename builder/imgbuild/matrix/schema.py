"""The JSON Schema of `matrix.yaml`, made from the model: editors complete and check by it.

Comes in: the types of model.py. Goes out: JSON Schema 2020-12. It says what a file's shape must be;
whether its names exist and its parts agree is for `load` to say.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from imgbuild.matrix.model import Matrix

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ID = "urn:imgbuild:matrix:1"
FILE = "matrix.schema.json"


def schema() -> dict[str, Any]:
    """The schema as JSON's own types, its definitions sorted by name."""
    (root,), definitions = msgspec.json.schema_components((Matrix,), ref_template="#/$defs/{name}")
    named = {name: _tidy(definitions[name]) for name in sorted(definitions)}
    # msgspec says nothing of the keys of a mapping whose keys are an enumeration.
    named["Target"]["properties"]["exclude"]["propertyNames"] = {"$ref": "#/$defs/Arch"}
    # The root is a definition like any other; editors show best what stands at the top.
    top = named.pop(root["$ref"].rsplit("/", 1)[1])
    return {"$schema": DIALECT, "$id": ID, **top, "title": "imgbuild matrix", "$defs": named}


def published() -> bytes:
    """The schema as `matrix.schema.json` holds it."""
    return (json.dumps(schema(), indent=2, ensure_ascii=False) + "\n").encode()


def _tidy(node: Any) -> Any:
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    # `discriminator` is OpenAPI's word, not JSON Schema's; the constant in each choice says it all.
    tidy = {key: _tidy(value) for key, value in node.items() if key != "discriminator"}
    choices = tidy.get("enum")
    if isinstance(choices, list) and len(choices) == 1:
        return {"const": choices[0], **{key: tidy[key] for key in tidy if key != "enum"}}
    return tidy
