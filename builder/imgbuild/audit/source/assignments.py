"""Reads imports, assignments and `__all__`, and records facts and the values of names."""

from __future__ import annotations

import ast

from imgbuild.audit.source.definitions import read_field, value_text
from imgbuild.audit.source.expressions import ExpressionReader
from imgbuild.audit.source.facts import AssignedName, Field, Import
from imgbuild.audit.source.name_values import UNKNOWN_VALUE, NameValue
from imgbuild.audit.source.scopes import UNTYPED_VALUE, SourceScope, imported_module
from imgbuild.audit.source.text import dotted_name, string_list, type_name


class AssignmentReader:
    """Reads the statements that bind names."""

    def __init__(self, expressions: ExpressionReader, *, package: bool) -> None:
        """Create a reader for the module of `expressions`.

        With `package`, the module is an `__init__`.
        """
        self.expressions = expressions
        self.conditions = expressions.conditions
        self.names = expressions.names
        self.source = self.conditions.source
        module = self.module = self.conditions.module
        self.base = module if package else module.rpartition(".")[0]
        self.imports: list[Import] = []
        self.assigned: list[AssignedName] = []
        self.deleted: list[str] = []
        self.exports: list[str] | None = None

    def bind_name(
        self,
        name: str,
        kind: str,
        node: ast.stmt,
        value: str = "",
        name_value: NameValue = UNKNOWN_VALUE,
    ) -> None:
        """Record a name whose binding is neither a definition nor an import."""
        self.names.bind_name(name, name_value)
        scope = self.expressions.scope
        if scope.kind == "module":
            self.assigned.append(AssignedName(name, node.lineno, value, self.expressions.guards))
        elif scope.members is not None:
            scope.members.fields.setdefault(name, Field(name, node.lineno, "", True, True, value))
        else:
            scope.locals.bind_type(name, kind)

    def targets(self, target: ast.expr, node: ast.stmt) -> None:
        """Record names that unpacking, a loop or `with` binds, and whose types are unknown."""
        if isinstance(target, ast.Name):
            self.bind_name(target.id, "", node)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for item in target.elts:
                self.targets(item, node)
        elif isinstance(target, ast.Starred):
            self.targets(target.value, node)
        else:
            self.expressions.read_expression(target)

    # Imports

    def _bind_import(
        self, line: int, module: str, name: str, bound: str, value: NameValue = UNKNOWN_VALUE
    ) -> None:
        scope = self.expressions.scope
        guards = self.expressions.guards
        self.imports.append(Import(line, module, name, bound, scope.name, guards))
        self.names.bind_name(bound, value)
        if scope.kind != "module":
            scope.imported.add(bound)

    def read_import(self, node: ast.Import) -> None:
        """Record `import a.b as c`."""
        for alias in node.names:
            bound, whole = imported_module(alias)
            module, name = alias.name, ""
            if alias.asname and module.startswith(f"{bound}."):
                module, _, name = module.rpartition(".")
            self._bind_import(node.lineno, module, name, bound, NameValue(module=whole))

    def read_import_from(self, node: ast.ImportFrom) -> None:
        """Record `from a import b as c`. An import from `__future__` can defer annotations."""
        module = self.absolute_module(node)
        if module == "__future__":
            lazy = any(alias.name == "annotations" for alias in node.names)
            self.expressions.lazy_annotations |= lazy
            return
        for alias in node.names:
            is_version = alias.name in ("__version__", "VERSION")
            package = module.partition(".")[0] if is_version else ""
            value = NameValue(package=package) if package else UNKNOWN_VALUE
            self._bind_import(node.lineno, module, alias.name, alias.asname or alias.name, value)

    def absolute_module(self, node: ast.ImportFrom) -> str:
        """Return the absolute name of the module in a `from … import`.

        The name starts with "." if the module is above the top-level package.
        """
        if not node.level:
            return node.module or ""
        parts = self.base.split(".")
        parts = parts[: max(len(parts) - node.level + 1, 0)] or [""]
        return ".".join([*parts, *([node.module] if node.module else [])])

    # Values

    def read_return(self, node: ast.Return) -> None:
        """Record the value in a `return` statement, for conditions that call the function."""
        if node.value is not None:
            self.expressions.read_expression(node.value)
            scope, name_value = self.expressions.scope, self.conditions.value(node.value)
            scope.returned.append(node.value)
            self.names.add_answer(scope.name.rpartition(".")[2], name_value)
            self.names.frame.results.append((self.expressions.guards[scope.guarded :], name_value))

    def read_expression_statement(self, node: ast.Expr) -> None:
        """Record an expression statement. A top-level `__all__.extend(…)` adds exports."""
        self.expressions.read_expression(node.value)
        value = node.value
        if isinstance(value, ast.Call) and self.expressions.scope.kind == "module":
            name = dotted_name(value.func)
            if name in ("__all__.extend", "__all__.append") and value.args:
                self._add_exports(value.args[0], more=True)

    def read_assign(self, node: ast.Assign) -> None:
        """Record `a = b = value`, `a.b = value` or `a, b = value`."""
        if isinstance(node.value, ast.Call) and self.expressions.chains:
            for target in node.targets:
                names = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
                if names and not any(isinstance(each, ast.Starred) for each in names):
                    self.expressions.unpacked[node.value] = len(names)
        self.expressions.read_expression(node.value)
        kind, name_value = (
            self.expressions.expression_type(node.value),
            self.conditions.value(node.value),
        )
        for target in node.targets:
            apart = self._unpack_values(target, node.value)
            if isinstance(target, ast.Name):
                self.bind_name(
                    target.id, kind, node, value_text(self.source, node.value), name_value
                )
                self._export_value(target.id, node.value)
            elif isinstance(target, ast.Attribute):
                self._assign_attribute(target, kind, name_value)
            elif apart is not None:
                for element, value in apart:
                    self.bind_name(element.id, "", node, name_value=value)
            else:
                self.targets(target, node)

    def _unpack_values(
        self, target: ast.expr, value: ast.expr
    ) -> list[tuple[ast.Name, NameValue]] | None:
        """Return the names and values of `a, b = x, y`, or None if they are unknown."""
        if not isinstance(target, ast.Tuple):
            return None
        names = [item for item in target.elts if isinstance(item, ast.Name)]
        if len(names) != len(target.elts):
            return None
        values = self.conditions.unpacked(value, len(names))
        return list(zip(names, values, strict=True)) if values is not None else None

    def _assign_attribute(self, target: ast.Attribute, kind: str, name_value: NameValue) -> None:
        self.names.add_answer(target.attr, name_value)
        name = dotted_name(target)
        first, _, rest = name.partition(".")
        if rest and "." not in rest and self.expressions.is_self(first):
            self.expressions.self_attribute(rest, kind)
        else:
            self.expressions.read_expression(target)

    def read_annotated_assign(self, node: ast.AnnAssign) -> None:
        """Record `a: T` or `a: T = value`."""
        if self.expressions.scope.kind != "function":
            self.expressions.read_annotation(node.annotation)
        if node.value is not None:
            self.expressions.read_expression(node.value)
        kind = type_name(node.annotation)
        target = node.target
        name_value = UNKNOWN_VALUE if node.value is None else self.conditions.value(node.value)
        if isinstance(target, ast.Attribute):
            self._assign_attribute(target, kind, name_value)
        if not isinstance(target, ast.Name):
            return
        scope = self.expressions.scope
        if scope.members is not None:
            if node.value is not None:
                self.names.bind_name(target.id, name_value)
            scope.members.fields[target.id] = read_field(self.source, target.id, node)
            scope.members.assigned.bind_type(target.id, kind)
        elif scope.kind == "function" or node.value is not None:
            self.bind_name(target.id, kind, node, value_text(self.source, node.value), name_value)
            if node.value is not None:
                self._export_value(target.id, node.value)

    def read_augmented_assign(self, node: ast.AugAssign) -> None:
        """Record `a += value` or `__all__ += [...]`."""
        self.expressions.read_expression(node.value)
        if isinstance(node.target, ast.Name):
            if node.target.id == "__all__":
                self._add_exports(node.value, more=True)
            else:
                self.bind_name(node.target.id, "", node)
        else:
            self.expressions.read_expression(node.target)

    def _export_value(self, name: str, value: ast.expr) -> None:
        if name == "__all__" and self.expressions.scope.kind == "module":
            self._add_exports(value, more=False)

    def _add_exports(self, value: ast.expr, *, more: bool) -> None:
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
                self.names.bind_name(target.id)
                if self.expressions.scope.kind == "module":
                    self.deleted.append(target.id)
            else:
                self.expressions.read_expression(target)

    def read_global(self, node: ast.Global) -> None:
        """Record `global a`, which adds the name to the module."""
        self._declare(node)
        self.assigned.extend(AssignedName(name, node.lineno) for name in node.names)

    def read_nonlocal(self, node: ast.Nonlocal) -> None:
        """Record `nonlocal a`."""
        self._declare(node)

    def _declare(self, node: ast.Global | ast.Nonlocal) -> None:
        """Record names that several functions may bind, and that therefore have no type."""
        self.names.declare_names(node.names)
        scope: SourceScope | None = self.expressions.scope
        while self.expressions.chains and scope is not None and scope.kind == "function":
            for name in node.names:
                scope.locals.bind_type(name, UNTYPED_VALUE)
            scope = scope.parent if isinstance(node, ast.Nonlocal) else None
