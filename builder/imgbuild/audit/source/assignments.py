"""Reads imports, assignments and `__all__` into facts and values of names."""

from __future__ import annotations

import ast

from imgbuild.audit.source.definitions import field_of, value_of
from imgbuild.audit.source.expressions import Expressions
from imgbuild.audit.source.facts import Assigned, Field, Import
from imgbuild.audit.source.name_values import UNKNOWN, NameValue
from imgbuild.audit.source.scopes import module_of
from imgbuild.audit.source.text import dotted, string_list, type_name


class Assignments:
    """Reads the statements that bind names."""

    def __init__(self, expressions: Expressions, *, package: bool) -> None:
        """Read for the module of `expressions`; `package`: whether it is an `__init__`."""
        self.expressions = expressions
        self.conditions = expressions.conditions
        self.names = expressions.names
        self.source = self.conditions.source
        module = self.module = self.conditions.module
        self.base = module if package else module.rpartition(".")[0]
        self.imports: list[Import] = []
        self.assigned: list[Assigned] = []
        self.deleted: list[str] = []
        self.exports: list[str] | None = None

    def bind(
        self, name: str, kind: str, node: ast.stmt, value: str = "", name_value: NameValue = UNKNOWN
    ) -> None:
        """Record a name that is not bound by a definition or an import."""
        self.names.bind(name, name_value)
        scope = self.expressions.scope
        if scope.kind == "module":
            self.assigned.append(Assigned(name, node.lineno, value, self.expressions.guards))
        elif scope.members is not None:
            scope.members.fields.setdefault(name, Field(name, node.lineno, "", True, True, value))
        else:
            scope.locals.bind(name, kind)

    def targets(self, target: ast.expr, node: ast.stmt) -> None:
        """Record names that are bound by unpacking, a loop or `with`: their types are unknown."""
        if isinstance(target, ast.Name):
            self.bind(target.id, "", node)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for item in target.elts:
                self.targets(item, node)
        elif isinstance(target, ast.Starred):
            self.targets(target.value, node)
        else:
            self.expressions.visit(target)

    # Imports

    def _imported(
        self, line: int, module: str, name: str, bound: str, value: NameValue = UNKNOWN
    ) -> None:
        scope = self.expressions.scope
        guards = self.expressions.guards
        self.imports.append(Import(line, module, name, bound, scope.name, guards))
        self.names.bind(bound, value)
        if scope.kind != "module":
            scope.imported.add(bound)

    def import_(self, node: ast.Import) -> None:
        """Record `import a.b as c`."""
        for alias in node.names:
            bound, whole = module_of(alias)
            module, name = alias.name, ""
            if alias.asname and module.startswith(f"{bound}."):
                module, _, name = module.rpartition(".")
            self._imported(node.lineno, module, name, bound, NameValue(module=whole))

    def import_from(self, node: ast.ImportFrom) -> None:
        """Record `from a import b as c`; `__future__` determines if annotations are evaluated."""
        module = self.absolute(node)
        if module == "__future__":
            lazy = any(alias.name == "annotations" for alias in node.names)
            self.expressions.lazy_annotations |= lazy
            return
        for alias in node.names:
            is_version = alias.name in ("__version__", "VERSION")
            package = module.partition(".")[0] if is_version else ""
            value = NameValue(package=package) if package else UNKNOWN
            self._imported(node.lineno, module, alias.name, alias.asname or alias.name, value)

    def absolute(self, node: ast.ImportFrom) -> str:
        """The absolute name of the module in a `from` import."""
        if not node.level:
            return node.module or ""
        parts = self.base.split(".")
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, *([node.module] if node.module else [])])

    # Values

    def return_(self, node: ast.Return) -> None:
        """Record `return value`: conditions that call the function depend on it."""
        if node.value is not None:
            self.expressions.visit(node.value)
            scope, name_value = self.expressions.scope, self.conditions.value(node.value)
            self.names.add_answer(scope.name.rpartition(".")[2], name_value)
            self.names.frame.results.append((self.expressions.guards[scope.guarded :], name_value))

    def expression(self, node: ast.Expr) -> None:
        """An expression statement: `__all__.extend(…)` at the top of the module adds exports."""
        self.expressions.visit(node.value)
        value = node.value
        if isinstance(value, ast.Call) and self.expressions.scope.kind == "module":
            name = dotted(value.func)
            if name in ("__all__.extend", "__all__.append") and value.args:
                self._export(value.args[0], more=True)

    def assign(self, node: ast.Assign) -> None:
        """Record `a = b = value`, `a.b = value`, `a, b = value`."""
        self.expressions.visit(node.value)
        kind, name_value = self.expressions.type_of(node.value), self.conditions.value(node.value)
        for target in node.targets:
            apart = self._unpacked(target, node.value)
            if isinstance(target, ast.Name):
                self.bind(target.id, kind, node, value_of(self.source, node.value), name_value)
                self._exported(target.id, node.value)
            elif isinstance(target, ast.Attribute):
                self._assign_attribute(target, kind, name_value)
            elif apart is not None:
                for element, value in apart:
                    self.bind(element.id, "", node, name_value=value)
            else:
                self.targets(target, node)

    def _unpacked(
        self, target: ast.expr, value: ast.expr
    ) -> list[tuple[ast.Name, NameValue]] | None:
        """The names and values of `a, b = x, y`; None if unknown."""
        if not isinstance(target, ast.Tuple):
            return None
        names = [item for item in target.elts if isinstance(item, ast.Name)]
        if len(names) != len(target.elts):
            return None
        values = self.conditions.unpacked(value, len(names))
        return list(zip(names, values, strict=True)) if values is not None else None

    def _assign_attribute(self, target: ast.Attribute, kind: str, name_value: NameValue) -> None:
        self.names.add_answer(target.attr, name_value)
        name = dotted(target)
        first, _, rest = name.partition(".")
        if rest and "." not in rest and self.expressions.is_self(first):
            self.expressions.self_attribute(rest, kind)
        else:
            self.expressions.visit(target)

    def annotated(self, node: ast.AnnAssign) -> None:
        """Record `a: T` and `a: T = value`."""
        if self.expressions.scope.kind != "function":
            self.expressions.annotation(node.annotation)
        if node.value is not None:
            self.expressions.visit(node.value)
        kind = type_name(node.annotation)
        target = node.target
        name_value = UNKNOWN if node.value is None else self.conditions.value(node.value)
        if isinstance(target, ast.Attribute):
            self._assign_attribute(target, kind, name_value)
        if not isinstance(target, ast.Name):
            return
        scope = self.expressions.scope
        if scope.members is not None:
            if node.value is not None:
                self.names.bind(target.id, name_value)
            scope.members.fields[target.id] = field_of(self.source, target.id, node)
            scope.members.assigned.bind(target.id, kind)
        elif scope.kind == "function" or node.value is not None:
            self.bind(target.id, kind, node, value_of(self.source, node.value), name_value)
            if node.value is not None:
                self._exported(target.id, node.value)

    def augmented(self, node: ast.AugAssign) -> None:
        """Record `a += value`, `__all__ += [...]`."""
        self.expressions.visit(node.value)
        if isinstance(node.target, ast.Name):
            if node.target.id == "__all__":
                self._export(node.value, more=True)
            else:
                self.bind(node.target.id, "", node)
        else:
            self.expressions.visit(node.target)

    def _exported(self, name: str, value: ast.expr) -> None:
        if name == "__all__" and self.expressions.scope.kind == "module":
            self._export(value, more=False)

    def _export(self, value: ast.expr, *, more: bool) -> None:
        names = string_list(value)
        if names is None:
            self.exports = None  # there may be any others
        elif more:
            self.exports = None if self.exports is None else [*self.exports, *names]
        else:
            self.exports = names

    def delete(self, node: ast.Delete) -> None:
        """Record `del a`."""
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.names.bind(target.id)
                if self.expressions.scope.kind == "module":
                    self.deleted.append(target.id)
            else:
                self.expressions.visit(target)

    def global_(self, node: ast.Global) -> None:
        """Record `global a`, which adds the name to the module."""
        self.names.declare(node.names)
        self.assigned.extend(Assigned(name, node.lineno) for name in node.names)

    def nonlocal_(self, node: ast.Nonlocal) -> None:
        """Record `nonlocal a`."""
        self.names.declare(node.names)
