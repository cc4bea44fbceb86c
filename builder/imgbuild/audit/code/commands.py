"""Finds the commands in Python, YAML and Dockerfiles.

In Python these are the lists and strings that `subprocess` and `os.system` run. In YAML they are
the values of `command`, `args`, `entrypoint` and `run` in files of Compose, Kubernetes and
schedulers.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import yaml

from imgbuild.audit.code import shell
from imgbuild.audit.code.model import CodeText
from imgbuild.audit.code.shell import Command, Word
from imgbuild.audit.code.summaries import Summary
from imgbuild.audit.source.text import dotted_name, string_value
from imgbuild.audit.source.tree import walk_tree

_RUNNERS = frozenset(("run", "Popen", "call", "check_call", "check_output", "getoutput"))
_SPAWNERS = frozenset(("create_subprocess_exec", "create_subprocess_shell", "system", "popen"))
_RUNNING_WORDS = (b"subprocess", b"os.system", b"os.popen")
_SETTINGS = re.compile(
    rb"^[\s-]*[\"']?(?:command|args|entrypoint|run|setup)[\"']?\s*:", re.MULTILINE
)
_INSTRUCTION = re.compile(r"\s*(RUN|CMD|ENTRYPOINT)\s+(.*)", re.DOTALL | re.IGNORECASE)
_MOUNT = re.compile(r"(?:--\w+=\S+\s+)*")
_UNKNOWN_WORD = "$unknown"


def find_commands(
    text: CodeText, names: re.Pattern[bytes], summary: Summary | None
) -> Iterator[Command]:
    """Yield the commands in a file that contains one of the `names`, with their positions.

    `summary` is that of a Python file.
    """
    if text.kind == "shell":
        yield from shell.shell_commands(text.source.decode(errors="replace"))
        return
    if text.commands:
        yield from shell.shell_commands(text.commands.decode(errors="replace"))
    if summary is not None and not summary.commands:
        return
    if names.search(text.source) is None:
        return
    if summary is not None:
        yield from summary.commands
    elif text.kind == "yaml" and _SETTINGS.search(text.source):
        yield from _yaml_commands(text.source)
    elif text.kind == "dockerfile":
        yield from _dockerfile_commands(text.source.decode(errors="replace"))


def _add_nested_commands(command: Command) -> Iterator[Command]:
    if command:
        yield command
        yield from shell.nested_commands(command)


# -- Python


def python_commands(source: bytes, tree: ast.Module) -> Iterator[Command]:
    """Yield the commands that a Python file runs."""
    if not any(word in source for word in _RUNNING_WORDS):
        return
    lists: dict[str, list[ast.List]] = {}
    run: list[ast.expr] = []
    for node in walk_tree(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    lists.setdefault(target.id, []).append(node.value)
        elif isinstance(node, ast.Call) and node.args and _is_runner(dotted_name(node.func)):
            first = node.args[0]
            is_plain = string_value(first) is not None and len(node.args) > 1
            run.append(ast.List(list(node.args), ast.Load()) if is_plain else first)
    for given in run:
        value = given.value if isinstance(given, ast.Starred) else given
        named = lists.get(value.id, []) if isinstance(value, ast.Name) else [value]
        for each in named:
            if isinstance(each, (ast.List, ast.Tuple)):
                yield from _add_nested_commands(tuple(map(_word, each.elts)))
            elif isinstance(each, (ast.Constant, ast.JoinedStr)):
                word = _word(each)
                for command in shell.shell_commands(word.text, line=word.line):
                    yield tuple(
                        msgspec.structs.replace(each, column=word.column) for each in command
                    )


def _is_runner(callee: str) -> bool:
    owner, _, name = callee.rpartition(".")
    return (name in _RUNNERS and owner in ("", "subprocess", "sp")) or name in _SPAWNERS


def _word(node: ast.expr) -> Word:
    """Convert an expression to a word. An expression that is not a literal becomes an expansion."""
    line, column = node.lineno, node.col_offset + 1
    text = string_value(node)
    if text is not None:
        return Word(text, line, column)
    if isinstance(node, ast.JoinedStr):
        parts = [string_value(part) or _UNKNOWN_WORD for part in node.values]
        return Word("".join(parts), line, column, literal=False)
    return Word("", line, column, literal=False)


# -- YAML


def _yaml_commands(source: bytes) -> Iterator[Command]:
    try:
        documents = list(yaml.compose_all(source, yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        return
    for document in documents:
        for mapping in _mappings(document):
            yield from _mapping_commands(mapping)


def _mappings(document: yaml.Node | None) -> Iterator[dict[str, yaml.Node]]:
    """Yield the mappings in a document, without duplicates."""
    left, seen = [document], set()
    while left:
        node = left.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield {key.value: value for key, value in node.value if isinstance(key.value, str)}
            left += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            left += node.value


def _mapping_commands(mapping: dict[str, yaml.Node]) -> Iterator[Command]:
    for name in ("run", "setup", "command", "entrypoint"):
        node = mapping.get(name)
        if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":str"):
            block = node.style in ("|", ">")
            yield from shell.shell_commands(node.value, line=node.start_mark.line + 1 + block)
    start = [*_items(mapping.get("entrypoint")), *_items(mapping.get("command"))]
    if start:
        yield from _add_nested_commands((*start, *_items(mapping.get("args"))))


def _items(node: yaml.Node | None) -> list[Word]:
    """Return the words of a list of strings.

    The result is empty for other values.
    """
    items = node.value if isinstance(node, yaml.SequenceNode) else []
    if not all(isinstance(item, yaml.ScalarNode) for item in items):
        return []
    return [
        Word(
            item.value, item.start_mark.line + 1, item.start_mark.column + 1, "$" not in item.value
        )
        for item in items
    ]


# -- Dockerfiles


def _dockerfile_commands(source: str) -> Iterator[Command]:
    """Yield the commands of RUN, ENTRYPOINT and CMD.

    ENTRYPOINT and CMD are one command if both are lists.
    """
    start: Sequence[Word] = ()
    for line, text in _instructions(source):
        match = _INSTRUCTION.match(text)
        if match is None:
            if text.lstrip().upper().startswith("FROM "):
                start = ()
            continue
        kind, rest = match[1].upper(), match[2]
        words = _json_words(rest, line)
        if words is None:
            rest = rest[_MOUNT.match(rest).end() :]  # type: ignore[union-attr]
            yield from shell.shell_commands(rest, line=line)
        elif kind == "ENTRYPOINT":
            start = words
            yield from _add_nested_commands(tuple(words))
        else:
            yield from _add_nested_commands((*(start if kind == "CMD" else ()), *words))


def _instructions(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first line number and the text of each instruction, with its continued lines."""
    lines: list[str] = []
    for number, line in enumerate(source.split("\n"), 1):
        comment = line.lstrip().startswith("#")
        lines.append("\\" if comment else line)
        if not comment and not line.rstrip().endswith("\\"):
            yield number - len(lines) + 1, "\n".join(lines)
            lines = []


def _json_words(text: str, line: int) -> list[Word] | None:
    """Return the words of a JSON list, or None for other texts."""
    try:
        items = json.loads(text) if text.startswith("[") else None
    except ValueError:
        return None
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        return None
    return [Word(item, line, 1, "$" not in item) for item in items]


def names_pattern(names: Iterable[str]) -> re.Pattern[bytes]:
    """Return a pattern that matches the names of programs and modules, for `find_commands`."""
    return re.compile(rb"\b(?:%s)\b" % b"|".join(re.escape(name.encode()) for name in names))
