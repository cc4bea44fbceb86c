"""Reads `data/audit/stdlib.yaml`: names missing in the standard library of some versions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache

import msgspec
from packaging.specifiers import SpecifierSet

from imgbuild.audit.source.facts import OpaqueModule
from imgbuild.matrix.fields import STANDALONE_RELEASES
from imgbuild.report import UncheckedPart
from imgbuild.system import files, yaml_data

# Follows the name of a class that is subscripted: Python calls this method.
SUBSCRIPT = ".__class_getitem__"
# The Pythons with which packages were run: those of this repository's bases, and standalone ones.
# Of the standard library of others only the names are known, not what its functions do.
SUPPORTED_PYTHONS = ("3.10", "3.11", "3.12", "3.13")

_Names = dict[str, str]  # specifier of Python's version → names, separated by spaces


class StandardLibrary(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Names that only some Python versions have in the standard library, by specifier.

    `names` and `subscripts` map modules to such names.
    """

    modules: _Names
    names: dict[str, _Names]
    subscripts: dict[str, _Names]


@lru_cache(maxsize=1)
def load_standard_library() -> StandardLibrary:
    """Load the bundled table of the standard library."""
    return yaml_data.load_yaml_data(files.data("audit/stdlib.yaml"), StandardLibrary)


def opaque_module(module: str, python: str) -> OpaqueModule | None:
    """Return a module of the standard library, or None if this version does not have it."""
    parent, _, name = module.rpartition(".")
    while parent:
        if name in missing_names(python).get(parent, ()):
            return None
        parent, _, name = parent.rpartition(".")
    return OpaqueModule(module, "stdlib", missing_names(python).get(module, frozenset()))


@lru_cache
def stdlib_modules(python: str) -> frozenset[str]:
    """Return the top-level modules of a Python version ("3.11")."""
    table = load_standard_library().modules
    names = {*sys.stdlib_module_names, *" ".join(table.values()).split()}
    return frozenset(names - set(_removed_names(table, python)))


@lru_cache
def pythons_with_module(module: str) -> str:
    """Return the Python versions with a top-level module, such as "Python 3.11 or newer".

    Returns "" if all or no versions have the module.
    """
    pythons = [python for python in STANDALONE_RELEASES if module in stdlib_modules(python)]
    if len(pythons) in (0, len(STANDALONE_RELEASES)):
        return ""
    if pythons[-1] == STANDALONE_RELEASES[-1]:
        return f"Python {pythons[0]} or newer"
    return f"Python {pythons[-1]} or older"


@lru_cache
def missing_names(python: str) -> Mapping[str, frozenset[str]]:
    """Map each module to the names that it lacks in a Python version.

    A submodule counts as a name of its parent. A class that cannot be subscripted is listed with
    the suffix SUBSCRIPT.
    """
    table = load_standard_library()
    missing = {module: set(_removed_names(names, python)) for module, names in table.names.items()}
    for module, names in table.subscripts.items():
        refused = (name + SUBSCRIPT for name in _removed_names(names, python))
        missing.setdefault(module, set()).update(refused)
    return {module: frozenset(names) for module, names in missing.items()}


@lru_cache(maxsize=1)
def subscriptable_classes() -> frozenset[str]:
    """Return the classes that can be subscripted only in some versions, such as "array.array"."""
    return frozenset(
        f"{module}.{name}"
        for module, names in load_standard_library().subscripts.items()
        for name in " ".join(names.values()).split()
    )


def unread_parts(python: str) -> tuple[UncheckedPart, ...]:
    """Return the standard library as an unchecked part if no base has this Python, else ()."""
    minor = ".".join(python.split(".")[:2])
    if minor in SUPPORTED_PYTHONS:
        return ()
    why = (
        f"only its names are known; packages were tested with Python {', '.join(SUPPORTED_PYTHONS)}"
    )
    return (UncheckedPart(what=f"the behavior of the standard library of Python {minor}", why=why),)


def _removed_names(names: _Names, python: str) -> list[str]:
    return [
        name
        for spec, listed in names.items()
        if not SpecifierSet(spec).contains(python, prereleases=True)
        for name in listed.split()
    ]
