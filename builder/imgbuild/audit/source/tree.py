"""Traverses syntax trees in half the time of `ast.walk`.

Only nodes with a position in the source are visited, so operators and contexts (`ast.Load`) are
skipped.
"""

from __future__ import annotations

import ast
import re

# Types of fields in Python's grammar that contain no visited node.
_LEAVES = frozenset(
    (
        *("identifier", "string", "int", "constant", "expr_context"),
        *("boolop", "operator", "unaryop", "cmpop", "type_ignore"),
    )
)
_FIELD = re.compile(r"(\w+)[*?]? (\w+)")


_STATEMENTS = frozenset(("stmt", "excepthandler", "match_case"))


def _grammar(kind: type[ast.AST]) -> list[tuple[str, str]]:
    """Return the types and names of a node type's fields, from the docstring of the type."""
    text = kind.__doc__ or ""
    return _FIELD.findall(text) if text.startswith(f"{kind.__name__}(") else []


_GRAMMAR = {
    kind: _grammar(kind)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
_FIELDS = {
    kind: tuple(name for of, name in fields if of not in _LEAVES)
    for kind, fields in _GRAMMAR.items()
}
# The fields that contain statements, or the parts of statements that contain them.
BLOCKS = {
    kind: tuple(name for of, name in fields if of in _STATEMENTS)
    for kind, fields in _GRAMMAR.items()
}
_WITH_GAPS = (ast.Dict, ast.arguments)  # whose lists may contain None


def child_nodes(node: ast.AST) -> list[ast.AST]:
    """Return the direct children of a node, in the order of its fields."""
    below: list[ast.AST] = []
    for name in _FIELDS[type(node)]:
        value = getattr(node, name, None)
        if type(value) is list:
            below += value
        elif value is not None:
            below.append(value)
    if type(node) in _WITH_GAPS:
        return list(filter(None, below))
    return below


def walk_tree(node: ast.AST) -> list[ast.AST]:
    """Return a node and all of its descendants, in the order of `ast.walk`."""
    nodes = [node]
    for each in nodes:
        if _FIELDS[type(each)]:
            nodes += child_nodes(each)
    return nodes
