"""Converts a YAML document to a value of a type, or reports all mismatches.

msgspec stops at the first error and does not report line numbers, so this module converts values
itself, based on msgspec's description of a type.

The expected type, not YAML's implicit types, determines how a scalar is parsed. Strings are used as
written, quoted or not, so 2.10, 1e3 and off do not change. An integer consists of decimal digits,
and a boolean is true or false.

An invalid value is replaced by an empty value of the same type, so that other values are checked.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import re
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

import msgspec
import yaml
from msgspec import inspect

from imgbuild.errors import InputError, InputProblem
from imgbuild.matrix import fields
from imgbuild.matrix.notes import ProblemNotes, ValuePath, nearest_choice
from imgbuild.matrix.yaml_nodes import YamlDocument, node_kind, shown_value
from imgbuild.system.amounts import format_count
from imgbuild.values import Arch

T = TypeVar("T")
UNKNOWN_KEY = "unknown key"
_EMPTY_VALUES: dict[type[inspect.Type], Any] = {
    inspect.DictType: {},
    inspect.VarTupleType: (),
    inspect.IntType: 0,
    inspect.BoolType: False,
    inspect.DateType: datetime.date.min,
}


@functools.cache
def _type_info(kind: Hashable) -> inspect.Type:
    return inspect.type_info(kind)


def convert_document(
    document: YamlDocument,
    expected_type: type[T],
    check: Callable[[ProblemNotes, T], None] | None = None,
    *,
    hint: str | None = None,
) -> T:
    """Convert `document` to a value of `expected_type`, and `check` the value.

    Raises InputError with `hint`, all mismatches, and all problems that `check` records.
    """
    notes = ProblemNotes(document.file, document.place)
    if document.root is not None:
        reader = _NodeConverter(notes)
        value: T = reader.read(document.root, _type_info(cast("Hashable", expected_type)), ())
        notes.refused = reader.refused
        if check is not None:
            check(notes, value)
        if not document.problems and not notes.problems:
            return value
    raise refusal_error(document, (*document.problems, *notes.problems), hint=hint)


def refusal_error(
    document: YamlDocument, problems: tuple[InputProblem, ...], *, hint: str | None = None
) -> InputError:
    """Return the error with all `problems` of `document`.

    Unknown keys come first, because they can cause other problems. The other problems are in file
    order.
    """
    ordered = sorted(
        problems,
        key=lambda each: (each.message != UNKNOWN_KEY, each.line or 0, each.column or 0),
    )
    lines = dict(enumerate(document.text.splitlines(), start=1))
    placed = (msgspec.structs.replace(each, source=lines.get(each.line or 0)) for each in ordered)
    message = f"{document.file} has {format_count(len(ordered), 'problem')}"
    return InputError(message, problems=tuple(placed), hint=hint)


class _TypeMisfit(msgspec.Struct, frozen=True):
    """The reason why a scalar does not match its type, and the most similar valid text."""

    message: str
    near: str | None = None


class _NodeConverter:
    """Converts nodes and collects problems. `refused` contains the paths of invalid values."""

    def __init__(self, notes: ProblemNotes) -> None:
        self.notes = notes
        self.refused: set[ValuePath] = set()

    def read(
        self,
        node: yaml.Node,
        expected_type: inspect.Type,
        path: ValuePath,
        expected: str | None = None,
    ) -> Any:
        expected_type, expected, _ = _describe_type(expected_type, expected)
        if node_kind(node) == "alias":  # noted already, when the file was parsed
            return self._convert_empty(expected_type, path)
        match expected_type:
            case inspect.UnionType():
                return self._convert_union(node, expected_type, path, expected)
            case inspect.StructType() if isinstance(node, yaml.MappingNode):
                return self._convert_struct(node, expected_type, path)
            case inspect.DictType() if isinstance(node, yaml.MappingNode):
                return self._convert_mapping(node, expected_type, path)
            case inspect.StructType() | inspect.DictType():
                self.notes.note(
                    path, "not a mapping", value=shown_value(node), expected="key: value"
                )
                return self._convert_empty(expected_type, path)
            case inspect.VarTupleType():
                return self._convert_list(node, expected_type, path, expected)
        return self._convert_scalar(node, expected_type, path, expected)

    def _convert_empty(self, expected_type: inspect.Type, path: ValuePath) -> Any:
        self.refused.add(path)
        return _empty_value(expected_type)

    def _convert_struct(
        self, node: yaml.MappingNode, expected_type: inspect.StructType, path: ValuePath
    ) -> Any:
        by_key = {field.encode_name: field for field in expected_type.fields}
        value: dict[str, Any] = {}
        given = {key.value for key, _ in node.value}
        for key, child in node.value:
            if key.value in by_key:
                field = by_key[key.value]
                value[field.name] = self.read(child, field.type, (*path, key.value))
            elif key.value != expected_type.tag_field:
                near = nearest_choice(key.value, by_key)
                self.notes.note(
                    (*path, key.value),
                    UNKNOWN_KEY,
                    key=True,
                    value=shown_value(key),
                    expected="one of " + ", ".join(by_key),
                    near=near,
                )
                if near is not None and near not in given:
                    given.add(near)
                    value[by_key[near].name] = self._convert_misspelt(
                        key, child, by_key[near], path
                    )
        for name, field in by_key.items():
            if field.required and name not in given:
                value[field.name] = self._note_missing(path, field)
        return expected_type.cls(**value)

    def _convert_misspelt(
        self, key: yaml.ScalarNode, child: yaml.Node, field: inspect.Field, path: ValuePath
    ) -> Any:
        """Convert the value of a misspelt key like the value of `field`.

        If the value is not valid for the field, values that depend on it are not checked.
        """
        key.value = field.encode_name
        problem_count = len(self.notes.problems)
        value = self.read(child, field.type, (*path, field.encode_name))
        if len(self.notes.problems) > problem_count:
            del self.notes.problems[problem_count:]
            self.refused.add(())
        return value

    def _note_missing(self, path: ValuePath, field: inspect.Field) -> Any:
        name = field.encode_name
        _, expected, why = _describe_type(field.type, _shape(field.type))
        # Missing keys are reported at the key of their mapping.
        message = f"key {name} is missing" + (f": {why}" if why else "")
        self.notes.note(path, message, key=True, expected=f"{name}: {expected}")
        return self._convert_empty(field.type, (*path, name))

    def _convert_union(
        self,
        node: yaml.Node,
        expected_type: inspect.UnionType,
        path: ValuePath,
        expected: str | None,
    ) -> Any:
        types = [item for item in expected_type.types if not isinstance(item, inspect.NoneType)]
        if node_kind(node) == "null" and len(types) < len(expected_type.types):
            return None
        structs = {str(item.tag): item for item in types if isinstance(item, inspect.StructType)}
        plain = [item for item in types if not isinstance(item, inspect.StructType)]
        if len(types) == 1 or not isinstance(node, yaml.MappingNode):
            return self.read(node, (plain or types)[0], path, expected)
        if plain:  # a scalar, or a mapping for more
            return self.read(node, next(iter(structs.values())), path)
        field = next(item.tag_field or "" for item in structs.values())
        tag = next((child for key, child in node.value if key.value == field), None)
        choices = "one of " + ", ".join(structs)
        if tag is None:
            self.notes.note(path, f"key {field} is missing", expected=f"{field}: {choices}")
            return self._convert_empty(types[0], path)
        text = tag.value if isinstance(tag, yaml.ScalarNode) else ""
        if text in structs:
            return self.read(node, structs[text], path)
        here, near = (*path, field), nearest_choice(text, structs)
        self.notes.note(
            here, f"unknown {field}", value=shown_value(tag), expected=choices, near=near
        )
        return self._convert_empty(types[0], path)

    def _convert_mapping(
        self, node: yaml.MappingNode, expected_type: inspect.DictType, path: ValuePath
    ) -> dict[Any, Any]:
        key_type, expected, _ = _describe_type(expected_type.key_type, "text")
        value = {}
        for key, child in node.value:
            here = (*path, key.value)
            name = self._convert_scalar(key, key_type, here, expected, key=True)
            value[name] = self.read(child, expected_type.value_type, here)
        return value

    def _convert_list(
        self,
        node: yaml.Node,
        expected_type: inspect.VarTupleType,
        path: ValuePath,
        expected: str | None,
    ) -> Any:
        if not isinstance(node, yaml.SequenceNode):
            example = f"[{shown_value(node)}]" if isinstance(node, yaml.ScalarNode) else expected
            self.notes.note(path, "not a list", value=shown_value(node), expected=example)
            return self._convert_empty(expected_type, path)
        if expected_type.min_length is not None and len(node.value) < expected_type.min_length:
            least = f"at least {format_count(expected_type.min_length, 'item')}"
            self.notes.note(path, "the list is too short", value=shown_value(node), expected=least)
            self.refused.add(path)
        return tuple(
            self.read(child, expected_type.item_type, (*path, number), expected)
            for number, child in enumerate(node.value)
        )

    def _convert_scalar(
        self,
        node: yaml.Node,
        expected_type: inspect.Type,
        path: ValuePath,
        expected: str | None,
        *,
        key: bool = False,
    ) -> Any:
        """Return the value of a scalar. An invalid key is returned as text."""
        shape = _shape(expected_type)
        expected = expected or shape
        misfit = _TypeMisfit(f"not {'text' if shape.startswith('text') else shape}")
        if isinstance(node, yaml.ScalarNode) and (
            node_kind(node) != "null" or node.style is not None
        ):
            value = _SCALARS[type(expected_type)](node.value, expected_type, node.style is None)
            if not isinstance(value, _TypeMisfit):
                return value
            misfit = value
            expected = expected if shape in (expected, "text") else f"{expected}: {shape}"
        self.notes.note(
            path,
            misfit.message,
            key=key,
            value=shown_value(node),
            expected=expected,
            near=misfit.near,
        )
        return node.value if key else self._convert_empty(expected_type, path)


def _describe_type(
    expected_type: inspect.Type, expected: str | None
) -> tuple[inspect.Type, str | None, str]:
    """Return the type without annotations, its description, and why a value is required."""
    why = ""
    while isinstance(expected_type, inspect.Metadata):
        expected = (expected_type.extra_json_schema or {}).get("description", expected)
        why = (expected_type.extra or {}).get("why", why)
        expected_type = expected_type.type
    return expected_type, expected, why


def _empty_value(expected_type: inspect.Type) -> Any:
    match _describe_type(expected_type, None)[0]:
        case inspect.StructType() as struct:
            required = (field for field in struct.fields if field.required)
            return struct.cls(**{field.name: _empty_value(field.type) for field in required})
        case inspect.UnionType() as union:
            return _empty_value(next(i for i in union.types if not isinstance(i, inspect.NoneType)))
        case plain:
            return _EMPTY_VALUES.get(type(plain), "")


# -- scalars, which are `plain` without quotes


def _text(text: str, expected_type: inspect.StrType, plain: bool) -> str | _TypeMisfit:
    pattern, least = expected_type.pattern, expected_type.min_length
    if pattern is not None and not re.search(pattern.removesuffix("$") + r"\Z", text):
        if pattern not in (fields.LINE, fields.PROSE):
            return _TypeMisfit("the text does not have the expected format")
        lines = pattern == fields.LINE and re.search(fields.PROSE, text)
        return _TypeMisfit(
            "the value has several lines" if lines else "the text has control characters"
        )
    if least is not None and len(text) < least:
        return _TypeMisfit(f"the text is shorter than {least} characters")
    return _TypeMisfit("text cannot contain NUL") if "\0" in text else text


def _choice(text: str, expected_type: inspect.LiteralType, plain: bool) -> object:
    for choice in expected_type.values:
        if text == str(choice) and (isinstance(choice, str) or plain):
            return choice
    return _TypeMisfit("unknown value", nearest_choice(text, map(str, expected_type.values)))


def _member(text: str, expected_type: inspect.EnumType, plain: bool) -> object:
    choices = {str(item.value): item for item in expected_type.cls}
    near = nearest_choice(text, choices)
    if expected_type.cls is Arch:
        with contextlib.suppress(ValueError):
            near = Arch.parse(text).value  # another spelling
    return choices[text] if text in choices else _TypeMisfit("unknown value", near)


def _convert_integer(text: str, expected_type: inspect.IntType, plain: bool) -> int | _TypeMisfit:
    if not plain or not re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", text):
        return _TypeMisfit("not a whole number in decimal digits")
    number, low, high = int(text), expected_type.ge, expected_type.le
    if low is not None and number < low:
        return _TypeMisfit(f"the number is below {low}")
    return (
        _TypeMisfit(f"the number is above {high}") if high is not None and number > high else number
    )


def _truth(text: str, expected_type: inspect.BoolType, plain: bool) -> bool | _TypeMisfit:
    right = plain and text in ("true", "false")
    return text == "true" if right else _TypeMisfit("not a boolean")


def _date(text: str, expected_type: inspect.DateType, plain: bool) -> datetime.date | _TypeMisfit:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return _TypeMisfit("not a date")
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        return _TypeMisfit("no such day")


_SCALARS: dict[type[inspect.Type], Callable[[str, Any, bool], object]] = {
    inspect.StrType: _text,
    inspect.LiteralType: _choice,
    inspect.EnumType: _member,
    inspect.IntType: _convert_integer,
    inspect.BoolType: _truth,
    inspect.DateType: _date,
}


def _shape(expected_type: inspect.Type) -> str:
    match _describe_type(expected_type, None)[0]:
        case inspect.StrType(pattern=None | fields.LINE | fields.PROSE):
            return "text"
        case inspect.StrType(pattern=str(pattern)):
            return "text like " + pattern.replace(r"\Z", "$")
        case inspect.LiteralType(values=values):
            return ("one of " if len(values) > 1 else "") + ", ".join(map(str, values))
        case inspect.EnumType(cls=members):
            return "one of " + ", ".join(str(item.value) for item in members)
        case inspect.IntType(ge=None):
            return "a whole number"
        case inspect.IntType(ge=low, le=high):
            bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
            return f"a whole number {bounds}"
        case other:
            return _SHAPES.get(type(other), "a mapping")


_SHAPES: dict[type[inspect.Type], str] = {
    inspect.BoolType: "true or false",
    inspect.DateType: "a date as YYYY-MM-DD",
    inspect.VarTupleType: "a list",
}
