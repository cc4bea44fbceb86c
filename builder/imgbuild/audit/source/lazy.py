"""Names that a module has without binding them: lazy tables, `__getattr__`, sys.modules.

Input: a module's tree, walked already. Output: which names appear, from where, and whether
others may.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from imgbuild.audit.source.getattr_names import Appearing, read_getattr
from imgbuild.audit.source.text import dotted, string, strings
from imgbuild.audit.source.walk import Walker

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
# A function that keeps the module's dictionary at hand puts names into it.
_INTO_GLOBALS = re.compile(
    rb"=\s*globals\(\)\s*$|^\s+globals\(\)\[[^\"'\]]+\]\s*=[^=]", re.MULTILINE
)
_TABLE = "_import_structure"
_PUTS = ("update", "setdefault", "__setitem__")


def appearing(tree: ast.Module, source: bytes, walker: Walker) -> Appearing | None:
    """The names that appear in a module, None if nothing speaks of any."""
    if not any(sign in source for sign in _SIGNS):
        return None
    found = Appearing(dynamic=_INTO_GLOBALS.search(source) is not None)
    statements = list(_top(tree.body))
    tables = _tables(statements)
    for statement in statements:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if statement.name == "__getattr__":
                read_getattr(statement, tables, walker, found)
            continue
        if isinstance(statement, ast.Assign):
            _assignment(statement, tables, walker, found)
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Subscript):
            _item(statement.target, statement.value, tables, walker, found)
        if isinstance(statement, ast.For):
            _aliases(statement, tables, walker, found)
        for call in _calls(statement):
            _called(call, walker, found)
    return found


def _aliases(loop: ast.For, tables: dict[str, ast.expr], walker: Walker, found: Appearing) -> None:
    """Old names of submodules: `for alias in ALIASES: _import_structure.setdefault(alias, set())`.

    The keys of the literal table become modules that are served when they are asked for.
    """
    table = tables.get(dotted(loop.iter))
    if not isinstance(table, ast.Dict) or not isinstance(loop.target, ast.Name):
        return
    wanted = f"{_TABLE}.setdefault({loop.target.id}, set())"
    if not any(ast.unparse(statement) == wanted for statement in loop.body):
        return
    for key in filter(None, map(string, filter(None, table.keys))):
        found.lazy.setdefault(key, f"{walker.base}.{key}")
        found.registers.append(f"{walker.base}.{key}")


def _top(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported, also those inside branches."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for name in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(statement, name, ())
            for item in inner if isinstance(inner, list) else ():
                if isinstance(item, ast.ExceptHandler):
                    yield from _top(item.body)
                else:
                    yield from _top([item])


def _calls(statement: ast.stmt) -> Iterator[ast.Call]:
    """The calls of a statement itself, not of the statements inside it."""
    for name in ("value", "test", "iter"):
        part = getattr(statement, name, None)
        if isinstance(part, ast.AST):
            yield from (node for node in ast.walk(part) if isinstance(node, ast.Call))


def _tables(statements: list[ast.stmt]) -> dict[str, ast.expr]:
    """Literal dictionaries and lists at the top of the module."""
    found: dict[str, ast.expr] = {}
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
            found.setdefault(target.id, value)
    return found


def _assignment(
    statement: ast.Assign, tables: dict[str, ast.expr], walker: Walker, found: Appearing
) -> None:
    for target in statement.targets:
        if isinstance(target, ast.Tuple):
            _attached(target, statement.value, tables, walker, found)
        elif isinstance(target, ast.Name) and target.id == "__getattr__":
            found.dynamic = True
        elif isinstance(target, ast.Subscript):
            _item(target, statement.value, tables, walker, found)
        elif isinstance(target, ast.Attribute) and _itself(target.value):
            found.dynamic = True  # sys.modules[__name__].__class__ = …


def _itself(node: ast.expr) -> bool:
    """Whether this is `sys.modules[__name__]`."""
    return isinstance(node, ast.Subscript) and dotted(node.slice) == "__name__"


def _item(
    target: ast.Subscript,
    value: ast.expr,
    tables: dict[str, ast.expr],
    walker: Walker,
    found: Appearing,
) -> None:
    holder = dotted(target.value)
    if holder in ("sys.modules", "modules"):
        if dotted(target.slice) != "__name__":
            _register(target.slice, walker, found)
        elif isinstance(value, ast.Call) and "lazy" in dotted(value.func).lower():
            _lazy_module(value, tables, walker, found)
        else:
            found.dynamic = True
    elif holder == _TABLE:
        _structure({string(target.slice) or "": strings(value)}, walker, found)
    elif isinstance(target.value, ast.Call) and dotted(target.value.func) in ("globals", "vars"):
        name = string(target.slice)
        if name is None:
            found.dynamic = True
        else:
            found.lazy.setdefault(name, "")


def _register(name: ast.expr, walker: Walker, found: Appearing) -> None:
    """A module that is put into sys.modules by hand, "*" for what is computed of its name."""
    text = pattern(name, walker.module)
    if text is not None and text.strip("*."):
        found.registers.append(text)


def pattern(node: ast.expr, module: str) -> str | None:
    """The text of a string expression, with "*" for what is computed; None if it is no string."""
    text = string(node)
    if text is not None:
        return text
    if isinstance(node, ast.JoinedStr):
        parts = [
            string(part) if isinstance(part, ast.Constant) else _formatted(part, module)
            for part in node.values
        ]
        return "".join(part or "*" for part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = pattern(node.left, module), pattern(node.right, module)
        return None if left is None and right is None else (left or "*") + (right or "*")
    return module if dotted(node) == "__name__" else None


def _formatted(part: ast.expr, module: str) -> str:
    name = dotted(part.value) if isinstance(part, ast.FormattedValue) else ""
    return module if name in ("__name__", "__package__") else "*"


def _lazy_module(
    call: ast.Call, tables: dict[str, ast.expr], walker: Walker, found: Appearing
) -> None:
    """`sys.modules[__name__] = _LazyModule(…)`: its table, and what type checkers are told."""
    table = tables.get(_TABLE)
    if isinstance(table, ast.Dict):
        _structure(_entries(table), walker, found)
    for line in walker.imports:
        if line.scope or not any(guard.kind == "typing" for guard in line.guards):
            continue
        if line.name == "*":
            found.stars.append(line.module)
        elif line.name and ("dummy" not in line.module or line.bound not in found.lazy):
            other = "" if line.name == line.bound else f":{line.name}"
            found.lazy[line.bound] = line.module + other
    if any(line.bound == "define_import_structure" for line in walker.imports):
        # The table is made of the files beside this one; the package itself asks for its models.
        folder = walker.module
        if any(line.bound == "_LegacyModuleAliasFinder" for line in walker.imports):
            found.registers.append(f"{folder}.models.*_fast")  # served by a finder, on demand
        if "." not in folder:
            folder = f"{folder}.models"
            found.stars.append(folder)
        found.stars.append(f"{folder}.*")
    elif not table and not found.lazy and not found.stars:
        found.dynamic = True


def _entries(table: ast.Dict) -> dict[str, list[str] | None]:
    return {
        string(key) or "": strings(value)
        for key, value in zip(table.keys, table.values, strict=True)
    }


def _structure(entries: dict[str, list[str] | None], walker: Walker, found: Appearing) -> None:
    """`_import_structure`: submodule to the names that are taken from it."""
    for key, names in entries.items():
        if not key or names is None:
            # What stands in for a package that is absent may be computed: nobody can use it.
            found.dynamic |= "dummy" not in key
            continue
        module = f"{walker.base}.{key}" if walker.base else key
        first = key.partition(".")[0]
        found.lazy.setdefault(first, f"{walker.base}.{first}")
        for name in names:
            if "dummy" not in key or name not in found.lazy:
                known = found.lazy.get(name, "")
                if not known or "dummy" in known or known.endswith(f".{name}"):
                    found.lazy[name] = module


def _defaulted(key: ast.expr, names: ast.expr, walker: Walker, found: Appearing) -> None:
    """`_import_structure.setdefault(key, names)`; an empty set takes no name from a submodule."""
    if ast.unparse(names) != "set()":
        _structure({string(key) or "": strings(names)}, walker, found)


def _called(call: ast.Call, walker: Walker, found: Appearing) -> None:
    name = dotted(call.func)
    if any(_itself(argument) for argument in call.args):
        found.dynamic = True  # install_config_module(sys.modules[__name__])
    if name in ("exec", "setattr") and call.args:
        found.dynamic |= name == "exec" or _itself(call.args[0])
    elif name == f"{_TABLE}.setdefault" and len(call.args) == 2:
        _defaulted(call.args[0], call.args[1], walker, found)
    elif name == f"{_TABLE}.update":
        found.dynamic = True
    elif isinstance(call.func, ast.Attribute):
        owner = call.func.value
        if isinstance(owner, ast.Call):
            found.dynamic |= dotted(owner.func) in ("globals", "vars") and call.func.attr in _PUTS
        elif isinstance(owner, ast.Subscript) and dotted(owner.value) == _TABLE and call.args:
            key = string(owner.slice)
            one = string(call.args[0])
            names = [one] if one is not None else strings(call.args[0])
            _structure({key or "": names}, walker, found)
        elif name in ("sys.modules.setdefault", "sys.modules.update") and call.args:
            _register(call.args[0], walker, found)
    elif name:
        for argument in call.args[:1]:
            text = pattern(argument, walker.module) if "alias" in name else None
            if text is not None and text.startswith(walker.module + "."):
                found.registers.append(text)


def _attached(
    target: ast.Tuple,
    value: ast.expr,
    tables: dict[str, ast.expr],
    walker: Walker,
    found: Appearing,
) -> None:
    """`__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, …)`."""
    if not any(dotted(item) == "__getattr__" for item in target.elts):
        return
    if not isinstance(value, ast.Call) or not dotted(value.func).endswith("attach"):
        found.dynamic = True
        return
    given = {item.arg: item.value for item in value.keywords}
    given.update(zip(("submodules", "submod_attrs"), value.args[1:], strict=False))
    submodules, attributes = given.get("submodules"), given.get("submod_attrs")
    for name in strings(submodules) or () if submodules is not None else ():
        found.lazy[name] = f"{walker.base}.{name}"
    if isinstance(attributes, ast.Name):
        attributes = tables.get(attributes.id, attributes)
    if isinstance(attributes, ast.Dict):
        _structure(_entries(attributes), walker, found)
    elif attributes is not None:
        found.dynamic = True
