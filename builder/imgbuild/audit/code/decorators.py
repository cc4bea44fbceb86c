"""Reads how decorators change the parameters of functions.

A decorator that returns the function, or a wrapper that passes all arguments on, keeps the
parameters. A wrapper can accept more keywords, and remove them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from imgbuild.audit.source.text import dotted_name, string_value
from imgbuild.audit.source.tree import body_nodes, walk_tree

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_DEPTH = 6  # decorators that call each other


def wrapper_keywords(
    decorator: FunctionNode, resolve: Callable[[str], FunctionNode | None], depth: int = 0
) -> frozenset[str] | None:
    """Return the keywords that a decorator, called or not, adds to a function.

    The decorator returns the function, a wrapper that passes all arguments on, or another decorator
    that does so. Return None for other decorators. `resolve` returns the function with a name.
    """
    return _Decorator(decorator, resolve, depth).added_keywords() if depth <= _DEPTH else None


class _Decorator:
    def __init__(
        self,
        decorator: FunctionNode,
        resolve: Callable[[str], FunctionNode | None],
        depth: int,
    ) -> None:
        self._decorator = decorator
        self._resolve = resolve
        self._depth = depth + 1
        given = decorator.args
        self._names = [each.arg for each in (*given.posonlyargs, *given.args)]
        self._own = self._names[0] if self._names else ""
        self._nodes = list(body_nodes(decorator.body))
        self._inner = {node.name: node for node in self._nodes if isinstance(node, FunctionNode)}
        for node in self._nodes:
            if isinstance(node, ast.Assign) and _is_name(node.value, self._own):
                self._names += [each.id for each in node.targets if isinstance(each, ast.Name)]

    def added_keywords(self) -> frozenset[str] | None:
        """Return the keywords that the results of all `return` statements add."""
        values = [node.value for node in self._nodes if isinstance(node, ast.Return)]
        added: frozenset[str] = frozenset()
        for value in values:
            more = self._keywords(value, self._own)
            if more is None:
                return None
            added |= more
        return added if values else None

    def _keywords(self, value: ast.expr | None, first: str) -> frozenset[str] | None:
        if isinstance(value, ast.Name):
            if value.id in self._inner:
                wrapper = self._inner[value.id]
                removed = _removed_by_wrapper(wrapper, self._names, self._resolve)
                return (
                    wrapper_keywords(wrapper, self._resolve, self._depth)
                    if removed is None
                    else removed
                )
            return frozenset() if value.id == first else None
        if isinstance(value, ast.Lambda) and len(value.args.args) == 1:
            return self._keywords(value.body, value.args.args[0].arg)
        return self._call_keywords(value, first) if isinstance(value, ast.Call) else None

    def _call_keywords(self, value: ast.Call, first: str) -> frozenset[str] | None:
        function = value.func
        if isinstance(function, ast.Call):  # its own result: D()(function)
            return frozenset() if dotted_name(function.func) == self._decorator.name else None
        name = dotted_name(function)
        last = name.rpartition(".")[2]
        if last == "cast" and len(value.args) == 2:
            return self._keywords(value.args[1], first)
        if last == "partial" and value.args:
            return frozenset() if dotted_name(value.args[0]) == self._decorator.name else None
        if last in self._inner:
            return wrapper_keywords(self._inner[last], self._resolve, self._depth)
        # another function that decorates its first argument
        other = self._resolve(name) if value.args and name else None
        before = self._keywords(value.args[0], first) if other is not None else None
        more = wrapper_keywords(other, self._resolve, self._depth) if other is not None else None
        return before | more if before is not None and more is not None else None


def _removed_by_wrapper(
    wrapper: FunctionNode, functions: list[str], resolve: Callable[[str], FunctionNode | None]
) -> frozenset[str] | None:
    """Return the keywords that a wrapper removes before it calls one of `functions`.

    Return None unless the wrapper passes all other arguments on, unchanged.
    """
    given = wrapper.args
    if given.vararg is None or given.kwarg is None or given.kwonlyargs or given.defaults:
        return None
    star, words = given.vararg.arg, given.kwarg.arg
    calls = 0
    aside: set[ast.AST] = set()
    removed_keywords: frozenset[str] = frozenset()
    for node in body_nodes(wrapper.body):
        if isinstance(node, ast.If) and _leaves_function(node.body, functions):
            aside.update(each for statement in node.body for each in walk_tree(statement))
        if node in aside:
            continue
        if isinstance(node, ast.Call) and dotted_name(node.func) in functions:
            if not _passes_all(node, star, words):
                return None
            calls += 1
        elif isinstance(node, ast.Call) and dotted_name(node.func).startswith(f"{words}."):
            method = dotted_name(node.func).rpartition(".")[2]
            removed = string_value(node.args[0]) if node.args else None
            if method not in ("get", "items", "keys", "values", "copy") and removed != "self":
                return None
        elif isinstance(node, ast.Assign) and dotted_name(node.targets[0]) == words:
            more = _removed_by_call(node, words, resolve)
            if more is None:
                return None
            removed_keywords |= more
            aside.update(node.targets)
        elif changes_name(node, words):
            return None
    return removed_keywords if calls > 0 else None


def changes_name(node: ast.AST, name: str) -> bool:
    """Whether a node is a name, or an entry of it, that a statement assigns or deletes."""
    if not isinstance(node, (ast.Name, ast.Subscript)) or isinstance(node.ctx, ast.Load):
        return False
    return dotted_name(node.value if isinstance(node, ast.Subscript) else node) == name


def _passes_all(call: ast.Call, star: str, words: str) -> bool:
    """Whether a call passes `*star` and `**words`, and no other keywords."""
    starred = [each for each in call.args if isinstance(each, ast.Starred)]
    named = [(word.arg, dotted_name(word.value)) for word in call.keywords]
    return [dotted_name(each.value) for each in starred] == [star] and named == [(None, words)]


def _removed_by_call(
    assignment: ast.Assign, words: str, resolve: Callable[[str], FunctionNode | None]
) -> frozenset[str] | None:
    """Return the keywords that `f` removes in `kwargs = f(…, kwargs)`, or None if unknown.

    The function `f` changes a copy of the dictionary, and returns the copy.
    """
    call = assignment.value
    function = resolve(dotted_name(call.func)) if isinstance(call, ast.Call) else None
    if function is None or not isinstance(call, ast.Call) or len(assignment.targets) != 1:
        return None
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    places = [
        *(name for name, value in zip(names, call.args, strict=False) if _is_name(value, words)),
        *(word.arg for word in call.keywords if _is_name(word.value, words)),
    ]
    first = next((each for each in function.body if isinstance(each, ast.Assign)), None)
    if len(places) != 1 or first is None or dotted_name(first.targets[0]) in ("", *names):
        return None
    copied, source = dotted_name(first.targets[0]), first.value
    if not isinstance(source, ast.Call) or dotted_name(source.func) != f"{places[0]}.copy":
        return None
    keys: set[str] = set()
    allowed: set[ast.AST] = {first.targets[0]}
    for node in body_nodes(function.body):
        if isinstance(node, ast.Call) and dotted_name(node.func) == f"{copied}.pop" and node.args:
            key = string_value(node.args[0])
            if key is None:
                return None
            keys.add(key)
            allowed.update(walk_tree(node.func))
        elif isinstance(node, ast.Subscript) and string_value(node.slice) is not None:
            allowed.add(node.value)  # sets a keyword
        elif isinstance(node, ast.Return):
            if not _is_name(node.value, copied):
                return None
            allowed.update(walk_tree(node))
        elif _is_name(node, copied) and node not in allowed:
            return None
    return frozenset(keys)


def _is_name(node: ast.AST | None, name: str | None) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _leaves_function(body: list[ast.stmt], functions: list[str]) -> bool:
    """Whether a branch returns or raises an exception without calling one of `functions`."""
    return isinstance(body[-1], (ast.Return, ast.Raise)) and not any(
        isinstance(node, ast.Call) and dotted_name(node.func) in functions
        for node in body_nodes(body)
    )
