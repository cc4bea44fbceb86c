"""Reads lazily bound names: tables, `__getattr__` and sys.modules."""

# A separate module: many idioms.
from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from imgbuild.audit.source.assignments import AssignmentReader
from imgbuild.audit.source.definitions import FunctionNode
from imgbuild.audit.source.facts import Import
from imgbuild.audit.source.text import (
    dotted_name,
    string_list,
    string_pattern,
    string_value,
    string_values,
)
from imgbuild.audit.source.tree import walk_tree

# Without any of these words a module's names are what it binds.
_SIGNS = (
    b"__getattr__",
    b"sys.modules",
    b"globals()",
    b"lazy",
    b"Lazy",
    b"exec(",
    b"vars()",
    b"modules[",
)
# A function that stores the module's dictionary adds names to it.
_GLOBALS_UPDATE = re.compile(
    rb"=\s*globals\(\)\s*$|^\s+globals\(\)\[[^\"'\]]+\]\s*=[^=]", re.MULTILINE
)
_TABLE = "_import_structure"
_ADDING_METHODS = ("update", "setdefault", "__setitem__")


class LazyNames:
    """Reads the fields `lazy`, `registers` and `dynamic` of ModuleFacts."""

    def __init__(self, tree: ast.Module, source: bytes, assignments: AssignmentReader) -> None:
        """Read lazily bound names in a module that `assignments` has already read."""
        self.assignments = assignments
        self.lazy: dict[str, str] = {}
        self.stars: list[str] = []
        self.registers: list[str] = []
        self.aliases: dict[str, str] = {}
        self.dynamic = _sets_computed_names(source, assignments.module)
        self._aliasing: set[str] = set()  # functions that put an alias into sys.modules
        self.tables: dict[str, ast.expr] = {}
        if any(sign in source for sign in _SIGNS):
            self.dynamic |= _GLOBALS_UPDATE.search(source) is not None
            statements = list(_import_time_statements(tree.body))
            self.tables = _tables(statements)
            self._read_statements(statements)

    def _read_statements(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if statement.name == "__getattr__":
                    self._read_getattr(statement)
                elif _registers_alias(statement):
                    self._aliasing.add(statement.name)
                continue
            if isinstance(statement, ast.Assign):
                self._read_assignment(statement)
            if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Subscript):
                self._read_item(statement.target, statement.value)
            if isinstance(statement, ast.For):
                self._read_alias_loop(statement)
            for call in _calls(statement):
                self._read_call(call)

    def _read_alias_loop(self, loop: ast.For) -> None:
        """Read `for alias in ALIASES: _import_structure.setdefault(alias, set())`.

        The keys of the literal table are old names of submodules, which are imported on demand.
        """
        table = self.tables.get(dotted_name(loop.iter))
        if not isinstance(table, ast.Dict) or not isinstance(loop.target, ast.Name):
            return
        expected = f"{_TABLE}.setdefault({loop.target.id}, set())"
        if not any(ast.unparse(statement) == expected for statement in loop.body):
            return
        for key in filter(None, map(string_value, filter(None, table.keys))):
            self.lazy.setdefault(key, f"{self.assignments.base}.{key}")
            self.registers.append(f"{self.assignments.base}.{key}")

    def _read_assignment(self, statement: ast.Assign) -> None:
        self.dynamic |= _is_own_module(statement.value)  # module = sys.modules[__name__]
        for target in statement.targets:
            if isinstance(target, ast.Tuple):
                self._read_lazy_loader(target, statement.value)
            elif isinstance(target, ast.Name) and target.id == "__getattr__":
                self.dynamic = True
            elif isinstance(target, ast.Subscript):
                self._read_item(target, statement.value)
            elif isinstance(target, ast.Attribute) and _is_own_module(target.value):
                self.dynamic = True  # sys.modules[__name__].__class__ = …

    def _read_item(self, target: ast.Subscript, value: ast.expr) -> None:
        holder = dotted_name(target.value)
        if holder in ("sys.modules", "modules"):
            if dotted_name(target.slice) != "__name__":
                self._register_module(target.slice)
            elif isinstance(value, ast.Call) and "lazy" in dotted_name(value.func).lower():
                self._lazy_module(value)
            else:
                self.dynamic = True
        elif holder == _TABLE:
            self._read_structure({string_value(target.slice) or "": string_values(value)})
        elif isinstance(target.value, ast.Call) and dotted_name(target.value.func) in (
            "globals",
            "vars",
        ):
            name = string_value(target.slice)
            if name is None:
                self.dynamic = True
            else:
                self.lazy.setdefault(name, "")

    def _register_module(self, name: ast.expr) -> None:
        """Record a module that is added to sys.modules, with "*" for computed parts of the name."""
        text = string_pattern(name, self.assignments.module)
        if text is not None and text.strip("*."):
            self.registers.append(text)

    def _lazy_module(self, call: ast.Call) -> None:
        """Read the table and type-checking imports of `sys.modules[…] = _LazyModule(…)`."""
        table = self.tables.get(_TABLE)
        if isinstance(table, ast.Dict):
            self._read_structure(_entries(table))
        for line in self._typing_imports():
            if line.name == "*":
                self.stars.append(line.module)
            elif line.name and ("dummy" not in line.module or line.bound not in self.lazy):
                self.lazy[line.bound] = _source(line)
        if any(line.bound == "define_import_structure" for line in self.assignments.imports):
            # The table is computed from the files in this folder, the package's from its models.
            folder = self.assignments.module
            if any(line.bound == "_LegacyModuleAliasFinder" for line in self.assignments.imports):
                self.registers.append(f"{folder}.models.*_fast")  # served by a finder, on demand
            if "." not in folder:
                folder = f"{folder}.models"
                self.stars.append(folder)
            self.stars.append(f"{folder}.*")
        elif not table and not self.lazy and not self.stars:
            self.dynamic = True

    def _read_structure(self, entries: dict[str, list[str] | None]) -> None:
        """Read `_import_structure`, which maps each submodule to the names in it."""
        for key, names in entries.items():
            if not key or names is None:
                # Dummy objects for an absent package may be computed: they cannot be used.
                self.dynamic |= "dummy" not in key
                continue
            module = f"{self.assignments.base}.{key}" if self.assignments.base else key
            first = key.partition(".")[0]
            self.lazy.setdefault(first, f"{self.assignments.base}.{first}")
            for name in names:
                if "dummy" not in key or name not in self.lazy:
                    current = self.lazy.get(name, "")
                    if not current or "dummy" in current or current.endswith(f".{name}"):
                        self.lazy[name] = module

    def _read_call(self, call: ast.Call) -> None:
        name = dotted_name(call.func)
        if any(_is_own_module(argument) for argument in call.args):
            self.dynamic = True  # install_config_module(sys.modules[__name__])
        if name in ("exec", "setattr") and call.args:
            self.dynamic |= name == "exec" or _is_own_module(call.args[0])
        elif name == f"{_TABLE}.setdefault" and len(call.args) == 2:
            key, names = call.args
            if ast.unparse(names) != "set()":  # no name is taken from the submodule
                self._read_structure({string_value(key) or "": string_values(names)})
        elif name == f"{_TABLE}.update":
            self.dynamic = True
        elif isinstance(call.func, ast.Attribute):
            self._read_method_call(call, call.func, name)
        elif name in self._aliasing and len(call.args) > 1:
            alias, target = (
                string_pattern(call.args[0], self.assignments.module),
                string_value(call.args[1]),
            )
            if alias and target and "*" not in alias:
                self.aliases[alias] = (self.assignments.base if target[0] == "." else "") + target
        elif name:
            for argument in call.args[:1]:
                text = (
                    string_pattern(argument, self.assignments.module) if "alias" in name else None
                )
                if text is not None and text.startswith(self.assignments.module + "."):
                    self.registers.append(text)

    def _read_method_call(self, call: ast.Call, func: ast.Attribute, name: str) -> None:
        owner = func.value
        if isinstance(owner, ast.Call):
            self.dynamic |= (
                dotted_name(owner.func) in ("globals", "vars") and func.attr in _ADDING_METHODS
            )
        elif isinstance(owner, ast.Subscript) and dotted_name(owner.value) == _TABLE and call.args:
            self._read_structure({string_value(owner.slice) or "": string_list(call.args[0])})
        elif name in ("sys.modules.setdefault", "sys.modules.update") and call.args:
            self._register_module(call.args[0])

    def _read_lazy_loader(self, target: ast.Tuple, value: ast.expr) -> None:
        """Read `__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, …)`."""
        if not any(dotted_name(item) == "__getattr__" for item in target.elts):
            return
        if not isinstance(value, ast.Call) or not dotted_name(value.func).endswith("attach"):
            self.dynamic = True
            return
        given = {item.arg: item.value for item in value.keywords}
        given.update(zip(("submodules", "submod_attrs"), value.args[1:], strict=False))
        submodules, attributes = given.get("submodules"), given.get("submod_attrs")
        for name in string_values(submodules) or () if submodules is not None else ():
            self.lazy[name] = f"{self.assignments.base}.{name}"
        if isinstance(attributes, ast.Name):
            attributes = self.tables.get(attributes.id, attributes)
        if isinstance(attributes, ast.Dict):
            self._read_structure(_entries(attributes))
        elif attributes is not None:
            self.dynamic = True

    def _typing_imports(self) -> list[Import]:
        top = [line for line in self.assignments.imports if not line.scope]
        return [line for line in top if any(guard.kind == "typing" for guard in line.guards)]

    def _read_getattr(self, node: FunctionNode) -> None:
        name = node.args.args[0].arg if node.args.args else "name"
        understood = any(isinstance(inner, ast.Raise) for inner in walk_tree(node))
        for statement in node.body:
            understood &= self._returns_for_names(statement, name)
        self.dynamic |= not understood
        root = self.assignments.module.partition(".")[0]
        for line in self._typing_imports():  # it returns their names, except for its own submodules
            is_served = line.bound in self.lazy or line.module.startswith(f"{root}.")
            if is_served and line.module != root and line.name not in ("", "*"):
                read = self.lazy.get(line.bound, "").partition(":")[0]
                # A table may name the submodule alone: import_module(f"package.{TABLE[name]}").
                if not read or line.module.endswith(f".{read}"):
                    self.lazy[line.bound] = _source(line)

    def _returns_for_names(self, statement: ast.stmt, name: str) -> bool:
        """Return whether a statement returns values only for names that could be determined."""
        if isinstance(statement, ast.If):
            is_understood = self._read_name_test(statement, name)
            rest = all(self._returns_for_names(child, name) for child in statement.orelse)
            return is_understood and rest
        if isinstance(statement, ast.Try):
            inner = [*statement.body, *statement.orelse, *statement.finalbody]
            return all(self._returns_for_names(child, name) for child in inner)
        if isinstance(statement, ast.Return):
            return self._uses_table(statement)
        if isinstance(statement, ast.Assign):
            self._uses_table(statement)
        return True

    def _read_name_test(self, statement: ast.If, name: str) -> bool:
        """Read `if name == "X"` or `if name in TABLE`, whose names are lazy."""
        test = statement.test
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test = test.operand
        if isinstance(test, ast.Call) and dotted_name(test.func) == f"{name}.startswith":
            return bool(statement.body) and isinstance(statement.body[-1], ast.Raise)
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            test = next(
                (operand for operand in test.values if isinstance(operand, ast.Compare)), test
            )
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return isinstance(statement.body[-1], ast.Raise)
        left, right = test.left, test.comparators[0]
        if dotted_name(right) == name:
            left, right = right, left
        if dotted_name(left) != name:
            is_understood = self._uses_table(statement)
            return is_understood or isinstance(statement.body[-1], ast.Raise)
        return self._record_names(statement, right)

    def _record_names(self, statement: ast.If, right: ast.expr) -> bool:
        names = string_list(right)
        if names is not None:
            for item in names:
                self.lazy[item] = self._branch_module(statement.body, item)
            return True
        holder = dotted_name(right)
        if isinstance(right, ast.Call) and dotted_name(right.func) == "globals":
            return True
        if holder in self.tables:
            self._record_table(self.tables[holder])
            return True
        if holder == "__all__":
            for item in self.assignments.exports or ():
                self.lazy.setdefault(item, "")
            return self.assignments.exports is not None
        return False

    def _branch_module(self, body: list[ast.stmt], name: str) -> str:
        """Return the module from which the branch for a name imports the name, or "" if unknown."""
        for statement in body:
            if isinstance(statement, ast.ImportFrom):
                for alias in statement.names:
                    if (alias.asname or alias.name) == name:
                        other = "" if alias.name == name else f":{alias.name}"
                        return self.assignments.absolute_module(statement) + other
        return ""

    def _uses_table(self, statement: ast.stmt) -> bool:
        """Return whether a statement uses a table, and record the names in the table."""
        for node in walk_tree(statement):
            if isinstance(node, ast.Name) and node.id in self.tables:
                self._record_table(self.tables[node.id])
                return True
        return False

    def _record_table(self, table: ast.expr) -> None:
        if not isinstance(table, ast.Dict):
            names = string_values(table)
            if names is None:
                self.dynamic = True
            for name in names or ():
                self.lazy.setdefault(name, "")
            return
        for key, value in zip(table.keys, table.values, strict=True):
            text = string_value(key)
            if text is None:
                self.dynamic = True
            else:
                self.lazy[text] = self._table_target(value, text)

    def _table_target(self, value: ast.expr, name: str) -> str:
        """Return the module and name in the value of a table.

        Possible values are ".outputs:X", "pkg.mod" and (".mod", "X").
        """
        text = string_value(value) or ":".join((string_values(value) or [])[:2])
        module, _, other = text.partition(":")
        if module.startswith("."):
            level = len(module) - len(module.lstrip("."))
            parts = self.assignments.base.split(".")
            module = ".".join([*parts[: len(parts) - level + 1], module.lstrip(".")]).rstrip(".")
        if not module.replace(".", "").replace("_", "").isalnum():
            return ""
        return module if other in ("", name) else f"{module}:{other}"


