"""Follows the contents of YAML and JSON files to the calls that receive them as keywords.

For example, `SFTConfig(**cfg["train"])` after `cfg = yaml.safe_load(open("sft.yaml"))` receives the
section `train` of the file sft.yaml, without the keys that the code removes.
"""

# A separate module: one question about syntax trees.
from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from imgbuild.audit.source.scopes import binding_sites
from imgbuild.audit.source.text import dotted_name, string_value
from imgbuild.audit.source.tree import body_nodes, child_nodes, walk_tree

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_TEXT_LOADERS = frozenset(("yaml.safe_load", "yaml.full_load", "yaml.load", "json.load"))
_LOADERS = _TEXT_LOADERS | {"json.loads"}
_PATH_LOADERS = frozenset(("OmegaConf.load", "omegaconf.OmegaConf.load"))
_COPIES = frozenset(("dict", "OmegaConf.to_container", "omegaconf.OmegaConf.to_container"))
_PATH_FUNCTIONS = frozenset(("Path", "pathlib.Path", "os.path.abspath", "os.path.join", "str"))
# Functions that do not change a dictionary.
_READERS = frozenset(("print", "len", "isinstance", "str", "repr", "pprint", "list", "sorted"))
_READING_METHODS = frozenset(("items", "keys", "values", "copy", "update"))
_KEY_METHODS = frozenset(("get", "setdefault"))  # they return a value, which code may change
_VALUE_METHODS = frozenset(("items", "values"))
_REPLACED = "="  # after a key in `LoadedSection.removed` whose value the code replaces
# Words in conditions that select calls by version.
_TESTS = ("version", "hasattr", "signature", "available", "fields")
# What reads a dictionary or passes its keys on.
_HARMLESS = (
    ast.keyword, ast.Compare, ast.For, ast.comprehension, ast.Return, ast.FormattedValue, ast.Expr,
)  # fmt: skip
_DEPTH = 8  # names, sections and functions between a file and a call

_Around = tuple["_Names", ...]  # of the module and the functions around a node, innermost last


class LoadedSection(NamedTuple):
    """A section of a file: the path as in the source, the keys, and the removed keys below.

    `removed` also contains the keys with other values than in the file, each with `_REPLACED`.
    """

    path: str
    keys: tuple[str, ...] = ()
    removed: frozenset[str] = frozenset()


class SectionCall(NamedTuple):
    """A call that receives a section as keywords, in the scope with the qualified name `scope`."""

    call: ast.Call
    scope: str
    section: LoadedSection


