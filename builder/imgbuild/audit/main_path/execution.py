"""Evaluates statements: if, for, try, with, return (separate: one level of the interpreter)."""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from imgbuild.audit.main_path.expressions import ExpressionValues
from imgbuild.audit.main_path.intrinsics import LARGEST, PARENTS, TRANSPARENT
from imgbuild.audit.main_path.sources import OPEN_MANAGERS, bound_names
from imgbuild.audit.main_path.values import (
    UNKNOWN,
    CallFrame,
    ClassValue,
    FunctionValue,
    ModuleValue,
    Raised,
    UnsupportedCodeError,
    release,
    weight,
)
from imgbuild.audit.source.text import dotted

_LONGEST = 50  # items of a loop
ASSERTION, IMPORT = "AssertionError", "ImportError"


@functools.lru_cache(maxsize=4096)
def _loop_names(node: ast.For | ast.While) -> tuple[str, ...]:
    """The names that a loop binds, cached because a function may be followed many times."""
    return tuple(dict.fromkeys(bound_names([node])))


class ReturnSignal(Exception):
    """Raised by a `return` in the evaluated code."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value


class _Break(Exception):
    """Raised by a `break` in the evaluated code."""


class _Continue(Exception):
    """Raised by a `continue` in the evaluated code."""


class Execution(ExpressionValues):
    """Executes the statements of one evaluation."""

    def __init__(self, *, strict: bool) -> None:
        """`strict`: unrecognized decorators change the effect of a function."""
        self.strict = strict
        self.trying = 0
        self._handled: list[Raised] = []

    def block(self, statements: Sequence[ast.stmt], frame: CallFrame) -> None:
        """Execute statements in order."""
        for statement in statements:
            self.step()
            reader = self._statements.get(type(statement))
            if reader is None:
                raise UnsupportedCodeError
            reader(self, statement, frame)

    def _expression(self, node: ast.Expr, frame: CallFrame) -> None:
        self.value(node.value, frame)

    def _assign(self, node: ast.Assign, frame: CallFrame) -> None:
        value = self.value(node.value, frame)
        for target in node.targets:
            self.assign(target, value, frame)

    def _annotated(self, node: ast.AnnAssign, frame: CallFrame) -> None:
        if node.value is not None:
            self.assign(node.target, self.value(node.value, frame), frame)

    def _augmented(self, node: ast.AugAssign, frame: CallFrame) -> None:
        if isinstance(node.target, ast.Name):
            value = self.value(node.value, frame)
            current = self.read(node.target.id, frame)
            updated = self.operate(node.op, current, value)
            self.step(weight(updated, LARGEST))
            self.invalidate(node.target, frame)  # a list is changed in place
            frame.names[node.target.id] = updated
        else:
            self.assign(node.target, UNKNOWN, frame)

    def _return(self, node: ast.Return, frame: CallFrame) -> None:
        raise ReturnSignal(self.value(node.value, frame) if node.value is not None else None)

    def _if(self, node: ast.If, frame: CallFrame) -> None:
        self.block(node.body if self.holds(node.test, frame) else node.orelse, frame)

    def _raise(self, node: ast.Raise, frame: CallFrame) -> None:
        if node.exc is None:
            if not self._handled:
                raise UnsupportedCodeError
            raise self._handled[-1]
        if isinstance(node.exc, ast.Name):
            exception = self.read(node.exc.id, frame)
            if isinstance(exception, Raised):
                raise exception
        call = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        name = dotted(call).rpartition(".")[2]
        raise Raised(name or "Exception", line=node.lineno, module=frame.module)

    def _assert(self, node: ast.Assert, frame: CallFrame) -> None:
        if not self.holds(node.test, frame):
            raise Raised(ASSERTION, line=node.lineno, module=frame.module)

    def _try(self, node: ast.Try | ast.TryStar, frame: CallFrame) -> None:
        try:
            try:
                self.trying += bool(node.handlers)
                try:
                    self.block(node.body, frame)
                finally:
                    self.trying -= bool(node.handlers)
            except Raised as error:
                self._handle(node, error, frame)
            else:
                self.block(node.orelse, frame)
        finally:
            self.block(node.finalbody, frame)

    def _handle(self, node: ast.Try | ast.TryStar, error: Raised, frame: CallFrame) -> None:
        handler = next(
            (candidate for candidate in node.handlers if self._catches(candidate, error, frame)),
            None,
        )
        if handler is None:
            raise error
        if handler.name:
            frame.names[handler.name] = error
        self._handled.append(error)
        try:
            self.block(handler.body, frame)
        finally:
            self._handled.pop()

    def _catches(self, handler: ast.ExceptHandler, error: Raised, frame: CallFrame) -> bool:
        if handler.type is None:
            return True
        try:
            names = _class_names(self.value(handler.type, frame))
        except Raised:
            names = None
        last = dotted(handler.type).rpartition(".")[2]
        if names is None and (last in PARENTS or _is_builtin(last)):
            names = [last]
        if names is None:
            return self.choose()
        return self._is_any_of(error, names)

    def _is_any_of(self, error: Raised, names: Sequence[str]) -> bool:
        """Whether an exception is one of `names`; if unknown, both cases are tried."""
        if {"Exception", "BaseException"} & set(names):
            return error.name != "SystemExit" or "BaseException" in names
        above = _ancestors(error.name)
        if above & set(names):
            return True
        return (error.name not in PARENTS and not _is_builtin(error.name)) and self.choose()

    def _for(self, node: ast.For, frame: CallFrame) -> None:
        items = self.value(node.iter, frame)
        if not isinstance(items, (tuple, list, dict)) or len(items) > _LONGEST:
            self._unknown_loop(node, frame)
            return
        try:
            for item in items:
                self.assign(node.target, item, frame)
                try:
                    self.block(node.body, frame)
                except _Continue:
                    continue
        except _Break:
            return
        self.block(node.orelse, frame)

    def _while(self, node: ast.While, frame: CallFrame) -> None:
        self._unknown_loop(node, frame)

    def _unknown_loop(self, node: ast.For | ast.While, frame: CallFrame) -> None:
        """Execute a loop of unknown length: names bound in its body become unknown."""
        names = _loop_names(node)
        if self.choose():
            release(frame.objects())
            filled = [
                name for name, value in frame.names.items() if isinstance(value, (list, dict))
            ]
            frame.names.update(dict.fromkeys((*names, *filled), UNKNOWN))
            try:
                self.block(node.body, frame)
            except _Continue:
                pass
            except _Break:
                frame.names.update(dict.fromkeys(names, UNKNOWN))
                release(frame.objects())
                return
            release(frame.objects())
            frame.names.update(dict.fromkeys(names, UNKNOWN))
        self.block(node.orelse, frame)

    def _break(self, _: ast.Break, __: CallFrame) -> None:
        raise _Break

    def _continue(self, _: ast.Continue, __: CallFrame) -> None:
        raise _Continue

    def _with(self, node: ast.With, frame: CallFrame) -> None:
        caught: list[str] = []
        is_open = True
        for item in node.items:
            call = item.context_expr
            name = dotted(call.func if isinstance(call, ast.Call) else call).rpartition(".")[2]
            if name == "suppress" and isinstance(call, ast.Call):
                caught += [dotted(argument).rpartition(".")[2] for argument in call.args]
            else:
                self.value(call, frame)
                is_open = is_open and name in OPEN_MANAGERS
            if item.optional_vars is not None:
                self.assign(item.optional_vars, UNKNOWN, frame)
        self.trying += bool(caught)
        try:
            self.block(node.body, frame)
        except Raised as error:
            if not caught or not self._is_any_of(error, caught):
                error.certain = error.certain and is_open
                raise
        finally:
            self.trying -= bool(caught)

    def _import(self, node: ast.Import, frame: CallFrame) -> None:
        for alias in node.names:
            module = self.imported(alias.name)
            first = alias.name.partition(".")[0]
            if module != UNKNOWN and not alias.asname:
                module = ModuleValue(first)
            frame.names[alias.asname or first] = module

    def _import_from(self, node: ast.ImportFrom, frame: CallFrame) -> None:
        module = self.absolute(node, frame.module)
        module_value = self.imported(module)
        for alias in node.names:
            try:
                value = self.attribute(module_value, alias.name)
            except Raised:
                raise Raised(IMPORT, line=node.lineno, module=frame.module) from None
            frame.names[alias.asname or alias.name] = value

    def _function(self, node: ast.FunctionDef, frame: CallFrame) -> None:
        value: object = FunctionValue(node, frame)
        for item in reversed(node.decorator_list):
            if self.is_transparent(item, frame):
                continue
            decorated = self.apply(self.value(item, frame), [value], {})
            value = decorated if self.strict or decorated != UNKNOWN else value
        frame.names[node.name] = value

    def is_transparent(self, decorator: ast.expr, frame: CallFrame) -> bool:
        """Whether a decorator leaves the effect of its function unchanged."""
        callee = decorator.func if isinstance(decorator, ast.Call) else decorator
        if not isinstance(callee, (ast.Name, ast.Attribute)):
            return False
        callee_value = self.value(callee, frame)
        return isinstance(callee_value, ModuleValue) and callee_value.name in TRANSPARENT

    def _class(self, node: ast.ClassDef, frame: CallFrame) -> None:
        frame.names[node.name] = ClassValue(node.name, frame.module, node.lineno)

    def _delete(self, node: ast.Delete, frame: CallFrame) -> None:
        for target in node.targets:
            self.assign(target, UNKNOWN, frame)

    def _pass(self, _: ast.Pass, __: CallFrame) -> None:
        pass

    _statements: ClassVar[dict[type[ast.stmt], Callable[[Execution, Any, CallFrame], None]]] = {
        ast.Expr: _expression,
        ast.Assign: _assign,
        ast.AnnAssign: _annotated,
        ast.AugAssign: _augmented,
        ast.Return: _return,
        ast.If: _if,
        ast.Raise: _raise,
        ast.Assert: _assert,
        ast.Try: _try,
        ast.For: _for,
        ast.While: _while,
        ast.Break: _break,
        ast.Continue: _continue,
        ast.With: _with,
        ast.Import: _import,
        ast.ImportFrom: _import_from,
        ast.FunctionDef: _function,
        ast.ClassDef: _class,
        ast.Delete: _delete,
        ast.Pass: _pass,
    }


def _class_names(value: object) -> list[str] | None:
    """The exception names of an `except`, a class or a tuple; None if one is unknown."""
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
    """The names of an exception and of its base classes, as far as known."""
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
