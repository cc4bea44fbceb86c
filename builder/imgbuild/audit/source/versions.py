"""Reads expressions for package versions and parts of them.

`Version(torch.__version__).release[:2] >= (2, 6)` compares a part of a version. A part has a
specifier only if it starts with the first number. Other parts have no guard.
"""

# A separate module: one type of condition.
from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from imgbuild.audit.source.comparisons import MIRROR
from imgbuild.audit.source.name_values import NameValues
from imgbuild.audit.source.text import dotted_name, string_value

_LOOKS_LIKE = re.compile(r"v?\d+(\.\d+)*[\w.+-]*$")
# Functions that parse a version, and those that return a package's version.
_PARSERS = frozenset(("Version", "parse", "parse_version", "LooseVersion", "StrictVersion", "str"))
_MAKERS = _PARSERS - {"str"}
# Functions that convert a part of a version, and methods that return the version itself.
_CONVERTERS = frozenset(("bool", "float", "int", "list", "map", "tuple"))
_TRIMMING_METHODS = frozenset(
    ("lstrip", "removeprefix", "removesuffix", "replace", "rstrip", "strip")
)
_VERSION_FUNCTIONS = frozenset(
    [
        "version",
        "get_version",
        "package_version",
        "get_package_version",
        "get_pkg_version",
        "pkg_version",
        "_get_version",
        "get_distribution",
        "distribution",
        "importlib_version",
        "metadata_version",
    ]
)
_VERSION_ATTRIBUTES = frozenset(("release", "base_version", "public", "version", "__version__"))
_SINGLE_KINDS = ("number", "text")


