"""Replaces calls and dictionaries in a program with equivalent forms that are easier to read.

A call of a name for `partial(f, …)` becomes a call of f, `TABLE["key"](…)` a call of the function
in the table, `a | b` after `**` a dictionary display, and `a |= {…}` a call of `update`. A call of
a function that returns a dictionary display becomes this display, without the values.
"""

# A separate module: `program` expands the keywords of the result.
from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from imgbuild.audit.source.scopes import binding_sites
from imgbuild.audit.source.text import dotted_name, string_value
from imgbuild.audit.source.tree import (
    Lines,
    body_nodes,
    children_on_lines,
    matching_lines,
    walk_tree,
)

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
_WORDS = re.compile(
    rb"=[ \t]*(?:functools\.)?partial\(|\[[\"'][\w.-]+[\"']\]\(|\*\*[ \t]*(?:\w+\(|\()"
    rb"|\|=[ \t]*(?:\{|dict\b)"
)
_FORMS = rb"\*\*[ \t]*(?:\w+[ \t]*[(|]|[({])|\|=|\]\(|\.update\("
# `name.update(kwargs)`, and `name = f(…)`, for names after `**`.
_STARRED = re.compile(rb"\*\*[ \t]*(\w+)")
_PARTIAL_NAME = re.compile(rb"^[ \t]*(\w+)[ \t]*=[ \t]*(?:functools\.)?partial\(", re.MULTILINE)
_UPDATE = re.compile(rb"\.update\((\w+)\)")
_ASSIGNED_CALL = re.compile(
    rb"^[ \t]*(\w+)[ \t]*=[ \t]*(?:\w+\(|\{[^\n]*\}[ \t]*\||\w+[ \t]*\|)", re.MULTILINE
)
_RETURNED_DICTIONARY = re.compile(rb"\breturn[ \t]*\(?\s*(?:\{|dict\()")
_BLOCKS = ("body", "orelse", "finalbody")
# Returns the values of names in a scope: calls of partial, tables of functions, and functions.
_Values = Callable[[], Mapping[str, ast.AST | None]]


def simplify_program(tree: ast.Module, source: bytes) -> set[str]:
    """Replace the forms in the tree of a program. Return the names that are now dictionaries."""
    if not _may_have_forms(source):
        return set()
    simplifier = _Simplifier(source)
    calls = _any_of(_PARTIAL_NAME.findall(source))
    assigned = _any_of(_STARRED.findall(source))
    pattern = re.compile(rb"%b|\b%b\(|\b%b[ \t]*=(?!=)" % (_FORMS, calls, assigned))
    simplifier.visit(tree, matching_lines(source, pattern), ())
    return simplifier.dictionaries


def _may_have_forms(source: bytes) -> bool:
    """Whether a source may have one of the forms, most of which need `**`."""
    if b"**" not in source and b"partial(" not in source and b"](" not in source:
        return False
    if _WORDS.search(source) is not None:
        return True
    starred = set(_STARRED.findall(source))
    if not starred.isdisjoint(_UPDATE.findall(source)):
        return True
    returned = b"return" in source and _RETURNED_DICTIONARY.search(source) is not None
    return (returned or b"|" in source) and not starred.isdisjoint(_ASSIGNED_CALL.findall(source))


def _any_of(names: Iterable[bytes]) -> bytes:
    return rb"(?:%b)" % b"|".join(sorted(set(names)) or [rb"(?!)"])


class _Simplifier:
    def __init__(self, source: bytes) -> None:
        self.dictionaries: set[str] = set()
        self._expressions = b":=" in source
        self._starred = set(_STARRED.findall(source))
        self._updates = b"|=" in source
        self._globals = b"global" in source

    def visit(self, node: ast.AST, lines: Lines, around: tuple[_Values, ...]) -> None:
        """Replace the forms below a node that extend over `lines`.

        `around` are the values of names, innermost last.
        """
        if isinstance(node, (ast.Module, *_FUNCTIONS)):
            around = (*around, functools.cache(functools.partial(self._values, node)))
            if isinstance(node, _FUNCTIONS):
                _forward_updates(node)
        for child, below in children_on_lines(node, lines):
            self.visit(child, below, around)
        if isinstance(node, ast.Call):
            _replace_callee(node, around)
            for word in node.keywords:
                if word.arg is None:
                    word.value = _display(word.value, around) or word.value
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            name = dotted_name(node.targets[0])
            shown = _display(node.value, around) if name.encode() in self._starred else None
            if shown is not None and not isinstance(node.value, ast.Dict):
                node.value = shown
                self.dictionaries.add(name)
        if self._updates:
            for block in _BLOCKS:
                _replace_updates(getattr(node, block, None))

    def _values(self, scope: _Scope) -> Mapping[str, ast.AST | None]:
        """Return the names that a scope binds. Names that are bound several times have no value."""
        values: dict[str, ast.AST | None] = {}
        given = None if isinstance(scope, ast.Module) else scope.args
        if given is not None:
            named = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
            values |= {each.arg: None for each in named if each is not None}
        sites = binding_sites(scope.body, expressions=self._expressions)
        declared = {
            name
            for node in (walk_tree(scope) if given is None and self._globals else ())
            if isinstance(node, ast.Global)
            for name in node.names
        }
        for name in sites:
            values[name] = None
        for statement in scope.body:
            name, value = _binding(statement)
            if value is not None and len(sites.get(name, ())) == 1 and name not in declared:
                values[name] = value
        return values


