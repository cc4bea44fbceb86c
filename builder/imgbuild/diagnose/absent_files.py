"""Explains files and programs that do not exist."""

# A separate module: one kind of exception, of any package.
from __future__ import annotations

import re

from imgbuild.audit.names import releases
from imgbuild.diagnose import owners
from imgbuild.diagnose.exceptions import LoggedException, TraceFrame

NO_FILE = re.compile(
    r"(?:\[Errno \d+\] )?(?:No such file or directory|Not a directory|file not found)"
    r"[^\n'\"]{0,30}?:? ?['\"](?P<path>[^'\"\n]{1,300})['\"]",
    re.IGNORECASE,
)
NO_PROGRAM = re.compile(r"(?:\[WinError 2\]|\[Errno 2\])")
STARTS = re.compile(r"\b(?:subprocess|Popen|check_call|check_output|os\.exec|run\()")


def is_absence(exception: LoggedException) -> bool:
    """Whether the exception says that a file or a program does not exist."""
    return exception.name == "FileNotFoundError" or NO_FILE.search(exception.text) is not None


def absence_cause(
    exception: LoggedException, raised: TraceFrame | None, at: str
) -> tuple[str, str]:
    """Return cause and cure if a file or a program does not exist, else empty texts.

    `raised` is the frame that raised the exception, and `at` a text with its place.
    """
    match = NO_FILE.search(exception.text)
    started = bool(exception.frames) and exception.frames[-1].name == "_execute_child"
    if match is None or started:
        if raised is None or not NO_PROGRAM.search(exception.message):
            return "", ""
        what = "a program that is not installed or not on PATH is started"
        if not (started or STARTS.search(raised.code)):
            what = "a file does not exist"
        cause = f"{what}: {match['path'] if match else raised.code or exception.text}{at}"
        return cause, "install the program that this line names, or correct the path"
    if exception.name == "NotADirectoryError":
        cause = f"a part of the path {match['path']} is a file instead of a folder{at}"
        return cause, "rename or remove that file, or pass the path of a folder"
    package = raised.package if raised else ""
    if package and f"-packages/{package}/" in match["path"]:
        name, path = releases.package_name(package), owners.shorten_path(match["path"])
        cause = f"the installed {name} lacks a file of its own, {path}{at}: the release or commit"
        cause += " was packaged without it, or was not installed completely"
        cure = f"install a newer release or commit of {name} (pip install -U --force-reinstall"
        return cause, f"{cure} --no-deps {name}), or install it from a clone: pip install -e ."
    cure = "check the path: it must exist where the program runs; mount it if that is a"
    cure += " container, and pass an absolute path to a job or a Ray worker"
    return f"{match['path']} does not exist{at}", cure
