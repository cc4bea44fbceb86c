"""Tests that the published JSON Schema is current, valid and consistent with the reader."""

from __future__ import annotations

import datetime
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from imgbuild.errors import InputError
from imgbuild.matrix.load import parse_matrix
from imgbuild.matrix.schema import DIALECT, FILE, matrix_schema
from tests.support.matrix_text import VALID_MATRIX, break_matrix
from tests.support.rows import each_row
from tests.unit.matrix.test_load import SCALARS, STRUCTURE

if TYPE_CHECKING:
    import jsonschema  # loading it takes a second

REPOSITORY = Path(__file__).parents[3]
# Not detectable by JSON Schema: the spelling of numbers or booleans, mistakes in dates (`format`
# is an annotation), and a newline after the last character, which `$` matches in Python.
UNSEEN = {
    "no date",
    "no such day",
    "a number in another base",
    "no truth value",
    "text with a newline behind it",
}


@functools.cache
def validator() -> jsonschema.Draft202012Validator:
    import jsonschema

    return jsonschema.Draft202012Validator(matrix_schema())


def as_json(text: str) -> Any:
    """The content of a YAML file read by a YAML 1.2 parser, in which dates are text."""
    return json.loads(
        json.dumps(yaml.load(text, yaml.CSafeLoader), default=datetime.date.isoformat)
    )


def test_matrix_file_refers_to_the_published_schema() -> None:
    first = (REPOSITORY / "matrix.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# yaml-language-server: $schema=./{FILE}"


def test_matrix_schema_is_valid() -> None:
    import jsonschema

    document = matrix_schema()
    jsonschema.Draft202012Validator.check_schema(document)
    assert document["$schema"] == DIALECT


def test_schema_objects_refuse_unknown_keys_and_have_descriptions() -> None:
    for name, definition in matrix_schema()["$defs"].items():
        assert definition["title"] == name
        assert definition["description"]
        if definition.get("type") == "object":
            assert definition["additionalProperties"] is False, name


def test_schema_distinguishes_bases_by_kind() -> None:
    definitions = matrix_schema()["$defs"]
    for name, kind in (("DebianBase", "debian"), ("RegistryBase", "registry")):
        assert definitions[name]["properties"]["kind"] == {"const": kind}
        assert "kind" in definitions[name]["required"]


def test_matrix_of_this_project_matches_the_schema() -> None:
    text = (REPOSITORY / "matrix.yaml").read_text(encoding="utf-8")
    assert [error.message for error in validator().iter_errors(as_json(text))] == []


@each_row("name", sorted({*STRUCTURE, *SCALARS} - UNSEEN))
def test_schema_refuses_matrices_that_reader_refuses(name: str) -> None:
    old, new, _ = (STRUCTURE | SCALARS)[name]
    text, _, _ = break_matrix(old, new)
    with pytest.raises(InputError):
        parse_matrix(text.encode(), "bad.yaml")
    assert not validator().is_valid(as_json(text))


def test_schema_accepts_the_unchanged_matrix() -> None:
    assert validator().is_valid(as_json(VALID_MATRIX))
