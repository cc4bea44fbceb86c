"""Finds the attributes that methods of a class set with computed names."""

# A separate module: reads syntax trees of classes, which no other module does.
from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import TypeGuard

from imgbuild.audit.main_path.sources import ModuleTree
from imgbuild.audit.source.text import dotted_name, string_list, string_value
from imgbuild.audit.source.tree import child_nodes, walk_tree

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_PICKLING = frozenset(("__getstate__", "__setstate__"))  # of attributes that another method sets
_ANY_ATTRIBUTE = frozenset(("__getattr__", "__getattribute__"))
# What keeps a dictionary of attributes: methods, and functions to which it is passed.
_READING_METHODS = frozenset(("copy", "get", "items", "keys", "values"))
_READERS = frozenset(("copy", "deepcopy", "dict", "dumps", "len", "list", "repr", "sorted", "str"))


def computed_attributes(source: ModuleTree, line: int) -> frozenset[str] | None:
    """Return the attributes that the class on a line sets with `setattr` and the like.

    Return None if it may have attributes with other names.
    """
    definition = source.find_class(line)
    if definition is None:
        return None
    name, setters = definition.name, _setters(source.tree)
    for node in walk_tree(source.tree):
        passed = node.args if _is_call(node, setters) else ()
        if _is_setattr(node, name) or name in map(dotted_name, passed):
            return None
    names: set[str] = set()
    for method in definition.body:
        if isinstance(method, _FUNCTIONS) and method.name not in _PICKLING:
            given = (*method.args.posonlyargs, *method.args.args)
            more = _Method(method, given[0].arg).names() if given else frozenset()
            if more is None or method.name in _ANY_ATTRIBUTE:
                return None
            names |= more
    return frozenset(names)


def _setters(tree: ast.Module) -> frozenset[str]:
    """Return the functions of a module that set attributes of an argument with `setattr`."""
    return frozenset(
        function.name
        for function in tree.body
        if isinstance(function, _FUNCTIONS)
        for argument in (*function.args.posonlyargs, *function.args.args)
        if any(_is_setattr(node, argument.arg) for node in walk_tree(function))
    )


def _is_setattr(node: ast.AST, owner: str) -> bool:
    return _is_call(node, ("setattr",)) and dotted_name(node.args[0]) == owner


def _is_call(node: ast.AST, functions: Collection[str]) -> TypeGuard[ast.Call]:
    """Whether a node calls one of these functions with positional arguments."""
    return isinstance(node, ast.Call) and bool(node.args) and dotted_name(node.func) in functions


