"""Reads calls and attribute accesses in expressions, with the types of their receivers.

A reference whose receiver is a local name is resolved at the end of the module, when all bindings
of the name are known.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from imgbuild.audit.source.conditions import ConditionReader
from imgbuild.audit.source.facts import Guard
from imgbuild.audit.source.name_values import Guards
from imgbuild.audit.source.scopes import NONE_TYPE, RESULT_PREFIX, LocalTypes, SourceScope
from imgbuild.audit.source.stdlib import SUBSCRIPT, subscriptable_classes
from imgbuild.audit.source.text import dotted_name, string_value
from imgbuild.audit.source.tree import child_nodes, walk_tree

# Python 3.14 evaluates annotations only on request (PEP 649).
_EVALUATED_ANNOTATIONS = (Guard("python", "", "<3.14"),)
# Functions that set attributes of their first argument, or read which ones there are.
_ATTRIBUTE_FUNCTIONS = frozenset(("__setattr__", "delattr", "dir", "object", "setattr", "vars"))
# Nodes without references, which are half of all nodes.
_LEAVES = frozenset((ast.Constant, ast.Name))


class NameUse(msgspec.Struct, gc=False):
    """A call or read that becomes a fact if its first component turns out to be known.

    It is known if `root` is bound at the top of the module, or if the name `key` has a type in
    `types`.
    """

    line: int
    expression: str
    scope: str
    guards: Guards
    root: str = ""
    types: LocalTypes | None = None
    key: str = ""
    receiver: str = ""
    call: ast.Call | None = None
    store: bool = False


class ExpressionReader:
    """Reads expressions of a module, in the current scope and under the current guards."""

    def __init__(self, conditions: ConditionReader) -> None:
        self.conditions = conditions
        self.names = conditions.names
        self.scope = SourceScope("", "module", None)
        self.guards: Guards = ()
        self.chains = False  # whether results of methods of local names and of results have types
        self.lazy_annotations = False  # `from __future__ import annotations`
        self.records: list[NameUse] = []
        # The number of names to which a call's result is unpacked.
        self.unpacked: dict[ast.Call, int] = {}
        # Attributes that the module itself assigns: reading them does not require that they exist.
        self.stored: set[str] = set()
        # Functions of the module that set attributes of their arguments with `setattr`.
        self._setters: set[str] = set()
        self._classes = {name.rpartition(".")[2] for name in subscriptable_classes()}

    def read_expression(self, node: ast.AST) -> None:
        """Record the names used in an expression."""
        visitor = self._visitors.get(type(node))
        if visitor is not None:
            visitor(self, node)
            return
        for child in child_nodes(node):
            if type(child) not in _LEAVES:
                self.read_expression(child)

    def read_under_guards(self, guards: Guards, node: ast.AST) -> None:
        """Read an expression that runs only under additional guards."""
        if not guards:
            self.read_expression(node)
            return
        before, self.guards = self.guards, self.add_current_guards(guards)
        self.read_expression(node)
        self.guards = before

    def read_annotation(self, node: ast.expr) -> None:
        """Read an annotation, which Python versions before 3.14 evaluate at its definition."""
        if not self.lazy_annotations:
            self.read_under_guards(_EVALUATED_ANNOTATIONS, node)

    def add_current_guards(self, guards: Guards) -> Guards:
        """Return the current guards, followed by `guards`, without duplicates."""
        return self.guards + tuple(guard for guard in guards if guard not in self.guards)

    def expression_type(self, node: ast.AST | None) -> str:
        """Return the type of the value of an expression.

        Returns "" if the type is unknown, and "None" for None.
        """
        if isinstance(node, ast.Await):
            return ""
        if isinstance(node, ast.Call):
            name = dotted_name(node.func)
            first = name.partition(".")[0]
            if self.chains and self.is_self(first):
                return self._method_result_type(name.partition(".")[2])
            if self.chains and (not name or self.local_types(first) is not None):
                return self._result_type(node, name)
            is_global = first and self.local_types(first) is None and not self.is_self(first)
            return f"{name}()" if is_global and first not in ("super", "cls") else ""
        if isinstance(node, ast.Name):
            types = self.local_types(node.id)
            return types.names.get(node.id, "") if types else ""
        if isinstance(node, ast.Constant) and node.value is None:
            return NONE_TYPE
        return ""

    def _method_result_type(self, method: str) -> str:
        """Return the type of the result of `self.method()`, as a result of the class's method."""
        scope: SourceScope | None = self.scope
        while scope is not None and scope.kind != "class":
            scope = scope.parent
        return f"{scope.name}.{method}()" if scope is not None and "." not in method else ""

    def _result_type(self, node: ast.Call, name: str) -> str:
        """Return the type of the result of `name.method()`.

        Method calls on other results are also supported.
        """
        if not name:
            callee = self._callee_text(node)
            return f"{callee}()" if callee else ""
        first, _, method = name.partition(".")
        here = self.local_types(first) is self.scope.locals
        return f"{RESULT_PREFIX}{name}()" if here and method and "." not in method else ""

    def _callee_text(self, node: ast.Call) -> str:
        """Return the callee of a call, such as "a.b" or "a.b().c".

        Returns "" if its first name is local or unknown.
        """
        name = dotted_name(node.func)
        if not name and self.chains and isinstance(node.func, ast.Attribute):
            inner = node.func.value
            callee = self._callee_text(inner) if isinstance(inner, ast.Call) else ""
            return f"{callee}().{node.func.attr}" if callee not in ("", "super", "cls") else ""
        first = name.partition(".")[0]
        is_global = first and self.local_types(first) is None and not self.is_self(first)
        return name if is_global else ""

    def local_types(self, name: str) -> LocalTypes | None:
        """Return the types recorded by the function that binds a name, or None."""
        scope: SourceScope | None = self.scope
        inside = True
        while scope is not None and scope.kind != "module":
            if scope.kind == "function" or inside:
                if name in scope.imported:
                    return None
                if name in scope.locals.names:
                    return scope.locals
            inside = False
            scope = scope.parent
        return None

    def _is_imported_here(self, name: str) -> bool:
        scope: SourceScope | None = self.scope
        while scope is not None and scope.kind != "module":
            if name in scope.imported:
                return True
            scope = scope.parent
        return False

    def is_self(self, name: str) -> bool:
        """Return whether a name is the first parameter of the current method."""
        scope: SourceScope | None = self.scope
        while scope is not None and scope.kind == "function":
            if scope.instance:
                return scope.instance == name
            scope = scope.parent
        return False

    def _read_call(self, node: ast.Call) -> None:
        func = node.func
        name = dotted_name(func)
        if name:
            if name == "isinstance" and node.args:
                self._forget_type(node.args[0])
            elif name.rpartition(".")[2] in _ATTRIBUTE_FUNCTIONS and node.args:
                self._read_setattr(name, node.args[:1])
            elif name in self._setters:
                self._read_setattr(name, node.args)
            elif name == "getattr" and len(node.args) == 2:
                self._read_getattr(node)
            self._record_reference(name, node, call=node)
        elif isinstance(func, ast.Attribute) and isinstance(func.value, ast.Call):
            self._read_chained_call(func, func.value, node)
        else:
            self.read_expression(func)
        for argument in node.args:
            if type(argument) not in _LEAVES:
                self.read_expression(argument)
        for keyword in node.keywords:
            if type(keyword.value) not in _LEAVES:
                self.read_expression(keyword.value)

    def _read_getattr(self, node: ast.Call) -> None:
        """Record `getattr(module, "name")` without a default as an attribute read."""
        subject, name = dotted_name(node.args[0]), string_value(node.args[1])
        if subject and name and name.isidentifier():
            self._record_reference(f"{subject}.{name}", node)

    def _read_chained_call(self, func: ast.Attribute, inner: ast.Call, node: ast.Call) -> None:
        """Record a method call on the result of a call, such as `LLM(…).generate()`."""
        callee = dotted_name(inner.func)
        if callee == "super":
            if self.scope.owner is not None and not inner.args:
                self._add_reference(f"super().{func.attr}", node, call=node)
        else:
            self.read_expression(inner)
            callee = self._callee_text(inner)
            if callee:
                first = callee.partition(".")[0].removesuffix("()")
                root = "" if self._is_imported_here(first) else first
                receiver = f"{callee}()"
                self._add_reference(
                    f"{callee}().{func.attr}", node, root=root, receiver=receiver, call=node
                )

    def _read_attribute(self, node: ast.Attribute) -> None:
        name = dotted_name(node)
        if not name:
            self.read_expression(node.value)
        elif type(node.ctx) is ast.Load:
            self._record_reference(name, node)
        else:
            self._record_store(node, name)

    def _record_store(self, node: ast.Attribute, name: str) -> None:
        first, _, rest = name.partition(".")
        if self.is_self(first) and "." not in rest:
            self.self_attribute(rest, "")
            return
        types = self.local_types(first)
        self.stored.add(node.attr if types is not None else name)
        if node.attr in ("__class__", "__dict__"):
            self.stored.add(f"{name.rpartition('.')[0]}.*")
        if isinstance(node.value, ast.Attribute):
            self._record_reference(dotted_name(node.value), node)
        if not self.chains or type(node.ctx) is not ast.Store:
            return
        if types is not None and "." not in rest:
            self._add_reference(name, node, types=types, key=first, store=True)
        elif self.is_self(first) and rest.count(".") == 1 and self.scope.owner is not None:
            key = rest.partition(".")[0]
            self._add_reference(name, node, types=self.scope.owner.assigned, key=key, store=True)

    def self_attribute(self, name: str, kind: str) -> None:
        """Record that a method assigns an attribute of the type `kind` to self."""
        owner = self.scope.owner
        if owner is not None:
            owner.assigned.bind_type(name, kind)
            owner.dynamic = owner.dynamic or name == "__dict__"

    def _record_reference(self, name: str, node: ast.expr, call: ast.Call | None = None) -> None:
        """Add a reference if its first component is imported, bound by the module or typed."""
        if "__dict__" in name:
            self.stored.add(f"{name.partition('.__dict__')[0]}.*")
        first, *rest = name.split(".")
        if rest and self.is_self(first):
            self._self_reference(first, rest, node, call)
            return
        types = self.local_types(first)
        if types is None:
            if rest or call is not None:
                root = "" if self._is_imported_here(first) else first
                self._add_reference(name, node, root=root, call=call)
            return
        if not rest or not types.names.get(first):
            return
        if len(rest) > 1:
            name, call = f"{first}.{rest[0]}", None
        self._add_reference(name, node, types=types, key=first, call=call)

    def _self_reference(
        self, first: str, rest: list[str], node: ast.expr, call: ast.Call | None
    ) -> None:
        owner = self.scope.owner
        if owner is None:
            return
        if len(rest) == 1:
            self._add_reference(f"self.{rest[0]}", node, call=call)
            return
        if len(rest) > 2:
            call = None
        if rest[0] == "__dict__":
            owner.dynamic = True
            return
        name = f"self.{rest[0]}.{rest[1]}"
        self._add_reference(name, node, types=owner.assigned, key=rest[0], call=call)
        self._add_reference(f"self.{rest[0]}", node)

    def _add_reference(
        self,
        expression: str,
        node: ast.expr,
        *,
        root: str = "",
        types: LocalTypes | None = None,
        key: str = "",
        receiver: str = "",
        call: ast.Call | None = None,
        store: bool = False,
    ) -> None:
        self.records.append(
            NameUse(
                node.lineno,
                expression,
                self.scope.name,
                self.guards,
                root,
                types,
                key,
                receiver,
                call,
                store,
            )
        )

    def _read_subscript(self, node: ast.Subscript) -> None:
        """Record `array.array[int]`, which becomes a fact if the module imports the name."""
        self.read_expression(node.value)
        self.read_expression(node.slice)
        name = dotted_name(node.value)
        if type(node.ctx) is not ast.Load or name.rpartition(".")[2] not in self._classes:
            return
        first = name.partition(".")[0]
        if self.local_types(first) is None and not self.is_self(first):
            root = "" if self._is_imported_here(first) else first
            self._add_reference(name + SUBSCRIPT, node, root=root)

    def _forget_type(self, node: ast.expr) -> None:
        """Read `isinstance(name, …)`, which shows that the name can have several types."""
        name = dotted_name(node)
        first, _, rest = name.partition(".")
        if rest and self.is_self(first):
            if self.scope.owner is not None:
                self.scope.owner.assigned.bind_type(rest, "")
        elif (types := self.local_types(first)) is not None:
            types.forget(first)

    def _read_setattr(self, function: str, changed: Sequence[ast.expr]) -> None:
        """Read a call that adds attributes with unknown names to the objects `changed`."""
        if function == "setattr" and self.scope.kind == "function":
            self._setters.add(self.scope.name)
        for name in filter(None, map(dotted_name, changed)):
            if self.is_self(name) and self.scope.owner is not None:
                self.scope.owner.dynamic = True
            self.stored.add(f"{name}.*")

    def _read_boolean(self, node: ast.BoolOp) -> None:
        """Read `a and b`, where b runs only if a is true, or `a or b`, where a must be false."""
        before = self.guards
        for value in node.values:
            self.read_expression(value)
            yes, no = self.conditions.read(value)
            self.guards = self.add_current_guards(yes if isinstance(node.op, ast.And) else no)
        self.guards = before

    def _read_conditional(self, node: ast.IfExp) -> None:
        self.read_expression(node.test)
        yes, no = self.conditions.read(node.test)
        self.read_under_guards(yes, node.body)
        self.read_under_guards(no, node.orelse)

    def _read_lambda(self, node: ast.Lambda) -> None:
        given = node.args
        arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        names = [item.arg for item in arguments if item is not None]
        self.names.enter_scope("function", (), node.lineno, names)
        self._read_with_rebound_names(names, node.body)
        self.names.leave_scope()

    def _read_with_rebound_names(self, names: list[str], *nodes: ast.AST) -> None:
        scope = SourceScope(self.scope.name, "function", self.scope)
        scope.instance = self.scope.instance if self.scope.kind == "function" else ""
        scope.owner = self.scope.owner
        for name in names:
            scope.locals.bind_type(name, "")
        before, self.scope = self.scope, scope
        for node in nodes:
            self.read_expression(node)
        self.scope = before

    def _read_comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> None:
        names: list[str] = []
        inside: list[ast.expr] = []
        for part in node.generators:
            self.read_expression(part.iter)
            names.extend(item.id for item in walk_tree(part.target) if isinstance(item, ast.Name))
            inside.extend(part.ifs)
        self.names.enter_scope("inner", (), node.lineno, names)
        guards: tuple[Guard, ...] = ()
        for test in inside:
            guards += self.conditions.read(test)[0]
        before, self.guards = self.guards, self.add_current_guards(guards)
        inside.extend((node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,))
        self._read_with_rebound_names(names, *inside)
        self.guards = before
        self.names.leave_scope()

    def _read_named_expression(self, node: ast.NamedExpr) -> None:
        self.read_expression(node.value)
        self.names.bind_conditionally(node.target.id, self.conditions.value(node.value))
        if self.scope.kind == "function":
            self.scope.locals.bind_type(node.target.id, self.expression_type(node.value))

    def _has_no_reference(self, node: ast.AST) -> None:
        """Ignore a node that contains no reference."""

    _visitors: ClassVar[dict[type[ast.AST], Callable[[ExpressionReader, Any], None]]] = {
        ast.Call: _read_call,
        ast.Attribute: _read_attribute,
        ast.Subscript: _read_subscript,
        ast.BoolOp: _read_boolean,
        ast.IfExp: _read_conditional,
        ast.Lambda: _read_lambda,
        ast.ListComp: _read_comprehension,
        ast.SetComp: _read_comprehension,
        ast.GeneratorExp: _read_comprehension,
        ast.DictComp: _read_comprehension,
        ast.NamedExpr: _read_named_expression,
        ast.Constant: _has_no_reference,
        ast.Name: _has_no_reference,
    }
