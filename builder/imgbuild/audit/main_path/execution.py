"""Evaluates statements: if, for, try, with, return."""

# A separate module: a level of the interpreter.
from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from imgbuild.audit.main_path.expressions import ExpressionValues
from imgbuild.audit.main_path.intrinsics import LARGEST_VALUE, PARENTS, TRANSPARENT_DECORATORS
from imgbuild.audit.main_path.sources import OPEN_MANAGERS, bound_names
from imgbuild.audit.main_path.values import (
    UNKNOWN,
    CallFrame,
    ClassValue,
    EvaluatedError,
    FunctionValue,
    ModuleValue,
    UnsupportedCodeError,
    count_items,
    release_value,
)
from imgbuild.audit.source.text import dotted_name

_LOOP_LIMIT = 50  # items of a loop
ASSERTION, IMPORT = "AssertionError", "ImportError"


@functools.lru_cache(maxsize=4096)
def _loop_names(node: ast.For | ast.While) -> tuple[str, ...]:
    return tuple(dict.fromkeys(bound_names([node])))


class ReturnSignal(Exception):
    """Raised for a `return` in the evaluated code."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value


class _BreakSignal(Exception):
    """Raised for a `break` in the evaluated code."""


class _ContinueSignal(Exception):
    """Raised for a `continue` in the evaluated code."""


class Execution(ExpressionValues):
    """Executes the statements of an evaluation."""

    def __init__(self, *, strict: bool) -> None:
        """Start an evaluation.

        With `strict`, unrecognized decorators change the effect of a function.
        """
        self.strict = strict
        self.trying = 0
        self._handled: list[EvaluatedError] = []

    def run_block(self, statements: Sequence[ast.stmt], frame: CallFrame) -> None:
        """Execute statements in order."""
        for statement in statements:
            self.count_steps()
            reader = self._statements.get(type(statement))
            if reader is None:
                raise UnsupportedCodeError
            reader(self, statement, frame)

    def _run_expression(self, node: ast.Expr, frame: CallFrame) -> None:
        self.value(node.value, frame)

    def _run_assign(self, node: ast.Assign, frame: CallFrame) -> None:
        value = self.value(node.value, frame)
        for target in node.targets:
            self.assign_target(target, value, frame)

    def _run_annotated_assign(self, node: ast.AnnAssign, frame: CallFrame) -> None:
        if node.value is not None:
            self.assign_target(node.target, self.value(node.value, frame), frame)

    def _run_augmented_assign(self, node: ast.AugAssign, frame: CallFrame) -> None:
        if isinstance(node.target, ast.Name):
            value = self.value(node.value, frame)
            current = self.read(node.target.id, frame)
            updated = self.apply_operator(node.op, current, value)
            self.count_steps(count_items(updated, LARGEST_VALUE))
            self.invalidate_value(node.target, frame)  # a list is changed in place
            frame.names[node.target.id] = updated
        else:
            self.assign_target(node.target, UNKNOWN, frame)

    def _run_return(self, node: ast.Return, frame: CallFrame) -> None:
        raise ReturnSignal(self.value(node.value, frame) if node.value is not None else None)

    def _run_if(self, node: ast.If, frame: CallFrame) -> None:
        self.run_block(node.body if self.condition_holds(node.test, frame) else node.orelse, frame)

    def _run_raise(self, node: ast.Raise, frame: CallFrame) -> None:
        if node.exc is None:
            if not self._handled:
                raise UnsupportedCodeError
            raise self._handled[-1]
        if isinstance(node.exc, ast.Name):
            exception = self.read(node.exc.id, frame)
            if isinstance(exception, EvaluatedError):
                raise exception
        call = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        name = dotted_name(call).rpartition(".")[2]
        raise EvaluatedError(name or "Exception", line=node.lineno, module=frame.module)

    def _run_assert(self, node: ast.Assert, frame: CallFrame) -> None:
        if not self.condition_holds(node.test, frame):
            raise EvaluatedError(ASSERTION, line=node.lineno, module=frame.module)

    def _run_try(self, node: ast.Try | ast.TryStar, frame: CallFrame) -> None:
        try:
            try:
                self.trying += bool(node.handlers)
                try:
                    self.run_block(node.body, frame)
                finally:
                    self.trying -= bool(node.handlers)
            except EvaluatedError as error:
                self._run_handler(node, error, frame)
            else:
                self.run_block(node.orelse, frame)
        finally:
            self.run_block(node.finalbody, frame)

    def _run_handler(
        self, node: ast.Try | ast.TryStar, error: EvaluatedError, frame: CallFrame
    ) -> None:
        handler = next(
            (
                candidate
                for candidate in node.handlers
                if self._handler_catches(candidate, error, frame)
            ),
            None,
        )
        if handler is None:
            raise error
        if handler.name:
            frame.names[handler.name] = error
        self._handled.append(error)
        try:
            self.run_block(handler.body, frame)
        finally:
            self._handled.pop()

    def _handler_catches(
        self, handler: ast.ExceptHandler, error: EvaluatedError, frame: CallFrame
    ) -> bool:
        if handler.type is None:
            return True
        try:
            names = _class_names(self.value(handler.type, frame))
        except EvaluatedError:
            names = None
        last = dotted_name(handler.type).rpartition(".")[2]
        if names is None and (last in PARENTS or _is_builtin(last)):
            names = [last]
        if names is None:
            return self.choose_branch()
        return self._is_any_of(error, names)

    def _is_any_of(self, error: EvaluatedError, names: Sequence[str]) -> bool:
        """Return whether an exception is one of `names`.

        If that is unknown, evaluate both cases.
        """
        if {"Exception", "BaseException"} & set(names):
            return error.name != "SystemExit" or "BaseException" in names
        above = _ancestors(error.name)
        if above & set(names):
            return True
        return (error.name not in PARENTS and not _is_builtin(error.name)) and self.choose_branch()

    def _run_for(self, node: ast.For, frame: CallFrame) -> None:
        items = self.value(node.iter, frame)
        if not isinstance(items, (tuple, list, dict)) or len(items) > _LOOP_LIMIT:
            self._unknown_loop(node, frame)
            return
        try:
            for item in items:
                self.assign_target(node.target, item, frame)
                try:
                    self.run_block(node.body, frame)
                except _ContinueSignal:
                    continue
        except _BreakSignal:
            return
        self.run_block(node.orelse, frame)

    def _run_while(self, node: ast.While, frame: CallFrame) -> None:
        self._unknown_loop(node, frame)

    def _unknown_loop(self, node: ast.For | ast.While, frame: CallFrame) -> None:
        names = _loop_names(node)
        if self.choose_branch():
            release_value(frame.visible_objects())
            filled = [
                name for name, value in frame.names.items() if isinstance(value, (list, dict))
            ]
            frame.names.update(dict.fromkeys((*names, *filled), UNKNOWN))
            try:
                self.run_block(node.body, frame)
            except _ContinueSignal:
                pass
            except _BreakSignal:
                frame.names.update(dict.fromkeys(names, UNKNOWN))
                release_value(frame.visible_objects())
                return
            release_value(frame.visible_objects())
            frame.names.update(dict.fromkeys(names, UNKNOWN))
        self.run_block(node.orelse, frame)

    def _run_break(self, _: ast.Break, __: CallFrame) -> None:
        raise _BreakSignal

    def _run_continue(self, _: ast.Continue, __: CallFrame) -> None:
        raise _ContinueSignal

    def _run_with(self, node: ast.With, frame: CallFrame) -> None:
        caught: list[str] = []
        is_open = True
        for item in node.items:
            call = item.context_expr
            name = dotted_name(call.func if isinstance(call, ast.Call) else call).rpartition(".")[2]
            if name == "suppress" and isinstance(call, ast.Call):
                caught += [dotted_name(argument).rpartition(".")[2] for argument in call.args]
            else:
                self.value(call, frame)
                is_open = is_open and name in OPEN_MANAGERS
            if item.optional_vars is not None:
                self.assign_target(item.optional_vars, UNKNOWN, frame)
        self.trying += bool(caught)
        try:
            self.run_block(node.body, frame)
        except EvaluatedError as error:
            if not caught or not self._is_any_of(error, caught):
                error.certain = error.certain and is_open
                raise
        finally:
            self.trying -= bool(caught)

    def _run_import(self, node: ast.Import, frame: CallFrame) -> None:
        for alias in node.names:
            module = self.import_module(alias.name)
            first = alias.name.partition(".")[0]
            if module != UNKNOWN and not alias.asname:
                module = ModuleValue(first)
            frame.names[alias.asname or first] = module

    def _run_import_from(self, node: ast.ImportFrom, frame: CallFrame) -> None:
        module = self.absolute_module(node, frame.module)
        module_value = self.import_module(module)
        for alias in node.names:
            try:
                value = self.attribute(module_value, alias.name)
            except EvaluatedError:
                raise EvaluatedError(IMPORT, line=node.lineno, module=frame.module) from None
            frame.names[alias.asname or alias.name] = value

    def _run_function_definition(self, node: ast.FunctionDef, frame: CallFrame) -> None:
        value: object = FunctionValue(node, frame)
        for item in reversed(node.decorator_list):
            if self.is_transparent(item, frame):
                continue
            decorated = self.apply_call(self.value(item, frame), [value], {})
            value = decorated if self.strict or decorated != UNKNOWN else value
        frame.names[node.name] = value

    def is_transparent(self, decorator: ast.expr, frame: CallFrame) -> bool:
        """Return whether a decorator preserves the effect of the function."""
        callee = decorator.func if isinstance(decorator, ast.Call) else decorator
        if not isinstance(callee, (ast.Name, ast.Attribute)):
            return False
        callee_value = self.value(callee, frame)
        return isinstance(callee_value, ModuleValue) and callee_value.name in TRANSPARENT_DECORATORS

    def _run_class_definition(self, node: ast.ClassDef, frame: CallFrame) -> None:
        frame.names[node.name] = ClassValue(node.name, frame.module, node.lineno)

    def _run_delete(self, node: ast.Delete, frame: CallFrame) -> None:
        for target in node.targets:
            self.assign_target(target, UNKNOWN, frame)

    def _run_pass(self, _: ast.Pass, __: CallFrame) -> None:
        pass

    _statements: ClassVar[dict[type[ast.stmt], Callable[[Execution, Any, CallFrame], None]]] = {
        ast.Expr: _run_expression,
        ast.Assign: _run_assign,
        ast.AnnAssign: _run_annotated_assign,
        ast.AugAssign: _run_augmented_assign,
        ast.Return: _run_return,
        ast.If: _run_if,
        ast.Raise: _run_raise,
        ast.Assert: _run_assert,
        ast.Try: _run_try,
        ast.For: _run_for,
        ast.While: _run_while,
        ast.Break: _run_break,
        ast.Continue: _run_continue,
        ast.With: _run_with,
        ast.Import: _run_import,
        ast.ImportFrom: _run_import_from,
        ast.FunctionDef: _run_function_definition,
        ast.ClassDef: _run_class_definition,
        ast.Delete: _run_delete,
        ast.Pass: _run_pass,
    }


def _class_names(value: object) -> list[str] | None:
    """Return the exceptions in an `except` clause, or None if one of them is unknown."""
    parts = list(value) if isinstance(value, tuple) else [value]
    classes = [part for part in parts if isinstance(part, (ClassValue, ModuleValue))]
    if len(classes) < len(parts):
        return None
    names = [class_value.name.rpartition(".")[2] for class_value in classes]
    kinds = [getattr(builtins, name, None) for name in names]
    return [
        kind.__name__ if isinstance(kind, type) else name
        for name, kind in zip(names, kinds, strict=True)
    ]


def _is_builtin(name: str) -> bool:
    return isinstance(getattr(builtins, name, None), type)


def _ancestors(name: str) -> set[str]:
    """Return the names of an exception and of its base classes, as far as they are known."""
    names = {name}
    while name in PARENTS:
        name = PARENTS[name]
        names.add(name)
    kind = getattr(builtins, name, None)
    return (
        names | {ancestor.__name__ for ancestor in kind.__mro__}
        if isinstance(kind, type)
        else names
    )