class _Method:
    """A method, whose first parameter is `instance`."""

    def __init__(self, method: ast.FunctionDef | ast.AsyncFunctionDef, instance: str) -> None:
        self._instance = instance
        self._nodes = walk_tree(method)
        self._parents = {child: node for node in self._nodes for child in child_nodes(node)}

    def names(self) -> frozenset[str] | None:
        """Return the names of attributes that the method sets, or None if they are unknown."""
        names: set[str] = set()
        for node in self._nodes:
            if self._is_table(node) and not self._is_only_read(node):
                return None
            key = self._set_key(node)
            if key is None:
                continue
            text = string_value(key)
            more = frozenset((text,)) if text is not None else self._looped_names(key)
            if more is None:
                return None
            names |= more
        return frozenset(names)

    def _set_key(self, node: ast.AST) -> ast.expr | None:
        """Return the name that a call of `setattr` or `__setattr__` sets on the instance."""
        if not isinstance(node, ast.Call) or not node.args:
            return None
        if dotted_name(node.func) in ("setattr", "object.__setattr__"):
            owns = dotted_name(node.args[0]) == self._instance and len(node.args) > 1
            return node.args[1] if owns else None
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr == "__setattr__":
            return node.args[0]
        return None

    def _is_table(self, node: ast.AST) -> bool:
        """Whether an expression is the dictionary of the attributes of the instance."""
        if isinstance(node, ast.Call):
            is_vars = dotted_name(node.func) == "vars" and len(node.args) == 1
            return is_vars and dotted_name(node.args[0]) == self._instance
        return isinstance(node, ast.Attribute) and dotted_name(node) == f"{self._instance}.__dict__"

    def _is_only_read(self, node: ast.AST) -> bool:
        around = self._parents[node]
        match around:
            case ast.Attribute():
                return around.attr in _READING_METHODS
            case ast.Call():
                return dotted_name(around.func).rpartition(".")[2] in _READERS
            case ast.Subscript():
                return isinstance(around.ctx, ast.Load)
            case ast.For() | ast.comprehension():
                return around.iter is node
            case ast.keyword():
                return around.arg is None
        return isinstance(around, ast.Compare)

    def _looped_names(self, key: ast.expr) -> frozenset[str] | None:
        """Return the possible names of a variable of a loop, without those that are also read."""
        variable = key.value if isinstance(key, ast.Attribute) and key.attr == "name" else key
        if not isinstance(variable, ast.Name):
            return None
        if variable is key and variable.id in self._read_names:
            return frozenset()
        selected = self._selected_names(variable.id)
        if selected is not None:
            return selected
        loops = [values for name, values in self._loops() if name == variable.id]
        if len(loops) != 1 or self._stores[variable.id] != 1:
            return None
        is_fields = isinstance(loops[0], ast.Call) and (
            dotted_name(loops[0].func).rpartition(".")[2] == "fields"
        )
        if is_fields or variable is not key:
            return frozenset() if is_fields and variable is not key else None
        names = string_list(loops[0])
        return frozenset(names) if names is not None else None

    def _selected_names(self, variable: str) -> frozenset[str] | None:
        """Return the values of the dictionary D in `variable = D[…]`, if it has a literal."""
        assigned = [
            (dotted_name(node.targets[0]), node.value)
            for node in self._nodes
            if isinstance(node, ast.Assign) and len(node.targets) == 1
        ]
        entries = [each for name, each in assigned if name == variable]
        if len(entries) != 1 or not isinstance(entries[0], ast.Subscript):
            return None
        table = dotted_name(entries[0].value)
        literals = [each for name, each in assigned if name == table]
        is_only_read = all(
            isinstance(self._parents[node], ast.Subscript)
            and isinstance(getattr(self._parents[node], "ctx", None), ast.Load)
            for node in self._nodes
            if isinstance(node, ast.Name) and node.id == table and isinstance(node.ctx, ast.Load)
        )
        if len(literals) != 1 or not isinstance(literals[0], ast.Dict) or not is_only_read:
            return None
        if self._stores[variable] != 1 or self._stores[table] != 1:
            return None
        texts = [string_value(each) for each in literals[0].values]
        names = frozenset(each for each in texts if each is not None)
        return names if names and None not in texts else None

    @property
    def _read_names(self) -> frozenset[str]:
        """The variables in `getattr(self, variable)`: an attribute of this name exists."""
        return frozenset(
            dotted_name(node.args[1])
            for node in self._nodes
            if isinstance(node, ast.Call)
            and dotted_name(node.func) == "getattr"
            and len(node.args) == 2
            and dotted_name(node.args[0]) == self._instance
        )

    @property
    def _stores(self) -> Mapping[str, int]:
        """The number of bindings of each name."""
        counts: dict[str, int] = {}
        for node in self._nodes:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                counts[node.id] = counts.get(node.id, 0) + 1
        return counts

    def _loops(self) -> Iterator[tuple[str, ast.expr]]:
        """Yield the variables of loops, each with the expression that has its values."""
        for node in self._nodes:
            if not isinstance(node, (ast.For, ast.comprehension)):
                continue
            if isinstance(node.target, ast.Name):
                yield node.target.id, node.iter
            elif isinstance(node.target, ast.Tuple) and isinstance(
                node.iter, (ast.Tuple, ast.List)
            ):
                rows = [row.elts for row in node.iter.elts if isinstance(row, ast.Tuple)]
                for place, each in enumerate(node.target.elts):
                    column = [row[place] for row in rows if place < len(row)]
                    if isinstance(each, ast.Name) and len(column) == len(node.iter.elts):
                        yield each.id, ast.List(column, ast.Load())
