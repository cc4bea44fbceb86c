"""Finds environment variables that files set or read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import msgspec

from imgbuild.audit.code import shell
from imgbuild.audit.code.model import CodeText
from imgbuild.audit.source.text import dotted_name, string_value
from imgbuild.audit.source.tree import matching_lines, nodes_on_lines
from imgbuild.system import files, yaml_data

_LINE = re.compile(
    r"^\s*(?:-\s*)?(?:ENV\s+)?[\"']?([A-Z][A-Z0-9_]+)[\"']?\s*[:=]\s*[\"']?([^\"'#]*)"
)
_NAME_LINE = re.compile(r"^\s*-?\s*name:\s*[\"']?([A-Z][A-Z0-9_]+)[\"']?\s*$")
_ASSIGNMENT = re.compile(r"(?:^|,)([A-Z][A-Z0-9_]*)=([^,]*)")
# What a Python file sets or reads variables by.
_USE_WORDS = (b"environ", b"getenv", b"putenv")
_USES = re.compile(b"|".join(_USE_WORDS))


class VariablePrefix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Packages that read variables with a prefix.

    `complete` means that only Python code reads the variables.
    """

    packages: tuple[str, ...]
    complete: bool


class ValueSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The place in code that defines the values of a variable. `what` describes the values."""

    name: str
    package: str
    files: tuple[str, ...]
    pattern: str
    what: str


class VariableTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `data/audit/code_variables.yaml`."""

    prefixes: dict[str, VariablePrefix]
    values: tuple[ValueSource, ...]


class VariableSetting(msgspec.Struct, frozen=True):
    """A variable that a file sets. `value` is None if it is not a literal."""

    name: str
    value: str | None
    line: int
    column: int


class FileVariables(NamedTuple):
    """The environment variables that a file reads and sets."""

    read: frozenset[str] = frozenset()
    settings: tuple[VariableSetting, ...] = ()


@lru_cache(maxsize=1)
def load_variable_table() -> VariableTable:
    """Load the bundled table."""
    return yaml_data.load_yaml_data(files.data("audit/code_variables.yaml"), VariableTable)


def file_variables(text: CodeText, tree: ast.Module | None = None) -> FileVariables:
    """Return the variables that a file sets and reads. `tree` is that of a valid Python file.

    The result is empty if the file mentions no variable of the table.
    """
    used = text.kind != "python" or any(word in text.source for word in _USE_WORDS)
    prefixes = (
        [prefix.encode() for prefix in load_variable_table().prefixes]
        if used or text.commands
        else ()
    )
    if not any(prefix in text.source or prefix in text.commands for prefix in prefixes):
        return FileVariables()
    if text.kind == "python":
        lines = matching_lines(text.source, _USES) if used and tree is not None else []
        python = _python_variables(nodes_on_lines(tree, lines) if tree is not None else ())
        commands = text.commands.decode(errors="replace")
        reads = python.read | _shell_reads(commands)
        return FileVariables(reads, (*python.settings, *_shell_settings(commands)))
    source = text.source.decode(errors="replace")
    if text.kind in ("shell", "dockerfile"):
        settings = _shell_settings(source) if text.kind == "shell" else _line_settings(source)
        return FileVariables(_shell_reads(source), tuple(settings))
    return FileVariables(settings=tuple(_line_settings(source)))


def _shell_reads(source: str) -> frozenset[str]:
    return frozenset(re.findall(r"\$\{?([A-Z][A-Z0-9_]+)", source))


def _shell_settings(source: str) -> Iterator[VariableSetting]:
    for command in shell.shell_commands(source):
        for word in command:
            for match in _ASSIGNMENT.finditer(word.text.removeprefix("--env=").removeprefix("-e")):
                value = match[2] if word.literal else None
                yield VariableSetting(match[1], value, word.line, word.column)


def _line_settings(source: str) -> Iterator[VariableSetting]:
    """Yield the variables in YAML and Dockerfiles: `NAME: value`, `NAME=value`, `- name: NAME`."""
    for number, line in enumerate(source.splitlines(), 1):
        match = _LINE.match(line) or _NAME_LINE.match(line)
        if match is not None:
            value = match[2].strip() if match.re is _LINE else ""
            literal = value if value and not value.startswith("$") else None
            yield VariableSetting(match[1], literal, number, match.start(1) + 1)


def _python_variables(nodes: Iterable[ast.AST]) -> FileVariables:
    read: set[str] = set()
    settings: list[VariableSetting] = []
    for node in nodes:
        if isinstance(node, ast.Subscript) and dotted_name(node.value).endswith("environ"):
            name = string_value(node.slice)
            if name and isinstance(node.ctx, ast.Load):
                read.add(name)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and dotted_name(target.value).endswith(
                    "environ"
                ):
                    settings += _setting(target.slice, node.value)
        elif isinstance(node, ast.Call):
            callee = dotted_name(node.func)
            if callee.endswith(("environ.setdefault", "os.putenv")) and len(node.args) > 1:
                settings += _setting(node.args[0], node.args[1])
            elif callee.endswith(("environ.get", "getenv", "environ.pop")) and node.args:
                name = string_value(node.args[0])
                read |= {name} if name else set()
            elif callee.endswith("environ.update"):
                settings += _update_settings(node)
    return FileVariables(frozenset(read), tuple(settings))


def _update_settings(node: ast.Call) -> Iterator[VariableSetting]:
    for argument in node.args:
        if isinstance(argument, ast.Dict):
            for key, value in zip(argument.keys, argument.values, strict=True):
                if key is not None:
                    yield from _setting(key, value)


def _setting(key: ast.expr, value: ast.expr) -> Iterator[VariableSetting]:
    name = string_value(key)
    if name:
        yield VariableSetting(name, string_value(value), key.lineno, key.col_offset + 1)