def _import_time_statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for name in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(statement, name, ())
            for item in inner if isinstance(inner, list) else ():
                if isinstance(item, ast.ExceptHandler):
                    yield from _import_time_statements(item.body)
                else:
                    yield from _import_time_statements([item])


def _calls(statement: ast.stmt) -> Iterator[ast.Call]:
    for name in ("value", "test", "iter"):
        part = getattr(statement, name, None)
        if isinstance(part, ast.AST):
            yield from (node for node in walk_tree(part) if isinstance(node, ast.Call))


def _tables(statements: list[ast.stmt]) -> dict[str, ast.expr]:
    tables: dict[str, ast.expr] = {}
    for statement in statements:
        target: ast.expr | None = None
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign):
            target = statement.target
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and isinstance(
            value, (ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Call, ast.DictComp)
        ):
            tables.setdefault(target.id, value)
    return tables


def _sets_computed_names(source: bytes, module: str) -> bool:
    """Return whether a function sets computed names in its own module, as in numpy.dtypes."""
    if b"setattr(" not in source:
        return False
    stem = module.rpartition(".")[2].encode()
    return re.search(rb"\bsetattr\(\s*" + stem + rb"\s*,\s*[^\"'\s]", source) is not None


def _source(line: Import) -> str:
    return line.module if line.name == line.bound else f"{line.module}:{line.name}"


def _registers_alias(node: FunctionNode) -> bool:
    """Return whether a function with parameters for alias and target sets `sys.modules[alias]`."""
    if len(node.args.args) != 2:
        return False
    text = ast.unparse(node)
    return "sys.modules[" in text and "import_module(" in text


def _is_own_module(node: ast.expr) -> bool:
    """Return whether an expression is `sys.modules[__name__]`."""
    return isinstance(node, ast.Subscript) and dotted_name(node.slice) == "__name__"


def _entries(table: ast.Dict) -> dict[str, list[str] | None]:
    return {
        string_value(key) or "": string_values(value)
        for key, value in zip(table.keys, table.values, strict=True)
    }
