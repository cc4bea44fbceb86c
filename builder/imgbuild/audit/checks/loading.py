"""The shared objects that a package cannot be imported without.

These are extension modules that importing the package loads unconditionally, libraries that are
loaded by name, and all that these link to. An error in any other file is a note.
"""

from __future__ import annotations

from collections.abc import Iterable

from imgbuild.audit.binaries.libraries import Libraries
from imgbuild.audit.packages.library_map import LibraryMap
from imgbuild.audit.packages.protocols import ModuleSource
from imgbuild.audit.source.facts import ElfFacts, Guard, Import, ModuleFacts

HIDING = frozenset(("handled", "absent", "typing", "unknown", "platform", "result"))


class Loading:
    """The files on the main path of a package set; packages are followed on demand."""

    def __init__(self, code: ModuleSource, placed: LibraryMap, libraries: Libraries) -> None:
        self._code = code
        self._placed = placed
        self._known = libraries
        self._imported: dict[str, frozenset[str]] = {}
        self._users: dict[tuple[str, str], list[tuple[str, ElfFacts]]] | None = None

    def on_main_path(self, package: str, facts: ElfFacts) -> bool:
        """Whether using `package` loads this file."""
        seen: set[tuple[str, str]] = set()
        todo = [(package, facts)]
        while todo:
            owner, current = todo.pop()
            if (owner, current.file) in seen:
                continue
            seen.add((owner, current.file))
            if self._starts(owner, current):
                return True
            todo += self._used_by(owner, current)
        return False

    def _starts(self, package: str, facts: ElfFacts) -> bool:
        return self._known.is_loaded(facts.file) or facts.file in self._extensions(package)

    def _used_by(self, package: str, facts: ElfFacts) -> list[tuple[str, ElfFacts]]:
        if self._users is None:
            self._users = {}
            for owner, user in self._placed.files:
                for library in user.needed:
                    for provider, target in self._placed.providers(owner, user, library):
                        self._users.setdefault((provider, target.file), []).append((owner, user))
        return self._users.get((package, facts.file), [])

    def _extensions(self, package: str) -> frozenset[str]:
        """Files of the compiled modules that importing `package` loads."""
        if package not in self._imported:
            self._imported[package] = frozenset(self._follow(package))
        return self._imported[package]

    def _follow(self, package: str) -> Iterable[str]:
        modules = self._code.modules_of(package)
        todo = [name for name in modules if "." not in name and not name.startswith("_")]
        # The package's own extension module, which it may load by other ways: cv2/cv2.abi3.so.
        todo += [extension for name in todo if (extension := f"{name}.{name}") in modules]
        seen = set(todo)
        while todo:
            self._code.prefetch(todo)
            level, todo = todo, []
            for name in level:
                if not modules[name].endswith(".py"):
                    yield modules[name]
                    continue
                for module in self._imports(name):
                    if module in modules and module not in seen:
                        seen.add(module)
                        todo.append(module)

    def _imports(self, name: str) -> Iterable[str]:
        """The modules that importing module `name` certainly imports, or may import."""
        facts = self._code.module(name)
        if isinstance(facts, ModuleFacts):
            for statement in facts.imports:
                if not statement.scope and not hidden(statement.guards):
                    yield from _targets(statement)


def hidden(guards: Iterable[Guard]) -> bool:
    """Whether a statement may not run, or its exceptions are caught."""
    return any(guard.kind in HIDING for guard in guards)


def _targets(statement: Import) -> Iterable[str]:
    parts = statement.module.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    if statement.name and statement.name != "*":
        yield f"{statement.module}.{statement.name}"
