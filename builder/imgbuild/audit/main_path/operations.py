"""Evaluates operators and comparisons of values, with bounds."""

# A separate module: pure functions.
from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.audit.main_path.intrinsics import LARGEST_VALUE
from imgbuild.audit.main_path.values import (
    UNKNOWN,
    EvaluatedError,
    FunctionValue,
    InstalledVersion,
    ModuleValue,
    OpaqueObject,
    VersionText,
    is_fully_known,
    value_truth,
)

_OPERATIONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
_WIDTH = re.compile(r"%[^%A-Za-z]*[0-9*]")  # a width or precision in a format
# Signs whose result depends on the local part of a version if all other parts are equal.
_LOCAL_COMPARISONS = (ast.Eq, ast.NotEq, ast.Gt, ast.LtE)


def apply_operator(sign: ast.AST, left: object, right: object) -> object:
    """Return the result of `left sign right`, or UNKNOWN if it may be large.

    Raises EvaluatedError if the operation fails.
    """
    operation = _OPERATIONS.get(type(sign))
    if operation is None or not is_fully_known(left) or not is_fully_known(right):
        return UNKNOWN
    if _is_too_large(sign, left, right) or _depends_on_local(sign, left, right):
        return UNKNOWN
    try:
        result = operation(left, right)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise EvaluatedError(type(error).__name__, certain=False) from None
    large = isinstance(result, (str, tuple, list)) and len(result) > LARGEST_VALUE
    return UNKNOWN if large else result


def is_identical(left: object, right: object) -> bool | None:
    """Return whether two values are identical, or None if unknown."""
    for value, other in ((left, right), (right, left)):
        if value is None or isinstance(value, bool):
            if isinstance(other, (OpaqueObject, ModuleValue)) and value_truth(other) is None:
                return None
            if isinstance(other, OpaqueObject):
                return False if other.truth is True and not value else None
            return value is other
    return True if left == right and isinstance(left, (ModuleValue, FunctionValue)) else None


def is_contained(item: object, holder: object) -> bool | None:
    """Return the result of `item in holder`, or None if unknown."""
    if isinstance(holder, VersionText) or not is_fully_known(item):
        return None
    if isinstance(holder, str):
        return item in holder if isinstance(item, str) else None
    if isinstance(holder, SpecifierSet):
        return None
    if not isinstance(holder, (tuple, list, dict, frozenset)):
        return None
    if any(is_fully_known(member) and member == item for member in holder):
        return True
    return False if all(map(is_fully_known, holder)) else None


def _is_too_large(sign: ast.AST, left: object, right: object) -> bool:
    if isinstance(sign, ast.Mod):
        return isinstance(left, str) and _WIDTH.search(left) is not None
    if not isinstance(sign, ast.Mult):
        return False
    sized = [operand for operand in (left, right) if isinstance(operand, (str, bytes, tuple, list))]
    counts = [operand for operand in (left, right) if isinstance(operand, int)]
    if sized:
        return any(len(sized[0]) * count > LARGEST_VALUE for count in counts)
    return sum(operand.bit_length() for operand in counts) > LARGEST_VALUE


def _depends_on_local(sign: ast.AST, left: object, right: object) -> bool:
    """Return whether a comparison depends on the local part (`+cu124`) of an installed version."""
    for value, other in ((left, right), (right, left)):
        if isinstance(value, VersionText) and isinstance(other, str):
            return isinstance(sign, (ast.Eq, ast.NotEq)) and other.partition("+")[0] == value
        if isinstance(value, InstalledVersion) and isinstance(other, Version):
            open_ = (
                isinstance(sign, _LOCAL_COMPARISONS) or value is right or other.local is not None
            )
            return value.public == other.public and open_
    return False
