"""Implements functions of Python and of `packaging` for `evaluation`, by dotted name."""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from imgbuild.audit.main_path.interpreter import Interpreter
from imgbuild.audit.main_path.values import (
    TRUE,
    UNKNOWN,
    Bound,
    InstalledVersion,
    ModuleValue,
    Raised,
    VersionText,
    is_key,
    solid,
    truth,
)
from imgbuild.system.syntax import parse_requirement

# Exceptions of libraries, and their base classes.
PARENTS = {
    "PackageNotFoundError": "ModuleNotFoundError",
    "DistributionNotFound": "Exception",
    "InvalidVersion": "ValueError",
    "InvalidSpecifier": "ValueError",
    "InvalidRequirement": "ValueError",
}
CONSTANTS: dict[str, object] = {
    "sys.platform": "linux",
    "os.name": "posix",
    "typing.TYPE_CHECKING": False,
}
METHODS: dict[type, frozenset[str]] = {
    str: frozenset(
        (
            *("split", "rsplit", "startswith", "endswith", "strip", "lstrip", "rstrip", "lower"),
            *("upper", "replace", "partition", "rpartition", "join", "removeprefix", "isdigit"),
            *("removesuffix", "isdecimal", "isidentifier", "count", "find", "title", "format"),
        )
    ),
    tuple: frozenset(("index", "count")),
    list: frozenset(("index", "count", "copy")),
    dict: frozenset(("get", "keys", "values", "items", "copy")),
    SpecifierSet: frozenset(("contains",)),
}
_OF_VERSION = frozenset(
    (
        *("major", "minor", "micro", "release", "base_version", "public", "pre", "post"),
        *("dev", "is_prerelease", "is_devrelease", "is_postrelease", "epoch"),
    )
)
ATTRIBUTES: dict[type, frozenset[str]] = {
    Version: _OF_VERSION | {"local"},
    InstalledVersion: _OF_VERSION,
    Requirement: frozenset(("name", "specifier")),
}
# Libraries whose functions are executed here.
LIBRARIES = frozenset(("packaging", "pkg_resources", "importlib_metadata"))
DISTRIBUTIONS = "importlib.metadata.packages_distributions()"
_RANGE = 1000  # items
LARGEST = 10000  # characters or items that an operation may create
_FIELD = re.compile(r"\{[A-Za-z0-9_]*\}")  # of a format: neither a width nor an attribute
EXIT = "SystemExit"


Arguments = tuple[object, ...]
Intrinsic = Callable[[Interpreter, Arguments, Mapping[str, object]], object]


def _pure(function: Callable[..., Any]) -> Intrinsic:
    """A wrapper for a function of completely known values."""

    def _apply(_: Interpreter, arguments: Arguments, named: Mapping[str, object]) -> object:
        if not all(map(solid, arguments)) or not all(map(solid, named.values())):
            return UNKNOWN
        try:
            result = function(*arguments, **named)
        except (InvalidVersion, InvalidSpecifier, InvalidRequirement, ArithmeticError) as error:
            raise Raised(type(error).__name__, certain=False) from None
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise Raised(type(error).__name__, certain=False) from None
        return frozenset(result) if isinstance(result, set) else result

    return _apply


def _range(*numbers: int) -> object:
    sequence = range(*numbers)
    return tuple(sequence) if -1 < _length(sequence) <= _RANGE else UNKNOWN


def _length(numbers: range) -> int:
    """The number of items; -1 if Python cannot determine it."""
    try:
        return len(numbers)
    except OverflowError:
        return -1


def _round(number: float, digits: int | None = None) -> float:
    return round(number, digits if digits is None else max(-20, min(20, digits)))


def _as_version(value: object) -> Version:
    is_installed = isinstance(value, (VersionText, InstalledVersion))
    return InstalledVersion(str(value)) if is_installed else Version(str(value))


def _any(_: Interpreter, arguments: Arguments, __: Mapping[str, object]) -> object:
    return _all_or_any(arguments, expected=True)


def _all(_: Interpreter, arguments: Arguments, __: Mapping[str, object]) -> object:
    return _all_or_any(arguments, expected=False)


