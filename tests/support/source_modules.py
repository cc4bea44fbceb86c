"""Creates packages from Python source in tests, for the real reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from textwrap import dedent

from imgbuild.audit.main_path.policy import MainPathEntry, MainPathPolicy
from imgbuild.audit.source import stdlib
from imgbuild.audit.source.facts import ModuleFacts, OpaqueModule
from imgbuild.audit.source.module import read_module


class SourceModules:
    """A package set from {"trl 0.21.0": {"trl/__init__.py": source}}. Other modules are missing."""

    def __init__(
        self,
        packages: Mapping[str, Mapping[str, str]],
        *,
        python: str = "3.11",
        arch: str = "x86_64",
        partial: bool = False,
    ) -> None:
        self.python = python
        self.arch = arch
        self.partial = partial
        self._versions = dict(name.split(" ") for name in packages)
        self._files: dict[str, tuple[str, str, str]] = {}
        self._facts: dict[str, ModuleFacts] = {}
        for package, files in packages.items():
            for file, source in files.items():
                module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                self._files[module] = (package.split(" ")[0], file, dedent(source))

    def module(self, name: str) -> ModuleFacts | OpaqueModule | None:
        if name in self._files:
            if name not in self._facts:
                _, file, source = self._files[name]
                package = file.endswith("__init__.py")
                self._facts[name] = read_module(source.encode(), name, file, package=package)
            return self._facts[name]
        if name.partition(".")[0] in stdlib.stdlib_modules(self.python):
            return stdlib.opaque_module(name, self.python)
        if any(module.startswith(f"{name}.") for module in self._files):
            return OpaqueModule(name, "namespace")
        left_out = self.partial and name.partition(".")[0] not in self._files
        return OpaqueModule(name, "unknown") if left_out else None

    def exists(self, module: str) -> bool | None:
        lookup_result = self.module(module)
        if isinstance(lookup_result, OpaqueModule) and lookup_result.why == "unknown":
            return None
        return lookup_result is not None

    def owner(self, module: str) -> str | None:
        while module:
            owners = {
                owner
                for name, (owner, _, _) in self._files.items()
                if f"{name}.".startswith(f"{module}.")
            }
            if owners:
                return owners.pop() if len(owners) == 1 else None
            module = module.rpartition(".")[0]
        return None

    def version(self, package: str) -> str | None:
        return self._versions.get(package)

    def files(self, package: str) -> Mapping[str, int]:
        return {
            file: len(source) for owner, file, source in self._files.values() if owner == package
        }

    def modules_of(self, package: str) -> Mapping[str, str]:
        return {
            module: file for module, (owner, file, _) in self._files.items() if owner == package
        }

    def read(self, package: str, path: str) -> bytes | None:
        for owner, file, source in self._files.values():
            if owner == package and file == path:
                return source.encode()
        return None

    def mentioning(self, package: str, word: str) -> Iterable[str]:
        below = f"{package}."
        return [
            name
            for name, (_, _, source) in self._files.items()
            if name.startswith(below) and word in source
        ]

    def read_ahead(self, package: str) -> None:
        """Do nothing, because all sources are in memory."""

    def prefetch(self, modules: Iterable[str]) -> None:
        for module in modules:
            self.module(module)


def rules(*entries: str, walk: Iterable[str] = ("user", "lib")) -> MainPathPolicy:
    """The policy with the given entry points."""
    named = tuple(MainPathEntry(name=entry, why="a test") for entry in entries)
    return MainPathPolicy(walk=frozenset(walk), entries=named)