class _Names:
    """The names of a function or module that are bound once, with their values."""

    def __init__(self, node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.node = node
        self.bound: dict[str, ast.expr | None] = {}
        self.paths: dict[str, str] = {}  # the paths in arguments of the function
        sites = binding_sites(node.body)
        if not isinstance(node, ast.Module):
            given = node.args
            named = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
            self.bound |= {each.arg: None for each in named if each is not None}
        self.bound |= dict.fromkeys(sites)
        for inner in body_nodes(node.body):
            for name, value in _bindings(inner):
                if len(sites.get(name, ())) == 1:
                    self.bound[name] = value


class FileSections:
    """The uses of loaded files in a Python file."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._parents: dict[ast.AST, ast.AST] = {}
        self._names: dict[ast.AST, _Names] = {}
        left: list[ast.AST] = [tree]
        while left:
            node = left.pop()
            for child in child_nodes(node):
                self._parents[child] = node
                left.append(child)

    def calls(self) -> Iterator[SectionCall]:
        """Yield the calls that receive sections of files as keywords."""
        for node in self._parents:
            if not isinstance(node, ast.Call):
                continue
            for word in node.keywords:
                if word.arg is None and not self._is_conditional(node):
                    around = self.around(node)
                    section = self._section(word.value, around, 0)
                    if section is not None:
                        yield SectionCall(node, self.scope(node), section)

    def around(self, node: ast.AST) -> _Around:
        """Return the names of the module and of the functions around a node, innermost last."""
        scopes: list[_Names] = []
        at: ast.AST | None = node
        while at is not None:
            at = self._parents.get(at)
            if isinstance(at, (ast.Module, *_FUNCTIONS)):
                if at not in self._names:
                    self._names[at] = _Names(at)
                scopes.append(self._names[at])
        return tuple(reversed(scopes))

    def scope(self, node: ast.AST) -> str:
        """Return the qualified name of the function around a node."""
        names: list[str] = []
        at: ast.AST | None = node
        while at is not None:
            at = self._parents.get(at)
            if isinstance(at, (*_FUNCTIONS, ast.ClassDef)):
                names.append(at.name)
        return ".".join(reversed(names))

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return the node around a node."""
        return self._parents.get(node)

    def _is_conditional(self, node: ast.AST) -> bool:
        """Whether a node is in a `try`, or under a condition on a version."""
        at: ast.AST | None = node
        while at is not None and not isinstance(at, _FUNCTIONS):
            at = self._parents.get(at)
            if isinstance(at, ast.Try):
                return True
            if isinstance(at, ast.If) and any(word in ast.dump(at.test) for word in _TESTS):
                return True
        return False

    def path(self, node: ast.expr | None, around: _Around, depth: int = 0) -> str:
        """Return the path in an expression, or its last part, or "" if it is unknown."""
        text = string_value(node) if node is not None else None
        if text is not None:
            return text
        if depth > _DEPTH:
            return ""
        if isinstance(node, ast.Name):
            for names in reversed(around):
                if node.id in names.paths:
                    return names.paths[node.id]
                if node.id in names.bound:
                    return self.path(names.bound[node.id], around, depth + 1)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            return self.path(node.right, around, depth + 1)
        if isinstance(node, ast.Call) and dotted_name(node.func) in _PATH_FUNCTIONS and node.args:
            return self.path(node.args[-1], around, depth + 1)
        return ""

    def _opened(self, node: ast.expr, around: _Around, depth: int) -> str:
        """Return the path of an open file, or of a file's text."""
        if isinstance(node, ast.Name):
            value = next(
                (each.bound[node.id] for each in reversed(around) if node.id in each.bound), None
            )
            return self._opened(value, around, depth + 1) if value and depth < _DEPTH else ""
        if not isinstance(node, ast.Call):
            return ""
        if dotted_name(node.func) == "open" and node.args:
            return self.path(node.args[0], around)
        if isinstance(node.func, ast.Attribute):
            if node.func.attr == "read":
                return self._opened(node.func.value, around, depth + 1)
            if node.func.attr in ("read_text", "read_bytes", "open"):
                return self.path(node.func.value, around)
        return ""

    def _section(self, node: ast.expr, around: _Around, depth: int) -> LoadedSection | None:
        """Return the section of a file that an expression contains, or None."""
        if depth > _DEPTH:
            return None
        if isinstance(node, ast.Call):
            return self._loaded(node, around, depth)
        if isinstance(node, ast.Subscript):
            return self._below(node.value, string_value(node.slice), around, depth)
        if isinstance(node, ast.Attribute):
            return self._below(node.value, node.attr, around, depth)
        if not isinstance(node, ast.Name):
            return None
        for names in reversed(around):
            if node.id in names.bound:
                value = names.bound[node.id]
                section = self._section(value, around, depth + 1) if value is not None else None
                if value is None or section is None:
                    return None
                removed = self._removed_keys(node.id, names)
                return (
                    section._replace(removed=section.removed | removed)
                    if removed is not None
                    else None
                )
        return None

    def _loaded(self, node: ast.Call, around: _Around, depth: int) -> LoadedSection | None:
        name = dotted_name(node.func)
        if name in _LOADERS and node.args:
            path = self._opened(node.args[0], around, 0)
            return LoadedSection(path) if path else None
        if name in _PATH_LOADERS and node.args:
            path = self.path(node.args[0], around)
            return LoadedSection(path) if path else None
        if name in _COPIES and len(node.args) == 1:
            return self._section(node.args[0], around, depth + 1)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
            return self._below(node.func.value, string_value(node.args[0]), around, depth)
        function = next(
            (
                each
                for each in self._tree.body
                if isinstance(each, ast.FunctionDef) and each.name == name
            ),
            None,
        )
        return self._result(function, node, around, depth) if function is not None else None

    def _below(
        self, node: ast.expr, key: str | None, around: _Around, depth: int
    ) -> LoadedSection | None:
        section = self._section(node, around, depth + 1)
        if section is None or key is None or f"{key}{_REPLACED}" in section.removed:
            return None
        start = f"{key}."
        removed = (each.removeprefix(start) for each in section.removed if each.startswith(start))
        return LoadedSection(section.path, (*section.keys, key), frozenset(removed))

    def _result(
        self, function: ast.FunctionDef, call: ast.Call, around: _Around, depth: int
    ) -> LoadedSection | None:
        """Return what a function of the file returns for the paths in the arguments of a call."""
        returns = [node for node in body_nodes(function.body) if isinstance(node, ast.Return)]
        if len(returns) != 1 or returns[0].value is None or function.decorator_list:
            return None
        names = _Names(function)
        parameters = [each.arg for each in function.args.args]
        given = {
            **dict(zip(parameters, call.args, strict=False)),
            **{w.arg: w.value for w in call.keywords if w.arg},
        }
        names.paths = {
            name: path for name, value in given.items() if (path := self.path(value, around))
        }
        return self._section(returns[0].value, (around[0], names), depth + 1)

    def _removed_keys(self, name: str, names: _Names) -> frozenset[str] | None:
        """Return the dotted keys that code removes from a dictionary, or None if it may change."""
        removed: set[str] = set()
        left: list[ast.AST] = [names.node]
        while left:
            node = left.pop()
            left.extend(child_nodes(node))
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
                effect = self._effect(node)
                if effect is None:
                    return None
                removed |= effect
        return frozenset(removed)

    def _effect(self, node: ast.expr) -> set[str] | None:
        """Return the dotted keys that a use of a dictionary removes, or None if it is unknown."""
        keys: list[str] = []
        at: ast.AST = node
        while True:
            around = self._parents[at]
            if isinstance(around, ast.Subscript) and around.value is at:
                key = string_value(around.slice)
                if key is None:
                    return set() if isinstance(around.ctx, ast.Load) else None
                keys.append(key)
                if not isinstance(around.ctx, ast.Load):
                    replaced = "" if isinstance(around.ctx, ast.Del) else _REPLACED
                    return {f"{'.'.join(keys)}{replaced}"}
            elif isinstance(around, ast.Attribute) and around.value is at:
                call = self._parents[around]
                if not isinstance(call, ast.Call) or call.func is not around:
                    keys.append(around.attr)
                elif around.attr in _KEY_METHODS and call.args:
                    around, key = call, string_value(call.args[0])
                    keys.append(key or "*")
                else:
                    return self._method_effect(around.attr, call, keys)
            elif isinstance(around, ast.Assign) and at is around.value and keys:
                return self._alias_effect(around, keys)
            else:
                return self._end_effect(around, at)
            at = around

    def _method_effect(self, method: str, call: ast.Call, keys: list[str]) -> set[str] | None:
        if method in _VALUE_METHODS and self._may_change_values(call):
            return None
        if method in _READING_METHODS:
            return set()
        key = string_value(call.args[0]) if call.args else None
        return {".".join((*keys, key))} if method == "pop" and key is not None else None

    def _may_change_values(self, call: ast.Call) -> bool:
        """Whether code may change the sections in the values of a dictionary."""
        around = self._parents[call]
        if isinstance(around, ast.comprehension):
            return False
        if isinstance(around, ast.Call):
            return dotted_name(around.func) not in _READERS
        if not isinstance(around, ast.For):
            return True
        targets = {each.id for each in walk_tree(around.target) if isinstance(each, ast.Name)}
        return any(
            isinstance(each, ast.Name)
            and each.id in targets
            and isinstance(self._parents[each], (ast.Attribute, ast.Subscript, ast.Call))
            and not self._reads_argument(self._parents[each], each)
            for statement in around.body
            for each in walk_tree(statement)
        )

    @staticmethod
    def _reads_argument(around: ast.AST, name: ast.Name) -> bool:
        """Whether a name is a key, or an argument of a function that changes no dictionary."""
        if isinstance(around, ast.Subscript):
            return around.slice is name
        return isinstance(around, ast.Call) and dotted_name(around.func) in {*_READERS, "setattr"}

    def _end_effect(self, around: ast.AST, at: ast.AST) -> set[str] | None:
        if isinstance(around, ast.Call) and at in around.args:
            name = dotted_name(around.func)
            is_reader = name in _READERS | _COPIES or "log" in name.lower() or "dump" in name
            return set() if is_reader else None
        if isinstance(around, ast.keyword) and around.arg is not None:
            name = dotted_name(getattr(self._parents[around], "func", around))
            return set() if "log" in name.lower() or name == "wandb.init" else None
        return set() if isinstance(around, _HARMLESS) else None

    def _alias_effect(self, node: ast.Assign, keys: list[str]) -> set[str] | None:
        """Return the dotted keys that code removes from a section through another name."""
        target, names = node.targets[0], self.around(node)[-1]
        if not isinstance(target, ast.Name) or names.bound.get(target.id) is not node.value:
            return None
        removed = self._removed_keys(target.id, names)
        return {".".join((*keys, each)) for each in removed} if removed is not None else None


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that an assignment or `with … as name` binds, with their values."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        if isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        if node.value is not None:
            yield node.target.id, node.value
    elif isinstance(node, ast.With):
        for item in node.items:
            if isinstance(item.optional_vars, ast.Name):
                yield item.optional_vars.id, item.context_expr
