"""Tracks the scopes of a module: bindings, types of names, members of classes.

A name has no type if it is bound to values of different types.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Sequence

import msgspec

from imgbuild.audit.source.facts import Field
from imgbuild.audit.source.tree import child_nodes

# The type of a local name that is unknown or ambiguous.
UNTYPED_VALUE = ""
NONE_TYPE = "None"
RESULT_PREFIX = "result of "  # begins the type of what a method of a local name returns
ELEMENT = "[]"  # ends the type of an element of a list
_CHAIN = 8  # methods whose results are followed
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "orelse", "finalbody")
# The fields of a node that bind names in its scope, in a module without `:=`.
_BINDING_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Assign: ("targets",),
    ast.AnnAssign: ("target",),
    ast.AugAssign: ("target",),
    ast.Delete: ("targets",),
    ast.For: ("target", *_BLOCKS),
    ast.AsyncFor: ("target", *_BLOCKS),
    ast.While: _BLOCKS,
    ast.If: _BLOCKS,
    ast.With: ("items", "body"),
    ast.AsyncWith: ("items", "body"),
    ast.withitem: ("optional_vars",),
    ast.Try: ("handlers", *_BLOCKS),
    ast.TryStar: ("handlers", *_BLOCKS),
    ast.ExceptHandler: ("body",),
    ast.Match: ("cases",),
    ast.match_case: ("pattern", "body"),
    ast.MatchAs: ("pattern",),
    ast.MatchOr: ("patterns",),
    ast.MatchSequence: ("patterns",),
    ast.MatchMapping: ("patterns",),
    ast.MatchClass: ("patterns", "kwd_patterns"),
    ast.Tuple: ("elts",),
    ast.List: ("elts",),
    ast.Starred: ("value",),
}
if sys.version_info >= (3, 12):
    _BINDING_FIELDS[ast.TypeAlias] = ("name",)
# The nodes with names that are not nodes.
_NAMED = frozenset(
    (
        *(ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, *_FUNCTIONS, ast.ClassDef),
        *(ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping),
    )
)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class LocalTypes:
    """The types of names. A name that is bound to values of different types has no type."""

    __slots__ = ("names",)

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def bind_type(self, name: str, kind: str) -> None:
        """Bind a name to an expression of the type `kind`, which is "" if unknown.

        None is ignored, because it is often a placeholder for a value that is assigned later.
        """
        current = self.names.get(name)
        if current is None or current == NONE_TYPE:
            self.names[name] = kind
        elif kind == NONE_TYPE:
            return
        elif current not in (kind, kind.removesuffix("()")):
            self.names[name] = (
                current.removesuffix("()") if current == f"{kind}()" else UNTYPED_VALUE
            )

    def forget(self, name: str) -> None:
        """Remove the type of a name that may have several types."""
        if name in self.names:
            self.names[name] = UNTYPED_VALUE


def result_type(types: LocalTypes, kind: str) -> str:
    """Return the type of a method's result for a local name, such as "LLM().clone()".

    Other types are returned unchanged.
    """
    if kind.endswith(ELEMENT):
        kind = result_type(types, kind.removesuffix(ELEMENT))
        return f"{kind}{ELEMENT}" if kind.endswith("()") else ""
    methods = ""
    for _ in range(_CHAIN):
        if not kind.startswith(RESULT_PREFIX):
            return f"{kind}{methods}" if kind.endswith("()") or not methods else ""
        name, _, method = kind.removeprefix(RESULT_PREFIX).partition(".")
        methods = f".{method}{methods}"
        kind = types.names.get(name, "")
    return ""


class ClassMembers:
    """The members of a class while it is read, including attributes that methods assign to self."""

    __slots__ = ("assigned", "dynamic", "fields", "methods")

    def __init__(self) -> None:
        self.assigned = LocalTypes()
        self.dynamic = False
        self.fields: dict[str, Field] = {}
        self.methods: list[str] = []


class SourceScope:
    """A function, class or module while it is read."""

    __slots__ = (
        "guarded", "imported", "instance", "kind", "locals", "members", "name", "owner", "parent",
        "returned",
    )  # fmt: skip

    def __init__(
        self, name: str, kind: str, parent: SourceScope | None, members: ClassMembers | None = None
    ) -> None:
        """Create a scope with a qualified name. `kind` is "module", "class" or "function"."""
        self.name = name
        self.kind = kind
        self.parent = parent
        self.locals = LocalTypes()
        self.imported: set[str] = set()
        # The values that a function returns.
        self.returned: list[ast.expr] = []
        # In a method: the name of its first parameter.
        self.instance = ""
        # The number of guards around the definition of the function that is being read.
        self.guarded: int = parent.guarded if parent is not None else 0
        # A class's members; for a function, `owner` are those of the class around it.
        self.members = members
        self.owner: ClassMembers | None = parent.owner if parent and kind == "function" else members

    def qualified_name(self, name: str) -> str:
        """Return the qualified name of a definition in this scope."""
        return f"{self.name}.{name}" if self.name else name


class BindingSite(msgspec.Struct, frozen=True):
    """A place where a name is bound. `module` is the imported module, if any.

    `definition` is set for imports and definitions.
    """

    line: int
    module: str = ""
    definition: bool = False


def binding_sites(
    body: Sequence[ast.AST], *, expressions: bool = True
) -> dict[str, list[BindingSite]]:
    """Map each name to its bindings in statements, without global and nonlocal names.

    With `expressions=False`, expressions are skipped, which are most nodes of a tree. This is
    possible if the module does not use `:=`.
    """
    inside = _scope_parts if expressions else _binding
    sites: dict[str, list[BindingSite]] = {}
    declared: set[str] = set()
    left: list[ast.AST] = list(body)
    while left:
        node = left.pop()
        if type(node) is ast.Name:
            if type(node.ctx) is not ast.Load:
                sites.setdefault(node.id, []).append(BindingSite(node.lineno))
        elif type(node) not in _NAMED:
            left += inside(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for name, site in _imported_names(node):
                sites.setdefault(name, []).append(site)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            declared.update(node.names)
        else:
            name = _name(node)
            if name:
                definition = isinstance(node, (*_FUNCTIONS, ast.ClassDef))
                site = BindingSite(getattr(node, "lineno", 0), definition=definition)
                sites.setdefault(name, []).append(site)
            left += inside(node)
    for name in declared:
        sites.pop(name, None)
    return sites


def imported_module(alias: ast.alias) -> tuple[str, str]:
    """Return the name that an `import` binds, and the imported module."""
    first = alias.name.partition(".")[0]
    return alias.asname or first, alias.name if alias.asname else first


def _imported_names(node: ast.Import | ast.ImportFrom) -> Iterable[tuple[str, BindingSite]]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            name, module = imported_module(alias)
            yield name, BindingSite(node.lineno, module, definition=True)
        else:
            yield alias.asname or alias.name, BindingSite(node.lineno, definition=True)


def _name(node: ast.AST) -> str:
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        return node.name or ""
    return (node.rest or "") if isinstance(node, ast.MatchMapping) else ""


def _binding(node: ast.AST) -> Iterable[ast.AST]:
    """Return the parts of a node that belong to the same scope, without expressions."""
    fields = _BINDING_FIELDS.get(type(node))
    if fields is None:
        return ()
    parts: list[ast.AST] = []
    for field in fields:
        value = getattr(node, field, None)
        if isinstance(value, list):
            parts += value
        elif value is not None:
            parts.append(value)
    return parts


def _scope_parts(node: ast.AST) -> Iterable[ast.AST]:
    if isinstance(node, _FUNCTIONS):
        return [*node.decorator_list, node.args]
    if isinstance(node, ast.Lambda):
        return [node.args]
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases, *node.keywords]
    if isinstance(node, _COMPREHENSIONS):  # its variables are its own, `:=` binds outside
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        parts = [part for generator in node.generators for part in (generator.iter, *generator.ifs)]
        return [*elements, *parts]
    return child_nodes(node)