def _binding(statement: ast.stmt) -> tuple[str, ast.AST | None]:
    """Return the name and value of an assignment, or of the definition of a function."""
    if isinstance(statement, ast.FunctionDef):
        return statement.name, statement
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        value = statement.value
        is_partial = isinstance(value, ast.Call) and _is_partial(value)
        if is_partial or isinstance(value, ast.Dict):
            return dotted_name(statement.targets[0]), value
    return "", None


def _is_partial(node: ast.Call) -> bool:
    return dotted_name(node.func) in ("partial", "functools.partial") and bool(node.args)


def _find(name: str, around: Sequence[_Values]) -> ast.AST | None:
    return next((found[name] for values in reversed(around) if name in (found := values())), None)


def _replace_callee(node: ast.Call, around: Sequence[_Values]) -> None:
    """Replace the callee if it is a name for a partial call, or an entry of a table."""
    callee = node.func
    if isinstance(callee, ast.Name):
        value = _find(callee.id, around)
        if isinstance(value, ast.Call) and dotted_name(value.args[0]):
            unknown = ast.copy_location(ast.Constant(None), node)
            node.func = ast.copy_location(value.args[0], callee)
            node.args = [
                ast.copy_location(ast.Starred(unknown, ast.Load()), callee),
                *node.args,
            ]
            node.keywords.append(ast.copy_location(ast.keyword(None, unknown), callee))
    elif isinstance(callee, ast.Subscript) and isinstance(callee.value, ast.Name):
        table, key = _find(callee.value.id, around), string_value(callee.slice)
        if isinstance(table, ast.Dict) and key is not None:
            entries = [
                value
                for each, value in zip(table.keys, table.values, strict=True)
                if each is not None and string_value(each) == key
            ]
            if len(entries) == 1 and None not in table.keys and dotted_name(entries[0]):
                node.func = entries[0]


def _display(node: ast.expr, around: Sequence[_Values]) -> ast.Dict | None:
    """Return a dictionary display with the keys of an expression, or None if it has none."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        parts: list[ast.expr] = [_display(each, around) or each for each in (node.left, node.right)]
        if not all(isinstance(each, (ast.Dict, ast.Name)) or _is_dict(each) for each in parts):
            return None
        return ast.copy_location(ast.Dict([None] * len(parts), parts), node)
    if isinstance(node, ast.Dict):
        return node
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    function = _find(node.func.id, around)
    returned = _returned(function) if isinstance(function, ast.FunctionDef) else None
    if isinstance(returned, ast.Call) and not returned.args:
        keys: list[ast.expr | None] = [
            ast.Constant(word.arg) if word.arg is not None else None for word in returned.keywords
        ]
    elif isinstance(returned, ast.Dict):
        keys = [
            ast.Constant(text) if key is not None and (text := string_value(key)) else None
            for key in returned.keys
        ]
    else:
        return None
    unknown = ast.copy_location(ast.Constant(None), node)
    for key in filter(None, keys):
        ast.copy_location(key, node)
    return ast.copy_location(ast.Dict(keys, [unknown] * len(keys)), node)


def _is_dict(node: ast.AST) -> bool:
    return isinstance(node, ast.Dict) or (
        isinstance(node, ast.Call) and dotted_name(node.func) == "dict"
    )


def _returned(function: ast.FunctionDef) -> ast.expr | None:
    """Return the value of the only `return` statement of a function."""
    if function.decorator_list:
        return None
    nodes = list(body_nodes(function.body))
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in nodes):
        return None
    values = [node.value for node in nodes if isinstance(node, ast.Return)]
    return values[0] if len(values) == 1 and _is_dict(values[0] or function) else None


def _replace_updates(block: object) -> None:
    """Replace `name |= {…}` in a block by `name.update({…})`."""
    for at, statement in enumerate(block if isinstance(block, list) else ()):
        if (
            isinstance(statement, ast.AugAssign)
            and isinstance(statement.op, ast.BitOr)
            and isinstance(statement.target, ast.Name)
            and _is_dict(statement.value)
        ):
            target = statement.target
            name = ast.copy_location(ast.Name(target.id, ast.Load()), target)
            method = ast.copy_location(ast.Attribute(name, "update", ast.Load()), target)
            call = ast.copy_location(ast.Call(method, [statement.value], []), statement)
            block[at] = ast.copy_location(ast.Expr(call), statement)  # type: ignore[index]


def _forward_updates(function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """Pass the keywords of a function to `f(**name)` if it adds them to the dictionary `name`.

    The function must not use its keywords and the dictionary for anything else.
    """
    if function.args.kwarg is None:
        return
    words = function.args.kwarg.arg
    uses = [node for node in walk_tree(function) if isinstance(node, ast.Name) and node.id == words]
    updates = [
        (at, statement.value.func.value.id)
        for at, statement in enumerate(function.body)
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Attribute)
        and statement.value.func.attr == "update"
        and isinstance(statement.value.func.value, ast.Name)
        and [dotted_name(each) for each in statement.value.args] == [words]
        and not statement.value.keywords
    ]
    if len(uses) != 1 or len(updates) != 1:
        return
    at, name = updates[0]
    calls = [
        node
        for statement in function.body[at + 1 :]
        for node in walk_tree(statement)
        if isinstance(node, ast.Call)
        and any(word.arg is None and dotted_name(word.value) == name for word in node.keywords)
    ]
    others = [
        node
        for statement in function.body[at + 1 :]
        for node in walk_tree(statement)
        if isinstance(node, ast.Name) and node.id == name
    ]
    if len(calls) == 1 and len(others) == 1:
        passed = ast.copy_location(ast.Name(words, ast.Load()), calls[0])
        calls[0].keywords.append(ast.copy_location(ast.keyword(None, passed), calls[0]))
        function.body[at] = ast.copy_location(ast.Pass(), function.body[at])
