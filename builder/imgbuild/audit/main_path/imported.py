"""Finds the modules that are certainly imported with the entry points.

An exception during the import of such a module ends the import of the entry point, unless a `try`
on each path catches the exception.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator

import msgspec

from imgbuild.audit.main_path.answers import package_set_evaluator
from imgbuild.audit.main_path.guards import judge_guards
from imgbuild.audit.main_path.sources import ModuleTree
from imgbuild.audit.main_path.view import PackageSetView
from imgbuild.audit.names.lookup import module_index
from imgbuild.audit.names.scopes import module_scopes
from imgbuild.audit.source.facts import Import, ModuleFacts
from imgbuild.audit.source.tree import walk_tree

_BRANCHES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.Try, ast.TryStar)
_MAXIMUM_DEPTH = 8  # tables of names that refer to one another


class _Importer(msgspec.Struct, frozen=True):
    module: str
    line: int
    caught: frozenset[str]


class CertainImports:
    """The modules of `packages` that are imported from `starts`, with the importing statements.

    `entries` maps each module to its entry point.
    """

    def __init__(
        self, view: PackageSetView, starts: Iterable[tuple[str, str]], packages: frozenset[str]
    ) -> None:
        """Follow all imports from `starts`, which are pairs of a name and its entry point."""
        self.entries: dict[str, str] = {}
        self._view = view
        self._packages = packages
        self._importers: dict[str, list[_Importer | None]] = {}
        self._todo: list[str] = []
        for name, entry in starts:
            self._follow_entry(name, entry)
        while self._todo:
            batch, self._todo = sorted(set(self._todo)), []
            view.prefetch(batch)
            for module in batch:
                self._follow_module(module)

    def passes_exception(self, raised: str, module: str) -> bool:
        """Return whether an exception while `module` is imported ends an entry point's import."""
        todo, seen = [module], {module}
        while todo:
            for importer in self._importers.get(todo.pop(), ()):
                if importer is None:
                    return True
                if importer.module in seen or is_caught(raised, importer.caught):
                    continue
                source = package_set_evaluator(self._view).source(importer.module)
                if source is not None and not is_caught(
                    raised, source.exceptions_caught_at(importer.line)
                ):
                    seen.add(importer.module)
                    todo.append(importer.module)
        return False

    def _follow_entry(self, name: str, entry: str) -> None:
        module, rest = name, ""
        while module and not isinstance(self._view.module(module), ModuleFacts):
            module, _, rest = module.rpartition(".")
        if module:
            self._follow_import(module, rest, entry, None)

    def _follow_module(self, module: str) -> None:
        facts = self._view.module(module)
        if not isinstance(facts, ModuleFacts):
            return
        here = module_scopes(facts)
        for scope in here.scopes_run_by(""):
            for line in here.imports.get(scope, ()):
                course = judge_guards(self._view, line.guards)
                if course.runs and course.certain:
                    name = "" if line.name == "*" else line.name
                    how = _Importer(module, line.line, course.caught)
                    self._follow_import(line.module, name, self.entries[module], how)

    def _follow_import(
        self, module: str, name: str, entry: str, how: _Importer | None, depth: int = 0
    ) -> None:
        """Follow the import of a module or (possibly lazy) name, and of the parent packages."""
        if self._view.owner(module) not in self._packages or depth > _MAXIMUM_DEPTH:
            return
        at = ""
        for part in module.split("."):
            at = f"{at}.{part}" if at else part
            self._importers.setdefault(at, []).append(how)
            if at not in self.entries:
                self.entries[at] = entry
                self._todo.append(at)
        facts = self._view.module(module) if name else None
        if not isinstance(facts, ModuleFacts):
            return
        inner = f"{module}.{name}"
        bound = module_index(facts).top.get(name, ())
        if any(
            not isinstance(binding, Import) or f"{binding.module}.{binding.name}" != inner
            for binding in bound
        ):
            return
        place, _, other = facts.lazy.get(name, "").partition(":")
        if place and name in self._listed_strings(module):
            whole = not other and place.rpartition(".")[2] == name
            self._follow_import(place, "" if whole else other or name, entry, how, depth + 1)
        elif not facts.lazy and self._view.exists(inner):
            self._follow_import(inner, "", entry, how, depth + 1)

    def _listed_strings(self, module: str) -> frozenset[str]:
        source = package_set_evaluator(self._view).source(module)
        return frozenset(_texts(source)) if source is not None else frozenset()


def is_caught(raised: str, caught: Iterable[str]) -> bool:
    """Return whether an `except` with the names `caught` ("" for all) may catch `raised`.

    The base classes of exceptions that are not builtins are unknown.
    """
    kind = getattr(builtins, raised, None)
    if not isinstance(kind, type):
        return bool(caught)
    above = {base.__name__ for base in kind.__mro__} | {""}
    return not above.isdisjoint(name.rpartition(".")[2] for name in caught)


def _texts(source: ModuleTree) -> Iterator[str]:
    for statement in source.tree.body:
        if not isinstance(statement, _BRANCHES):
            for node in walk_tree(statement):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