def _all_or_any(arguments: Arguments, *, expected: bool) -> object:
    """The result of `all` (expected False) or `any` (expected True)."""
    items = arguments[0] if len(arguments) == 1 else UNKNOWN
    if not isinstance(items, (tuple, list, frozenset)):
        return UNKNOWN
    states = [truth(item) for item in items]
    if expected in states:
        return expected
    return UNKNOWN if None in states else not expected


def _bool(_: Interpreter, arguments: Arguments, __: Mapping[str, object]) -> object:
    truth_value = truth(arguments[0]) if arguments else False
    return UNKNOWN if truth_value is None else truth_value


def _isinstance(_: Interpreter, arguments: Arguments, __: Mapping[str, object]) -> object:
    """The result of `isinstance`, for plain values and builtin types."""
    if len(arguments) != 2 or not solid(arguments[0]):
        return UNKNOWN
    classes = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
    names = {
        class_value.name.removeprefix("builtins.")
        for class_value in classes
        if isinstance(class_value, ModuleValue)
    }
    if isinstance(arguments[0], tuple(_TYPES[name] for name in names & _TYPES.keys())):
        return True
    return False if len(names) == len(classes) and names <= _TYPES.keys() else UNKNOWN


_TYPES: dict[str, type] = {
    one.__name__: one for one in (str, int, float, bool, tuple, list, dict, bytes)
}


def _find_spec(interpreter: Interpreter, arguments: Arguments, _: Mapping[str, object]) -> object:
    if not arguments or not isinstance(arguments[0], str):
        return UNKNOWN
    is_present = interpreter.present(arguments[0])
    above = arguments[0].rpartition(".")[0]
    if above and is_present is False and interpreter.present(above) is False:
        raise Raised(ModuleNotFoundError.__name__)  # find_spec imports the package above
    return UNKNOWN if is_present is None else TRUE if is_present else None


def _import_module(
    interpreter: Interpreter, arguments: Arguments, _: Mapping[str, object]
) -> object:
    if len(arguments) != 1 or not isinstance(arguments[0], str):
        return UNKNOWN
    return interpreter.imported(arguments[0])


def _version(interpreter: Interpreter, arguments: Arguments, _: Mapping[str, object]) -> object:
    if not arguments or not isinstance(arguments[0], str):
        return UNKNOWN
    return interpreter.version(arguments[0]) or UNKNOWN


def _distribution(
    interpreter: Interpreter, arguments: Arguments, named: Mapping[str, object]
) -> object:
    version = _version(interpreter, arguments, named)
    return Bound(version, "distribution") if isinstance(version, str) else UNKNOWN


def _distributions_of(
    interpreter: Interpreter, arguments: Arguments, _: Mapping[str, object]
) -> object:
    """The result of `packages_distributions().get(module)`: the packages with the module."""
    if not arguments or not isinstance(arguments[0], str):
        return UNKNOWN
    owner = interpreter.owner(arguments[0])
    return [owner] if owner else UNKNOWN if owner is None else (*arguments[1:], None)[0]


def _hasattr(interpreter: Interpreter, arguments: Arguments, _: Mapping[str, object]) -> object:
    if len(arguments) != 2 or not isinstance(arguments[1], str):
        return UNKNOWN
    try:
        attribute = interpreter.attribute(arguments[0], arguments[1])
    except Raised:
        return False
    if isinstance(attribute, ModuleValue) and attribute.name not in INTRINSICS:
        standard = attribute.name.partition(".")[0] in sys.stdlib_module_names
        return UNKNOWN if standard else True  # the standard library is not read
    return UNKNOWN if attribute == UNKNOWN else True


def _getattr(interpreter: Interpreter, arguments: Arguments, _: Mapping[str, object]) -> object:
    if len(arguments) not in (2, 3) or not isinstance(arguments[1], str):
        return UNKNOWN
    try:
        return interpreter.attribute(arguments[0], arguments[1])
    except Raised:
        if len(arguments) == 3:
            return arguments[2]
        raise


