"""Reads statements of each type, and the guards under which nested statements run.

After a statement with branches, a name has any of the values assigned on the paths through it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from imgbuild.audit.source.assignments import Assignments
from imgbuild.audit.source.conditions import Conditions
from imgbuild.audit.source.definitions import Definitions, FunctionNode
from imgbuild.audit.source.expressions import Expressions
from imgbuild.audit.source.facts import Guard
from imgbuild.audit.source.name_values import UNKNOWN, FlowPath, Guards, State
from imgbuild.audit.source.text import dotted, never_continues
from imgbuild.audit.source.tree import walk
from imgbuild.audit.source.try_statements import Try, TryGuards, imported, read_try


class Statements:
    """Reads the statements of a module in order, each once."""

    def __init__(self, conditions: Conditions, *, package: bool) -> None:
        """Read for the module of `conditions`; `package`: whether it is an `__init__`."""
        self.conditions = conditions
        self.names = conditions.names
        self.expressions = Expressions(conditions)
        self.assignments = Assignments(self.expressions, package=package)
        self.definitions = Definitions(self.expressions)
        # Called with each statement of its kind before it is read.
        self.watchers: dict[type[ast.stmt], Callable[[Any], None]] = {}
        self._after: Sequence[ast.stmt] = ()  # the statements after the `try` that is read
        self._caught = False  # whether a `try` around it handles an import's exception

    def block(self, statements: Sequence[ast.stmt], guards: Guards = ()) -> None:
        """Read statements in order; after an early exit, the rest has the opposite guards."""
        expressions = self.expressions
        before = expressions.guards
        if guards:
            expressions.guards = expressions.with_guards(guards)
        for place, statement in enumerate(statements, start=1):
            kind = type(statement)
            if kind in self.watchers:
                self.watchers[kind](statement)
            reader = self._readers.get(kind)
            if kind in (ast.Try, ast.TryStar):
                self._after = statements[place:]
            if reader is None:
                expressions.visit(statement)
            elif left := reader(self, statement):
                expressions.guards = expressions.with_guards(left)
        expressions.guards = before

    def _if(self, node: ast.If) -> Guards | None:
        self.expressions.visit(node.test)
        yes, no = self.conditions.read(node.test)
        if not yes and not no:
            yes, no = self.conditions.while_imported(node.test)
        data = () if typing_only(yes + no) else (Guard("data"),)
        before = self.names.state()
        self.block(node.body, yes or data)
        body_state = self.names.restore(before)
        self.block(node.orelse, no or data)
        other = self.names.state()
        if typing_only(yes):
            self.names.restore({**body_state, **other})
        elif typing_only(no):
            self.names.restore({**other, **body_state})
        else:
            paths = ((node.body, FlowPath(body_state, yes)), (node.orelse, FlowPath(other, no)))
            self.names.join(*(path for body, path in paths if not never_continues(body)))
        if never_continues(node.body):
            return no
        return yes if node.orelse and never_continues(node.orelse) else None

    def _assert(self, node: ast.Assert) -> Guards | None:
        self.expressions.visit(node.test)
        return self.conditions.read(node.test)[0]

    def _try(self, node: Try) -> None:
        tried = read_try(node, self.conditions, self.assignments.absolute, self._after)
        before, outside = self.names.state(), self._caught
        self._caught = bool(tried.body)
        self.block(node.body, tried.body)
        self._caught = outside
        done = self.names.state()
        self.names.join(FlowPath(done), FlowPath(before, fallback=True))
        self.names.after_interruption(node.body, before)
        failed = self.names.state()
        paths = self._handlers(node, tried, failed)
        self.names.restore(done)
        self.block(node.orelse, tried.orelse)
        if not never_continues(node.body) and not never_continues(node.orelse):
            paths.insert(0, FlowPath(self.names.state(), tried.orelse))
        self.names.join(*paths)
        self.block(node.finalbody)
        for name, (truthy, falsy) in tried.flags.items():
            name_value = self.names.state().get(name, UNKNOWN)
            self.names.bind(name, msgspec.structs.replace(name_value, truthy=truthy, falsy=falsy))

    def _handlers(self, node: Try, tried: TryGuards, failed: State) -> list[FlowPath]:
        """Read the handlers; returns the paths that continue after them."""
        paths = []
        scope = self.expressions.scope
        for handler, guards in zip(node.handlers, tried.handlers, strict=True):
            self.names.restore(failed)
            if handler.type is not None:
                self.expressions.visit(handler.type)
            if handler.name:
                self.names.bind(handler.name)
                if scope.kind == "function":
                    scope.locals.bind(handler.name, "")
            self.block(handler.body, guards)
            if handler.name:  # Python deletes it
                self.names.bind(handler.name)
            if not never_continues(handler.body):
                paths.append(FlowPath(self.names.state(), guards, fallback=True))
        return paths

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        guards: Guards = ()
        for item in node.items:
            self.expressions.visit(item.context_expr)
            if item.optional_vars is not None:
                self.assignments.targets(item.optional_vars, node)
            call = item.context_expr
            if isinstance(call, ast.Call) and dotted(call.func).endswith("suppress"):
                names = [dotted(argument).rpartition(".")[2] for argument in call.args]
                guards += (Guard("handled", ", ".join(names)),)
        before = self.names.state()
        self.block(node.body, guards)
        if guards:
            self.names.join(FlowPath(self.names.state()), FlowPath(before, fallback=True))

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        self.expressions.visit(node.iter)
        before = self.names.state()
        self.names.enter_loop(node.body)
        self.assignments.targets(node.target, node)
        self.block(node.body)
        self._after_loop(node.body, before)
        self.block(node.orelse)

    def _while(self, node: ast.While) -> None:
        before = self.names.state()
        self.names.enter_loop((node.test, *node.body))
        self.expressions.visit(node.test)
        self.block(node.body, self.conditions.read(node.test)[0])
        self._after_loop(node.body, before)
        self.block(node.orelse)

    def _after_loop(self, body: Sequence[ast.stmt], before: State) -> None:
        """Read a loop: names have their values from before it, or from its end."""
        self.names.join(FlowPath(self.names.state()), FlowPath(before))
        self.names.after_interruption(body, before)

    def _match(self, node: ast.Match) -> None:
        self.expressions.visit(node.subject)
        before = self.names.state()
        paths = [FlowPath(before)]
        for case in node.cases:
            self.names.restore(before)
            for part in walk(case.pattern):
                for value in _pattern_values(part):
                    self.expressions.visit(value)
                name = getattr(part, "name", None) or getattr(part, "rest", None)
                if isinstance(name, str):
                    self.assignments.bind(name, "", node)
            guards: Guards = ()
            if case.guard is not None:
                self.expressions.visit(case.guard)
                guards = self.conditions.read(case.guard)[0]
            data = (Guard("data"),) if case.guard is not None else ()
            self.block(case.body, guards or data)
            if not never_continues(case.body):
                paths.append(FlowPath(self.names.state(), guards))
        self.names.join(*paths)

    def _import(self, node: ast.Import | ast.ImportFrom) -> Guards | None:
        """Read a `try` body: statements after an import run only if it succeeded."""
        if isinstance(node, ast.Import):
            self.assignments.import_(node)
        else:
            self.assignments.import_from(node)
        if not self._caught:
            return None
        return tuple(Guard("present", name) for name in imported(node, self.assignments.absolute))

    def _function(self, node: FunctionNode) -> None:
        outside, self._caught = self._caught, False
        self.definitions.function(node, self.block)
        self._caught = outside

    def _class(self, node: ast.ClassDef) -> None:
        self.definitions.class_(node, self.block)

    # The reader of each kind of statement; it returns guards of the statements that follow.
    _readers: ClassVar[dict[type[ast.stmt], Callable[[Statements, Any], Guards | None]]] = {
        ast.Import: _import,
        ast.ImportFrom: _import,
        ast.Assign: lambda self, node: self.assignments.assign(node),
        ast.AnnAssign: lambda self, node: self.assignments.annotated(node),
        ast.AugAssign: lambda self, node: self.assignments.augmented(node),
        ast.Delete: lambda self, node: self.assignments.delete(node),
        ast.Global: lambda self, node: self.assignments.global_(node),
        ast.Nonlocal: lambda self, node: self.assignments.nonlocal_(node),
        ast.Expr: lambda self, node: self.assignments.expression(node),
        ast.Return: lambda self, node: self.assignments.return_(node),
        ast.FunctionDef: _function,
        ast.AsyncFunctionDef: _function,
        ast.ClassDef: _class,
        ast.If: _if,
        ast.Try: _try,
        ast.TryStar: _try,
        ast.With: _with,
        ast.AsyncWith: _with,
        ast.For: _for,
        ast.AsyncFor: _for,
        ast.While: _while,
        ast.Match: _match,
        ast.Assert: _assert,
    }


def _pattern_values(part: ast.AST) -> Sequence[ast.expr]:
    """The expressions in a part of a pattern with which the subject is compared."""
    if isinstance(part, ast.MatchValue):
        return (part.value,)
    if isinstance(part, ast.MatchClass):
        return (part.cls,)
    return part.keys if isinstance(part, ast.MatchMapping) else ()


def typing_only(guards: Guards) -> bool:
    """Whether a condition is on TYPE_CHECKING; one branch then always runs."""
    return any(guard.kind == "typing" for guard in guards)
