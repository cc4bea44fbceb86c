"""Bindings: imports, assignments, what is exported; and what each says to later conditions.

Input: statements that bind names. Output: lists of facts, and what the names hold.
"""

from __future__ import annotations

import ast

from imgbuild.audit.source.definitions import field_of, value_of
from imgbuild.audit.source.expressions import Expressions
from imgbuild.audit.source.facts import Assigned, Class, Field, Function, Import
from imgbuild.audit.source.function_scopes import ClassScope
from imgbuild.audit.source.known import OPAQUE, Held
from imgbuild.audit.source.sites import module_of
from imgbuild.audit.source.text import Source, dotted, string, strings, type_name


class Bindings(Expressions):
    """Reads the statements that bind names."""

    def __init__(self, source: Source, tree: ast.Module, module: str, *, package: bool) -> None:
        """For one module, by its dotted name."""
        super().__init__(source, tree, module)
        self.module = module
        self.base = module if package else module.rpartition(".")[0]
        self.imports: list[Import] = []
        self.functions: list[Function] = []
        self.classes: list[Class] = []
        self.assigned: list[Assigned] = []
        self.deleted: list[str] = []
        self.exports: list[str] | None = None
        self.lazy_annotations = False

    def _bind(
        self, name: str, kind: str, node: ast.stmt, value: str = "", held: Held = OPAQUE
    ) -> None:
        """A name bound by anything but a definition or an import."""
        self.known.bind(name, held)
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

    def _imported(self, bound: str, line: Import, held: Held) -> None:
        self.imports.append(line)
        self.known.bind(bound, held)
        if self.scope.kind != "module":
            self.scope.imported.add(bound)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            bound, held = module_of(alias)
            module, name = alias.name, ""
            if alias.asname and module.startswith(f"{bound}."):
                module, _, name = module.rpartition(".")
            line = Import(node.lineno, module, name, bound, self.scope.name, self.guards)
            self._imported(bound, line, Held(module=held))

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = self.absolute(node)
        if module == "__future__":
            self.lazy_annotations |= any(alias.name == "annotations" for alias in node.names)
            return
        for alias in node.names:
            bound = alias.asname or alias.name
            line = Import(node.lineno, module, alias.name, bound, self.scope.name, self.guards)
            versions = alias.name in ("__version__", "VERSION")
            package = module.partition(".")[0] if versions else ""
            self._imported(bound, line, Held(package=package) if package else OPAQUE)

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that a `from` import names, relative ones made absolute."""
        if not node.level:
            return node.module or ""
        parts = self.base.split(".")
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, *([node.module] if node.module else [])])

    # Bindings

    def _return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.visit(node.value)
            name = self.scope.name.rpartition(".")[2]
            self.known.speaks(name, self.conditions.value(node.value))

    def _expression(self, node: ast.Expr) -> None:
        self.visit(node.value)
        value = node.value
        if isinstance(value, ast.Call) and self.scope.kind == "module":
            name = dotted(value.func)
            if name in ("__all__.extend", "__all__.append") and value.args:
                self._export(value.args[0], more=True)

    def _assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        kind, held = self.kind(node.value), self.conditions.value(node.value)
        for target in node.targets:
            apart = self._apart(target, node.value)
            if isinstance(target, ast.Name):
                self._bind(target.id, kind, node, value_of(self.source, node.value), held)
                self._exported(target.id, node.value)
            elif isinstance(target, ast.Attribute):
                self._assign_attribute(target, kind, held)
            elif apart is not None:
                for one, value in apart:
                    self._bind(one.id, "", node, held=value)
            else:
                self._targets(target, node)

    def _apart(self, target: ast.expr, value: ast.expr) -> list[tuple[ast.Name, Held]] | None:
        """`a, b = x, y`: names, and what each then holds; None where that cannot be told."""
        if not isinstance(target, ast.Tuple):
            return None
        names = [item for item in target.elts if isinstance(item, ast.Name)]
        if len(names) != len(target.elts):
            return None
        values = self.conditions.each(value, len(names))
        return list(zip(names, values, strict=True)) if values is not None else None

    def _assign_attribute(self, target: ast.Attribute, kind: str, held: Held) -> None:
        self.known.speaks(target.attr, held)
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
        held = OPAQUE if node.value is None else self.conditions.value(node.value)
        if isinstance(target, ast.Attribute):
            self._assign_attribute(target, kind, held)
        if not isinstance(target, ast.Name):
            return
        if isinstance(self.scope, ClassScope):
            if node.value is not None:
                self.known.bind(target.id, held)
            self.scope.fields[target.id] = field_of(self.source, target.id, node)
            self.scope.assigned.bind(target.id, kind)
        elif self.scope.kind == "function" or node.value is not None:
            self._bind(target.id, kind, node, value_of(self.source, node.value), held)
            if node.value is not None:
                self._exported(target.id, node.value)

    def _augmented(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if isinstance(node.target, ast.Name):
            if node.target.id == "__all__":
                self._export(node.value, more=True)
            else:
                self._bind(node.target.id, "", node)
        else:
            self.visit(node.target)

    def _exported(self, name: str, value: ast.expr) -> None:
        if name == "__all__" and self.scope.kind == "module":
            self._export(value, more=False)

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
                self.known.bind(target.id)
                if self.scope.kind == "module":
                    self.deleted.append(target.id)
            else:
                self.visit(target)

    def _global(self, node: ast.Global) -> None:
        self.known.declare(node.names)
        self.assigned.extend(Assigned(name, node.lineno) for name in node.names)

    def _nonlocal(self, node: ast.Nonlocal) -> None:
        self.known.declare(node.names)