class VersionReader:
    """Recognizes expressions for the versions of packages."""

    def __init__(self, names: NameValues) -> None:
        self.names = names

    def package(self, node: ast.AST) -> str:
        """Return the package whose version an expression returns, or "" if it is not a version."""
        if not self.names.versioned:
            return ""
        if isinstance(node, ast.Name):
            return self.names.value(node.id).package
        if isinstance(node, ast.Subscript):
            return self._first_of_split(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._package_of_call(node)
        return ""

    def _first_of_split(self, node: ast.Subscript) -> str:
        """Return the version in `….split("+")[0]`, which removes the local part."""
        zero = isinstance(node.slice, ast.Constant) and node.slice.value == 0
        call = node.value
        if not zero or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return ""
        cut = call.func.attr in ("split", "partition") and call.args
        return self.package(call.func.value) if cut and string_value(call.args[0]) == "+" else ""

    def _attribute(self, node: ast.Attribute) -> str:
        name = dotted_name(node)
        if node.attr in ("__version__", "VERSION", "version") and name:
            first = name.partition(".")[0]
            module = self.names.value(first).module
            if module and node.attr != "version":
                return module.partition(".")[0]
        if node.attr in _VERSION_ATTRIBUTES:
            return self.package(node.value)
        return ""

    def _package_of_call(self, node: ast.Call) -> str:
        callee = dotted_name(node.func)
        last = callee.rpartition(".")[2]
        if isinstance(node.func, ast.Attribute) and node.func.attr in _TRIMMING_METHODS:
            return self.package(node.func.value)
        if not callee:
            return ""
        if not node.args:
            return ""
        if last in _VERSION_FUNCTIONS:
            text = string_value(node.args[0])
            if text is None and isinstance(node.args[0], ast.Name):
                text = self.names.value(node.args[0].id).literal
            if text and not _LOOKS_LIKE.match(text):
                return text.replace("-", "_")
        return self.package(node.args[0]) if last in _PARSERS else ""

    def depends_on_version(self, node: ast.AST) -> bool:
        """Return whether a value was computed from a version, or from a condition on a version."""
        if not self.names.versioned:
            return False
        if isinstance(node, ast.Name):
            return self.names.value(node.id).derived or bool(self.package(node))
        if self.package(node) or all(self.version_conditions(node)):
            return True
        if isinstance(node, ast.Attribute):
            return self.depends_on_version(node.value)
        if isinstance(node, ast.Call):
            return self._is_version_call(node)
        if isinstance(node, ast.Compare):
            return any(map(self._version, (node.left, *node.comparators)))
        if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
            return self.depends_on_version(node.generators[0].iter)
        return any(map(self.depends_on_version, _operands(node)))

    def version_conditions(self, node: ast.AST) -> tuple[bool, bool]:
        """Return whether a true result depends on packages, and whether a false result does.

        The expression is an attribute or a call of a function.
        """
        last = ""
        if isinstance(node, ast.Attribute):
            last = node.attr
        elif isinstance(node, ast.Call):
            callee = dotted_name(node.func)
            last = callee.rpartition(".")[2]
            last = last if callee in (last, f"self.{last}", f"cls.{last}") else ""
        return self.names.answers.get(last, (False, False))

    def _is_version_call(self, node: ast.Call) -> bool:
        callee = dotted_name(node.func)
        if callee.rpartition(".")[2] in _PARSERS or callee in _CONVERTERS:
            return any(map(self.depends_on_version, node.args))
        return isinstance(node.func, ast.Attribute) and self.depends_on_version(node.func.value)

    def _version(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call) and dotted_name(node.func).rpartition(".")[2] in _MAKERS:
            return bool(self.literal_version(node)) or self.depends_on_version(node)
        return self.depends_on_version(node)

    def literal_version(self, node: ast.AST) -> str:
        """Return the version in a literal expression, or "" if it contains none."""
        text = string_value(node)
        if text is None and isinstance(node, ast.Name):
            text = self.names.value(node.id).literal or None
        if text is not None:
            return text.removeprefix("v") if _LOOKS_LIKE.match(text) else ""
        if isinstance(node, ast.Attribute) and node.attr in _VERSION_ATTRIBUTES:
            return self.literal_version(node.value)
        if isinstance(node, ast.Call) and len(node.args) == 1:
            last = dotted_name(node.func).rpartition(".")[2]
            return self.literal_version(node.args[0]) if last in _PARSERS | {"version"} else ""
        return number_tuple_version(node)


def _operands(node: ast.AST) -> Sequence[ast.expr]:
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.IfExp):
        return (node.body, node.orelse)
    if isinstance(node, (ast.Tuple, ast.List)):
        return node.elts
    if isinstance(node, ast.UnaryOp):
        return (node.operand,)
    return (node.value,) if isinstance(node, (ast.NamedExpr, ast.Subscript)) else ()


def number_tuple_version(node: ast.AST) -> str:
    """Return the version in a tuple of numbers, such as 3.11 for (3, 11).

    Returns "" for other expressions.
    """
    if not isinstance(node, ast.Tuple) or not node.elts:
        return ""
    parts = []
    for item in node.elts:
        if not (isinstance(item, ast.Constant) and type(item.value) is int):
            return ""
        parts.append(str(item.value))
    return ".".join(parts)


class VersionPart(msgspec.Struct, frozen=True):
    """The first `count` numbers of a package's version, and their type in a comparison."""

    package: str
    count: int
    form: Literal["number", "numbers", "text", "texts"]


def part_comparison(
    versions: VersionReader, left: ast.expr, sign: str, right: ast.expr
) -> tuple[str, str] | None:
    """Return the package and specifier of a comparison with a part of a version.

    Returns None if neither side is a part of a version.
    """
    part = _part(versions, left)
    if part is None:
        left, right, sign = right, left, MIRROR[sign]
        part = _part(versions, left)
    if part is None:
        return None
    items = _items(part, right)
    ordered = part.form in ("number", "numbers")
    if len(items) != part.count or not (ordered or sign in ("==", "!=")):
        return None
    return part.package, _spec(sign, items)


