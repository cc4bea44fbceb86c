"""Reads the extras that a package recommends in its import errors, such as `ray[serve]`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from imgbuild.audit.packages.content import WheelContent
from imgbuild.audit.packages.reading import installed_path
from imgbuild.audit.source.text import dotted_name
from imgbuild.audit.source.tree import walk_tree
from imgbuild.system.syntax import valid_source
from imgbuild.values import normalize_package

# The kind of these facts in the cache and in the file of published facts. Increase the number when
# the reader returns other facts for the same bytes; `make facts` writes the file again.
KIND = "advised-2"
_PART = re.compile(r"[A-Za-z]\w*(?:/[A-Za-z]\w*)?/__init__\.py")
_ADVICE = re.compile(r"pip3? install [^\n]{0,80}?([A-Za-z0-9][\w.-]{0,80})\[([\w,. -]{1,200})\]")
_MISSING_ERRORS = frozenset(("ImportError", "ModuleNotFoundError"))
_QUOTES = {ord(quote): None for quote in "\"'`"}


class AdvisedExtra(msgspec.Struct, frozen=True, array_like=True):
    """An extra that the error message recommends if importing `file` fails.

    `modules` are the modules whose absence causes the message. The tuple is empty if they belong to
    the package itself.
    """

    file: str
    line: int
    extra: str
    modules: tuple[str, ...] = ()


def part_files(files: Iterable[str]) -> list[str]:
    """Return the files of a wheel that programs import as separate parts: `ray`, `ray.serve`."""
    return [file for file in files if _PART.fullmatch(installed_path(file))]


def read_advised(content: WheelContent, package: str) -> tuple[AdvisedExtra, ...]:
    """Return the extras of `package` that handlers of import errors recommend."""
    sources = content.read(part_files(content.members()))
    return tuple(
        AdvisedExtra(file, line, extra, modules)
        for file, source in sorted(sources.items())
        if b"pip" in source and b"[" in source
        for line, extra, modules in _advised_in_source(
            source, package, installed_path(file).partition("/")[0]
        )
    )


def _advised_in_source(
    source: bytes, package: str, root: str
) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    tree = valid_source(source)
    if tree is None:
        return
    for statement in tree.body:
        if not isinstance(statement, ast.Try):
            continue
        modules = _modules(statement.body, root)
        for handler in statement.handlers:
            types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            names = {dotted_name(kind).rpartition(".")[2] for kind in types if kind is not None}
            if names & _MISSING_ERRORS and isinstance(handler.body[-1], ast.Raise):
                for extra in _extras(handler, package):
                    yield handler.lineno, extra, modules


def _modules(body: Sequence[ast.stmt], root: str) -> tuple[str, ...]:
    """Return the modules that statements import, or () if one of them is below `root`."""
    modules: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.Import):
            modules.update(alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            modules.add(statement.module or "")
        else:
            return ()
    is_own = any(module.partition(".")[0] == root for module in modules)
    return () if is_own else tuple(sorted(modules))


def _extras(handler: ast.ExceptHandler, package: str) -> list[str]:
    texts = [
        part.value.translate(_QUOTES)
        for part in walk_tree(handler)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    named = [match for text in texts for match in _ADVICE.findall(text)]
    return sorted(
        {
            normalize_package(extra.strip())
            for name, extras in named
            if normalize_package(name) == normalize_package(package)
            for extra in extras.split(",")
        }
    )
