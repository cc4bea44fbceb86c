"""Comparisons with a part of a version: `Version(torch.__version__).release[:2] >= (2, 6)`.

Input: a comparison. Output: the package, and the specifier that the whole version then fits.
Only parts that begin with the first number have one; of others nothing is said.
"""

from __future__ import annotations

import ast
from typing import Literal

import msgspec

from imgbuild.audit.source.python_tests import MIRROR
from imgbuild.audit.source.text import dotted, string
from imgbuild.audit.source.versions import Versions

_SINGLE = ("number", "text")


class Part(msgspec.Struct, frozen=True):
    """The first numbers of a package's version: how many, and as what they are compared."""

    package: str
    count: int
    form: Literal["number", "numbers", "text", "texts"]


def of_part(
    versions: Versions, left: ast.expr, sign: str, right: ast.expr
) -> tuple[str, str] | None:
    """The package and the specifier of one comparison; None if neither side is a part."""
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
    """What the whole version fits where its first numbers compare so with as many others."""
    text = ".".join(map(str, items))
    if sign in ("==", "!="):
        return f"{sign}{text}.*"
    if sign in ("<", ">="):
        return f"{sign}{text}"
    after = ".".join(map(str, [*items[:-1], items[-1] + 1]))
    return f"<{after}" if sign == "<=" else f">={after}"


def _part(versions: Versions, node: ast.expr) -> Part | None:
    if isinstance(node, ast.Attribute):
        package = versions.package(node.value) if node.attr == "major" else ""
        return Part(package, 1, "number") if package else None
    if isinstance(node, ast.Subscript):
        return _cut(versions, node)
    if isinstance(node, ast.Call) and len(node.args) in (1, 2) and not node.keywords:
        return _converted(versions, dotted(node.func), node.args)
    return None


def _cut(versions: Versions, node: ast.Subscript) -> Part | None:
    """`….release[:2]`, `….split(".")[0]`."""
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
        return Part(package, count, "number" if single else "numbers") if package else None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        split = value.func.attr == "split" and [string(one) for one in value.args] == ["."]
        package = versions.package(value.func.value) if split else ""
        return Part(package, count, "text" if single else "texts") if package else None
    return None


def _converted(versions: Versions, callee: str, given: list[ast.expr]) -> Part | None:
    """`int(….split(".")[0])`, `tuple(map(int, ….split(".")[:2]))`."""
    inner = given[0]
    if callee == "int" and len(given) == 1:
        part = _part(versions, inner)
        fits = part is not None and part.form in _SINGLE
        return msgspec.structs.replace(part, form="number") if part and fits else None
    if callee != "tuple" or len(given) != 1:
        return None
    texts: ast.expr | None = None
    if isinstance(inner, ast.Call) and dotted(inner.func) == "map" and len(inner.args) == 2:
        texts = inner.args[1] if dotted(inner.args[0]) == "int" else None
    elif isinstance(inner, (ast.GeneratorExp, ast.ListComp)):
        texts = _each_as_int(inner)
    part = _part(versions, texts) if texts is not None else None
    fits = part is not None and part.form == "texts"
    return msgspec.structs.replace(part, form="numbers") if part and fits else None


def _each_as_int(node: ast.GeneratorExp | ast.ListComp) -> ast.expr | None:
    """What `int(x) for x in …` goes through; None for any other comprehension."""
    each, made = node.generators[0], node.elt
    if len(node.generators) != 1 or each.ifs or not isinstance(made, ast.Call):
        return None
    name = dotted(each.target)
    whole = dotted(made.func) == "int" and [dotted(one) for one in made.args] == [name]
    return each.iter if name and whole else None


def _items(part: Part, node: ast.expr) -> list[int]:
    """The numbers that a part is compared with; nothing if they are no literals of its form."""
    if part.form in _SINGLE:
        nodes = [node]
    else:
        wanted = ast.Tuple if part.form == "numbers" else ast.List
        nodes = node.elts if isinstance(node, wanted) else []
    if part.form in ("number", "numbers"):
        found = [_number(one) for one in nodes]
    else:
        texts = [string(one) or "" for one in nodes]
        found = [int(text) if text.isdecimal() else None for text in texts]
    return [] if None in found else [one for one in found if one is not None]


def _number(node: ast.expr | None) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None
