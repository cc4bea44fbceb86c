"""Parses modules for `evaluation`, and finds the statements that bind their names."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping, Sequence

from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import ModuleFacts, OpaqueModule
from imgbuild.audit.source.text import dotted_name
from imgbuild.audit.source.tree import walk_tree
from imgbuild.system.syntax import parse_source, valid_source

# Context managers that let exceptions through.
OPEN_MANAGERS = frozenset(("catch_warnings", "nullcontext", "open"))
UNKNOWN_EXCEPTIONS = "-"
_LARGEST_SOURCE = 4 << 20  # bytes of source
_BRANCHES = (ast.If, ast.Try, ast.TryStar, ast.With, ast.For, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_REPEATING_NODES = (ast.For, ast.ListComp, ast.SetComp, ast.DictComp)
# Run later, or not understood.
_DEFERRED_NODES = (ast.Lambda, ast.GeneratorExp, ast.While, ast.With, ast.AsyncFor, ast.AsyncWith)
_CHANGES = (
    r"(?:\.(?:append|extend|insert|update|add|pop|setdefault|remove|clear)\("
    r"|\[[^\]\n]*\]\s*=[^=])"
)
_GLOBAL = re.compile(r"^\s+global (.+)$", re.MULTILINE)


class ModuleTree:
    """The syntax tree of a module."""

    def __init__(self, name: str, tree: ast.Module, text: str, *, package: bool) -> None:
        self.name = name
        self.tree = tree
        self.package = package
        self._text = text
        self.bindings = _bindings(tree.body)
        self._class_bindings: dict[int, Mapping[str, list[ast.stmt]]] = {}
        self._functions: dict[tuple[str, int], ast.FunctionDef | ast.AsyncFunctionDef] | None = None
        self._classes: dict[int, ast.ClassDef] | None = None

    def may_change(self, name: str) -> bool:
        """Return whether functions of the module may rebind a name."""
        word = re.escape(name)  # a pattern that begins with text is found faster
        return name in self._globals or (
            re.search(rf"{word}(?<!\w{word}){_CHANGES}", self._text) is not None
        )

    @functools.cached_property
    def _globals(self) -> frozenset[str]:
        declared = _GLOBAL.findall(self._text)
        return frozenset(name for names in declared for name in names.replace(" ", "").split(","))

    def find_function(self, name: str, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """Return the definition of the function with this unqualified name and line, or None."""
        if self._functions is None:
            self._functions = {
                (node.name, node.lineno): node
                for node in _nested_statements(self.tree)
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            }
        return self._functions.get((name.rpartition(".")[2], line))

    def bindings_in(self, definition: ast.ClassDef) -> Mapping[str, Sequence[ast.stmt]]:
        """Map each name to the statements that bind it in the body of a class of this module."""
        line = definition.lineno
        if line not in self._class_bindings:
            self._class_bindings[line] = _bindings(definition.body)
        return self._class_bindings[line]

    @functools.cached_property
    def stored(self) -> frozenset[str]:
        """The attributes that the module assigns to objects other than `self`."""
        return frozenset(
            node.attr
            for node in walk_tree(self.tree)
            if isinstance(node, ast.Attribute)
            and not isinstance(node.ctx, ast.Load)
            and not (isinstance(node.value, ast.Name) and node.value.id == "self")
        )

    def find_class(self, line: int) -> ast.ClassDef | None:
        """Return the definition of the class that starts on this line, or None."""
        if self._classes is None:
            self._classes = {
                node.lineno: node
                for node in _nested_statements(self.tree)
                if isinstance(node, ast.ClassDef)
            }
        return self._classes.get(line)

    def binding_statements(self, name: str) -> Sequence[ast.stmt]:
        """Return the top-level statements that may set `name`.

        The first of them is the last unconditional statement.
        """
        statements = self.bindings.get(name, [])
        certain = [
            at for at, statement in enumerate(statements) if not isinstance(statement, _BRANCHES)
        ]
        return statements[certain[-1] :] if certain else statements

    @functools.cached_property
    def import_time_calls(
        self,
    ) -> Mapping[int, Sequence[tuple[ast.Call, ast.AST, frozenset[str]]]]:
        """The calls of each line that run at import, with the nodes to evaluate.

        The node to evaluate is the enclosing loop or comprehension if there is one, or else the
        call itself. The third item contains the names in the enclosing class body.
        """
        calls: dict[int, list[tuple[ast.Call, ast.AST, frozenset[str]]]] = {}
        none = frozenset[str]()
        todo: list[tuple[ast.AST, ast.AST | None, frozenset[str]]] = [
            (node, None, none) for node in reversed(self.tree.body)
        ]
        while todo:
            node, whole, names = todo.pop()
            inner = _executed_nodes(node)
            if isinstance(node, ast.ClassDef):
                names = frozenset(bound_names(node.body))
            elif isinstance(node, _REPEATING_NODES):
                whole = whole or node
            if isinstance(node, ast.Call):
                calls.setdefault(node.lineno, []).append((node, whole or node, names))
            todo.extend((child, whole, names) for child in reversed(inner))
        return calls

    def exceptions_caught_at(self, line: int) -> frozenset[str]:
        """Return the exceptions that `try` and `with` statements around a line catch.

        "" stands for any exception.
        """
        caught: set[str] = set()
        for node in walk_tree(self.tree):
            body = node.body if isinstance(node, (ast.Try, ast.TryStar, ast.With)) else ()
            if not body or not body[0].lineno <= line <= (body[-1].end_lineno or 0):
                continue
            if isinstance(node, ast.With):
                caught.update(_suppressed_exceptions(item.context_expr) for item in node.items)
            elif isinstance(node, (ast.Try, ast.TryStar)):
                for handler in node.handlers:
                    kinds = (
                        handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
                    )
                    caught.update(_last_name(kind) for kind in kinds)
        return frozenset(caught - {UNKNOWN_EXCEPTIONS})

    def has_single_values(self, node: ast.AST) -> bool:
        """Return whether each name in an expression has a single value during the import."""
        return all(
            sum(
                not isinstance(statement, _BRANCHES) for statement in self.bindings.get(part.id, ())
            )
            <= 1
            for part in walk_tree(node)
            if isinstance(part, ast.Name)
        )

    def absolute_module(self, node: ast.ImportFrom) -> str:
        """Return the absolute name of the module to which a `from … import` refers."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        base_parts = parts[: len(parts) - node.level + self.package]
        return ".".join([*base_parts, *([node.module] if node.module else [])])


