"""Checks YAML nodes against types: builds a plain value and notes everything that does not fit.

msgspec itself stops at the first error and knows no lines, so this follows msgspec's description of
a type.

The expected type decides how a scalar is read, not what YAML guesses: text is taken as it is
written, so that the version 2.10 stays 2.10, 1e3 stays 1e3 and the mode off stays off, in quotes or
not. Whole numbers are decimal digits only, booleans true or false only.
"""

from __future__ import annotations

import datetime
import enum
import functools
import re
from typing import Any

import msgspec
import yaml
from msgspec import inspect

from imgbuild.codec import dotted
from imgbuild.errors import Problem
from imgbuild.matrix.fields import LINE, PROSE
from imgbuild.matrix.notes import Path, nearest
from imgbuild.matrix.yaml_nodes import kind, place, shown
from imgbuild.system.amounts import count
from imgbuild.values import Arch

UNKNOWN = "unknown key"


class PlainDocument(msgspec.Struct, frozen=True):
    """The plain value of a document, None where something did not fit, and the places of its parts.

    `keys` gives the place of a key, `places` that of its value, both as (line, column). The value
    of an unknown key that looks misspelt is read as that of the right one; `uncertain` if it does
    not fit there, so that what depends on it cannot be checked.
    """

    value: Any
    keys: dict[Path, tuple[int, int]]
    places: dict[Path, tuple[int, int]]
    problems: tuple[Problem, ...]
    uncertain: bool = False


@functools.cache
def type_info(document: type) -> inspect.Type:
    """The description of a type by msgspec, which takes milliseconds to compute."""
    return inspect.type_info(document)


def walk(root: yaml.Node, kind_of_root: inspect.Type, file: str) -> PlainDocument:
    """Read `root` as a value of the given type; problems are returned, never raised."""
    walker = _Walker(file)
    value = walker.read(root, kind_of_root, (), None)
    return PlainDocument(
        value, walker.keys, walker.places, tuple(walker.problems), walker.uncertain
    )


