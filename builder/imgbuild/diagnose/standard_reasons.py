"""Explains missing names of the standard library.

The names are in `data/audit/stdlib.yaml` (Python 3.10 to 3.14).
"""

# A separate module: versions of Python.
from __future__ import annotations

import re
import sys

from imgbuild.audit.source import stdlib
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.finding import Reason

MODULE = re.compile(r"No module named ['\"]?(?P<module>[a-z_]\w*)(?P<below>\.[\w.]+)?['\"]?")
IMPORT = re.compile(r"cannot import name ['\"](?P<name>\w+)['\"] from ['\"](?P<module>[\w.]+)['\"]")
ATTRIBUTE = re.compile(r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'")
# Modules whose names are those of the standard library for certain, and not of a project's file.
CHANGING = frozenset(
    (
        *("types", "typing", "collections", "dataclasses", "enum", "functools", "inspect"),
        *("asyncio", "importlib", "itertools", "contextlib", "math", "datetime", "ast", "re"),
    )
)
POSIX = frozenset(("resource", "fcntl", "termios", "pwd", "grp", "pty"))
# Python 3.10 removed these, earlier than the table begins.
ABSTRACT = frozenset(
    (
        *("Awaitable", "Coroutine", "AsyncIterable", "AsyncIterator", "Hashable", "Iterable"),
        *("Iterator", "Generator", "Reversible", "Sized", "Container", "Callable", "Set"),
        *("MutableSet", "Mapping", "MutableMapping", "MappingView", "KeysView", "ItemsView"),
        *("ValuesView", "Sequence", "MutableSequence", "ByteString"),
    )
)


def standard_reason(text: str, facts: LogFacts) -> Reason | None:
    """Return the cause if a version of Python lacks a module or name of its standard library."""
    if match := MODULE.search(text):
        if match["module"] in POSIX and not match["below"]:
            return Reason(
                code="IMG903",
                cause=f"the module {match['module']} of Python exists on Linux and macOS only, and"
                " this is Windows: the package that imports it (vllm, deepspeed) does not support"
                " Windows",
                cure="run it on Linux: WSL 2 (wsl --install), or a container with GPUs (imgbuild's"
                " images; docker run --gpus all)",
                confidence="high",
            )
        spec = (
            ""
            if match["below"]
            else _pythons_with_name(stdlib.load_standard_library().modules, match["module"])
        )
        return (
            _standard_reason(f"the module {match['module']}", spec, "IMG903", facts)
            if spec
            else None
        )
    for pattern, code in ((IMPORT, "IMG902"), (ATTRIBUTE, "IMG905")):
        match = pattern.search(text)
        if match is None or match["module"].partition(".")[0] not in sys.stdlib_module_names:
            continue
        module, name = match["module"], match["name"]
        if module == "collections" and name in ABSTRACT:
            spec = "<3.10"
        else:
            spec = _pythons_with_name(stdlib.load_standard_library().names.get(module, {}), name)
        if spec:
            return _standard_reason(f"{module}.{name}", spec, code, facts)
        if match["module"].partition(".")[0] in CHANGING:
            return _unknown_name_reason(module, name, code, facts)
    return None


def _unknown_name_reason(module: str, name: str, code: str, facts: LogFacts) -> Reason:
    """Return the reason for a name that is missing in the table.

    The name is from a Python version before 3.10 or after 3.14.
    """
    python = f"Python {facts.python}" if facts.python else "the Python that ran this"
    return Reason(
        code=code,
        cause=f"{python} has no {name} in {module}: the code was written for a different Python,"
        " 3.10 or newer if this one is older",
        cure="use Python 3.10 to 3.13 (imgbuild's images have it), or a release of the package for"
        " this Python",
    )


def _pythons_with_name(group: dict[str, str], name: str) -> str:
    """Return the versions of Python that have a name.

    Return "" if they are unknown, or if all versions have it.
    """
    return next((spec for spec, names in group.items() if name in names.split()), "")


def _standard_reason(what: str, spec: str, code: str, facts: LogFacts) -> Reason:
    python = f" (the log shows Python {facts.python})" if facts.python else ""
    version = spec.rpartition("<")[2] if "<" in spec else spec.removeprefix(">=")
    if "<" in spec:
        return Reason(
            code=code,
            cause=f"Python {version} removed {what}{python}",
            cure="install a release of the package that uses it which supports this Python, or use"
            f" Python {spec}",
            confidence="high",
        )
    return Reason(
        code=code,
        cause=f"{what} is in Python {version} and newer only{python}",
        cure=f"use Python {spec}, or an older release of the package that uses it",
        confidence="high",
    )
