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
import re
from typing import Any

import msgspec
import yaml
from msgspec import inspect

from imgbuild.errors import Problem, dotted
from imgbuild.matrix.fields import LINE, PROSE
from imgbuild.matrix.notes import Path, nearest
from imgbuild.matrix.yaml_nodes import kind, place, shown
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

    def read(self, node: yaml.Node, due: inspect.Type, path: Path, expected: str | None) -> Any:
        """The value of `node` as `due`; `expected` is the description of its field."""
        self.places[path] = place(node)
        if kind(node) == "alias":  # noted already, when the file was parsed
            return None
        while isinstance(due, inspect.Metadata):
            expected = (due.extra_json_schema or {}).get("description", expected)
            due = due.type
        match due:
            case inspect.StructType():
                return self._struct(node, due, path, None)
            case inspect.UnionType():
                return self._union(node, due, path, expected)
            case inspect.DictType():
                return self._mapping(node, due, path)
            case inspect.VarTupleType():
                return self._list(node, due, path, expected)
            case _:
                return self._scalar(node, due, path, expected)

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
        self, node: yaml.Node, due: inspect.StructType, path: Path, tag: str | None
    ) -> dict[str, Any] | None:
        entries = self._entries(node, path)
        if entries is None:
            return None
        fields = {field.encode_name: field for field in due.fields}
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
                known = "one of " + ", ".join(fields)
                self.note(key, here, UNKNOWN, expected=known, near=near)
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
        found = len(self.problems)
        self.keys[path] = place(key)
        value = self.read(child, field.type, path, None)
        if len(self.problems) == found:
            return {field.encode_name: value}
        del self.problems[found:]
        self.uncertain = True
        return {}

    def _missing(self, node: yaml.Node, path: Path, name: str, due: inspect.Type) -> None:
        expected, why = _shape(due), ""
        while isinstance(due, inspect.Metadata):
            expected = (due.extra_json_schema or {}).get("description", expected)
            why = (due.extra or {}).get("why", why)
            due = due.type
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
        self, node: yaml.Node, due: inspect.UnionType, path: Path, expected: str | None
    ) -> Any:
        if kind(node) == "null" and any(isinstance(item, inspect.NoneType) for item in due.types):
            return None
        structs = {
            str(item.tag): item
            for item in due.types
            if isinstance(item, inspect.StructType) and item.tag is not None
        }
        if not structs:
            rest = [item for item in due.types if not isinstance(item, inspect.NoneType)]
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

    def _mapping(self, node: yaml.Node, due: inspect.DictType, path: Path) -> dict[str, Any] | None:
        entries = self._entries(node, path)
        if entries is None:
            return None
        value = {}
        for key, child in entries:
            here = (*path, key.value)
            self.read(key, due.key_type, here, "text")
            value[key.value] = self.read(child, due.value_type, here, None)
        return value

    def _list(
        self, node: yaml.Node, due: inspect.VarTupleType, path: Path, expected: str | None
    ) -> list[Any] | None:
        if not isinstance(node, yaml.SequenceNode):
            example = f"[{shown(node)}]" if isinstance(node, yaml.ScalarNode) else expected
            self.note(node, path, "not a list", expected=example)
            return None
        if due.min_length is not None and len(node.value) < due.min_length:
            least = f"at least {due.min_length} item" + "s" * (due.min_length > 1)
            self.note(node, path, "the list is too short", expected=least)
        return [
            self.read(child, due.item_type, (*path, number), expected)
            for number, child in enumerate(node.value)
        ]

    def _scalar(self, node: yaml.Node, due: inspect.Type, path: Path, expected: str | None) -> Any:
        expected = expected or _shape(due)
        if not isinstance(node, yaml.ScalarNode) or (kind(node) == "null" and node.style is None):
            self.note(node, path, f"not {_article(_shape(due))}", expected=expected)
            return None
        value, message, near = _converted(node, due)
        if message:
            self.note(node, path, message, expected=_both(expected, _shape(due)), near=near)
        return value


def _converted(node: yaml.ScalarNode, due: inspect.Type) -> tuple[Any, str, str | None]:
    """The value of a scalar, what is wrong with it ("" if nothing), and the nearest right one."""
    text: str = node.value
    plain = node.style is None
    near = None
    value: Any
    match due:
        case inspect.StrType():
            value, fault = text, _text_fault(text, due)
        case inspect.LiteralType():
            value, fault, near = _literal(text, due, plain=plain)
        case inspect.EnumType():
            value, fault, near = _member(text, due.cls)
        case inspect.IntType():
            value, fault = _whole(text, due, plain=plain)
        case inspect.BoolType():
            right = plain and text in ("true", "false")
            value, fault = text == "true", "" if right else "not a truth value"
        case inspect.DateType():
            value, fault = _date(text)
        case _:
            message = f"the matrix has a type that its reader does not know: {type(due).__name__}"
            raise TypeError(message)
    return (None if fault else value), fault, near


def _literal(text: str, due: inspect.LiteralType, *, plain: bool) -> tuple[Any, str, str | None]:
    for choice in due.values:
        if text == str(choice) and (isinstance(choice, str) or plain):
            return choice, "", None
    return None, "unknown value", nearest(text, map(str, due.values))


def _member(text: str, members: type[enum.Enum]) -> tuple[Any, str, str | None]:
    choices = [str(item.value) for item in members]
    if text in choices:
        return text, "", None
    return None, "unknown value", _other_spelling(text, members) or nearest(text, choices)


def _whole(text: str, due: inspect.IntType, *, plain: bool) -> tuple[int, str]:
    if not plain or not re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", text):
        return 0, "not a whole number in decimal digits"
    number = int(text)
    if due.ge is not None and number < due.ge:
        return number, f"the number is below {due.ge}"
    if due.le is not None and number > due.le:
        return number, f"the number is above {due.le}"
    return number, ""


def _date(text: str) -> tuple[datetime.date | None, str]:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return None, "not a date"
    try:
        return datetime.date.fromisoformat(text), ""
    except ValueError:
        return None, "no such day"


def _text_fault(text: str, due: inspect.StrType) -> str:
    if due.pattern is not None and not re.search(due.pattern.removesuffix("$") + r"\Z", text):
        if due.pattern not in (LINE, PROSE):
            return "the text has another form"
        if due.pattern == LINE and re.search(PROSE, text):
            return "the value has several lines"
        return "the text has control characters"
    if due.min_length is not None and len(text) < due.min_length:
        return f"the text is shorter than {due.min_length} characters"
    return "text cannot contain NUL" if "\0" in text else ""


def _other_spelling(text: str, choices: type[enum.Enum]) -> str | None:
    if choices is not Arch:
        return None
    try:
        return Arch.parse(text).value
    except ValueError:
        return None


def _shape(due: inspect.Type) -> str:
    while isinstance(due, inspect.Metadata):
        due = due.type
    match due:
        case inspect.StrType():
            shape = (due.pattern or "").replace(r"\Z", "$")
            return "text" if due.pattern in (None, LINE, PROSE) else f"text like {shape}"
        case inspect.LiteralType():
            return (
                "one of " + ", ".join(map(str, due.values))
                if len(due.values) > 1
                else str(due.values[0])
            )
        case inspect.EnumType():
            return "one of " + ", ".join(str(item.value) for item in due.cls)
        case inspect.IntType():
            low, high = due.ge, due.le
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
