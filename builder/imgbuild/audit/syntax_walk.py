"""Statements: imports, definitions, branches and what guards them.

Comes in: a module's tree. Goes out: lists of facts. One pass, in the order of the source.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from imgbuild.audit.facts import Assigned, Class, Field, Function, Guard, Import
from imgbuild.audit.syntax_conditions import Guards
from imgbuild.audit.syntax_definitions import FunctionNode, field_of, function_of, value_of
from imgbuild.audit.syntax_expressions import Expressions
from imgbuild.audit.syntax_scopes import ClassScope, Scope
from imgbuild.audit.syntax_text import Source, dotted, string, strings, type_name
from imgbuild.audit.syntax_tries import Try, named, read_try


class Walker(Expressions):
    """Reads the statements of a module."""

    def __init__(self, source: Source, module: str, *, package: bool) -> None:
        """For one module, by its dotted name."""
        super().__init__(source, module)
        self.module = module
        self.base = module if package else module.rpartition(".")[0]
        self.imports: list[Import] = []
        self.functions: list[Function] = []
        self.classes: list[Class] = []
        self.assigned: list[Assigned] = []
        self.deleted: list[str] = []
        self.exports: list[str] | None = None
        self.lazy_annotations = False
        self._statements: dict[type[ast.AST], Callable[..., Guards | None]] = {
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
            ast.Assert: self._assert,
            ast.Expr: self._expression,
        }

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

    def _bind(self, name: str, kind: str, node: ast.stmt, value: str = "") -> None:
        """A name bound by anything but a definition or an import."""
        scope = self.scope
        if scope.kind == "module":
            self.assigned.append(Assigned(name, node.lineno, value, self.guards))
        elif isinstance(scope, ClassScope):
            scope.fields.setdefault(name, Field(name, node.lineno, "", True, True, value))
        else:
            scope.locals.bind(name, kind)

    def _targets(self, target: ast.expr, node: ast.stmt) -> None:
        """Names bound by unpacking, a loop or `with`: nothing is known of their types."""
        if isinstance(target, ast.Name):
            self._bind(target.id, "", node)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for item in target.elts:
                self._targets(item, node)
        elif isinstance(target, ast.Starred):
            self._targets(target.value, node)
        else:
            self.visit(target)

    # Imports

    def _imported(self, bound: str, line: Import) -> None:
        self.imports.append(line)
        if self.scope.kind != "module":
            self.scope.imported.add(bound)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            module, name = alias.name, ""
            if alias.asname and module.startswith(f"{bound}."):
                module, _, name = module.rpartition(".")
            line = Import(node.lineno, module, name, bound, self.scope.name, self.guards)
            self._imported(bound, line)
            self.conditions.versions.modules[bound] = alias.name if alias.asname else bound

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = self.absolute(node)
        if module == "__future__":
            self.lazy_annotations |= any(alias.name == "annotations" for alias in node.names)
            return
        for alias in node.names:
            bound = alias.asname or alias.name
            line = Import(node.lineno, module, alias.name, bound, self.scope.name, self.guards)
            self._imported(bound, line)
            if alias.name in ("__version__", "VERSION"):
                self.conditions.versions.packages[bound] = module.partition(".")[0]

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that a `from` import names, relative ones made absolute."""
        if not node.level:
            return node.module or ""
        parts = self.base.split(".")
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, *([node.module] if node.module else [])])

    # Branches

    def _if(self, node: ast.If) -> Guards | None:
        self.visit(node.test)
        yes, no = self.conditions.read(node.test)
        data = () if typing_only(yes + no) else (Guard("data"),)
        self.block(node.body, yes or data)
        self.block(node.orelse, no or data)
        if leaves(node.body):
            return no
        return yes if node.orelse and leaves(node.orelse) else None

    def _assert(self, node: ast.Assert) -> Guards | None:
        self.visit(node.test)
        return self.conditions.read(node.test)[0]

    def _try(self, node: Try) -> None:
        tried = read_try(node, self)
        self.block(node.body, tried.body)
        for handler, guards in zip(node.handlers, tried.handlers, strict=True):
            if handler.type is not None:
                self.visit(handler.type)
            if handler.name and self.scope.kind == "function":
                self.scope.locals.bind(handler.name, "")
            self.block(handler.body, guards)
        self.block(node.orelse, tried.orelse)
        self.block(node.finalbody)
        self.conditions.flags.update(tried.flags)

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
        self.block(node.body, guards)

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._targets(node.target, node)
        self.block(node.body)
        self.block(node.orelse)

    def _while(self, node: ast.While) -> None:
        self.visit(node.test)
        self.block(node.body, self.conditions.read(node.test)[0])
        self.block(node.orelse)

    def _match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        for case in node.cases:
            for part in ast.walk(case.pattern):
                name = getattr(part, "name", None) or getattr(part, "rest", None)
                if isinstance(name, str):
                    self._bind(name, "", node)
            self.block(case.body)

    # Bindings

    def _expression(self, node: ast.Expr) -> None:
        self.visit(node.value)
        value = node.value
        if isinstance(value, ast.Call) and self.scope.kind == "module":
            name = dotted(value.func)
            if name in ("__all__.extend", "__all__.append") and value.args:
                self._export(value.args[0], more=True)

    def _assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        kind = self.kind(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._bind(target.id, kind, node, value_of(self.source, node.value))
                self._learn(target.id, node.value)
            elif isinstance(target, ast.Attribute):
                self._assign_attribute(target, kind)
            else:
                self._targets(target, node)

    def _assign_attribute(self, target: ast.Attribute, kind: str) -> None:
        name = dotted(target)
        first, _, rest = name.partition(".")
        if rest and "." not in rest and self._is_self(first):
            self.of_self(rest, kind)
        else:
            self.visit(target)

    def _annotated(self, node: ast.AnnAssign) -> None:
        if not self.lazy_annotations and self.scope.kind != "function":
            self.visit(node.annotation)
        if node.value is not None:
            self.visit(node.value)
        kind = type_name(node.annotation)
        target = node.target
        if isinstance(target, ast.Attribute):
            self._assign_attribute(target, kind)
        if not isinstance(target, ast.Name):
            return
        if isinstance(self.scope, ClassScope):
            self.scope.fields[target.id] = field_of(self.source, target.id, node)
            self.scope.assigned.bind(target.id, kind)
        elif self.scope.kind == "function" or node.value is not None:
            self._bind(target.id, kind, node, value_of(self.source, node.value))
            if node.value is not None:
                self._learn(target.id, node.value)

    def _augmented(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if isinstance(node.target, ast.Name):
            if node.target.id == "__all__":
                self._export(node.value, more=True)
            else:
                self._bind(node.target.id, "", node)
        else:
            self.visit(node.target)

    def _learn(self, name: str, value: ast.expr) -> None:
        """What an assignment says to the conditions that come after it."""
        conditions, versions = self.conditions, self.conditions.versions
        if name == "__all__" and self.scope.kind == "module":
            self._export(value, more=False)
            return
        conditions.signatures.learn(name, value)
        if isinstance(value, ast.Constant):
            if type(value.value) is str:
                versions.literals[name] = value.value
            elif type(value.value) is bool and self.scope.kind == "module":
                named(self, name, holds=value.value)
            return
        package = versions.package(value)
        if package:
            versions.packages[name] = package
            return
        literal = versions.literal(value)
        if literal:
            versions.literals[name] = literal
        if not isinstance(value, (ast.Call, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Subscript)):
            return
        yes, no = conditions.read(value)
        if any(guard.kind != "unknown" for guard in (*yes, *no)):
            conditions.flags[name] = (yes, no)
        else:
            conditions.flags.pop(name, None)

    def _export(self, value: ast.expr, *, more: bool) -> None:
        one = string(value)
        names = [one] if one is not None else strings(value)
        if names is None:
            self.exports = None if not more else self.exports
        elif more:
            self.exports = None if self.exports is None else [*self.exports, *names]
        else:
            self.exports = names

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                if self.scope.kind == "module":
                    self.deleted.append(target.id)
            else:
                self.visit(target)

    def _global(self, node: ast.Global) -> None:
        self.assigned.extend(Assigned(name, node.lineno) for name in node.names)

    # Definitions

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
            for annotation in (node.returns, *(item.annotation for item in everything)):
                if annotation is not None:
                    self.visit(annotation)
        self.functions.append(function_of(self.source, node, name, decorators, self.guards))
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
        self._within(inner, node.body)

    def _within(self, inner: Scope, body: Sequence[ast.stmt]) -> None:
        """Read the body of a function; what its names say to conditions ends with it."""
        conditions = self.conditions
        before, flags, held = self.scope, conditions.flags, conditions.signatures.names
        self.scope, conditions.flags = inner, dict(flags)
        conditions.scope, conditions.signatures.names = inner.name, dict(held)
        self.block(body)
        self.scope, conditions.flags = before, flags
        conditions.scope = before.name if before.kind == "function" else ""
        conditions.signatures.names = held

    def _class(self, node: ast.ClassDef) -> None:
        outer = self.scope
        for item in (*node.decorator_list, *node.bases, *(item.value for item in node.keywords)):
            self.visit(item)
        scope = ClassScope(outer.inner(node.name), outer)
        if outer.kind == "function":
            outer.locals.bind(node.name, "")
        self.scope = scope
        self.block(node.body)
        self.scope = outer
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
