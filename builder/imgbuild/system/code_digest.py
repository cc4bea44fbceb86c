"""Computes a digest of the source of modules and of all modules that they import.

The digest is part of the keys of cached results, so that results become invalid when the code
changes.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

PACKAGE = __name__.partition(".")[0]
_IMPORT = re.compile(
    rf"^[ \t]*(?:from ({PACKAGE}(?:\.\w+)*) import (\([^)]*\)|[^\n]*)|import ({PACKAGE}\.[\w.]+))",
    re.MULTILINE,
)
# References to data in a module's source: a path that begins with data/, or files.data(PATH), which
# may be a folder. Patterns that begin with text are found twenty times as fast as other ones.
_DATA = (re.compile(r'"data/([\w./-]+)"'), re.compile(r'files\.data\(\s*"([\w./-]+)"'))


@lru_cache
def code_digest(*modules: str, alone: str | None = None) -> str:
    """Return the SHA-256 (in hex) of the source of `modules` and of all modules that they import.

    Imports in functions and for types are included. The digest also covers the data files that
    these modules use, and the version of Python, which determines the syntax. The module `alone` is
    covered without its imports and data files. All module names are full names.
    """
    return digest_of_copy(resources.files(PACKAGE), modules, sys.version_info[:2], alone=alone)


def digest_of_copy(
    root: Traversable, modules: Iterable[str], python: tuple[int, ...], *, alone: str | None = None
) -> str:
    """Return the `code_digest` for a copy of the package in the folder `root` and for `python`."""
    files = source_closure(root, modules)
    path = _module_path(root, alone) if alone is not None else None
    if path is not None:
        files[path] = root.joinpath(path).read_bytes()
    digest = hashlib.sha256(f"{python[0]}.{python[1]}\0".encode())
    for name, data in sorted(files.items()):
        digest.update(f"{name} {len(data)}\0".encode() + data)
    return digest.hexdigest()


def source_closure(root: Traversable, modules: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of `modules` and of their dependencies, by path below `root`."""
    contents: dict[str, bytes] = {}
    waiting = list(modules)
    seen = set(waiting)
    while waiting:
        path = _module_path(root, waiting.pop())
        if path is None:  # a name in a module, not a module
            continue
        contents[path] = root.joinpath(path).read_bytes()
        data, imported = _references(contents[path])
        for path in data:
            contents.update(_data_files(root, path))
        new = {name for name in imported if name not in seen}
        seen |= new
        waiting += new
    return contents


@lru_cache(maxsize=1024)  # the closures of one command have most modules in common
def _references(source: bytes) -> tuple[list[str], frozenset[str]]:
    """Return the data paths and the imported names in the source of a module."""
    text = source.decode()
    data = [f"data/{path}" for pattern in _DATA for path in pattern.findall(text)]
    return data, frozenset(_imported_names(text))


def _data_files(root: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    place = root.joinpath(path)
    if not place.is_dir():
        yield path, place.read_bytes()
        return
    for item in place.iterdir():
        if item.name != "__pycache__":
            yield from _data_files(root, f"{path}/{item.name}")


def _imported_names(source: str) -> Iterator[str]:
    for parent, names, plain in _IMPORT.findall(source):
        if plain:
            yield plain
            continue
        yield parent
        listed = re.sub(r"#[^\n]*", "", names).strip("() \n").split(",")
        yield from (f"{parent}.{name.split()[0]}" for name in listed if name.split())


def _module_path(root: Traversable, module: str) -> str | None:
    path = "/".join(module.split(".")[1:])
    choices = (f"{path}.py", f"{path}/__init__.py") if path else ("__init__.py",)
    return next((name for name in choices if root.joinpath(name).is_file()), None)
