"""Determines from the file name which Python versions can load an extension module.

Only Python 3.12 loads `_C.cpython-312-x86_64-linux-gnu.so`, and any Python loads `_C.abi3.so` and
`_C.so`. A wheel for several Python versions may contain builds for only some of them. Platforms and
free-threaded builds ("cpython-313t") are not distinguished, because a wheel is for one platform.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

from imgbuild.audit.packages.reading import find_modules, module_name

_BUILD = re.compile(r"\.cpython-(\d)(\d+)[a-z]*(?:-[\w-]+)?\.so$")


def python_for_extension(file: str) -> str:
    """Return the Python version that loads an extension module ("3.12"), or "" for any version."""
    match = _BUILD.search(file) if file.endswith(".so") else None
    return f"{match[1]}.{match[2]}" if match is not None else ""


def extension_modules(files: Iterable[str], python: str) -> dict[str, str]:
    """Map each module that Python `python` ("3.12") can import from `files` to its file."""
    return find_modules(
        file for file in files if file.endswith(".py") or python_for_extension(file) in ("", python)
    )


def other_builds(files: Iterable[str], modules: Container[str]) -> dict[str, list[str]]:
    """Map each extension module to the Python versions for which `files` contains a build.

    Only extension modules that `modules` lacks are included.
    """
    builds: dict[str, set[str]] = {}
    for file in files:
        python = python_for_extension(file)
        name = module_name(file) if python else None
        if name is not None and name not in modules:
            builds.setdefault(name, set()).add(python)
    return {name: sorted(pythons, key=_minor_version) for name, pythons in builds.items()}


def _minor_version(python: str) -> int:
    """Return a sort key that orders 3.9 before 3.10."""
    return int(python.partition(".")[2])
