"""A module's own `__getattr__`: the names that it answers to.

Input: the function and the literal tables of the module. Output: names and where each comes
from; the module counts as dynamic if the function may answer to others.
"""

from __future__ import annotations

import ast

import msgspec

from imgbuild.audit.source.definitions import FunctionNode
from imgbuild.audit.source.text import dotted, string, strings
from imgbuild.audit.source.walk import Walker


class Appearing(msgspec.Struct):
    """What was found: see the fields of the same names in ModuleFacts."""

    lazy: dict[str, str] = {}
    stars: list[str] = []
    registers: list[str] = []
    dynamic: bool = False


def read_getattr(
    node: FunctionNode, tables: dict[str, ast.expr], walker: Walker, found: Appearing
) -> None:
    """A module's `__getattr__`: the names that it answers to, if it says which they are."""
    name = node.args.args[0].arg if node.args.args else "name"
    understood = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
    for statement in node.body:
        understood &= _answers(statement, name, tables, walker, found)
    found.dynamic |= not understood


def _answers(
    statement: ast.stmt,
    name: str,
    tables: dict[str, ast.expr],
    walker: Walker,
    found: Appearing,
) -> bool:
    """Whether a statement answers to none but names that were read from it."""
    if isinstance(statement, ast.If):
        known = _test(statement, name, tables, walker, found)
        rest = all(_answers(one, name, tables, walker, found) for one in statement.orelse)
        return known and rest
    if isinstance(statement, ast.Try):
        inner = [*statement.body, *statement.orelse, *statement.finalbody]
        return all(_answers(one, name, tables, walker, found) for one in inner)
    if isinstance(statement, ast.Return):
        return _looked_up(statement, tables, found, walker)
    if isinstance(statement, ast.Assign):
        _looked_up(statement, tables, found, walker)
    return True


def _test(
    statement: ast.If, name: str, tables: dict[str, ast.expr], walker: Walker, found: Appearing
) -> bool:
    """`if name == "X"`, `if name in TABLE`: the names go into the table of lazy ones."""
    test = statement.test
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    if isinstance(test, ast.Call) and dotted(test.func) == f"{name}.startswith":
        return bool(statement.body) and isinstance(statement.body[-1], ast.Raise)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        test = next((one for one in test.values if isinstance(one, ast.Compare)), test)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return isinstance(statement.body[-1], ast.Raise)
    left, right = test.left, test.comparators[0]
    if dotted(right) == name:
        left, right = right, left
    if dotted(left) != name:
        known = _looked_up(statement, tables, found, walker)
        return known or isinstance(statement.body[-1], ast.Raise)
    return _names(statement, right, tables, walker, found)


def _names(
    statement: ast.If,
    right: ast.expr,
    tables: dict[str, ast.expr],
    walker: Walker,
    found: Appearing,
) -> bool:
    """Note the names that the name asked for is compared with."""
    one = string(right)
    names = [one] if one is not None else strings(right)
    if names is not None:
        for item in names:
            found.lazy[item] = _taken(statement.body, item, walker)
        return True
    holder = dotted(right)
    if isinstance(right, ast.Call) and dotted(right.func) == "globals":
        return True
    if holder in tables:
        _table(tables[holder], walker, found)
        return True
    if holder == "__all__":
        for item in walker.exports or ():
            found.lazy.setdefault(item, "")
        return walker.exports is not None
    return False


def _taken(body: list[ast.stmt], name: str, walker: Walker) -> str:
    """Where a branch for one name takes it from: the import in it, if it is of that name."""
    for statement in body:
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    other = "" if alias.name == name else f":{alias.name}"
                    return walker.absolute(statement) + other
    return ""


def _looked_up(
    statement: ast.stmt, tables: dict[str, ast.expr], found: Appearing, walker: Walker
) -> bool:
    """Whether a table is asked for the name, in any way."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and node.id in tables:
            _table(tables[node.id], walker, found)
            return True
    return False


def _table(table: ast.expr, walker: Walker, found: Appearing) -> None:
    if not isinstance(table, ast.Dict):
        names = strings(table)
        if names is None:
            found.dynamic = True
        for name in names or ():
            found.lazy.setdefault(name, "")
        return
    for key, value in zip(table.keys, table.values, strict=True):
        text = string(key)
        if text is None:
            found.dynamic = True
        else:
            found.lazy[text] = _target(value, text, walker) or _typed(text, walker)


def _typed(name: str, walker: Walker) -> str:
    """Where type checkers are told that a name comes from."""
    for line in walker.imports:
        if line.bound == name and line.name and line.guards and line.guards[-1].kind == "typing":
            return line.module if line.name == name else f"{line.module}:{line.name}"
    return ""


def _target(value: ast.expr, name: str, walker: Walker) -> str:
    """Module and name of a table's value: ".outputs:X", "pkg.mod", (".mod", "X")."""
    text = string(value) or ":".join((strings(value) or [])[:2])
    module, _, other = text.partition(":")
    if module.startswith("."):
        level = len(module) - len(module.lstrip("."))
        parts = walker.base.split(".")
        module = ".".join([*parts[: len(parts) - level + 1], module.lstrip(".")]).rstrip(".")
    if not module.replace(".", "").replace("_", "").isalnum():
        return ""
    return module if other in ("", name) else f"{module}:{other}"
