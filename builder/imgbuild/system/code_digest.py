"""The digest of a module's source and of everything that it imports from the package.

It is part of the key of cached results, so that they become invalid when the code changes.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
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
_DATA = re.compile(r'"(data/[\w./-]+)"')  # the path of a data file in a module's source


@lru_cache
def code_digest(module: str) -> str:
    """The digest of `module` (its full name), as 64 hexadecimal digits.

    It covers the source of `module` and of all modules that it imports (at the top, in functions
    and for types), the data files whose paths they contain, and the version of Python, on which
    the readable syntax depends.
    """
    return digest_in(resources.files(PACKAGE), module, sys.version_info[:2])


def digest_in(root: Traversable, module: str, python: tuple[int, ...]) -> str:
    """The same for a copy of the package in the folder `root` and the Python version `python`."""
    digest = hashlib.sha256(f"{python[0]}.{python[1]}\0".encode())
    for name, data in sorted(closure(root, module).items()):
        digest.update(f"{name} {len(data)}\0".encode() + data)
    return digest.hexdigest()


def closure(root: Traversable, module: str) -> dict[str, bytes]:
    """All files that `module` depends on, itself included: path below `root` → content."""
    found: dict[str, bytes] = {}
    waiting = [module]
    seen = set(waiting)
    while waiting:
        path = _file(root, waiting.pop())
        if path is None:  # a name in a module, not a module
            continue
        found[path] = root.joinpath(path).read_bytes()
        text = found[path].decode()
        found.update({name: root.joinpath(name).read_bytes() for name in _DATA.findall(text)})
        new = {name for name in _imported(text) if name not in seen}
        seen |= new
        waiting += new
    return found


def _imported(source: str) -> Iterator[str]:
    """The modules, and names in modules, that `source` imports, in dotted form."""
    for parent, names, plain in _IMPORT.findall(source):
        if plain:
            yield plain
            continue
        yield parent
        listed = re.sub(r"#[^\n]*", "", names).strip("() \n").split(",")
        yield from (f"{parent}.{name.split()[0]}" for name in listed if name.split())


def _file(root: Traversable, module: str) -> str | None:
    """The path of a module below `root`; None if there is no such module."""
    path = "/".join(module.split(".")[1:])
    choices = (f"{path}.py", f"{path}/__init__.py") if path else ("__init__.py",)
    return next((name for name in choices if root.joinpath(name).is_file()), None)
