"""Expressions that hold the parameters of a callable: `inspect.signature(f).parameters`.

Comes in: expressions and what the module has bound so far. Goes out: the callable. Code asks for
a parameter before it passes it where releases of another package differ in having it.
"""

from __future__ import annotations

import ast

from imgbuild.audit.source.facts import FIELDS
from imgbuild.audit.source.name_values import NameValues
from imgbuild.audit.source.text import dotted, string

# Functions that give a signature, what it is then asked for, and what leaves the names as they are.
_SIGNATURES = frozenset(("signature", "getfullargspec", "getargspec"))
_TABLES = frozenset(("parameters", "args", "kwonlyargs", "kwonlydefaults"))
_SAME = frozenset(("set", "list", "tuple", "dict", "frozenset", "sorted"))
UNNAMED = "?"  # a callable that is no dotted name


class Signatures:
    """What the names of a module have to do with parameters."""

    def __init__(self, known: NameValues) -> None:
        """With what the names hold: `sig = inspect.signature(f)`, `params = sig.parameters`."""
        self.known = known

    def holder(self, node: ast.expr) -> str:
        """The callable whose parameters an expression holds; "" if it holds none.

        Of a dataclass whose fields it holds that is "X.__dataclass_fields__".
        """
        if isinstance(node, ast.NamedExpr):
            return self.holder(node.value)
        if isinstance(node, ast.Name):
            return self.known.held(node.id).holder
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, (ast.SetComp, ast.ListComp, ast.GeneratorExp, ast.DictComp)):
            return self._named(node)
        return self._call(node) if isinstance(node, ast.Call) else ""

    def _attribute(self, node: ast.Attribute) -> str:
        if node.attr in _TABLES:
            return self.holder(node.value)
        name = dotted(node)
        if name.endswith(FIELDS):
            return name
        return name.removesuffix(".__code__.co_varnames") if node.attr == "co_varnames" else ""

    def _call(self, node: ast.Call) -> str:
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "values", "copy"):
            return "" if node.args else self.holder(node.func.value)
        if len(node.args) != 1:
            return ""
        last = dotted(node.func).rpartition(".")[2]
        if last in _SIGNATURES:
            return dotted(node.args[0]) or UNNAMED
        if last == "fields":
            name = dotted(node.args[0])
            return f"{name}{FIELDS}" if name else ""
        return self.holder(node.args[0]) if last in _SAME else ""

    def _named(self, node: ast.SetComp | ast.ListComp | ast.GeneratorExp | ast.DictComp) -> str:
        """`{field.name for field in fields(X)}`, `{name: p for name, p in parameters.items()}`."""
        part = node.generators[0]
        if len(node.generators) != 1 or part.ifs:
            return ""
        target, source = part.target, part.iter
        call = source.func if isinstance(source, ast.Call) else source
        if isinstance(call, ast.Attribute) and call.attr == "items":
            source = call.value
            target = target.elts[0] if isinstance(target, ast.Tuple) else node
        variable = target.id if isinstance(target, ast.Name) else ""
        name = dotted(node.key if isinstance(node, ast.DictComp) else node.elt)
        return self.holder(source) if variable and name in (variable, f"{variable}.name") else ""

    def asked(self, test: ast.expr) -> tuple[str, str] | None:
        """The callable and the parameter of `"x" in P`, `"x" not in P` and `P.get("x")`.

        The parameter is "" where it is no literal.
        """
        holder, name = "", None
        if isinstance(test, ast.Compare):
            if len(test.ops) == 1 and isinstance(test.ops[0], (ast.In, ast.NotIn)):
                holder, name = self.holder(test.comparators[0]), test.left
        elif isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute) and test.args:
            called = test.func
            holder = self.holder(called.value) if called.attr == "get" else ""
            name = test.args[0]
        return (holder, string(name) or "") if holder else None
