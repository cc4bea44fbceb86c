"""Reads setup.py without running it.

Assignments of literals and lists are evaluated. Values that only the build backend can compute are
None.
"""

# A separate module: an evaluator of literals and lists.
from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from packaging.requirements import InvalidRequirement

from imgbuild.project.project_files import ProjectFiles, parent_folder, relative_path
from imgbuild.system.syntax import parse_requirement, parse_source

CALLS = 20  # functions of the script in each other
STEPS = 200_000  # expressions that are evaluated, and items of a list or letters of a text
TOO_LARGE = "the script is too large to be read"
# Calls that return their first argument, as far as requirements are concerned.
READERS = ("open", "read_text")
PLAIN_FUNCTIONS = frozenset([
    "list", "tuple", "sorted", "set", "str", "fspath", "Path", "PurePath", "open",
    "parse_requirements", "iter", "frozenset", "resolve", "dedent",
])  # fmt: skip
# Methods that do not change the lines of a file, or a text, for this purpose.
CONTENT_METHODS = frozenset([
    "read", "readlines", "read_text", "splitlines", "strip", "rstrip", "lstrip", "open",
    "decode", "split", "resolve", "absolute", "copy", "as_posix",
])  # fmt: skip
FINDERS = frozenset({"find_packages", "find_namespace_packages"})
# Expressions for the folder of the script.
FOLDERS = frozenset({"dirname", "abspath", "realpath", "getcwd", "cwd"})


class RequirementFile(msgspec.Struct, frozen=True):
    """A placeholder for the lines of a requirements file, given by path in the project."""

    name: str


class ScriptText(msgspec.Struct, frozen=True):
    """A string, and its line in the script."""

    value: str
    line: int


class FoundPackages(msgspec.Struct, frozen=True):
    """The result of `find_packages(where)`."""

    where: str


