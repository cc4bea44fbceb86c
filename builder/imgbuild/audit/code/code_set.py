"""Combines a package set with the user's code, so that the audit's checks treat it as a package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import msgspec

from imgbuild.audit.code.model import CodeText
from imgbuild.audit.code.wheel_sources import WheelSources
from imgbuild.audit.main_path.closure import Level, MainPath, Place, Reached
from imgbuild.audit.main_path.view import PackageSetView
from imgbuild.audit.names.scopes import module_scopes
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import Attribute, Call, Guard, Import, ModuleFacts, OpaqueModule

T = TypeVar("T", Import, Call, Attribute)
CODE = "(code)"  # the name of the user's code as a package: no package can have it
_DATA_SUBJECT = "data"
_CERTAINLY_REACHED = Reached(Level.CERTAIN, "", user=True)


def possible_roots(package: str) -> frozenset[str]:
    """Return the possible names of modules of a package that was not read."""
    return frozenset((package.replace("-", "_"), package.partition("-")[0]))


class CodeSet:
    """The packages of `base`, together with the modules of a user's code.

    Some files are shadowed by another one: a script `datasets.py` outside of packages, or the
    second of two scripts with the same name. Such a file gets a name that no code imports. If
    several files have the same name, the content under this name is unknown.
    """

    def __init__(
        self,
        base: ImportablePackages,
        files: Sequence[CodeText],
        facts: Mapping[str, ModuleFacts],
        unread: Iterable[str] = (),
        *,
        package: str = CODE,
        version: str = "0",
    ) -> None:
        """Combine the packages of `base` with the Python `files` and their `facts`.

        `facts` are looked up by `CodeText.file`. `unread` are installed packages that were not
        read. The files belong to `package` in this `version`, which is not part of `base`.
        """
        self._base = base
        self._package = package
        self._version = version
        self._unread = frozenset(root for name in unread for root in possible_roots(name))
        self.python = base.python
        self.arch = base.arch
        self.partial = base.partial
        # A finding about an attribute of the user's own class would be omitted.
        self.sources = WheelSources(self, unchecked=CODE)
        self._texts: dict[str, CodeText] = {}
        self._files: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self._by_file = {text.file: text for text in files}
        self._facts = facts
        self._modules: dict[str, ModuleFacts | OpaqueModule | None] = {}  # None: not needed yet
        for text in files:
            if text.file in facts:
                self._add_file(text)

    def _add_file(self, text: CodeText) -> None:
        root = text.module.partition(".")[0]
        hidden = "." not in text.module and not text.package and self._base.exists(root)
        name = text.module
        if hidden or name in self._modules or not name:
            if not hidden and name:
                if name in self._texts:  # the first file of this name is read, too
                    self._put_module(f"{name}#0", self._texts.pop(name))
                    del self._files[name]
                self._modules[name] = OpaqueModule(name, "unknown")
            name = f"{name}#{len(self._texts) + 1}"
        self._put_module(name, text)

    def _put_module(self, name: str, text: CodeText) -> None:
        self._texts[name] = text
        self._files[name] = text.file
        self._sizes[text.file] = len(text.source)
        self._modules[name] = None

    def _user_module(self, name: str) -> ModuleFacts | OpaqueModule:
        """Return the facts of a user's module."""
        module = self._modules[name]
        if module is None:
            facts = self._facts[self._files[name]]
            module = _without_data_conditions(msgspec.structs.replace(facts, module=name))
            self._modules[name] = module
        return module

    def names(self) -> frozenset[str]:
        """Return the modules of the user's code, including names that several files have."""
        return frozenset(self._modules)

    @property
    def code_by_module(self) -> Mapping[str, CodeText]:
        """The file of each module in the user's code."""
        return self._texts

    def root(self, file: str) -> str:
        """Return the folder from which Python imports the modules of a file."""
        return self._by_file[file].root

    def path(self, modules: Iterable[str] | None = None) -> MainPath:
        """Return a main path that runs the user's code, or only the given modules."""
        places: dict[Place, Reached] = {}
        for name in self._texts if modules is None else modules:
            facts = self._user_module(name)
            if isinstance(facts, ModuleFacts):
                here = module_scopes(facts)
                for scope in {use.scope for use in _uses(facts)}:
                    places[(name, here.scope_runner(scope))] = _CERTAINLY_REACHED
                places[(name, "")] = _CERTAINLY_REACHED
        return MainPath(places, view=self._view)

    @cached_property
    def _view(self) -> PackageSetView:
        return PackageSetView(self)

    def module(self, name: str) -> ModuleFacts | OpaqueModule | None:
        """Return the facts of a module of the user or, if there is none, of a package."""
        if name in self._modules:
            return self._user_module(name)
        if name.partition(".")[0] in self._unread:
            return OpaqueModule(name, "unknown")
        return self._base.module(name)

    def exists(self, module: str) -> bool | None:
        """Whether `module` can be imported."""
        if module in self._modules:
            return True
        return None if module.partition(".")[0] in self._unread else self._base.exists(module)

    def owner(self, module: str) -> str | None:
        """Return the package of `module`. For the user's modules, it is the user's code itself."""
        name = module
        while name:
            if name in self._modules:
                return self._package
            name = name.rpartition(".")[0]
        return self._base.owner(module)

    def version(self, package: str) -> str | None:
        """Return the version of a package, or a placeholder for the user's code."""
        return self._version if package == self._package else self._base.version(package)

    def modules_of(self, package: str) -> Mapping[str, str]:
        """Map each module of a package or of the user's code to its file."""
        return self._files if package == self._package else self._base.modules_of(package)

    def files(self, package: str) -> Mapping[str, int]:
        """Map the paths in a package to sizes.

        For the user's code, only the paths of its modules are included.
        """
        if package != self._package:
            return self._base.files(package)
        return self._sizes

    def read(self, package: str, path: str) -> bytes | None:
        """Return the content of a file in a package or in the user's code."""
        if package != self._package:
            return self._base.read(package, path)
        text = self._by_file.get(path)
        return text.source if text is not None else None

    def prefetch(self, modules: Iterable[str]) -> None:
        """Read many modules together."""
        self._base.prefetch(name for name in modules if name not in self._modules)

    def mentioning(self, package: str, word: str) -> Iterable[str]:
        """Return the modules below `package` whose source contains `word`.

        For the user's code, modules in other folders are included: they can contain subclasses.
        """
        if package not in self._modules and package not in self._folders:
            return self._base.mentioning(package, word)
        return [name for name, text in self._texts.items() if word.encode() in text.source]

    @cached_property
    def _folders(self) -> frozenset[str]:
        """The top-level folders of the user's modules that are not packages."""
        tops = {name.partition(".")[0] for name in self._texts if "." in name}
        return frozenset(top for top in tops if self._base.owner(top) is None)

    def read_ahead(self, package: str) -> None:
        """Read the modules below `package` in advance, if they are local."""
        if package not in self._modules:
            self._base.read_ahead(package)


def _uses(facts: ModuleFacts) -> tuple[Import | Call | Attribute, ...]:
    return (*facts.imports, *facts.calls, *facts.attributes)


def _without_data_conditions(facts: ModuleFacts) -> ModuleFacts:
    """Return `facts` without conditions on data.

    At the top level of a user's program, these conditions may be true.
    """

    def _retained_guards(guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
        return tuple(guard for guard in guards if guard.kind != _DATA_SUBJECT)

    def _convert_uses(uses: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(
            msgspec.structs.replace(fact, guards=_retained_guards(fact.guards))
            if any(guard.kind == _DATA_SUBJECT for guard in fact.guards)
            else fact
            for fact in uses
        )

    return msgspec.structs.replace(
        facts,
        imports=_convert_uses(facts.imports),
        calls=_convert_uses(facts.calls),
        attributes=_convert_uses(facts.attributes),
    )
