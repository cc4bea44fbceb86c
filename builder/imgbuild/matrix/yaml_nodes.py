"""Parses YAML text to a tree of PyYAML nodes with line and column, without building values.

Unneeded and error-prone features of YAML are rejected: aliases (which allow alias bombs), merge
keys, tags, several documents, duplicate keys, and keys that are not strings.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import yaml
from yaml.composer import Composer

from imgbuild.errors import InputProblem
from imgbuild.matrix.notes import ValuePath
from imgbuild.system.boundary import open_regular

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
# Constructs on which the parsers differ: tabs, control characters, line breaks other than \n, `? `,
# and a comment directly after the header of a block scalar.
UNUSUAL_CHARACTERS = re.compile(
    r"[^\n -~\u00a0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
    r"|\?(?=[\s,\[\]{}]|$)"
    r"|[|>][-+0-9]*#"
)
PREFIX = "tag:yaml.org,2002:"
KINDS = {
    "null": "nothing",
    "bool": "a boolean",
    "int": "a number",
    "float": "a number",
    "timestamp": "a date",
    "merge": "a merge key",
    "value": "a default value",
}


class YamlDocument(msgspec.Struct, frozen=True):
    """A file as a tree of nodes. `root` is None if the file is empty or unreadable.

    `text` is empty if the file is not UTF-8.
    """

    file: str
    root: yaml.Node | None
    problems: tuple[InputProblem, ...]
    text: str = ""

    def place(self, path: ValuePath, key: bool) -> tuple[int, int] | None:
        """Return the line and column, from 1, of the value at `path` or, with `key`, of its key.

        Returns None if the value is missing. List items have no key, so the value's position is
        returned.
        """
        node, name = self.root, self.root
        for part in path:
            if isinstance(node, yaml.MappingNode):
                pairs = (pair for pair in node.value if pair[0].value == part)
                name, node = next(pairs, (None, None))
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
                name = node = node.value[part]
            else:
                return None
        node = name if key else node
        return None if node is None else _mark_position(node.start_mark)


def read_content(path: Path) -> bytes:
    """Read the file at `path`, but at most one byte more than `parse_yaml` accepts.

    Raises IntegrityError for a pipe, a device or a folder, and OSError if the file cannot be
    opened.
    """
    with open(path, "rb", opener=open_regular) as file:
        return file.read(MAX_BYTES + 1)


def parse_yaml(data: bytes, file: str) -> YamlDocument:
    """Parse `data` as one YAML document. Problems are returned, not raised."""
    if len(data) > MAX_BYTES:
        size, limit = f"{len(data)} bytes", f"at most {MAX_BYTES} bytes"
        return _unreadable_document(file, "the file is too large", None, size, limit)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before, byte = data[: error.start].decode("utf-8"), f"0x{data[error.start]:02x}"
        return _unreadable_document(
            file, "this byte is not UTF-8", _end_position(before), byte, "a file in UTF-8"
        )
    if (root := _read_by_libyaml(text)) is not None:
        return YamlDocument(file, root, (), text)
    try:
        loader = _StrictLoader(text)
        root = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        place, character = _end_position(text[: error.position]), f"U+{int(error.character):04X}"
        return _unreadable_document(file, "this character is not allowed in YAML", place, character)
    except yaml.MarkedYAMLError as error:
        return YamlDocument(file, None, (_syntax(error, text, file),), text)
    if root is None:
        expected = "a mapping that starts with version: 1"
        return _unreadable_document(file, "the file is empty", (1, 1), expected=expected)
    problems = (msgspec.structs.replace(problem, file=file) for problem in loader.problems)
    return YamlDocument(file, root, tuple(problems), text)


def node_kind(node: yaml.Node) -> str:
    """Return the YAML type of the node: str, int, float, bool, null, timestamp, map or seq."""
    return str(node.tag).removeprefix(PREFIX)


def shown_value(node: yaml.Node) -> str:
    """Format a node for error messages: a scalar as written, or the type of a collection."""
    if isinstance(node, yaml.ScalarNode):
        text = node.value if len(node.value) <= 60 else f"{node.value[:57]}…"
        if node_kind(node) == "null" and not text:
            return "nothing"
        return f'"{text}"' if node.style in ("'", '"') else str(text)
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"


class _StrictComposer(Composer):
    """Composes nodes, and records disallowed nodes without stopping."""

    problems: list[InputProblem]
    check_event: Any  # of the parser, by which events are read
    get_event: Any
    peek_event: Any
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        """Compose the next node. An alias becomes null and is recorded as a problem."""
        if self.check_event(yaml.AliasEvent):
            event = self.get_event()
            mark = event.start_mark
            self._note(
                mark,
                "aliases are not supported",
                f"*{event.anchor}",
                "the value itself instead of an alias",
            )
            return yaml.ScalarNode(f"{PREFIX}alias", "", mark, event.end_mark)
        event = self.peek_event()
        if self._depth >= MAX_DEPTH:
            message = f"nested more than {MAX_DEPTH} deep"
            raise yaml.composer.ComposerError(None, None, message, event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        if node is None:
            message = "the value is missing"
            raise yaml.composer.ComposerError(None, None, message, event.start_mark)
        self._depth -= 1
        if isinstance(node, yaml.ScalarNode):
            node.style = node.style or None  # which libyaml has as ""
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            self._note(
                node.start_mark, "tags are not supported", str(tag).replace(PREFIX, "!!"), "no tag"
            )
            node.tag = f"{PREFIX}alias"
        if isinstance(node, yaml.MappingNode):
            self._keys(node)
        return node

    def _keys(self, node: yaml.MappingNode) -> None:
        seen: dict[str, int] = {}
        kept = []
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._note(key.start_mark, "a key must be text", shown_value(key), "text")
            elif node_kind(key) == "merge":
                self._note(
                    key.start_mark,
                    "merge keys are not supported",
                    "<<",
                    "the keys and values instead of a merge key",
                )
            elif node_kind(key) == "alias":
                continue
            elif node_kind(key) != "str":
                message = f"a key must be text, but YAML reads this as {KINDS[node_kind(key)]}"
                self._note(
                    key.start_mark, message, shown_value(key), f'text, in quotes: "{key.value}"'
                )
            elif key.value in seen:
                message = f"duplicate key {key.value}: first defined on line {seen[key.value]}"
                self._note(key.start_mark, message, None, "each key once")
            else:
                seen[key.value] = key.start_mark.line + 1
                kept.append((key, value))
        node.value = kept

    def _note(self, mark: yaml.Mark, message: str, value: str | None, expected: str) -> None:
        self.problems.append(_problem("", message, _mark_position(mark), value, expected))


class _StrictLoader(_StrictComposer, yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.problems = []


def _read_by_libyaml(text: str) -> yaml.Node | None:
    """Parse `text` like `_StrictLoader`, but with libyaml, which is ten times as fast.

    Returns None if PyYAML was built without libyaml, if the text has a problem, or if the results
    of the two parsers could differ.
    """
    if not yaml.__with_libyaml__ or UNUSUAL_CHARACTERS.search(text):
        return None

    class _LibyamlLoader(_StrictComposer, yaml.CSafeLoader):
        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            Composer.__init__(self)
            self.problems = []

        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
            event = self.peek_event()
            missing = isinstance(event, yaml.ScalarEvent) and not (event.value or event.style)
            if missing or getattr(event, "tag", None) or getattr(event, "anchor", None):
                raise yaml.YAMLError
            return super().compose_node(parent, index)

    try:
        loader = _LibyamlLoader(text)
        root = loader.get_single_node()
    except yaml.YAMLError:
        return None
    return None if loader.problems else root


def _syntax(error: yaml.MarkedYAMLError, text: str, file: str) -> InputProblem:
    mark = error.problem_mark or error.context_mark
    line, column = _mark_position(mark) if mark else (1, 1)
    message, expected = error.problem or "the file is not valid YAML", None
    lines = text.splitlines()
    value = lines[line - 1].strip()[:60] if line <= len(lines) else ""
    if isinstance(error, yaml.composer.ComposerError) and "but found another document" in message:
        message, value, expected = "a second document starts here", "---", "one document"
    elif mark and line <= len(lines) and re.match(r"[ \t]*\t", lines[line - 1]):
        message, expected = "YAML cannot be indented with tabs", "spaces"
        column = lines[line - 1].index("\t") + 1
    elif error.context:
        message = f"{message} ({error.context})"
    return _problem(file, message, (line, column), value or None, expected)


def _unreadable_document(
    file: str,
    message: str,
    place: tuple[int, int] | None,
    value: str | None = None,
    expected: str | None = None,
) -> YamlDocument:
    return YamlDocument(file, None, (_problem(file, message, place, value, expected),))


def _problem(
    file: str, message: str, place: tuple[int, int] | None, value: str | None, expected: str | None
) -> InputProblem:
    line, column = place or (None, None)
    return InputProblem(
        file=file, message=message, line=line, column=column, value=value, expected=expected
    )


def _mark_position(mark: yaml.Mark) -> tuple[int, int]:
    return mark.line + 1, mark.column + 1


def _end_position(text: str) -> tuple[int, int]:
    return text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1