class _Walker:
    def __init__(self, file: str) -> None:
        self.file = file
        self.keys: dict[Path, tuple[int, int]] = {}
        self.places: dict[Path, tuple[int, int]] = {}
        self.problems: list[Problem] = []
        self.uncertain = False

    def read(
        self, node: yaml.Node, expected_type: inspect.Type, path: Path, expected: str | None
    ) -> Any:
        """The value of `node` as `expected_type`; `expected` is the description of its field."""
        self.places[path] = place(node)
        if kind(node) == "alias":  # noted already, when the file was parsed
            return None
        while isinstance(expected_type, inspect.Metadata):
            expected = (expected_type.extra_json_schema or {}).get("description", expected)
            expected_type = expected_type.type
        match expected_type:
            case inspect.StructType():
                return self._struct(node, expected_type, path, None)
            case inspect.UnionType():
                return self._union(node, expected_type, path, expected)
            case inspect.DictType():
                return self._mapping(node, expected_type, path)
            case inspect.VarTupleType():
                return self._list(node, expected_type, path, expected)
            case _:
                return self._scalar(node, expected_type, path, expected)

    def note(
        self,
        node: yaml.Node,
        path: Path,
        message: str,
        *,
        expected: str | None = None,
        near: str | None = None,
        value: str | None = None,
    ) -> None:
        """Note a problem with the node at `path`; its value is shown unless another is given."""
        line, column = place(node)
        self.problems.append(
            Problem(
                file=self.file,
                message=message,
                line=line,
                column=column,
                path=dotted(path) or None,
                value=shown(node) if value is None else value or None,
                expected=expected,
                nearest=near,
            )
        )

    def _entries(
        self, node: yaml.Node, path: Path
    ) -> list[tuple[yaml.ScalarNode, yaml.Node]] | None:
        if not isinstance(node, yaml.MappingNode):
            self.note(node, path, "not a mapping", expected="key: value")
            return None
        entries: list[tuple[yaml.ScalarNode, yaml.Node]] = node.value
        for key, _ in entries:
            self.keys[(*path, key.value)] = place(key)
        return entries

    def _struct(
        self, node: yaml.Node, expected_type: inspect.StructType, path: Path, tag: str | None
    ) -> dict[str, Any] | None:
        entries = self._entries(node, path)
        if entries is None:
            return None
        fields = {field.encode_name: field for field in expected_type.fields}
        value: dict[str, Any] = {}
        given = {key.value for key, _ in entries}
        for key, child in entries:
            here = (*path, key.value)
            if key.value == tag:
                value[key.value] = child.value
            elif key.value in fields:
                value[key.value] = self.read(child, fields[key.value].type, here, None)
            else:
                near = nearest(key.value, fields)
                allowed = "one of " + ", ".join(fields)
                self.note(key, here, UNKNOWN, expected=allowed, near=near)
                if near is not None and near not in given:
                    given.add(near)
                    value |= self._meant(key, child, fields[near], (*path, near))
        for name, field in fields.items():
            if field.required and name not in given:
                self._missing(node, path, name, field.type)
        return value

    def _meant(
        self, key: yaml.ScalarNode, child: yaml.Node, field: inspect.Field, path: Path
    ) -> dict[str, Any]:
        """The value of a misspelt key as that of `field`; empty if it does not fit there."""
        problem_count = len(self.problems)
        self.keys[path] = place(key)
        value = self.read(child, field.type, path, None)
        if len(self.problems) == problem_count:
            return {field.encode_name: value}
        del self.problems[problem_count:]
        self.uncertain = True
        return {}

    def _missing(self, node: yaml.Node, path: Path, name: str, expected_type: inspect.Type) -> None:
        expected, why = _shape(expected_type), ""
        while isinstance(expected_type, inspect.Metadata):
            expected = (expected_type.extra_json_schema or {}).get("description", expected)
            why = (expected_type.extra or {}).get("why", why)
            expected_type = expected_type.type
        # The key in front of a mapping is where people look for what it lacks.
        line, column = self.keys.get(path, place(node))
        message = f"key {name} is missing" + (f": {why}" if why else "")
        self.problems.append(
            Problem(
                file=self.file,
                message=message,
                line=line,
                column=column,
                path=dotted(path) or None,
                expected=f"{name}: {expected}",
            )
        )

    def _union(
        self, node: yaml.Node, expected_type: inspect.UnionType, path: Path, expected: str | None
    ) -> Any:
        if kind(node) == "null" and any(
            isinstance(item, inspect.NoneType) for item in expected_type.types
        ):
            return None
        structs = {
            str(item.tag): item
            for item in expected_type.types
            if isinstance(item, inspect.StructType) and item.tag is not None
        }
        if not structs:
            rest = [item for item in expected_type.types if not isinstance(item, inspect.NoneType)]
            return self.read(node, rest[0], path, expected)
        field = next(iter(structs.values())).tag_field or ""
        entries = self._entries(node, path)
        if entries is None:
            return None
        choices = "one of " + ", ".join(structs)
        for key, child in entries:
            if key.value != field:
                continue
            if isinstance(child, yaml.ScalarNode) and child.value in structs:
                return self._struct(node, structs[child.value], path, field)
            text = child.value if isinstance(child, yaml.ScalarNode) else ""
            message = f"unknown {field}"
            near = nearest(text, structs)
            self.note(child, (*path, field), message, expected=choices, near=near)
            return None
        self.note(node, path, f"key {field} is missing", expected=f"{field}: {choices}", value="")
        return None

    def _mapping(
        self, node: yaml.Node, expected_type: inspect.DictType, path: Path
    ) -> dict[str, Any] | None:
        entries = self._entries(node, path)
        if entries is None:
            return None
        value = {}
        for key, child in entries:
            here = (*path, key.value)
            self.read(key, expected_type.key_type, here, "text")
            value[key.value] = self.read(child, expected_type.value_type, here, None)
        return value

    def _list(
        self, node: yaml.Node, expected_type: inspect.VarTupleType, path: Path, expected: str | None
    ) -> list[Any] | None:
        if not isinstance(node, yaml.SequenceNode):
            example = f"[{shown(node)}]" if isinstance(node, yaml.ScalarNode) else expected
            self.note(node, path, "not a list", expected=example)
            return None
        if expected_type.min_length is not None and len(node.value) < expected_type.min_length:
            least = f"at least {count(expected_type.min_length, 'item')}"
            self.note(node, path, "the list is too short", expected=least)
        return [
            self.read(child, expected_type.item_type, (*path, number), expected)
            for number, child in enumerate(node.value)
        ]

    def _scalar(
        self, node: yaml.Node, expected_type: inspect.Type, path: Path, expected: str | None
    ) -> Any:
        expected = expected or _shape(expected_type)
        if not isinstance(node, yaml.ScalarNode) or (kind(node) == "null" and node.style is None):
            self.note(node, path, f"not {_article(_shape(expected_type))}", expected=expected)
            return None
        value, message, near = _converted(node, expected_type)
        if message:
            self.note(
                node, path, message, expected=_both(expected, _shape(expected_type)), near=near
            )
        return value