def _exit(*_: object) -> object:
    raise Raised(EXIT)


def _none(*_: object) -> object:
    return None


def method(called: Bound, arguments: Sequence[object], named: Mapping[str, object]) -> object:
    """The result of a method of a plain value."""
    owner = called.owner
    if isinstance(owner, dict) and called.name in ("get", "items", "values", "keys"):
        if called.name != "get":
            return list(getattr(owner, called.name)())
        has_key = bool(arguments) and is_key(arguments[0])
        return owner.get(*arguments[:2]) if has_key else UNKNOWN
    if not solid(owner) or not all(map(solid, (*arguments, *named.values()))):
        return UNKNOWN
    if isinstance(owner, str) and _is_long(owner, called.name, arguments):
        return UNKNOWN
    try:
        return getattr(owner, called.name)(*arguments, **named)
    except (TypeError, ValueError, LookupError) as error:
        raise Raised(type(error).__name__, certain=False) from None


def _is_long(text: str, name: str, arguments: Sequence[object]) -> bool:
    """Whether a string method may return a long string, or read attributes of its arguments."""
    if name == "format":
        return "{" in _FIELD.sub("", text)
    if name == "replace" and len(arguments) > 1:
        return len(text) * max(1, len(str(arguments[1]))) > LARGEST
    if name == "join" and arguments and isinstance(arguments[0], (tuple, list, frozenset)):
        return len(text) * len(arguments[0]) > LARGEST
    return False


INTRINSICS: dict[str, Intrinsic] = {
    **{
        f"builtins.{one.__name__}": _pure(one)
        for one in (abs, dict, float, int, len, list, max, min, sorted, str, sum, tuple)
    },
    "builtins.dict.fromkeys": _pure(dict.fromkeys),
    "builtins.set": _pure(frozenset),
    "builtins.frozenset": _pure(frozenset),
    "builtins.range": _pure(_range),
    "builtins.round": _pure(_round),
    "builtins.any": _any,
    "builtins.all": _all,
    "builtins.bool": _bool,
    "builtins.isinstance": _isinstance,
    "builtins.hasattr": _hasattr,
    "builtins.getattr": _getattr,
    "builtins.print": _none,
    "builtins.__import__": _import_module,
    "sys.exit": _exit,
    "importlib.util.find_spec": _find_spec,
    "importlib.import_module": _import_module,
    "importlib.metadata.version": _version,
    "importlib.metadata.distribution": _distribution,
    "importlib.metadata.packages_distributions": lambda *_: ModuleValue(DISTRIBUTIONS),
    f"{DISTRIBUTIONS}.get": _distributions_of,
    "importlib_metadata.version": _version,
    "pkg_resources.get_distribution": _distribution,
    "pkg_resources.parse_version": _pure(_as_version),
    "packaging.version.Version": _pure(_as_version),
    "packaging.version.parse": _pure(_as_version),
    "packaging.specifiers.SpecifierSet": _pure(SpecifierSet),
    "packaging.requirements.Requirement": _pure(parse_requirement),
    "platform.system": lambda *_: "Linux",
    "typing.cast": lambda _, arguments, __: arguments[1] if len(arguments) == 2 else UNKNOWN,
    "warnings.warn": _none,
    **{
        f"operator.{name}": _pure(getattr(operator, name))
        for name in ("lt", "le", "eq", "ne", "ge", "gt")
    },
}
# Those that raise for some arguments that are unknown.
RAISING = frozenset(
    (
        *("builtins.int", "builtins.float", "packaging.version.Version", "packaging.version.parse"),
        *("importlib.metadata.version", "importlib.metadata.distribution"),
        *("importlib_metadata.version", "pkg_resources.get_distribution"),
    )
)
# Decorators that do not change the effect of a function.
TRANSPARENT = frozenset(
    (
        *("functools.lru_cache", "functools.cache", "functools.wraps", "functools.cached_property"),
        *("builtins.staticmethod", "builtins.classmethod", "builtins.property"),
        *("abc.abstractmethod", "typing.final", "typing.override", "typing_extensions.override"),
    )
)
