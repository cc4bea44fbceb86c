"""Branches: `if`, `try`, loops and the like, and what guards what is in them.

Input: statements that hold others. Output: the guards under which those run, and what names
hold after any of the ways through.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

import msgspec

from imgbuild.audit.source.bindings import Bindings
from imgbuild.audit.source.facts import Guard
from imgbuild.audit.source.known import OPAQUE, Guards, Path, State
from imgbuild.audit.source.text import dotted
from imgbuild.audit.source.tries import Tried, Try, read_try


class Branches(Bindings):
    """Reads the statements that hold others."""

    # What reads each kind of statement; it gives what then holds for the statements that follow.
    _statements: dict[type[ast.AST], Callable[..., Guards | None]]

    def block(self, statements: Sequence[ast.stmt], guards: Guards = ()) -> None:
        """Read statements one after another; what an early exit rules out holds for the rest."""
        before = self.guards
        if guards:
            self.guards = self.joined(guards)
        for statement in statements:
            handler = self._statements.get(type(statement))
            if handler is None:
                self.visit(statement)
                continue
            left = handler(statement)
            if left:
                self.guards = self.joined(left)
        self.guards = before

    def _if(self, node: ast.If) -> Guards | None:
        self.visit(node.test)
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
            ways = ((node.body, Path(held, yes)), (node.orelse, Path(other, no)))
            self.known.join(*(path for body, path in ways if not leaves(body)))
        if leaves(node.body):
            return no
        return yes if node.orelse and leaves(node.orelse) else None

    def _assert(self, node: ast.Assert) -> Guards | None:
        self.visit(node.test)
        return self.conditions.read(node.test)[0]

    def _try(self, node: Try) -> None:
        tried = read_try(node, self)
        before = self.known.state()
        self.block(node.body, tried.body)
        done = self.known.state()
        self.known.join(Path(done), Path(before, fallback=True))
        self.known.interrupted(node.body, before)
        failed = self.known.state()
        paths = self._handlers(node, tried, failed)
        self.known.turn(done)
        self.block(node.orelse, tried.orelse)
        if not leaves(node.body) and not leaves(node.orelse):
            paths.insert(0, Path(self.known.state(), tried.orelse))
        self.known.join(*paths)
        self.block(node.finalbody)
        for name, (truthy, falsy) in tried.flags.items():
            held = self.known.state().get(name, OPAQUE)
            self.known.bind(name, msgspec.structs.replace(held, truthy=truthy, falsy=falsy))

    def _handlers(self, node: Try, tried: Tried, failed: State) -> list[Path]:
        """Read what follows `except`; the ways that lead on from there."""
        paths = []
        for handler, guards in zip(node.handlers, tried.handlers, strict=True):
            self.known.turn(failed)
            if handler.type is not None:
                self.visit(handler.type)
            if handler.name:
                self.known.bind(handler.name)
                if self.scope.kind == "function":
                    self.scope.locals.bind(handler.name, "")
            self.block(handler.body, guards)
            if handler.name:  # Python deletes it
                self.known.bind(handler.name)
            if not leaves(handler.body):
                paths.append(Path(self.known.state(), guards, fallback=True))
        return paths

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        guards: Guards = ()
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self._targets(item.optional_vars, node)
            call = item.context_expr
            if isinstance(call, ast.Call) and dotted(call.func).endswith("suppress"):
                names = [dotted(argument).rpartition(".")[2] for argument in call.args]
                guards += (Guard("handled", ", ".join(names)),)
        before = self.known.state()
        self.block(node.body, guards)
        if guards:
            self.known.join(Path(self.known.state()), Path(before, fallback=True))

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        before = self.known.state()
        self.known.repeated(node.body)
        self._targets(node.target, node)
        self.block(node.body)
        self._after(node.body, before)
        self.block(node.orelse)

    def _while(self, node: ast.While) -> None:
        before = self.known.state()
        self.known.repeated((node.test, *node.body))
        self.visit(node.test)
        self.block(node.body, self.conditions.read(node.test)[0])
        self._after(node.body, before)
        self.block(node.orelse)

    def _after(self, body: Sequence[ast.stmt], before: State) -> None:
        """Names hold what they held before a loop, or what it left in them."""
        self.known.join(Path(self.known.state()), Path(before))
        self.known.interrupted(body, before)

    def _match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        before = self.known.state()
        paths = [Path(before)]
        for case in node.cases:
            self.known.turn(before)
            for part in ast.walk(case.pattern):
                for value in _compared(part):
                    self.visit(value)
                name = getattr(part, "name", None) or getattr(part, "rest", None)
                if isinstance(name, str):
                    self._bind(name, "", node)
            guards: Guards = ()
            if case.guard is not None:
                self.visit(case.guard)
                guards = self.conditions.read(case.guard)[0]
            data = (Guard("data"),) if case.guard is not None else ()
            self.block(case.body, guards or data)
            if not leaves(case.body):
                paths.append(Path(self.known.state(), guards))
        self.known.join(*paths)


def _compared(part: ast.AST) -> Sequence[ast.expr]:
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
