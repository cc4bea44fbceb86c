"""Finds options with values that may require a package, such as flash_attention_2.

Reads keywords, dictionary keys and assigned names in Python, flags, keys of YAML and JSON, and
Hydra overrides.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec

from imgbuild.audit.code import shell
from imgbuild.audit.code.model import CodeText
from imgbuild.audit.source.text import dotted_name, string_value
from imgbuild.audit.source.tree import matching_lines, nodes_on_lines
from imgbuild.system import files, yaml_data

_TRUE = "true"
_LINE = re.compile(r"^[\s-]*[\"']?([A-Za-z_]\w*)[\"']?\s*:\s*[\"']?([\w.-]+)")
_FLAG = re.compile(r"(?:--|(?:\+{1,2})?(?:[\w-]+\.)+)([A-Za-z_][\w-]*)(?:=(.*))?", re.DOTALL)


class OptionPackages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values of an option that require one of `packages`.

    `instead` is a value that requires none of them.
    """

    name: str
    values: tuple[str, ...]
    packages: tuple[str, ...]
    instead: str = ""


class OptionTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `data/audit/code_option_packages.yaml`."""

    options: tuple[OptionPackages, ...]


class OptionUse(NamedTuple):
    """An option with a literal value in a file. `line` and `column` count from 1."""

    name: str
    value: str
    line: int
    column: int


@lru_cache(maxsize=1)
def load_options() -> Mapping[tuple[str, str], OptionPackages]:
    """Map each name and value of an option to the packages that the value requires."""
    table = yaml_data.load_yaml_data(files.data("audit/code_option_packages.yaml"), OptionTable)
    return {(each.name, value): each for each in table.options for value in each.values}


def file_options(text: CodeText, tree: ast.Module | None = None) -> tuple[OptionUse, ...]:
    """Return the options of the table in a file. `tree` is that of a valid Python file."""
    table = load_options()
    # Most files do not contain the words of an option, and are not searched.
    names = {name for name in {name for name, _ in table} if _contains(text, name.encode())}
    if not any(
        name in names and (value == _TRUE or _contains(text, value.encode()))
        for name, value in table
    ):
        return ()
    return tuple(use for use in _option_uses(text, tree) if (use.name, use.value) in table)


def _contains(text: CodeText, word: bytes) -> bool:
    """Whether a file contains `word`, or the word as a flag, with hyphens."""
    if word in text.source or word in text.commands:
        return True
    flag = word.replace(b"_", b"-")
    return flag in text.commands or (text.kind != "python" and flag in text.source)


def _option_uses(text: CodeText, tree: ast.Module | None) -> Iterator[OptionUse]:
    if text.kind == "python":
        if tree is not None:
            yield from _python_uses(nodes_on_lines(tree, matching_lines(text.source, _names())))
        yield from _shell_uses(text.commands.decode(errors="replace"))
    elif text.kind == "shell":
        yield from _shell_uses(text.source.decode(errors="replace"))
    elif text.kind in ("yaml", "json"):
        for number, line in enumerate(text.source.decode(errors="replace").splitlines(), 1):
            match = _LINE.match(line)
            if match is not None:
                yield OptionUse(match[1], _normalize(match[2]), number, match.start(1) + 1)


@lru_cache(maxsize=1)
def _names() -> re.Pattern[bytes]:
    """The pattern of the names of options."""
    return re.compile(b"|".join({re.escape(name.encode()) for name, _ in load_options()}))


def _python_uses(nodes: Iterable[ast.AST]) -> Iterator[OptionUse]:
    for node in nodes:
        pairs: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.keyword):
            pairs = [(node.arg or "", node.value)]
        elif isinstance(node, ast.Dict):
            names = (string_value(key) or "" if key else "" for key in node.keys)
            pairs = list(zip(names, node.values, strict=True))
        elif isinstance(node, ast.Assign):
            pairs = [(_last_name(target), node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign):
            pairs = [(_last_name(node.target), node.value)]
        for name, value in pairs:
            if isinstance(value, ast.Constant) and isinstance(value.value, (str, bool)):
                yield OptionUse(
                    name, _normalize(str(value.value)), value.lineno, value.col_offset + 1
                )


def _last_name(node: ast.expr) -> str:
    return dotted_name(node).rpartition(".")[2]


def _shell_uses(source: str) -> Iterator[OptionUse]:
    for command in shell.shell_commands(source):
        for at, word in enumerate(command):
            match = _FLAG.fullmatch(word.text) if word.literal else None
            if match is None:
                continue
            after = command[at + 1] if at + 1 < len(command) else None
            value = match[2]
            if value is None and word.text.startswith("--"):
                is_value = after is not None and after.literal and not after.text.startswith("-")
                value = after.text if after is not None and is_value else _TRUE
            if value is not None:
                name = match[1].replace("-", "_")
                yield OptionUse(name, _normalize(value), word.line, word.column)


def _normalize(value: str) -> str:
    """Return a value in the form of the table. True, true and 1 are equal."""
    return _TRUE if value in ("True", _TRUE, "1") else value.strip("\"'")
