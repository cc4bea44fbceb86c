"""Statements: which reader each has, and definitions.

Input: a module's tree. Output: lists of facts. One pass, in the order of the source.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from imgbuild.audit.source.branches import Branches
from imgbuild.audit.source.definitions import FunctionNode, function_of
from imgbuild.audit.source.facts import Class
from imgbuild.audit.source.function_scopes import ClassScope, Scope
from imgbuild.audit.source.text import Source, dotted, type_name


class Walker(Branches):
    """Reads the statements of a module."""

    def __init__(self, source: Source, tree: ast.Module, module: str, *, package: bool) -> None:
        """For one module, by its dotted name."""
        super().__init__(source, tree, module, package=package)
        self._statements = {
            ast.Import: self._import,
            ast.ImportFrom: self._import_from,
            ast.If: self._if,
            ast.Try: self._try,
            ast.TryStar: self._try,
            ast.FunctionDef: self._function,
            ast.AsyncFunctionDef: self._function,
            ast.ClassDef: self._class,
            ast.Assign: self._assign,
            ast.AnnAssign: self._annotated,
            ast.AugAssign: self._augmented,
            ast.With: self._with,
            ast.AsyncWith: self._with,
            ast.For: self._for,
            ast.AsyncFor: self._for,
            ast.While: self._while,
            ast.Match: self._match,
            ast.Delete: self._delete,
            ast.Global: self._global,
            ast.Nonlocal: self._nonlocal,
            ast.Assert: self._assert,
            ast.Expr: self._expression,
            ast.Return: self._return,
        }

    def _function(self, node: FunctionNode) -> None:
        scope = self.scope
        name = scope.inner(node.name)
        decorators = tuple(self.source.short(item) for item in node.decorator_list)
        for item in node.decorator_list:
            self.visit(item)
        given = node.args
        everything = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        extra = [item for item in (given.vararg, given.kwarg) if item is not None]
        for default in (*given.defaults, *given.kw_defaults):
            if default is not None:
                self.visit(default)
        if not self.lazy_annotations:
            for annotation in (node.returns, *(item.annotation for item in (*everything, *extra))):
                if annotation is not None:
                    self.visit(annotation)
        self.functions.append(function_of(self.source, node, name, decorators, self.guards))
        self.known.bind(node.name)
        if isinstance(scope, ClassScope):
            scope.methods.append(node.name)
        elif scope.kind == "function":
            scope.locals.bind(node.name, "")
        inner = Scope(name, "function", scope)
        if isinstance(scope, ClassScope) and "staticmethod" not in decorators:
            first = next(iter([*given.posonlyargs, *given.args]), None)
            inner.instance = first.arg if first is not None else ""
            inner.instance = "" if "classmethod" in decorators else inner.instance
        for argument in everything:
            inner.locals.bind(argument.arg, type_name(argument.annotation))
        for argument in extra:
            inner.locals.bind(argument.arg, "")
        names = [item.arg for item in (*everything, *extra)]
        self.known.enter("function", node.body, node.lineno, names)
        self._within(inner, node.body)
        self.known.leave()

    def _within(self, inner: Scope, body: Sequence[ast.stmt]) -> None:
        """Read the body of a function."""
        before, self.scope = self.scope, inner
        self.conditions.scope = inner.name
        self.block(body)
        self.scope = before
        self.conditions.scope = before.name if before.kind == "function" else ""

    def _class(self, node: ast.ClassDef) -> None:
        outer = self.scope
        for item in (*node.decorator_list, *node.bases, *(item.value for item in node.keywords)):
            self.visit(item)
        scope = ClassScope(outer.inner(node.name), outer)
        if outer.kind == "function":
            outer.locals.bind(node.name, "")
        self.scope = scope
        self.known.enter("class", node.body, node.lineno)
        self.block(node.body)
        self.known.leave()
        self.scope = outer
        self.known.bind(node.name)
        methods = tuple(dict.fromkeys(scope.methods))
        self.classes.append(
            Class(
                scope.name,
                node.lineno,
                tuple(self.source.short(item) for item in node.bases),
                tuple(self.source.short(item) for item in node.decorator_list),
                next((dotted(i.value) or "?" for i in node.keywords if i.arg == "metaclass"), ""),
                tuple(scope.fields.values()),
                methods,
                tuple(name for name in scope.assigned.names if name not in scope.fields),
                scope.dynamic or "__getattr__" in methods or "__getattribute__" in methods,
                self.guards,
            )
        )
