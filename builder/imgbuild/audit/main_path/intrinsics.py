"""Implements functions of Python and `packaging` for `evaluation`, by dotted name."""

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
    BoundValueMethod,
    EvaluatedError,
    InstalledVersion,
    ModuleValue,
    VersionText,
    is_fully_known,
    is_key,
    value_truth,
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
_VERSION_ATTRIBUTES = frozenset(
    (
        *("major", "minor", "micro", "release", "base_version", "public", "pre", "post"),
        *("dev", "is_prerelease", "is_devrelease", "is_postrelease", "epoch"),
    )
)
ATTRIBUTES: dict[type, frozenset[str]] = {
    Version: _VERSION_ATTRIBUTES | {"local"},
    InstalledVersion: _VERSION_ATTRIBUTES,
    Requirement: frozenset(("name", "specifier")),
}
# Libraries whose functions are executed here.
LIBRARIES = frozenset(("packaging", "pkg_resources", "importlib_metadata"))
DISTRIBUTIONS = "importlib.metadata.packages_distributions()"
_RANGE = 1000  # items
LARGEST_VALUE = 10000  # characters or items that an operation may create
_FIELD = re.compile(r"\{[A-Za-z0-9_]*\}")  # of a format: neither a width nor an attribute
EXIT_EXCEPTION = "SystemExit"


Arguments = tuple[object, ...]
Intrinsic = Callable[[Interpreter, Arguments, Mapping[str, object]], object]


def _wrap_pure_function(function: Callable[..., Any]) -> Intrinsic:
    """Return an intrinsic that calls a pure function if all arguments are fully known."""

    def _apply_function(
        _: Interpreter, arguments: Arguments, named: Mapping[str, object]
    ) -> object:
        if not all(map(is_fully_known, arguments)) or not all(map(is_fully_known, named.values())):
            return UNKNOWN
        try:
            result = function(*arguments, **named)
        except (InvalidVersion, InvalidSpecifier, InvalidRequirement, ArithmeticError) as error:
            raise EvaluatedError(type(error).__name__, certain=False) from None
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise EvaluatedError(type(error).__name__, certain=False) from None
        return frozenset(result) if isinstance(result, set) else result

    return _apply_function


def _range(*numbers: int) -> object:
    sequence = range(*numbers)
    return tuple(sequence) if -1 < _length(sequence) <= _RANGE else UNKNOWN


def _length(numbers: range) -> int:
    """Return the number of items, or -1 if there are too many for `len`."""
    try:
        return len(numbers)
    except OverflowError:
        return -1


def _round_number(number: float, digits: int | None = None) -> float:
    return round(number, digits if digits is None else max(-20, min(20, digits)))


def _convert_to_version(value: object) -> Version:
    is_installed = isinstance(value, (VersionText, InstalledVersion))
    return InstalledVersion(str(value)) if is_installed else Version(str(value))


def _apply_any(_: Interpreter, arguments: Arguments, __: Mapping[str, object]) -> object:
    return _test_items(arguments, expected=True)


def _apply_all(_: Interpreter, arguments: Arguments, __: Mapping[str, object]) -> object:
    return _test_items(arguments, expected=False)


def _test_items(arguments: Arguments, *, expected: bool) -> object:
    """Return the result of `all` (`expected` is False) or `any` (`expected` is True)."""
    items = arguments[0] if len(arguments) == 1 else UNKNOWN
    if not isinstance(items, (tuple, list, frozenset)):
        return UNKNOWN
    states = [value_truth(item) for item in items]
    if expected in states:
        return expected
    return UNKNOWN if None in states else not expected


def _apply_bool(_: Interpreter, arguments: Arguments, __: Mapping[str, object]) -> object:
    truth_value = value_truth(arguments[0]) if arguments else False
    return UNKNOWN if truth_value is None else truth_value


def _apply_isinstance(_: Interpreter, arguments: Arguments, __: Mapping[str, object]) -> object:
    if len(arguments) != 2 or not is_fully_known(arguments[0]):
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
    is_present = interpreter.has_module(arguments[0])
    above = arguments[0].rpartition(".")[0]
    if above and is_present is False and interpreter.has_module(above) is False:
        raise EvaluatedError(ModuleNotFoundError.__name__)  # find_spec imports the package above
    return UNKNOWN if is_present is None else TRUE if is_present else None


def _import_module(
    interpreter: Interpreter, arguments: Arguments, _: Mapping[str, object]
) -> object:
    if len(arguments) != 1 or not isinstance(arguments[0], str):
        return UNKNOWN
    return interpreter.import_module(arguments[0])


def _version(interpreter: Interpreter, arguments: Arguments, _: Mapping[str, object]) -> object:
    if not arguments or not isinstance(arguments[0], str):
        return UNKNOWN
    return interpreter.version(arguments[0]) or UNKNOWN


def _distribution(
    interpreter: Interpreter, arguments: Arguments, named: Mapping[str, object]
) -> object:
    version = _version(interpreter, arguments, named)
    return BoundValueMethod(version, "distribution") if isinstance(version, str) else UNKNOWN


def _module_distributions(
    interpreter: Interpreter, arguments: Arguments, _: Mapping[str, object]
) -> object:
    """Return the packages with a module, as in `packages_distributions().get(module)`."""
    if not arguments or not isinstance(arguments[0], str):
        return UNKNOWN
    owner = interpreter.owner(arguments[0])
    return [owner] if owner else UNKNOWN if owner is None else (*arguments[1:], None)[0]


