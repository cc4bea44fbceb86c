"""Which Python loads an extension module, by the name of its file.

Of the builds of a module `_C`, `_C.cpython-312-x86_64-linux-gnu.so` is loaded by Python 3.12 alone,
`_C.abi3.so` and `_C.so` by any. A wheel for several Pythons may have builds for some of them only.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

from imgbuild.audit.packages.reading import find_modules, module_name

_BUILD = re.compile(r"\.cpython-(\d)(\d+)([a-z]*)(?:-[\w-]+)?\.so$")


def python_of(file: str) -> str:
    """The Python that loads an extension module: "3.12", "3.13t" (free-threaded); "" for any."""
    found = _BUILD.search(file) if file.endswith(".so") else None
    if found is None:
        return ""
    return f"{found[1]}.{found[2]}" + ("t" if "t" in found[3] else "")


def modules_for(files: Iterable[str], python: str) -> dict[str, str]:
    """Module → file of all modules that Python `python` can import from a wheel with these files.

    `python` is "3.12", or "3.13t" if it is free-threaded.
    """
    return find_modules(file for file in files if python_of(file) in ("", python))


def other_builds(files: Iterable[str], modules: Container[str]) -> dict[str, list[str]]:
    """Module → the Pythons that `files` have it for, of extension modules not in `modules`."""
    found: dict[str, set[str]] = {}
    for file in files:
        python = python_of(file)
        name = module_name(file) if python else None
        if name is not None and name not in modules:
            found.setdefault(name, set()).add(python)
    return {name: sorted(pythons, key=_release) for name, pythons in found.items()}


def _release(python: str) -> tuple[int, str]:
    """A key that sorts 3.9 before 3.10."""
    return int(python.partition(".")[2].rstrip("t")), python
