"""Generates the JSON Schemas (2020-12) of `matrix.yaml` from the types, for editors.

The schemas describe only the structure of a file. `load` also checks that names exist and that the
matrix is consistent.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from imgbuild.matrix.extension import Extensions
from imgbuild.matrix.model import Matrix

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ID = "urn:imgbuild:matrix:1"
EXTENSION_ID = "urn:imgbuild:extension:1"
FILE = "matrix.schema.json"
EXTENSION_FILE = "extension.schema.json"


def matrix_schema() -> dict[str, Any]:
    """Return the schema of a matrix with bases. Definitions are sorted by name."""
    json_schema = _schema_of(Matrix, ID, "imgbuild matrix")
    # msgspec does not describe the keys of a mapping whose keys are an enumeration.
    exclude = json_schema["$defs"]["Target"]["properties"]["exclude"]
    exclude["propertyNames"] = {"$ref": "#/$defs/Arch"}
    return json_schema


def extension_schema() -> dict[str, Any]:
    """Return the schema of a matrix that extends published targets."""
    return _schema_of(Extensions, EXTENSION_ID, "imgbuild extension")


def matrix_schema_bytes() -> bytes:
    """Return the content of `matrix.schema.json`."""
    return _bytes(matrix_schema())


def extension_schema_bytes() -> bytes:
    """Return the content of `extension.schema.json`."""
    return _bytes(extension_schema())


def _bytes(json_schema: dict[str, Any]) -> bytes:
    return (json.dumps(json_schema, indent=2, ensure_ascii=False) + "\n").encode()


def _schema_of(kind: type[msgspec.Struct], name: str, title: str) -> dict[str, Any]:
    (root,), definitions = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    named = {key: _tidy_node(definitions[key]) for key in sorted(definitions)}
    # The root is inlined, because editors display the top level best.
    top = named.pop(root["$ref"].rsplit("/", 1)[1])
    return {"$schema": DIALECT, "$id": name, **top, "title": title, "$defs": named}


def _tidy_node(node: Any) -> Any:
    if isinstance(node, list):
        return [_tidy_node(item) for item in node]
    if not isinstance(node, dict):
        return node
    # `discriminator` is an OpenAPI keyword; the constant in each choice suffices in JSON Schema.
    tidy = {key: _tidy_node(value) for key, value in node.items() if key != "discriminator"}
    if isinstance(tidy.get("pattern"), str):
        tidy["pattern"] = tidy["pattern"].replace(r"\Z", "$")  # the same in ECMA-262
    choices = tidy.get("enum")
    if isinstance(choices, list) and len(choices) == 1:
        return {"const": choices[0], **{key: tidy[key] for key in tidy if key != "enum"}}
    return tidy
