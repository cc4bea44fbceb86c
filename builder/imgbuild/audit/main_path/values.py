"""Values that expressions have in a package set, as far as they are known without running code."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version


class Thing(msgspec.Struct, frozen=True):
    """An object of which at most its truth is known."""

    truth: bool | None = None


UNKNOWN, TRUE, FALSE = Thing(None), Thing(True), Thing(False)


class ModuleValue(msgspec.Struct, frozen=True):
    """A module, or what has a dotted name below one that is not read: `operator.ge`."""

    name: str


class Bound(msgspec.Struct, frozen=True):
    """A method of a value: `"2.4".split`."""

    owner: object
    name: str


class ClassValue(msgspec.Struct, frozen=True):
    """A class, by its name."""

    name: str


class CallFrame:
    """The names of a running function, or of statements of a module; `outer` are those around."""

    def __init__(self, module: str, outer: CallFrame | None = None) -> None:
        self.module = module
        self.names: dict[str, object] = {}
        self.outer = outer

    def holder(self, name: str) -> CallFrame | None:
        """The innermost frame that binds a name; None if it is one of the module."""
        frame: CallFrame | None = self
        while frame is not None and name not in frame.names:
            frame = frame.outer
        return frame


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class FunctionValue:
    """A function with Python source, and the frame around its definition."""

    def __init__(self, node: FunctionNode, frame: CallFrame) -> None:
        self.node = node
        self.frame = frame

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FunctionValue) and other.node is self.node

    def __hash__(self) -> int:
        return id(self.node)


class VersionText(str):
    """The version of a package, of which a local part (`+cu124`) may be missing."""

    __slots__ = ()


class InstalledVersion(Version):
    """`VersionText` as a version: the local part of the installed package may be another."""

    __slots__ = ()


class Raised(Exception):
    """An exception in the evaluated code.

    `certain`: a `raise`, `assert` or failing import, not an operation that was only followed.
    """

    def __init__(self, name: str, *, line: int = 0, module: str = "", certain: bool = True) -> None:
        """With the name of its class; empty if that is not known."""
        super().__init__(name)
        self.name = name
        self.line = line
        self.module = module
        self.certain = certain


class TooHardError(Exception):
    """The code has a statement that is not followed, or takes too many steps."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which an evaluation may end: a value, or an exception.

    `causes` are the packages, and modules that are absent, whose state decided it.
    """

    value: object = None
    raised: str = ""
    line: int = 0
    module: str = ""
    certain: bool = True
    causes: frozenset[str] = frozenset()


_PLAIN = (type(None), bool, int, float, str, bytes, Version, SpecifierSet, Requirement)


def solid(value: object) -> bool:
    """Whether all of a value is known, so that operations on it can be carried out."""
    if isinstance(value, (Thing, ModuleValue, Bound, ClassValue)):
        return False
    if isinstance(value, (tuple, list, frozenset)):
        return all(map(solid, value))
    if isinstance(value, Mapping):
        return all(map(solid, value)) and all(map(solid, value.values()))
    return isinstance(value, _PLAIN)


def is_key(value: object) -> bool:
    """Whether all of a value is known, and it can be a key."""
    if isinstance(value, (tuple, frozenset)):
        return all(map(is_key, value))
    return solid(value) and not isinstance(value, (list, dict))


def weight(value: object, limit: int) -> int:
    """The number of items in a value, those of its items included; at most about `limit`.

    A hundred characters and a thousand bits count as an item.
    """
    total, waiting = 0, [value]
    while waiting and total <= limit:
        one = waiting.pop()
        total += 1
        if isinstance(one, (str, bytes)):
            total += len(one) // 100
        elif isinstance(one, int):
            total += one.bit_length() // 1000
        elif isinstance(one, (tuple, list, frozenset)):
            waiting.extend(one)
        elif isinstance(one, dict):
            waiting.extend((*one, *one.values()))
    return total


def truth(value: object) -> bool | None:
    """Whether a value is true; None if that is not known."""
    if isinstance(value, Thing):
        return value.truth
    if isinstance(value, ModuleValue):  # sys.flags.optimize has a dotted name, too
        is_part = value.name.partition(".")[0] in sys.stdlib_module_names and "." in value.name
        return None if is_part else True
    if isinstance(value, (Bound, ClassValue, FunctionValue)):
        return True
    return bool(value)