class SetupScript:
    """Evaluates the arguments of `setup()` in the script `file`.

    Raises SyntaxError if the script is invalid, and ValueError if it is too large.
    """

    def __init__(self, sources: ProjectFiles, file: str) -> None:
        self.sources = sources
        self.file = file
        self.folder = parent_folder(file)
        self._functions: dict[str, ast.FunctionDef] = {}
        self.arguments: dict[str, Any] = {}
        self.conditional: list[ScriptText] = []
        self.line = 0
        self.incomplete = False  # setup() has arguments whose names are unknown
        self._steps = 0
        tree = parse_source(sources.text(file))
        self._run_statements(tree.body, {}, 0)

    def _run_statements(
        self, statements: Sequence[ast.stmt], names: dict[str, Any], depth: int, *, guard: str = ""
    ) -> Any:
        """Execute statements under the condition `guard`, and return the value of a `return`."""
        for statement in statements:
            result = self._run_compound(statement, names, depth, guard)
            if result is not None:
                return result
            self._run_simple(statement, names, depth, guard)
        return None

    def _run_compound(
        self, statement: ast.stmt, names: dict[str, Any], depth: int, guard: str
    ) -> Any:
        match statement:
            case ast.If(test=test, body=body, orelse=other):
                inner = guard if _is_main(test) else f"if {ast.unparse(test)}"
                self._run_statements(body, names, depth, guard=inner)
                self._run_statements(other, names, depth, guard=f"not {inner}")
            case ast.With(items=items, body=body):
                for item in items:
                    if isinstance(item.optional_vars, ast.Name):
                        value = self._expression_value(item.context_expr, names, depth)
                        names[item.optional_vars.id] = value
                return self._run_statements(body, names, depth, guard=guard)
            case ast.Try(body=body):
                return self._run_statements(body, names, depth, guard=guard)
            case ast.For(target=ast.Name(id=name), iter=iterated, body=body):
                names[name] = self._expression_value(iterated, names, depth)
                self._run_statements(body, names, depth, guard=guard)
            case ast.Return(value=ast.expr() as value):
                return self._expression_value(value, names, depth)
            case _:
                pass
        return None

    def _run_simple(
        self, statement: ast.stmt, names: dict[str, Any], depth: int, guard: str
    ) -> None:
        match statement:
            case ast.FunctionDef():
                self._functions[statement.name] = statement
            case ast.Assign(targets=targets, value=value):
                result = self._expression_value(value, names, depth)
                for target in targets:
                    self._bind_target(target, result, names, guard)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._bind_target(target, self._expression_value(value, names, depth), names, guard)
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                self._add_to_list(name, self._expression_value(value, names, depth), names, guard)
            case ast.Expr(value=ast.Call() as call):
                self._call_statement(call, names, depth, guard)
            case _:
                pass

    def _bind_target(self, target: ast.expr, value: Any, names: dict[str, Any], guard: str) -> None:
        if isinstance(target, ast.Name):
            if guard and names.get(target.id) is not None:
                self.conditional.append(ScriptText(f"{target.id} ({guard})", target.lineno))
                return
            names[target.id] = value
        elif isinstance(target, ast.Subscript):
            table = self._expression_value(target.value, names, 0)
            key = self._expression_value(target.slice, names, 0)
            if isinstance(table, dict) and isinstance(key, ScriptText):
                table[key.value] = value
        elif isinstance(target, ast.Tuple):
            values = value if isinstance(value, list) else [value]
            for each, part in zip(target.elts, [*values, *[None] * len(target.elts)], strict=False):
                self._bind_target(each, part, names, guard)

    def _add_to_list(self, name: str, added: Any, names: dict[str, Any], guard: str) -> None:
        """Add to a list. Conditions on the lines of a file are ignored."""
        before = names.get(name)
        texts = [item for item in flatten_items(added) if isinstance(item, ScriptText)]
        if guard and texts:
            self.conditional += [ScriptText(f"{t.value} ({guard})", t.line) for t in texts]
        elif isinstance(before, list | RequirementFile) and added is not None:
            parts = [before] if isinstance(before, RequirementFile) else before
            names[name] = [*parts, *(added if isinstance(added, list) else [added])]
        elif before is not None and not isinstance(before, RequirementFile):
            names[name] = None

    def _call_statement(
        self, call: ast.Call, names: dict[str, Any], depth: int, guard: str
    ) -> None:
        match call:
            case ast.Call(func=ast.Name(id="setup") | ast.Attribute(attr="setup")):
                self._read_setup_call(call, names, depth)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="append" | "extend" | "update"),
                args=[argument],
            ):
                added = self._expression_value(argument, names, depth)
                before = names.get(name)
                if isinstance(before, dict) and isinstance(added, dict):
                    before |= added
                else:
                    self._add_to_list(name, added, names, guard)
            case ast.Call(func=ast.Name(id=name)) if name in self._functions and depth < CALLS:
                self._function_result(name, call, names, depth)
            case _:
                pass

    def _read_setup_call(self, call: ast.Call, names: dict[str, Any], depth: int) -> None:
        self.line = call.lineno
        for keyword in call.keywords:
            value = self._expression_value(keyword.value, names, depth)
            if keyword.arg is None:
                self.incomplete |= not isinstance(value, dict)
                self.arguments |= value if isinstance(value, dict) else {}
            else:
                self.arguments[keyword.arg] = value

    def _expression_value(self, node: ast.expr, names: dict[str, Any], depth: int) -> Any:
        value: Any = None
        match node:
            case ast.Constant(value=str() as text):
                value = ScriptText(text, node.lineno)
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                value = self._item_values(items, names, depth)
            case ast.Dict(keys=keys, values=values):
                value = self._dict_value(keys, values, names, depth)
            case ast.Name(id=name):
                value = ScriptText("", node.lineno) if name == "__file__" else names.get(name)
            case ast.Call():
                value = self._call_value(node, names, depth)
            case _:
                value = self._compound_value(node, names, depth)
        self._steps += 1
        size = len(value.value) if isinstance(value, ScriptText) else 0
        size = len(value) if isinstance(value, list) else size
        if max(self._steps, size) > STEPS:
            raise ValueError(TOO_LARGE)
        return value

    def _compound_value(self, node: ast.expr, names: dict[str, Any], depth: int) -> Any:
        value: Any = None
        match node:
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                value = _sum(
                    self._expression_value(left, names, depth),
                    self._expression_value(right, names, depth),
                )
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                value = self._joined_path([left, right], names, depth)
            case ast.JoinedStr(values=values):
                value = self._joined_text(values, names, depth, node.lineno)
            case ast.Attribute(attr="parent"):
                value = ScriptText("", node.lineno)
            case ast.Subscript(value=table, slice=key):
                value = self._table_item(table, key, names, depth)
            case ast.DictComp(generators=[each]):
                value = self._table_by_name(each, names, depth)
            case (
                ast.ListComp(elt=element, generators=[ast.comprehension() as each])
                | ast.GeneratorExp(elt=element, generators=[ast.comprehension() as each])
            ):
                value = self._comprehension_value(element, each, names, depth)
            case _:
                pass
        return value

    def _item_values(self, items: Sequence[ast.expr], names: dict[str, Any], depth: int) -> Any:
        values: list[Any] = []
        for item in items:
            if isinstance(item, ast.Starred):
                inner = self._expression_value(item.value, names, depth)
                values += inner if isinstance(inner, list) else [inner]
            else:
                values.append(self._expression_value(item, names, depth))
        return values

    def _dict_value(
        self,
        keys: Sequence[ast.expr | None],
        values: Sequence[ast.expr],
        names: dict[str, Any],
        depth: int,
    ) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for key, value in zip(keys, values, strict=True):
            result = self._expression_value(value, names, depth)
            if key is None:
                table |= result if isinstance(result, dict) else {}
                continue
            name = self._expression_value(key, names, depth)
            if isinstance(name, ScriptText):
                table[name.value] = result
        return table

    def _joined_text(
        self, values: Sequence[ast.expr], names: dict[str, Any], depth: int, line: int
    ) -> ScriptText | None:
        parts = []
        for value in values:
            inner = value.value if isinstance(value, ast.FormattedValue) else value
            part = self._expression_value(inner, names, depth)
            if not isinstance(part, ScriptText):
                return None
            parts.append(part.value)
        return ScriptText("".join(parts), line)

    def _table_item(self, table: ast.expr, key: ast.expr, names: dict[str, Any], depth: int) -> Any:
        values, name = (
            self._expression_value(table, names, depth),
            self._expression_value(key, names, depth),
        )
        if isinstance(values, dict) and isinstance(name, ScriptText):
            return values.get(name.value)
        if isinstance(values, list) and isinstance(key, ast.Constant) and key.value == 0:
            return values[0] if values else None
        return values if isinstance(values, RequirementFile) else None

    def _joined_path(self, parts: Sequence[ast.expr], names: dict[str, Any], depth: int) -> Any:
        """Join the components of a path. An unknown component stands for the script's folder."""
        values = [self._expression_value(part, names, depth) for part in parts]
        texts = [
            value.value if isinstance(value, ScriptText) else value.name
            for value in values
            if isinstance(value, ScriptText | RequirementFile)
        ]
        return self._file_content("/".join(text for text in texts if text), parts[0].lineno)

    def _file_content(self, path: str, line: int) -> ScriptText | RequirementFile:
        """Return the project's file at `path`, or the path as a string if there is no such file."""
        target = relative_path(self.folder, path.lstrip("/")) if path else ""
        is_path = path and len(path) < 256 and "\n" not in path and not target.startswith("..")
        if is_path and self.sources.is_inside(target) and self.sources.exists(target):
            return RequirementFile(target)
        return ScriptText(path, line)

    def _read_result(self, path: ScriptText, function: str) -> ScriptText | RequirementFile | None:
        file = self._file_content(path.value, path.line)
        return None if function in READERS and isinstance(file, ScriptText) else file

    def _call_value(self, call: ast.Call, names: dict[str, Any], depth: int) -> Any:
        function = call.func
        name = function.id if isinstance(function, ast.Name) else ""
        attribute = function.attr if isinstance(function, ast.Attribute) else ""
        label = name or attribute
        if name in self._functions and depth < CALLS:
            return self._function_result(name, call, names, depth)
        if label in FINDERS:
            return self._find_packages_value(call, names, depth)
        if attribute == "join":
            return self._joined_path(call.args, names, depth) if len(call.args) > 1 else None
        if label in FOLDERS:
            return ScriptText("", call.lineno)
        if label in PLAIN_FUNCTIONS and call.args:
            value = self._expression_value(call.args[0], names, depth)
            return self._read_result(value, label) if isinstance(value, ScriptText) else value
        if isinstance(function, ast.Attribute) and attribute in CONTENT_METHODS:
            return self._method_value(function, names, depth)
        # A reader that is imported: its argument names the file.
        values = [self._expression_value(argument, names, depth) for argument in call.args]
        files = [self._file_content(v.value, v.line) for v in values if isinstance(v, ScriptText)]
        return next((each for each in files if isinstance(each, RequirementFile)), None)

    def _method_value(self, function: ast.Attribute, names: dict[str, Any], depth: int) -> Any:
        value = self._expression_value(function.value, names, depth)
        if not isinstance(value, ScriptText):
            return value
        if function.attr in ("split", "splitlines"):
            return [ScriptText(part, value.line) for part in value.value.split() if part]
        if function.attr in READERS:
            return self._read_result(value, function.attr)
        return value

    def _find_packages_value(
        self, call: ast.Call, names: dict[str, Any], depth: int
    ) -> FoundPackages:
        given = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "where")]
        where = self._expression_value(given[0], names, depth) if given else None
        return FoundPackages(where.value if isinstance(where, ScriptText) and where.value else ".")

    def _function_result(self, name: str, call: ast.Call, names: dict[str, Any], depth: int) -> Any:
        function = self._functions[name]
        inner = dict(names)
        parameters = [argument.arg for argument in function.args.args]
        defaults = function.args.defaults
        for parameter, default in zip(parameters[len(parameters) - len(defaults):], defaults,
                                      strict=True):  # fmt: skip
            inner[parameter] = self._expression_value(default, names, depth)
        for parameter, argument in zip(parameters, call.args, strict=False):
            inner[parameter] = self._expression_value(argument, names, depth)
        for keyword in call.keywords:
            if keyword.arg:
                inner[keyword.arg] = self._expression_value(keyword.value, names, depth)
        if function.args.vararg is not None:
            inner[function.args.vararg.arg] = self._item_values(call.args, names, depth)
        result = self._run_statements(function.body, inner, depth + 1)
        items = flatten_items(result, unknown=True)
        if items and None not in items:
            return result
        opened = [self._opened_file(node, inner, depth) for node in ast.walk(function)]
        files = [each for each in opened if isinstance(each, RequirementFile)]
        given = [
            self._file_content(v.value, v.line) for v in inner.values() if isinstance(v, ScriptText)
        ]
        files += [each for each in given if isinstance(each, RequirementFile)
                  and each.name.endswith((".txt", ".in"))]  # fmt: skip
        return files[0] if files else None

    def _opened_file(self, node: ast.AST, names: dict[str, Any], depth: int) -> Any:
        if isinstance(node, ast.Call) and depth < CALLS:
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            attribute = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if "open" in (name, attribute) or attribute == "read_text":
                return self._call_value(node, names, depth + 1)
        return None

    def _table_by_name(
        self, each: ast.comprehension, names: dict[str, Any], depth: int
    ) -> dict[str, Any] | None:
        """Return a dict from names to requirements, which scripts create from a list."""
        iterated = each.iter
        while isinstance(iterated, ast.ListComp | ast.GeneratorExp):
            iterated = iterated.generators[0].iter
        items = self._expression_value(iterated, names, depth)
        if not isinstance(items, list) or not all(isinstance(item, ScriptText) for item in items):
            return None
        try:
            return {parse_requirement(item.value).name: item for item in items}
        except InvalidRequirement:
            return None

    def _comprehension_value(
        self, element: ast.expr, each: ast.comprehension, names: dict[str, Any], depth: int
    ) -> Any:
        iterated = self._expression_value(each.iter, names, depth)
        if isinstance(iterated, RequirementFile):
            return iterated
        if not isinstance(iterated, list) or not isinstance(each.target, ast.Name):
            return None
        return [
            self._expression_value(element, {**names, each.target.id: item}, depth)
            for item in iterated
        ]