def _spec(sign: str, items: list[int]) -> str:
    """Return a specifier of the versions whose first numbers compare to `items` with `sign`."""
    text = ".".join(map(str, items))
    if sign in ("==", "!="):
        return f"{sign}{text}.*"
    if sign in ("<", ">="):
        return f"{sign}{text}"
    after = ".".join(map(str, [*items[:-1], items[-1] + 1]))
    return f"<{after}" if sign == "<=" else f">={after}"


def _part(versions: VersionReader, node: ast.expr) -> VersionPart | None:
    if isinstance(node, ast.Attribute):
        package = versions.package(node.value) if node.attr == "major" else ""
        return VersionPart(package, 1, "number") if package else None
    if isinstance(node, ast.Subscript):
        return _sliced_part(versions, node)
    if isinstance(node, ast.Call) and len(node.args) in (1, 2) and not node.keywords:
        return _converted_part(versions, dotted_name(node.func), node.args)
    return None


def _sliced_part(versions: VersionReader, node: ast.Subscript) -> VersionPart | None:
    """Return the part of a version in `….release[:2]` or `….split(".")[0]`."""
    value, single, count = node.value, not isinstance(node.slice, ast.Slice), 0
    if isinstance(node.slice, ast.Slice):
        first = node.slice.lower
        if node.slice.step is None and (first is None or _number(first) == 0):
            count = _number(node.slice.upper) or 0
    elif _number(node.slice) == 0:
        count = 1
    if count < 1:
        return None
    if isinstance(value, ast.Attribute) and value.attr == "release":
        package = versions.package(value.value)
        return VersionPart(package, count, "number" if single else "numbers") if package else None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        split = value.func.attr == "split" and [
            string_value(argument) for argument in value.args
        ] == ["."]
        package = versions.package(value.func.value) if split else ""
        return VersionPart(package, count, "text" if single else "texts") if package else None
    return None


def _converted_part(
    versions: VersionReader, callee: str, given: list[ast.expr]
) -> VersionPart | None:
    """Return the part of a version that a call converts to integers.

    The call is `int(….split(".")[0])` or `tuple(map(int, ….split(".")[:2]))`.
    """
    inner = given[0]
    if callee == "int" and len(given) == 1:
        part = _part(versions, inner)
        fits = part is not None and part.form in _SINGLE_KINDS
        return msgspec.structs.replace(part, form="number") if part and fits else None
    if callee != "tuple" or len(given) != 1:
        return None
    texts: ast.expr | None = None
    if isinstance(inner, ast.Call) and dotted_name(inner.func) == "map" and len(inner.args) == 2:
        texts = inner.args[1] if dotted_name(inner.args[0]) == "int" else None
    elif isinstance(inner, (ast.GeneratorExp, ast.ListComp)):
        texts = _integer_iterable(inner)
    part = _part(versions, texts) if texts is not None else None
    fits = part is not None and part.form == "texts"
    return msgspec.structs.replace(part, form="numbers") if part and fits else None


def _integer_iterable(node: ast.GeneratorExp | ast.ListComp) -> ast.expr | None:
    """Return the iterable in `int(x) for x in …`, or None for other comprehensions."""
    each, element = node.generators[0], node.elt
    if len(node.generators) != 1 or each.ifs or not isinstance(element, ast.Call):
        return None
    name = dotted_name(each.target)
    whole = dotted_name(element.func) == "int" and [
        dotted_name(argument) for argument in element.args
    ] == [name]
    return each.iter if name and whole else None


def _items(part: VersionPart, node: ast.expr) -> list[int]:
    """Return the numbers with which a part is compared, or [] if they are not suitable literals."""
    if part.form in _SINGLE_KINDS:
        nodes = [node]
    else:
        node_type = ast.Tuple if part.form == "numbers" else ast.List
        nodes = node.elts if isinstance(node, node_type) else []
    if part.form in ("number", "numbers"):
        numbers = [_number(element) for element in nodes]
    else:
        texts = [string_value(element) or "" for element in nodes]
        numbers = [int(text) if text.isdecimal() else None for text in texts]
    return [] if None in numbers else [number for number in numbers if number is not None]


def _number(node: ast.expr | None) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None
