"""Filters the facts about a package set, by omitting branches that do not run.

Names that are bound only under conditions that are false are removed from modules. If a name has
several definitions, the definition for the installed versions is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from imgbuild.audit.main_path.guards import GuardState, evaluate_guard
from imgbuild.audit.names.model import module_sources
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import (
    AssignedName,
    Class,
    Function,
    Import,
    ModuleFacts,
    OpaqueModule,
)

Bound = TypeVar("Bound", Import, Function, Class, AssignedName)


class PackageSetView:
    """A package set without the branches that do not run."""

    def __init__(self, package_set: ImportablePackages) -> None:
        self._package_set = package_set
        self._facts: dict[str, ModuleFacts | OpaqueModule | None] = {}
        self.results: dict[object, Any] = {}  # of lookups in it
        self.python = package_set.python
        self.arch = str(package_set.arch)
        self.partial = package_set.partial
        self.exists = package_set.exists
        self.owner = package_set.owner
        self.version = package_set.version
        self.files = package_set.files
        self.sources = module_sources(package_set)

    def is_of(self, package_set: ImportablePackages) -> bool:
        """Return whether this is a view of `package_set`."""
        return self._package_set is package_set

    def module(self, name: str) -> ModuleFacts | OpaqueModule | None:
        """Return the facts about the module `name`, without branches that do not run."""
        if name not in self._facts:
            facts = self._package_set.module(name)
            if isinstance(facts, ModuleFacts):
                facts = self._prune_facts(facts)
            self._facts[name] = facts
        return self._facts[name]

    def modules_of(self, package: str) -> Mapping[str, str]:
        """Map each module of `package` to its file."""
        return self._package_set.modules_of(package)

    def read(self, package: str, path: str) -> bytes | None:
        """Return the content of a small file of `package`, or None if it does not exist."""
        return self._package_set.read(package, path)

    def prefetch(self, modules: Iterable[str]) -> None:
        """Read many modules at once."""
        self._package_set.prefetch(name for name in modules if name not in self._facts)

    def mentioning(self, package: str, word: str) -> Iterable[str]:
        """Return the modules below `package` whose source contains the word."""
        return self._package_set.mentioning(package, word)

    def read_ahead(self, package: str) -> None:
        """Read the modules below `package` in advance, if they are local."""
        self._package_set.read_ahead(package)

    def _prune_facts(self, facts: ModuleFacts) -> ModuleFacts:
        return msgspec.structs.replace(
            facts,
            imports=self._possible_facts(facts.imports),
            functions=self._possible_facts(facts.functions),
            classes=self._possible_facts(facts.classes),
            assigned=self._possible_facts(facts.assigned),
        )

    def _possible_facts(self, bound: tuple[Bound, ...]) -> tuple[Bound, ...]:
        """Return the facts whose guards may be true.

        Bindings for type checkers are also included, because they contain types.
        """
        return tuple(
            fact
            for fact in bound
            if not fact.guards
            or not any(
                guard.kind != "typing"
                and evaluate_guard(self._package_set, guard) is GuardState.SKIPPED
                for guard in fact.guards
            )
        )
