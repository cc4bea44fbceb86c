"""Reads values of enumerations, numbers of returned values and comparisons from syntax trees."""

# A separate module: reads syntax trees of definitions, for `wheel_sources`.
from __future__ import annotations

import ast
import re

from imgbuild.audit.code.decorators import FunctionNode
from imgbuild.audit.source.text import dotted_name, string_list, string_value
from imgbuild.audit.source.tree import body_nodes, walk_tree

REGISTERING = re.compile(rb"(?i)register|registry|[\"']\][ \t]*=[^=]")
# The ends of the names of functions and exceptions whose arguments are messages.
_MESSAGES = ("Error", "Exception", "warn", "warning", "info", "debug", "print")


def enumeration_values(definition: ast.ClassDef) -> frozenset[str]:
    """Return the values of an enumeration of strings, or none if some are not literal strings."""
    values: set[str] = set()
    for statement in definition.body:
        if isinstance(statement, ast.Assign):
            text = string_value(statement.value)
            if text is None:
                return frozenset()
            values.add(text)
    return frozenset(values)


def returned_counts(function: FunctionNode) -> frozenset[int]:
    """Return the numbers of values that a function returns, 0 for anything but a tuple display."""
    if isinstance(function, ast.AsyncFunctionDef):
        return frozenset((0,))
    counts: set[int] = set()
    for node in body_nodes(function.body):
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return frozenset((0,))
        if isinstance(node, ast.Return):
            value = node.value
            is_known = isinstance(value, ast.Tuple) and not any(
                isinstance(each, ast.Starred) for each in value.elts
            )
            counts.add(len(value.elts) if is_known and isinstance(value, ast.Tuple) else 0)
    return frozenset(counts)


def registered_names(tree: ast.Module) -> frozenset[str]:
    """Return the strings that may be registered names in a module.

    These are the keys of assigned elements, and, in a module that calls or defines a function to
    register something, all strings except those that other calls receive as keywords.
    """
    names: set[str] = set()
    texts: set[str] = set()
    passed: set[ast.expr] = set()
    registers = False
    for node in walk_tree(tree):
        text = string_value(node) if isinstance(node, ast.expr) else None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            names.update(filter(None, [string_value(node.slice)]))
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", "") or dotted_name(node.func)
            if "register" in called.lower() or "registry" in called.lower():
                registers = True
            else:
                passed.update(word.value for word in node.keywords)
        elif text is not None and node not in passed:
            texts.add(text)
    return frozenset(names | texts if registers else names)


class ComparedValues:
    """The strings with which modules compare a field of any object.

    `closed` is set if a module raises an exception for all other values, and `others` if the field
    is used in ways in which it can have other values.
    """

    def __init__(self, field: str) -> None:
        self._field = field
        self.values: set[str] = set()
        self.closed = False
        self.others = False

    def add_module(self, tree: ast.Module) -> None:
        """Add the comparisons in a module."""
        for node in walk_tree(tree):
            if isinstance(node, ast.Compare) and self._is_field(node.left):
                self._add_comparison(node)
            elif isinstance(node, ast.If) and self._rejects(node):
                self.closed = True
            elif isinstance(node, ast.Subscript):
                self.others |= self._is_field(node.slice)
            elif isinstance(node, ast.Call) and not dotted_name(node.func).endswith(_MESSAGES):
                method = node.func.value if isinstance(node.func, ast.Attribute) else None
                self.others |= any(map(self._is_field, (*node.args, *filter(None, [method]))))
            elif isinstance(node, ast.Match):
                self.others |= self._is_field(node.subject)

    def _is_field(self, node: ast.AST) -> bool:
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        return name == self._field

    def _add_comparison(self, node: ast.Compare) -> None:
        for operator, value in zip(node.ops, node.comparators, strict=True):
            text, texts = string_value(value), string_list(value)
            if isinstance(operator, (ast.Is, ast.IsNot)):
                continue
            if text is None and texts is None:
                self.others = True
            self.values.update(texts or ([text] if text is not None else ()))

    def _rejects(self, node: ast.If) -> bool:
        """Whether the last branch of an `if` raises an exception for other values of the field."""
        test = node.test
        if not isinstance(test, ast.Compare) or not self._is_field(test.left):
            return False
        if isinstance(test.ops[0], (ast.NotIn, ast.NotEq)):
            return isinstance(node.body[-1], ast.Raise) and not node.orelse
        return len(node.orelse) == 1 and isinstance(node.orelse[0], ast.Raise)