def _converted(node: yaml.ScalarNode, expected_type: inspect.Type) -> tuple[Any, str, str | None]:
    """The value of a scalar, what is wrong with it ("" if nothing), and the nearest right one."""
    text: str = node.value
    plain = node.style is None
    near = None
    value: Any
    match expected_type:
        case inspect.StrType():
            value, fault = text, _text_fault(text, expected_type)
        case inspect.LiteralType():
            value, fault, near = _literal(text, expected_type, plain=plain)
        case inspect.EnumType():
            value, fault, near = _member(text, expected_type.cls)
        case inspect.IntType():
            value, fault = _whole(text, expected_type, plain=plain)
        case inspect.BoolType():
            right = plain and text in ("true", "false")
            value, fault = text == "true", "" if right else "not a truth value"
        case inspect.DateType():
            value, fault = _date(text)
        case _:
            name = type(expected_type).__name__
            message = f"the matrix has a type that its reader does not know: {name}"
            raise TypeError(message)
    return (None if fault else value), fault, near


def _literal(
    text: str, expected_type: inspect.LiteralType, *, plain: bool
) -> tuple[Any, str, str | None]:
    for choice in expected_type.values:
        if text == str(choice) and (isinstance(choice, str) or plain):
            return choice, "", None
    return None, "unknown value", nearest(text, map(str, expected_type.values))


def _member(text: str, members: type[enum.Enum]) -> tuple[Any, str, str | None]:
    choices = [str(item.value) for item in members]
    if text in choices:
        return text, "", None
    return None, "unknown value", _other_spelling(text, members) or nearest(text, choices)


def _whole(text: str, expected_type: inspect.IntType, *, plain: bool) -> tuple[int, str]:
    if not plain or not re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", text):
        return 0, "not a whole number in decimal digits"
    number = int(text)
    if expected_type.ge is not None and number < expected_type.ge:
        return number, f"the number is below {expected_type.ge}"
    if expected_type.le is not None and number > expected_type.le:
        return number, f"the number is above {expected_type.le}"
    return number, ""


def _date(text: str) -> tuple[datetime.date | None, str]:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return None, "not a date"
    try:
        return datetime.date.fromisoformat(text), ""
    except ValueError:
        return None, "no such day"


def _text_fault(text: str, expected_type: inspect.StrType) -> str:
    if expected_type.pattern is not None and not re.search(
        expected_type.pattern.removesuffix("$") + r"\Z", text
    ):
        if expected_type.pattern not in (LINE, PROSE):
            return "the text has another form"
        if expected_type.pattern == LINE and re.search(PROSE, text):
            return "the value has several lines"
        return "the text has control characters"
    if expected_type.min_length is not None and len(text) < expected_type.min_length:
        return f"the text is shorter than {expected_type.min_length} characters"
    return "text cannot contain NUL" if "\0" in text else ""


def _other_spelling(text: str, choices: type[enum.Enum]) -> str | None:
    if choices is not Arch:
        return None
    try:
        return Arch.parse(text).value
    except ValueError:
        return None


def _shape(expected_type: inspect.Type) -> str:
    while isinstance(expected_type, inspect.Metadata):
        expected_type = expected_type.type
    match expected_type:
        case inspect.StrType():
            shape = (expected_type.pattern or "").replace(r"\Z", "$")
            return "text" if expected_type.pattern in (None, LINE, PROSE) else f"text like {shape}"
        case inspect.LiteralType():
            return (
                "one of " + ", ".join(map(str, expected_type.values))
                if len(expected_type.values) > 1
                else str(expected_type.values[0])
            )
        case inspect.EnumType():
            return "one of " + ", ".join(str(item.value) for item in expected_type.cls)
        case inspect.IntType():
            low, high = expected_type.ge, expected_type.le
            bounds = f" from {low} to {high}" if high is not None else f" of at least {low}"
            return "a whole number" + (bounds if low is not None else "")
        case inspect.BoolType():
            return "true or false"
        case inspect.DateType():
            return "a date, year-month-day"
        case inspect.VarTupleType():
            return "a list"
    return "a mapping"


def _article(shape: str) -> str:
    return "text" if shape.startswith("text") else shape


def _both(expected: str, shape: str) -> str:
    return expected if shape in (expected, "text") else f"{expected}: {shape}"
