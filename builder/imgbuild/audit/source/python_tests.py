"""Comparisons with the version of Python itself: `sys.version_info >= (3, 11)` and its relatives.

Input: a comparison. Output: its guard, which says what of version_info is compared with what.
`guards` makes the comparison as CPython would.
"""

from __future__ import annotations

import ast

from imgbuild.audit.source.facts import Guard
from imgbuild.audit.source.text import dotted

_NAMES = frozenset(("sys.version_info", "version_info"))
_FIELDS = {"major": "[0]", "minor": "[1]", "micro": "[2]"}
MIRROR = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}


def of_python(left: ast.expr, sign: str, right: ast.expr) -> Guard | None:
    """The guard of one comparison; None where neither side is version_info or a literal."""
    part = _part(left)
    if part is None:
        left, right, sign = right, left, MIRROR[sign]
        part = _part(left)
    if part is None:
        return None
    one = part.startswith("[") and ":" not in part
    wanted = _items([right] if one else right.elts if isinstance(right, ast.Tuple) else [])
    return Guard("python", part, sign + wanted) if wanted else None


def _part(node: ast.expr) -> str | None:
    """Nothing for the whole version_info, "[0]" or "[:2]" for a part; None for anything else."""
    if isinstance(node, ast.Call):  # tuple(sys.version_info[:2])
        whole = dotted(node.func) == "tuple" and len(node.args) == 1 and not node.keywords
        return _part(node.args[0]) if whole else None
    if dotted(node) in _NAMES:
        return ""
    if isinstance(node, ast.Attribute) and dotted(node.value) in _NAMES:
        return _FIELDS.get(node.attr)
    if isinstance(node, ast.Subscript) and dotted(node.value) in _NAMES:
        return _slice(node.slice)
    return None


def _slice(node: ast.expr) -> str | None:
    if not isinstance(node, ast.Slice):
        place = _number(node)
        return f"[{place}]" if place is not None else None
    first = 0 if node.lower is None else _number(node.lower)
    end = None if node.upper is None else _number(node.upper)
    return f"[:{end}]" if first == 0 and end and node.step is None else None


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def _items(nodes: list[ast.expr]) -> str:
    """Literals with dots between them: (3, 12, 0, "beta") is 3.12.0.beta."""
    values = [node.value if isinstance(node, ast.Constant) else None for node in nodes]
    plain = all(type(one) is int or (isinstance(one, str) and one.isalpha()) for one in values)
    return ".".join(map(str, values)) if plain else ""
