"""Statements: what reads each kind of them, and the guards under which those inside others run.

After a statement with branches, a name holds what any of the ways through it may have left there.
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
from imgbuild.audit.source.text import dotted
from imgbuild.audit.source.try_statements import Try, TryGuards, read_try


class Statements:
    """Reads the statements of a module, in their order, each once."""

    def __init__(self, conditions: Conditions, *, package: bool) -> None:
        """For the module that `conditions` reads; `package` says that it is an `__init__`."""
        self.conditions = conditions
        self.known = conditions.known
        self.expressions = Expressions(conditions)
        self.assignments = Assignments(self.expressions, package=package)
        self.definitions = Definitions(self.expressions)
        # Called with each statement of its kind before it is read.
        self.watchers: dict[type[ast.stmt], Callable[[Any], None]] = {}

    def block(self, statements: Sequence[ast.stmt], guards: Guards = ()) -> None:
        """Read statements one after another; what an early exit rules out holds for the rest."""
        expressions = self.expressions
        before = expressions.guards
        if guards:
            expressions.guards = expressions.joined(guards)
        for statement in statements:
            kind = type(statement)
            if kind in self.watchers:
                self.watchers[kind](statement)
            reader = self._readers.get(kind)
            if reader is None:
                expressions.visit(statement)
            elif left := reader(self, statement):
                expressions.guards = expressions.joined(left)
        expressions.guards = before

    def _if(self, node: ast.If) -> Guards | None:
        self.expressions.visit(node.test)
        yes, no = self.conditions.read(node.test)
        data = () if typing_only(yes + no) else (Guard("data"),)
        before = self.known.state()
        self.block(node.body, yes or data)
        held = self.known.turn(before)
        self.block(node.orelse, no or data)
        other = self.known.state()
        if typing_only(yes):
            self.known.turn({**held, **other})
        elif typing_only(no):
            self.known.turn({**other, **held})
        else:
            ways = ((node.body, FlowPath(held, yes)), (node.orelse, FlowPath(other, no)))
            self.known.join(*(path for body, path in ways if not leaves(body)))
        if leaves(node.body):
            return no
        return yes if node.orelse and leaves(node.orelse) else None

    def _assert(self, node: ast.Assert) -> Guards | None:
        self.expressions.visit(node.test)
        return self.conditions.read(node.test)[0]

    def _try(self, node: Try) -> None:
        tried = read_try(node, self.conditions, self.assignments.absolute)
        before = self.known.state()
        self.block(node.body, tried.body)
        done = self.known.state()
        self.known.join(FlowPath(done), FlowPath(before, fallback=True))
        self.known.interrupted(node.body, before)
        failed = self.known.state()
        paths = self._handlers(node, tried, failed)
        self.known.turn(done)
        self.block(node.orelse, tried.orelse)
        if not leaves(node.body) and not leaves(node.orelse):
            paths.insert(0, FlowPath(self.known.state(), tried.orelse))
        self.known.join(*paths)
        self.block(node.finalbody)
        for name, (truthy, falsy) in tried.flags.items():
            held = self.known.state().get(name, UNKNOWN)
            self.known.bind(name, msgspec.structs.replace(held, truthy=truthy, falsy=falsy))

    def _handlers(self, node: Try, tried: TryGuards, failed: State) -> list[FlowPath]:
        """Read what follows `except`; the ways that lead on from there."""
        paths = []
        scope = self.expressions.scope
        for handler, guards in zip(node.handlers, tried.handlers, strict=True):
            self.known.turn(failed)
            if handler.type is not None:
                self.expressions.visit(handler.type)
            if handler.name:
                self.known.bind(handler.name)
                if scope.kind == "function":
                    scope.locals.bind(handler.name, "")
            self.block(handler.body, guards)
            if handler.name:  # Python deletes it
                self.known.bind(handler.name)
            if not leaves(handler.body):
                paths.append(FlowPath(self.known.state(), guards, fallback=True))
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
        before = self.known.state()
        self.block(node.body, guards)
        if guards:
            self.known.join(FlowPath(self.known.state()), FlowPath(before, fallback=True))

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        self.expressions.visit(node.iter)
        before = self.known.state()
        self.known.repeated(node.body)
        self.assignments.targets(node.target, node)
        self.block(node.body)
        self._after(node.body, before)
        self.block(node.orelse)

    def _while(self, node: ast.While) -> None:
        before = self.known.state()
        self.known.repeated((node.test, *node.body))
        self.expressions.visit(node.test)
        self.block(node.body, self.conditions.read(node.test)[0])
        self._after(node.body, before)
        self.block(node.orelse)

    def _after(self, body: Sequence[ast.stmt], before: State) -> None:
        """Names hold what they held before a loop, or what it left in them."""
        self.known.join(FlowPath(self.known.state()), FlowPath(before))
        self.known.interrupted(body, before)

    def _match(self, node: ast.Match) -> None:
        self.expressions.visit(node.subject)
        before = self.known.state()
        paths = [FlowPath(before)]
        for case in node.cases:
            self.known.turn(before)
            for part in ast.walk(case.pattern):
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
            if not leaves(case.body):
                paths.append(FlowPath(self.known.state(), guards))
        self.known.join(*paths)

    def _function(self, node: FunctionNode) -> None:
        self.definitions.function(node, self.block)

    def _class(self, node: ast.ClassDef) -> None:
        self.definitions.class_(node, self.block)

    # What reads each kind of statement; the guards that it returns hold for those that follow.
    _readers: ClassVar[dict[type[ast.stmt], Callable[[Statements, Any], Guards | None]]] = {
        ast.Import: lambda self, node: self.assignments.import_(node),
        ast.ImportFrom: lambda self, node: self.assignments.import_from(node),
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
    """The expressions of a part of a pattern that a subject is compared with."""
    if isinstance(part, ast.MatchValue):
        return (part.value,)
    if isinstance(part, ast.MatchClass):
        return (part.cls,)
    return part.keys if isinstance(part, ast.MatchMapping) else ()


def typing_only(guards: Guards) -> bool:
    """Whether a condition asks whether a type checker is reading: one branch always runs then."""
    return any(guard.kind == "typing" for guard in guards)


def leaves(block: Sequence[ast.stmt]) -> bool:
    """Whether a block never goes on to what follows it."""
    if not block:
        return False
    last = block[-1]
    if isinstance(last, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
        return True
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return dotted(last.value.func) in ("sys.exit", "exit", "quit", "os._exit", "pytest.skip")
    return isinstance(last, ast.If) and leaves(last.body) and leaves(last.orelse)
