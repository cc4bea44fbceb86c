"""Tests inside an image whether reported objects are missing, for lab/notes.py.

The argument is a JSON list of questions (relation, subject, file). Prints one line of JSON with a
verdict [outcome, reason] for each. Does not import imgbuild, which is not in the image.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


class UntriedError(Exception):
    """Raised if a question cannot be answered in this image."""


def load_module(module: str) -> Any:
    """Import a module. Returns None if it does not exist."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = error.name or ""
        if module == name or module.startswith(name + "."):
            return None
        raise UntriedError(str(error)) from error
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"
        raise UntriedError(message) from error


def find_object(dotted: str) -> Any:
    """Return the object with a dotted name, or None if a part of the name is missing."""
    parts = dotted.replace(":", ".").split(".")
    for cut in range(len(parts), 0, -1):
        try:
            there = importlib.util.find_spec(".".join(parts[:cut])) is not None
        except (ImportError, AttributeError, ValueError):
            there = False
        if there:
            value = load_module(".".join(parts[:cut]))
            for part in parts[cut:]:
                if not has_name(value, part):
                    return None
                value = getattr(value, part, value)
            return value
    return None


def has_name(owner: Any, name: str) -> bool:
    """Return whether a module, class or object has the attribute `name`, or sets it in a method."""
    if hasattr(owner, name):
        return True
    if inspect.ismodule(owner):
        return importlib.util.find_spec(f"{owner.__name__}.{name}") is not None
    if not inspect.isclass(owner):
        return False
    for base in owner.__mro__:
        if name in getattr(base, "__annotations__", {}):
            return True
        try:
            if f"self.{name}" in inspect.getsource(base):
                return True
        except (OSError, TypeError):
            continue
    return False


def lacks_module(subject: str, file: str) -> bool:
    """Return whether the module `subject` cannot be imported because it is missing."""
    return load_module(subject) is None


def lacks_package(subject: str, file: str) -> bool:
    """Return whether no package provides the top-level module of `subject`."""
    return importlib.util.find_spec(subject.partition(".")[0]) is None


def lacks_name(subject: str, file: str) -> bool:
    """Return whether a module lacks a name. `subject` is "module:name"."""
    module, _, name = subject.partition(":")
    value = load_module(module)
    return value is None or not have_all_parts(value, name.split("."))


def have_all_parts(value: Any, parts: Sequence[str]) -> bool:
    """Return whether each of `parts` is an attribute of the part before it or of `value`."""
    for part in parts:
        try:
            if not has_name(value, part):
                return False
        except (ImportError, ValueError):
            return False
        value = getattr(value, part, value)
    return True


def lacks_attribute(subject: str, file: str) -> bool:
    """Return whether a class has no such attribute."""
    owner, _, name = subject.rpartition(".")
    value = find_object(owner)
    if value is None:
        message = f"{owner} not found"
        raise UntriedError(message)
    return not has_name(value, name)


def refuses_keyword(subject: str, file: str) -> bool:
    """Return whether a callable lacks a keyword. `subject` is "module.callable(keyword)"."""
    callee, _, keyword = subject.removesuffix(")").partition("(")
    value = find_object(callee)
    if value is None:
        message = f"{callee} not found"
        raise UntriedError(message)
    parameters = inspect.signature(value).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return keyword not in parameters and not takes_all


def does_not_load(subject: str, file: str) -> bool:
    """Return whether the library `file` cannot be loaded because `subject` is missing."""
    libraries = [Path(folder, file) for folder in sys.path if Path(folder, file).exists()]
    if not libraries:
        message = f"{file} is not installed"
        raise UntriedError(message)
    try:
        ctypes.CDLL(str(libraries[0]))
    except OSError as error:
        if subject in str(error):
            return True
        raise UntriedError(str(error)) from error
    return False


CHECKS: dict[str, Callable[[str, str], bool]] = {
    "module": lacks_module,
    "package": lacks_package,
    "name": lacks_name,
    "attribute": lacks_attribute,
    "keyword": refuses_keyword,
    "symbol": does_not_load,
    "library": does_not_load,
}


def judge_question(question: dict[str, str]) -> tuple[str, str]:
    """Return the outcome and reason for one question."""
    check = CHECKS.get(question["relation"])
    if check is None:
        return "untried", "cannot be checked inside an image"
    try:
        return "true" if check(question["subject"], question["file"]) else "false", ""
    except UntriedError as error:
        return "untried", str(error)[:200]
    except BaseException as error:  # noqa: BLE001 - whatever a package raises
        return "untried", f"{type(error).__name__}: {error}"[:200]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", type=json.loads)
    answers = [judge_question(question) for question in parser.parse_args().questions]
    sys.stdout.write("VERDICTS " + json.dumps(answers) + "\n")
