"""Explains imports that find a file of the project instead of a package, and circular imports."""

from __future__ import annotations

import itertools
import re
import sys

from imgbuild.audit.names import releases
from imgbuild.diagnose import owners
from imgbuild.diagnose.exceptions import LoggedException, TraceFrame
from imgbuild.diagnose.finding import Reason

CODE = "IMG633"
# Python 3.13 names the file itself.
RENAMING = re.compile(r"\(consider renaming '(?P<file>[^']{1,400})'")
PARTIAL = re.compile(
    r"partially initialized module '(?P<module>[\w.]+)'(?: from '(?P<from>[^']{1,400})')?"
    r".{0,200}circular import\)?(?: \((?P<file>[^()]{1,400})\))?",
    re.DOTALL,
)
ABSENT_IN_FILE = re.compile(
    r"cannot import name '\w+' from '(?P<module>\w+)' \((?P<file>[^()]{1,400}(?<!__init__)\.py)\)"
)
NO_PACKAGE = re.compile(r"No module named '[\w.]+'; '(?P<module>\w+)' is not a package")
NO_ATTRIBUTE = re.compile(r"module '(?P<module>\w+)' has no attribute '(?P<name>\w+)'")
COMPILED = re.compile(r"cannot import name '_.{0,300}-packages/", re.DOTALL)  # no such file
IMPORT = re.compile(r"(?:import|from) (?P<module>\w+)")
MOST_FILES = 5  # of a cycle


def shadowing_reason(exception: LoggedException) -> Reason | None:
    """Return the cause if a file of the project is imported instead of a package."""
    if exception.name not in ("ImportError", "ModuleNotFoundError", "AttributeError"):
        return None
    text = exception.text
    if renaming := RENAMING.search(text):
        return _shadowing_reason(renaming["file"])
    partial = PARTIAL.search(text)
    absent = ABSENT_IN_FILE.search(text)
    match = partial or absent or NO_PACKAGE.search(text) or NO_ATTRIBUTE.search(text)
    if match is None:
        return None
    if (file := _shadowing_file(exception.frames)) is not None:
        return _shadowing_reason(file)
    module = match["module"]
    named = (partial["file"] or partial["from"] or "") if partial else ""
    named = absent["file"] if absent else named
    top = module.partition(".")[0]
    file = named or next((f.file for f in exception.frames if _import_name(f.file) == top), "")
    if file and _is_own_file(file) and _import_name(file) == top and _is_known(top):
        return _shadowing_reason(file)
    return None


def replaced_module_reason(module: str, name: str) -> Reason | None:
    """Return the cause if Python's own `module` has the attribute `name` in all versions.

    Another file was then imported, which the log does not name.
    """
    loaded = sys.modules.get(module)
    if module not in sys.stdlib_module_names or loaded is None or not hasattr(loaded, name):
        return None
    return Reason(
        code=CODE,
        cause=f"{module} is not Python's own module here: a file {module}.py or a folder {module},"
        " in the program's folder or on PYTHONPATH, is imported instead of it",
        cure=f"python -c 'import {module}; print({module}.__file__)' in the program's folder shows"
        " the file: rename it",
        confidence="medium",
    )


def _shadowing_file(frames: tuple[TraceFrame, ...]) -> str | None:
    """Return a file of the project that a package imported instead of another package.

    The frame above it, in a package or in Python's own code, has the import.
    """
    for before, frame in itertools.pairwise(frames):
        match = IMPORT.match(before.code)
        name = _import_name(frame.file)
        importer = before.package or before.is_standard or before.file == frame.file
        if match and match["module"] == name and importer and _is_own_file(frame.file):
            return frame.file
    return None


def _shadowing_reason(file: str) -> Reason:
    name = _import_name(file)
    folder = file.replace("\\", "/").rpartition("/")[0]
    kind = "file"
    if file.endswith("__init__.py"):
        kind, file, folder = "folder", folder, folder.rpartition("/")[0]
    of = "Python's own module" if name in sys.stdlib_module_names else "the package"
    return Reason(
        code=CODE,
        cause=f"the {kind} {file} of the project is imported instead of {of} {name}, because it has"
        " the same name",
        cure=f"rename {file} and delete __pycache__ next to it, or run from another folder"
        f" (PYTHONPATH must not contain {folder or 'its folder'})",
        confidence="high",
    )


def cycle_reason(exception: LoggedException | None) -> Reason | None:
    """Return the cause if files import each other: the files in the order of the imports."""
    match = PARTIAL.search(exception.text) if exception else None
    if exception is None or match is None or COMPILED.search(exception.text):
        return None
    module = match["module"]
    path = module.replace(".", "/")
    own = [f for f in exception.frames if not f.is_standard]
    files = list(dict.fromkeys(f.file.replace("\\", "/") for f in own))
    begins = (
        number
        for number, file in enumerate(files)
        if file.endswith((f"{path}.py", f"{path}/__init__.py"))
    )
    cycle = files[next(begins, len(files)) :]
    if not 1 < len(cycle) <= MOST_FILES:
        return None
    shown = ", which imports ".join((*map(owners.shorten_path, cycle), module))
    package = next((f.package for f in reversed(own) if f.file.replace("\\", "/") in cycle), "")
    cure = (
        "import it inside the function that uses it, or move what both files need to a third file"
    )
    if package:
        name = releases.package_name(package)
        cure = (
            f"install {name} again without files of another release (pip install --force-reinstall"
            f" --no-deps {name}; in a checkout git status shows changed files); in own code {cure}"
        )
    return Reason(
        code="IMG902",
        cause=f"circular import: {shown}, which is not complete at that time",
        cure=cure,
        confidence="medium" if package else "high",
    )


def _import_name(file: str) -> str:
    """Return the name by which a file is imported."""
    folders = file.replace("\\", "/").removesuffix("/__init__.py").split("/")
    return folders[-1].removesuffix(".py")


def _is_own_file(file: str) -> bool:
    """Whether a file belongs to the project, and not to a package or to Python."""
    return (
        file.endswith(".py") and not owners.package_of_file(file) and not owners.is_standard(file)
    )


def _is_known(name: str) -> bool:
    return name in sys.stdlib_module_names or bool(releases.name_owner(name))
