"""Functions that pass their `**kwargs` on: what they take then depends on who gets them.

Input: a function. Output: the callees that get all of its keywords, and those it takes out.
"""

from __future__ import annotations

import ast

from imgbuild.audit.source.text import dotted, string

# Methods of a dictionary that leave its keys alone.
_READING = frozenset(("get", "setdefault", "keys", "items", "values", "copy"))


def passed_on(
    node: ast.FunctionDef | ast.AsyncFunctionDef,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """To whom the function passes `**kwargs`, and which keys it pops; nothing if in doubt."""
    if node.args.kwarg is None:
        return (), ()
    name = node.args.kwarg.arg
    receivers: list[str] = []
    taken: list[str] = []
    uses = understood = 0
    for statement in node.body:
        for inner in ast.walk(statement):
            if isinstance(inner, ast.Name) and inner.id == name:
                uses += 1
            elif isinstance(inner, ast.Call):
                understood += _call(inner, name, receivers, taken)
            elif isinstance(inner, (ast.Subscript, ast.Compare)):
                understood += _key(inner, name, taken)
    if uses != understood or not receivers or "" in receivers:
        return (), ()
    return tuple(dict.fromkeys(receivers)), tuple(dict.fromkeys(taken))


def _call(node: ast.Call, name: str, receivers: list[str], taken: list[str]) -> int:
    """How many uses of the dictionary this call explains."""
    explained = 0
    for keyword in node.keywords:
        if keyword.arg is None and dotted(keyword.value) == name:
            receivers.append(dotted(node.func))
            explained += 1
    if isinstance(node.func, ast.Attribute) and dotted(node.func.value) == name:
        key = string(node.args[0]) if node.args else None
        if node.func.attr == "pop" and key is not None:
            taken.append(key)
            explained += 1
        elif node.func.attr in _READING:
            explained += 1
    return explained


def _key(node: ast.Subscript | ast.Compare, name: str, taken: list[str]) -> int:
    """`kwargs["x"]` and `"x" in kwargs`."""
    if isinstance(node, ast.Compare):
        asked = len(node.comparators) == 1 and dotted(node.comparators[0]) == name
        return int(asked and string(node.left) is not None)
    key = string(node.slice)
    if dotted(node.value) != name or key is None:
        return 0
    if isinstance(node.ctx, ast.Del):
        taken.append(key)
    return 1
