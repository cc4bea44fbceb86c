"""Reads each type of statement, and the guards under which nested statements run.

After a statement with branches, a name can have any value assigned on a path through it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from imgbuild.audit.source.assignments import AssignmentReader
from imgbuild.audit.source.conditions import ConditionReader
from imgbuild.audit.source.definitions import DefinitionReader, FunctionNode
from imgbuild.audit.source.expressions import ExpressionReader
from imgbuild.audit.source.facts import Guard
from imgbuild.audit.source.name_values import UNKNOWN_VALUE, FlowPath, Guards, ScopeState
from imgbuild.audit.source.scopes import ELEMENT
from imgbuild.audit.source.text import dotted_name, never_continues
from imgbuild.audit.source.tree import walk_tree
from imgbuild.audit.source.try_statements import (
    TryGuards,
    TryStatement,
    imported_subjects,
    read_try,
)

# Context managers that handle the exceptions in their arguments.
_HANDLING = ("suppress", "pytest.raises", "assertRaises")


class StatementReader:
    """Reads the statements of a module in order."""

    def __init__(self, conditions: ConditionReader, *, package: bool) -> None:
        """Create a reader for the module of `conditions`.

        With `package`, the module is an `__init__`.
        """
        self.conditions = conditions
        self.names = conditions.names
        self.expressions = ExpressionReader(conditions)
        self.assignments = AssignmentReader(self.expressions, package=package)
        self.definitions = DefinitionReader(self.expressions)
        # Called with each statement of its kind before it is read.
        self.watchers: dict[type[ast.stmt], Callable[[Any], None]] = {}
        self._after: Sequence[ast.stmt] = ()  # the statements after the `try` that is read
        self._caught = False  # whether a `try` around it handles an import's exception

    def read_block(self, statements: Sequence[ast.stmt], guards: Guards = ()) -> None:
        """Read statements in order. After an early exit, the rest has the opposite guards."""
        expressions = self.expressions
        before = expressions.guards
        if guards:
            expressions.guards = expressions.add_current_guards(guards)
        for place, statement in enumerate(statements, start=1):
            kind = type(statement)
            if kind in self.watchers:
                self.watchers[kind](statement)
            reader = self._readers.get(kind)
            if kind in (ast.Try, ast.TryStar):
                self._after = statements[place:]
            if reader is None:
                expressions.read_expression(statement)
            elif left := reader(self, statement):
                expressions.guards = expressions.add_current_guards(left)
        expressions.guards = before

    def _read_if(self, node: ast.If) -> Guards | None:
        self.expressions.read_expression(node.test)
        yes, no = self.conditions.read(node.test)
        if not yes and not no:
            at_top = self.expressions.scope.kind == "module"
            yes, no = self.conditions.guards_during_import(node.test, at_top=at_top)
        data = () if is_typing_only(yes + no) else (Guard("data"),)
        before = self.names.state()
        self.read_block(node.body, yes or data)
        body_state = self.names.restore(before)
        self.read_block(node.orelse, no or data)
        other = self.names.state()
        if is_typing_only(yes):
            self.names.restore({**body_state, **other})
        elif is_typing_only(no):
            self.names.restore({**other, **body_state})
        else:
            paths = ((node.body, FlowPath(body_state, yes)), (node.orelse, FlowPath(other, no)))
            self.names.join(*(path for body, path in paths if not never_continues(body)))
        if never_continues(node.body):
            return no
        return yes if node.orelse and never_continues(node.orelse) else None

    def _read_assert(self, node: ast.Assert) -> Guards | None:
        self.expressions.read_expression(node.test)
        return self.conditions.read(node.test)[0]

    def _read_try(self, node: TryStatement) -> None:
        tried = read_try(node, self.conditions, self.assignments.absolute_module, self._after)
        before, outside = self.names.state(), self._caught
        self._caught = bool(tried.body)
        self.read_block(node.body, tried.body)
        self._caught = outside
        done = self.names.state()
        self.names.join(FlowPath(done), FlowPath(before, fallback=True))
        self.names.end_interruptible_block(node.body, before)
        failed = self.names.state()
        paths = self._read_handlers(node, tried, failed)
        self.names.restore(done)
        self.read_block(node.orelse, tried.orelse)
        if not never_continues(node.body) and not never_continues(node.orelse):
            paths.insert(0, FlowPath(self.names.state(), tried.orelse))
        self.names.join(*paths)
        self.read_block(node.finalbody)
        for name, (truthy, falsy) in tried.flags.items():
            name_value = self.names.state().get(name, UNKNOWN_VALUE)
            self.names.bind_name(
                name, msgspec.structs.replace(name_value, truthy=truthy, falsy=falsy)
            )

    def _read_handlers(
        self, node: TryStatement, tried: TryGuards, failed: ScopeState
    ) -> list[FlowPath]:
        paths = []
        scope = self.expressions.scope
        for handler, guards in zip(node.handlers, tried.handlers, strict=True):
            self.names.restore(failed)
            if handler.type is not None:
                self.expressions.read_expression(handler.type)
            if handler.name:
                self.names.bind_name(handler.name)
                if scope.kind == "function":
                    scope.locals.bind_type(handler.name, "")
            self.read_block(handler.body, guards)
            if handler.name:  # Python deletes it
                self.names.bind_name(handler.name)
            if not never_continues(handler.body):
                paths.append(FlowPath(self.names.state(), guards, fallback=True))
        return paths

    def _read_with(self, node: ast.With | ast.AsyncWith) -> None:
        guards: Guards = ()
        for item in node.items:
            self.expressions.read_expression(item.context_expr)
            if item.optional_vars is not None:
                self.assignments.targets(item.optional_vars, node)
            call = item.context_expr
            if isinstance(call, ast.Call) and dotted_name(call.func).endswith(_HANDLING):
                names = [dotted_name(argument).rpartition(".")[2] for argument in call.args]
                guards += (Guard("handled", ", ".join(names)),)
        before = self.names.state()
        self.read_block(node.body, guards)
        if guards:
            self.names.join(FlowPath(self.names.state()), FlowPath(before, fallback=True))

    def _read_for(self, node: ast.For | ast.AsyncFor) -> None:
        self.expressions.read_expression(node.iter)
        before = self.names.state()
        self.names.enter_loop(node.body)
        kind = self.expressions.expression_type(node.iter) if self.expressions.chains else ""
        if kind.endswith("()") and isinstance(node.target, ast.Name) and type(node) is ast.For:
            self.assignments.bind_name(node.target.id, f"{kind}{ELEMENT}", node)
        else:
            self.assignments.targets(node.target, node)
        self.read_block(node.body)
        self._read_loop(node.body, before)
        self.read_block(node.orelse)

    def _read_while(self, node: ast.While) -> None:
        before = self.names.state()
        self.names.enter_loop((node.test, *node.body))
        self.expressions.read_expression(node.test)
        self.read_block(node.body, self.conditions.read(node.test)[0])
        self._read_loop(node.body, before)
        self.read_block(node.orelse)

    def _read_loop(self, body: Sequence[ast.stmt], before: ScopeState) -> None:
        """Read a loop.

        In its body, names have values from before the loop or from the end of the body.
        """
        self.names.join(FlowPath(self.names.state()), FlowPath(before))
        self.names.end_interruptible_block(body, before)

    def _read_match(self, node: ast.Match) -> None:
        self.expressions.read_expression(node.subject)
        before = self.names.state()
        paths = [FlowPath(before)]
        for case in node.cases:
            self.names.restore(before)
            for part in walk_tree(case.pattern):
                for value in _pattern_values(part):
                    self.expressions.read_expression(value)
                name = getattr(part, "name", None) or getattr(part, "rest", None)
                if isinstance(name, str):
                    self.assignments.bind_name(name, "", node)
            guards: Guards = ()
            if case.guard is not None:
                self.expressions.read_expression(case.guard)
                guards = self.conditions.read(case.guard)[0]
            data = (Guard("data"),) if case.guard is not None else ()
            self.read_block(case.body, guards or data)
            if not never_continues(case.body):
                paths.append(FlowPath(self.names.state(), guards))
        self.names.join(*paths)

    def _read_import(self, node: ast.Import | ast.ImportFrom) -> Guards | None:
        """Read a `try` body, where statements after an import run only if the import succeeded."""
        if isinstance(node, ast.Import):
            self.assignments.read_import(node)
        else:
            self.assignments.read_import_from(node)
        if not self._caught:
            return None
        return tuple(
            Guard("present", name)
            for name in imported_subjects(node, self.assignments.absolute_module)
        )

    def _read_function(self, node: FunctionNode) -> None:
        outside, self._caught = self._caught, False
        self.definitions.read_function(node, self.read_block)
        self._caught = outside

    def _read_class(self, node: ast.ClassDef) -> None:
        self.definitions.read_class(node, self.read_block)

    # The reader of each kind of statement; it returns guards of the statements that follow.
    _readers: ClassVar[dict[type[ast.stmt], Callable[[StatementReader, Any], Guards | None]]] = {
        ast.Import: _read_import,
        ast.ImportFrom: _read_import,
        ast.Assign: lambda self, node: self.assignments.read_assign(node),
        ast.AnnAssign: lambda self, node: self.assignments.read_annotated_assign(node),
        ast.AugAssign: lambda self, node: self.assignments.read_augmented_assign(node),
        ast.Delete: lambda self, node: self.assignments.delete(node),
        ast.Global: lambda self, node: self.assignments.read_global(node),
        ast.Nonlocal: lambda self, node: self.assignments.read_nonlocal(node),
        ast.Expr: lambda self, node: self.assignments.read_expression_statement(node),
        ast.Return: lambda self, node: self.assignments.read_return(node),
        ast.FunctionDef: _read_function,
        ast.AsyncFunctionDef: _read_function,
        ast.ClassDef: _read_class,
        ast.If: _read_if,
        ast.Try: _read_try,
        ast.TryStar: _read_try,
        ast.With: _read_with,
        ast.AsyncWith: _read_with,
        ast.For: _read_for,
        ast.AsyncFor: _read_for,
        ast.While: _read_while,
        ast.Match: _read_match,
        ast.Assert: _read_assert,
    }


def _pattern_values(part: ast.AST) -> Sequence[ast.expr]:
    """Return the expressions in a pattern with which the subject is compared."""
    if isinstance(part, ast.MatchValue):
        return (part.value,)
    if isinstance(part, ast.MatchClass):
        return (part.cls,)
    return part.keys if isinstance(part, ast.MatchMapping) else ()


def is_typing_only(guards: Guards) -> bool:
    """Return whether a condition tests TYPE_CHECKING, so a branch runs only for type checkers."""
    return any(guard.kind == "typing" for guard in guards)