def _apply_hasattr(
    interpreter: Interpreter, arguments: Arguments, _: Mapping[str, object]
) -> object:
    if len(arguments) != 2 or not isinstance(arguments[1], str):
        return UNKNOWN
    try:
        attribute = interpreter.attribute(arguments[0], arguments[1])
    except EvaluatedError:
        return False
    if isinstance(attribute, ModuleValue) and attribute.name not in INTRINSICS:
        standard = attribute.name.partition(".")[0] in sys.stdlib_module_names
        return UNKNOWN if standard else True  # the standard library is not read
    return UNKNOWN if attribute == UNKNOWN else True


def _apply_getattr(
    interpreter: Interpreter, arguments: Arguments, _: Mapping[str, object]
) -> object:
    if len(arguments) not in (2, 3) or not isinstance(arguments[1], str):
        return UNKNOWN
    try:
        return interpreter.attribute(arguments[0], arguments[1])
    except EvaluatedError:
        if len(arguments) == 3:
            return arguments[2]
        raise


def _raise_exit(*_: object) -> object:
    raise EvaluatedError(EXIT_EXCEPTION)


def _return_none(*_: object) -> object:
    return None


def apply_plain_method(
    called: BoundValueMethod, arguments: Sequence[object], named: Mapping[str, object]
) -> object:
    """Return the result of calling a method of a plain value."""
    owner = called.owner
    if isinstance(owner, dict) and called.name in ("get", "items", "values", "keys"):
        if called.name != "get":
            return list(getattr(owner, called.name)())
        has_key = bool(arguments) and is_key(arguments[0])
        return owner.get(*arguments[:2]) if has_key else UNKNOWN
    if not is_fully_known(owner) or not all(map(is_fully_known, (*arguments, *named.values()))):
        return UNKNOWN
    if isinstance(owner, str) and _is_long(owner, called.name, arguments):
        return UNKNOWN
    try:
        return getattr(owner, called.name)(*arguments, **named)
    except (TypeError, ValueError, LookupError) as error:
        raise EvaluatedError(type(error).__name__, certain=False) from None


def _is_long(text: str, name: str, arguments: Sequence[object]) -> bool:
    """Return whether a method may return a long string, or read attributes of the arguments."""
    if name == "format":
        return "{" in _FIELD.sub("", text)
    if name == "replace" and len(arguments) > 1:
        return len(text) * max(1, len(str(arguments[1]))) > LARGEST_VALUE
    if name == "join" and arguments and isinstance(arguments[0], (tuple, list, frozenset)):
        return len(text) * len(arguments[0]) > LARGEST_VALUE
    return False


INTRINSICS: dict[str, Intrinsic] = {
    **{
        f"builtins.{one.__name__}": _wrap_pure_function(one)
        for one in (abs, dict, float, int, len, list, max, min, sorted, str, sum, tuple)
    },
    "builtins.dict.fromkeys": _wrap_pure_function(dict.fromkeys),
    "builtins.set": _wrap_pure_function(frozenset),
    "builtins.frozenset": _wrap_pure_function(frozenset),
    "builtins.range": _wrap_pure_function(_range),
    "builtins.round": _wrap_pure_function(_round_number),
    "builtins.any": _apply_any,
    "builtins.all": _apply_all,
    "builtins.bool": _apply_bool,
    "builtins.isinstance": _apply_isinstance,
    "builtins.hasattr": _apply_hasattr,
    "builtins.getattr": _apply_getattr,
    "builtins.print": _return_none,
    "builtins.__import__": _import_module,
    "sys.exit": _raise_exit,
    "importlib.util.find_spec": _find_spec,
    "importlib.import_module": _import_module,
    "importlib.metadata.version": _version,
    "importlib.metadata.distribution": _distribution,
    "importlib.metadata.packages_distributions": lambda *_: ModuleValue(DISTRIBUTIONS),
    f"{DISTRIBUTIONS}.get": _module_distributions,
    "importlib_metadata.version": _version,
    "pkg_resources.get_distribution": _distribution,
    "pkg_resources.parse_version": _wrap_pure_function(_convert_to_version),
    "packaging.version.Version": _wrap_pure_function(_convert_to_version),
    "packaging.version.parse": _wrap_pure_function(_convert_to_version),
    "packaging.specifiers.SpecifierSet": _wrap_pure_function(SpecifierSet),
    "packaging.requirements.Requirement": _wrap_pure_function(parse_requirement),
    "platform.system": lambda *_: "Linux",
    "typing.cast": lambda _, arguments, __: arguments[1] if len(arguments) == 2 else UNKNOWN,
    "warnings.warn": _return_none,
    **{
        f"operator.{name}": _wrap_pure_function(getattr(operator, name))
        for name in ("lt", "le", "eq", "ne", "ge", "gt")
    },
}
# Those that raise for some arguments that are unknown.
RAISING_FUNCTIONS = frozenset(
    (
        *("builtins.int", "builtins.float", "packaging.version.Version", "packaging.version.parse"),
        *("importlib.metadata.version", "importlib.metadata.distribution"),
        *("importlib_metadata.version", "pkg_resources.get_distribution"),
    )
)
# Decorators that do not change the effect of a function.
TRANSPARENT_DECORATORS = frozenset(
    (
        *("functools.lru_cache", "functools.cache", "functools.wraps", "functools.cached_property"),
        *("builtins.staticmethod", "builtins.classmethod", "builtins.property"),
        *("abc.abstractmethod", "typing.final", "typing.override", "typing_extensions.override"),
    )
)
