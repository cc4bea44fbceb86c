"""Selects the frames of an exception that show which package raised it and which called it."""

# A separate module: knows frames only.
from __future__ import annotations

import re

from imgbuild.diagnose.exceptions import LoggedException, TraceFrame

# Functions that only pass a call on.
PASSING = re.compile(r"__getattr|_(?:wrapped_)?call_impl$|decorate_context$")
# Libraries whose own frames are the innermost ones of an error that their caller causes.
LIBRARIES = ("google", "numpy", "pydantic", "pydantic_core", "importlib_metadata", "packaging")
CHECKS = "transformers/utils/versions.py"  # for all packages
MODULE_FILE = re.compile(r"from ['\"](?P<top>\w+)[\w.]*['\"] \((?P<file>/[^()]{1,400})\)")


def innermost_frame(exception: LoggedException | None) -> TraceFrame | None:
    """Return the innermost frame of an exception, ignoring frames that only pass calls on."""
    frames = exception.frames if exception else ()
    own = (f for f in reversed(frames) if not PASSING.match(f.name) and f.package != "omegaconf")
    return next((frame for frame in own if frame.file != "<string>"), None)  # by exec()


def raising_package(exception: LoggedException | None) -> str:
    """Return the package whose code raised an exception.

    Frames that only pass calls on are ignored.
    """
    last = innermost_frame(exception)
    if last is None or last.package or exception is None:
        return last.package if last else ""
    # The message of an import names the file of the module, which tells where a fork's package is.
    match = MODULE_FILE.search(exception.text)
    top = match["top"] if match else ""
    folder = f"{match['file'].partition(f'/{top}/')[0]}/{top}/" if match else ""
    return top if folder and last.file.startswith(folder) else ""


def using_package(exception: LoggedException | None) -> str:
    """Return the import name of the package whose code led to an exception.

    General libraries are skipped.
    """
    frames = exception.frames if exception else ()
    packages = (f.package for f in reversed(frames) if f.package and f.package not in LIBRARIES)
    return next(packages, "")


def checking_package(exception: LoggedException, caller: str) -> str:
    """Return the package that checks a version, where `caller` has the function for it."""
    frames = [frame for frame in exception.frames if not frame.file.endswith(CHECKS)]
    return frames[-1].package if 0 < len(frames) < len(exception.frames) else caller


def package_above(exception: LoggedException, caller: str) -> str:
    """Return the import name of the package that called `caller`, or "" if there is none."""
    packages = (f.package for f in reversed(exception.frames) if f.package and not f.is_standard)
    return next((package for package in packages if package not in (caller, *LIBRARIES)), "")