def flatten_items(value: Any, *, unknown: bool = False) -> list[Any]:
    """Return the items of nested lists.

    A value that is not a list is an item. Unknown items (None) are omitted unless `unknown` is set.
    """
    items: list[Any] = []
    queue = [value]
    for _ in range(STEPS):
        if not queue:
            return items
        item = queue.pop()
        if isinstance(item, list):
            queue += reversed(item)
        elif item is not None or unknown:
            items.append(item)
    raise ValueError(TOO_LARGE)


def entry_points(value: Any) -> Iterator[tuple[str, str]]:
    """Yield name and function of the console scripts in `entry_points`.

    `entry_points` is a dict or a string in INI format.
    """
    lines: list[str] = []
    if isinstance(value, dict):
        scripts = value.get("console_scripts")
        lines = [item.value for item in flatten_items(scripts) if isinstance(item, ScriptText)]
    elif isinstance(value, ScriptText):
        section = ""
        for line in value.value.splitlines():
            header = re.fullmatch(r"\s*\[(.+)\]\s*", line)
            section = header[1] if header else section
            if not header and section == "console_scripts":
                lines.append(line)
    for line in lines:
        name, equals, target = line.partition("=")
        if equals:
            yield name.strip(), target.partition("[")[0].strip()


def _is_main(test: ast.expr) -> bool:
    return "__name__" in ast.unparse(test)


def _sum(left: Any, right: Any) -> Any:
    if isinstance(left, ScriptText) and isinstance(right, ScriptText):
        return ScriptText(left.value + right.value, left.line)
    lists = (list, RequirementFile)
    if isinstance(left, lists) and isinstance(right, lists):
        first = left if isinstance(left, list) else [left]
        return [*first, *(right if isinstance(right, list) else [right])]
    return None