def _nested_statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all statements, including nested ones, without their expressions."""
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            todo.extend(getattr(node, name, ()))


def _executed_nodes(node: ast.AST) -> list[ast.AST]:
    """Return the nodes in `node` that are executed with it.

    For a function, these are the nodes that are executed when it is defined.
    """
    if isinstance(node, _DEFERRED_NODES):
        return []
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        given = node.args
        return [
            *(*node.decorator_list, *given.defaults),
            *(default for default in given.kw_defaults if default is not None),
        ]
    return list(ast.iter_child_nodes(node))


def _last_name(node: ast.expr | None) -> str:
    """Return the last component of a dotted name, or "" for any other expression."""
    return dotted_name(node).rpartition(".")[2] if node is not None else ""


def _suppressed_exceptions(node: ast.expr) -> str:
    """Return the exceptions that a context manager suppresses: OPEN for none, "" for any."""
    name = _last_name(node.func if isinstance(node, ast.Call) else node)
    return UNKNOWN_EXCEPTIONS if name in OPEN_MANAGERS else ""


def read_source(package_set: ImportablePackages, module: str) -> ModuleTree | None:
    """Return the source of a module, or None if there is none or it cannot be read."""
    facts = package_set.module(module)
    content = _content(package_set, module, facts)
    if content is None or not isinstance(facts, ModuleFacts):
        return None
    return _parse_module(content, module, package=facts.package)


def read_function(
    package_set: ImportablePackages, module: str, name: str, line: int
) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the definition of a function, as `ModuleTree.find_function` does.

    Usually, only the lines of the function are parsed, and lines count from its first line.
    """
    facts = package_set.module(module)
    content = _content(package_set, module, facts)
    if content is None:
        return None
    tree = valid_source(_function_text(content, line))
    node = tree.body[0] if tree is not None and tree.body else None
    node = node.body[0] if isinstance(node, ast.If) else node
    if isinstance(node, _FUNCTIONS) and node.name == name.rpartition(".")[2]:
        return node
    source = read_source(package_set, module)
    return source.find_function(name, line) if source is not None else None


def _function_text(content: bytes, line: int) -> bytes:
    """Return the lines of the function that starts on a line, in an `if` block.

    The result cannot be parsed if the function ends later, because a string or bracket is open.
    """
    lines = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[line - 1 :]
    if not lines or not lines[0].lstrip().startswith((b"def ", b"async def ")):
        return b""
    margin = len(lines[0]) - len(lines[0].lstrip())
    end = next(
        (
            at
            for at, each in enumerate(lines)
            if at and (text := each.lstrip()) and not text.startswith((b"#", b")"))
            if len(each) - len(text) <= margin
        ),
        len(lines),
    )
    return b"\n".join([b"if 1:"] * bool(margin) + lines[:end])


def _content(
    package_set: ImportablePackages, module: str, facts: ModuleFacts | OpaqueModule | None
) -> bytes | None:
    """Return the source of a module with these facts, or None if it cannot be parsed."""
    if not isinstance(facts, ModuleFacts) or facts.broken:
        return None
    owner = package_set.owner(module)
    if owner is None:
        return None
    content = package_set.read(owner, facts.file)
    return content if content is None or len(content) <= _LARGEST_SOURCE else None


@functools.lru_cache(maxsize=512)  # main path and checks follow the same modules
def _parse_module(content: bytes, module: str, *, package: bool) -> ModuleTree | None:
    try:
        text = content.decode("utf-8-sig")
        return ModuleTree(module, parse_source(text), text, package=package)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _bindings(statements: Sequence[ast.stmt]) -> dict[str, list[ast.stmt]]:
    bindings: dict[str, list[ast.stmt]] = {}
    for statement in statements:
        for bound in dict.fromkeys(bound_names([statement])):
            bindings.setdefault(bound, []).append(statement)
    return bindings


def bound_names(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind, without those in nested definitions."""
    todo: list[ast.AST] = list(statements)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        todo.extend(ast.iter_child_nodes(node))
