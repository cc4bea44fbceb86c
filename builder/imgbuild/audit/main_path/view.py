"""A world with the branches left out that it does not take.

Input: a world. Output: the same world, whose modules lack what is bound under conditions that
do not hold there, so that a name with one definition for each version is that of this version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from imgbuild.audit.main_path.guards import State, evaluate
from imgbuild.audit.packages.views import Surroundings
from imgbuild.audit.source.facts import Assigned, Class, Function, Import, ModuleFacts, Opaque

Bound = TypeVar("Bound", Import, Function, Class, Assigned)


class View:
    """What `world` looks like from within."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self._facts: dict[str, ModuleFacts | Opaque | None] = {}
        self.python = world.python
        self.arch = str(world.arch)
        self.partial = world.partial
        self.exists = world.exists
        self.owner = world.owner
        self.version = world.version

    def shows(self, world: Surroundings) -> bool:
        """Whether it is a view of `world`."""
        return self._world is world

    def module(self, name: str) -> ModuleFacts | Opaque | None:
        """What module `name` says here."""
        if name not in self._facts:
            facts = self._world.module(name)
            if isinstance(facts, ModuleFacts):
                facts = self._pruned(facts)
            self._facts[name] = facts
        return self._facts[name]

    def modules_of(self, package: str) -> Mapping[str, str]:
        """Module → file of all that `package` brings."""
        return self._world.modules_of(package)

    def read(self, package: str, path: str) -> bytes | None:
        """The content of a small file of `package`; None if there is none."""
        return self._world.read(package, path)

    def prefetch(self, modules: Iterable[str]) -> None:
        """Read many modules at once."""
        self._world.prefetch(name for name in modules if name not in self._facts)

    def mentioning(self, package: str, word: str) -> Iterable[str]:
        """The modules below `package` whose source holds the word."""
        return self._world.mentioning(package, word)

    def read_ahead(self, package: str) -> None:
        """Read the modules below `package` at once, where they lie on this disk."""
        self._world.read_ahead(package)

    def _pruned(self, facts: ModuleFacts) -> ModuleFacts:
        return msgspec.structs.replace(
            facts,
            imports=self._kept(facts.imports),
            functions=self._kept(facts.functions),
            classes=self._kept(facts.classes),
            assigned=self._kept(facts.assigned),
        )

    def _kept(self, bound: tuple[Bound, ...]) -> tuple[Bound, ...]:
        """Those that are bound here. What is bound for type checkers tells types: it stays."""
        return tuple(
            one
            for one in bound
            if not any(
                guard.kind != "typing" and evaluate(self._world, guard) is State.SKIPPED
                for guard in one.guards
            )
        )
