"""Defines the values of evaluated expressions, which may be known only in part."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version


class OpaqueObject(msgspec.Struct, frozen=True):
    """An object of which at most the truth value is known."""

    truth: bool | None = None


UNKNOWN, TRUE, FALSE = OpaqueObject(None), OpaqueObject(True), OpaqueObject(False)


class ModuleValue(msgspec.Struct, frozen=True):
    """A module, or an unread object with a dotted name, such as `operator.ge`."""

    name: str


class BoundValueMethod(msgspec.Struct, frozen=True):
    """A method of a value: `"2.4".split`."""

    owner: object
    name: str


class ClassValue(msgspec.Struct, frozen=True):
    """A class: its name and, if it can be read, the module and line of its definition."""

    name: str
    module: str = ""
    line: int = 0


class ObjectInstance:
    """An object of a class whose methods are followed.

    `attributes` contains the attributes that methods assign. `truth` is None if a method of the
    class determines the truth value. `open` means that code that is not followed may have changed
    the object.
    """

    def __init__(self, kind: ClassValue, *, truth: bool | None) -> None:
        self.kind = kind
        self.truth = truth
        self.attributes: dict[str, object] = {}
        self.open = False


class MethodValue(msgspec.Struct, frozen=True):
    """A method of an object or class that is followed. `owner` is its first argument."""

    function: FunctionValue
    owner: object


class SuperValue(msgspec.Struct, frozen=True):
    """The value of `super()` in a method of the class `after` that is called for `owner`."""

    after: ClassValue
    owner: ObjectInstance | ClassValue


class CallFrame:
    """The names of a running function or of module statements. `outer` is the enclosing frame.

    In a method, `kind` is the class that defines the method, and `owner` is its first argument.
    """

    def __init__(self, module: str, outer: CallFrame | None = None) -> None:
        self.module = module
        self.names: dict[str, object] = {}
        self.outer = outer
        self.kind: ClassValue | None = outer.kind if outer is not None else None
        self.owner: object = outer.owner if outer is not None else None

    def binding_frame(self, name: str) -> CallFrame | None:
        """Return the innermost frame that binds a name, or None if the module binds it."""
        frame: CallFrame | None = self
        while frame is not None and name not in frame.names:
            frame = frame.outer
        return frame

    def visible_objects(self) -> list[object]:
        """Return the objects bound to names in this frame and the enclosing frames."""
        instances = [value for value in self.names.values() if isinstance(value, ObjectInstance)]
        return instances + (self.outer.visible_objects() if self.outer is not None else [])


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class FunctionValue:
    """A function with Python source, its enclosing frame and, for a method, its class."""

    def __init__(
        self, node: FunctionNode, frame: CallFrame, kind: ClassValue | None = None
    ) -> None:
        self.node = node
        self.frame = frame
        self.kind = kind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FunctionValue) and other.node is self.node

    def __hash__(self) -> int:
        return id(self.node)


class VersionText(str):
    """The version of a package, possibly without its local part (`+cu124`)."""

    __slots__ = ()


class InstalledVersion(Version):
    """A `VersionText` that was parsed as a version.

    The local part of the installed version may differ.
    """

    __slots__ = ()


class EvaluatedError(Exception):
    """An exception in the evaluated code.

    An exception is `certain` if a `raise`, an `assert` or a failing import raised it. Other
    operations may be evaluated incorrectly.
    """

    def __init__(self, name: str, *, line: int = 0, module: str = "", certain: bool = True) -> None:
        """Create an exception of the class `name`, which is "" if unknown."""
        super().__init__(name)
        self.name = name
        self.line = line
        self.module = module
        self.certain = certain


class UnsupportedCodeError(Exception):
    """Raised if the code contains an unsupported statement or takes too many steps."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A possible outcome of an evaluation: a value, or an exception.

    `causes` are the packages and the missing modules that determined the outcome.
    """

    value: object = None
    raised: str = ""
    line: int = 0
    module: str = ""
    certain: bool = True
    causes: frozenset[str] = frozenset()


_RELEASE_LIMIT = 1000  # items of a value that is searched for objects
_PLAIN_TYPES = (type(None), bool, int, float, str, bytes, Version, SpecifierSet, Requirement)


def is_fully_known(value: object) -> bool:
    """Return whether a value is fully known, so that operations on it can be evaluated."""
    if isinstance(value, (OpaqueObject, ModuleValue, BoundValueMethod, ClassValue)):
        return False
    if isinstance(value, (tuple, list, frozenset)):
        return all(map(is_fully_known, value))
    if isinstance(value, Mapping):
        return all(map(is_fully_known, value)) and all(map(is_fully_known, value.values()))
    return isinstance(value, _PLAIN_TYPES)


def is_key(value: object) -> bool:
    """Return whether a value is fully known and hashable."""
    if isinstance(value, (tuple, frozenset)):
        return all(map(is_key, value))
    return is_fully_known(value) and not isinstance(value, (list, dict))


def count_items(value: object, limit: int) -> int:
    """Count the items in a value, including nested items, up to about `limit`.

    A hundred characters, or a thousand bits, count as one item.
    """
    total, waiting = 0, [value]
    while waiting and total <= limit:
        item = waiting.pop()
        total += 1
        if isinstance(item, (str, bytes)):
            total += len(item) // 100
        elif isinstance(item, int):
            total += item.bit_length() // 1000
        elif isinstance(item, (tuple, list, frozenset)):
            waiting.extend(item)
        elif isinstance(item, dict):
            waiting.extend((*item, *item.values()))
    return total


def value_truth(value: object) -> bool | None:
    """Return whether a value is true, or None if unknown."""
    if isinstance(value, OpaqueObject):
        return value.truth
    if isinstance(value, ModuleValue):  # sys.flags.optimize has a dotted name, too
        is_part = value.name.partition(".")[0] in sys.stdlib_module_names and "." in value.name
        return None if is_part else True
    if isinstance(value, ObjectInstance):
        return value.truth
    if isinstance(value, (BoundValueMethod, ClassValue, FunctionValue, MethodValue, SuperValue)):
        return True
    return bool(value)


def release_value(value: object) -> None:
    """Clear attributes of objects in `value`, because code that is not followed may change them."""
    waiting, seen = [value], 0
    while waiting and seen < _RELEASE_LIMIT:
        item = waiting.pop()
        seen += 1
        if isinstance(item, ObjectInstance):
            waiting.extend(item.attributes.values())
            item.attributes.clear()
            item.open = True
        elif isinstance(item, (BoundValueMethod, MethodValue, SuperValue)):
            waiting.append(item.owner)
        elif isinstance(item, FunctionValue):
            waiting.extend(item.frame.names.values())
        elif isinstance(item, (tuple, list)):
            waiting.extend(item)
        elif isinstance(item, dict):
            waiting.extend(item.values())
    if waiting:
        raise UnsupportedCodeError
