"""Extras that a package itself names where importing a part of it fails: `ray[serve]`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import msgspec

from imgbuild.audit.packages.content import WheelContent
from imgbuild.audit.packages.reading import installed
from imgbuild.audit.source.text import dotted
from imgbuild.system.syntax import parse_source
from imgbuild.values import normalize

# The kind of these facts in the cache and in the file of published facts. Raise its number when
# the reader finds something else in the same bytes; `make facts` writes the file again.
KIND = "advised-1"
_PART = re.compile(r"[A-Za-z]\w*(?:/[A-Za-z]\w*)?/__init__\.py")
_ADVICE = re.compile(r"pip3? install [^\n]*?([A-Za-z0-9][\w.-]*)\[([\w,. -]+)\]")
_MISSING = frozenset(("ImportError", "ModuleNotFoundError"))
_QUOTES = {ord(quote): None for quote in "\"'`"}


class AdvisedExtra(msgspec.Struct, frozen=True, array_like=True):
    """An extra that the message names with which the import of `file` fails."""

    file: str
    line: int
    extra: str


def part_files(files: Iterable[str]) -> list[str]:
    """The files of a wheel that a program imports as a part of it: `ray`, `ray.serve`."""
    return [file for file in files if _PART.fullmatch(installed(file))]


def read_advised(content: WheelContent, package: str) -> tuple[AdvisedExtra, ...]:
    """The extras of `package` that handlers of a failed import name before they raise again."""
    sources = content.read(part_files(content.members()))
    return tuple(
        AdvisedExtra(file, line, extra)
        for file, source in sorted(sources.items())
        if b"pip" in source and b"[" in source
        for line, extra in _of_source(source, package)
    )


def _of_source(source: bytes, package: str) -> Iterator[tuple[int, str]]:
    try:
        tree = parse_source(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for statement in tree.body:
        for handler in statement.handlers if isinstance(statement, ast.Try) else ():
            types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            names = {dotted(kind).rpartition(".")[2] for kind in types if kind is not None}
            if names & _MISSING and isinstance(handler.body[-1], ast.Raise):
                yield from ((handler.lineno, extra) for extra in _extras(handler, package))


def _extras(handler: ast.ExceptHandler, package: str) -> list[str]:
    """The extras of a package that strings of a handler say how to install."""
    texts = [
        part.value.translate(_QUOTES)
        for part in ast.walk(handler)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    named = [match for text in texts for match in _ADVICE.findall(text)]
    return sorted(
        {
            normalize(extra.strip())
            for name, extras in named
            if normalize(name) == normalize(package)
            for extra in extras.split(",")
        }
    )
