"""Provides a package set: the modules and files of packages installed for one Python version."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

import msgspec

from imgbuild.audit.packages.advised import AdvisedExtra
from imgbuild.audit.packages.generated import GeneratedCode
from imgbuild.audit.packages.library import Library, LibraryWheel
from imgbuild.audit.packages.loaded import NamesByFile
from imgbuild.audit.packages.reading import WheelMetadata, is_metadata
from imgbuild.audit.source import stdlib
from imgbuild.audit.source.facts import ElfFacts, ModuleFacts, OpaqueModule
from imgbuild.lock.resolution import Wheel
from imgbuild.values import Arch, normalize_package
from imgbuild.wheel.tags import WheelTags

MODULE_MAP = "module-map-1"  # increased by hand when the map of the same files changes
# Besides comments, the lines of an `__init__` that several packages ship alike.
_NAMESPACE_MARKS = (b"#", b"extend_path(", b"declare_namespace(")
# How source assigns modules in sys.modules: by an assignment, or without naming them; and how it
# adds folders to its path.
_MODULES_ASSIGNMENT = re.compile(rb"^\s*sys\.modules\[(.+?)\]\s*=(?!=)", re.MULTILINE)
_LITERAL = re.compile(rb"""f?["']([\w.]+|\{__name__\}[\w.]+)["']|__name__ \+ ["']([\w.]+)["']""")
_MODULES_UPDATE = re.compile(rb"sys\.modules\.(?:update|setdefault)\(|\bmeta_path\b")
# Names computed from that of the module: as text, and as a pattern. Files that it looks for.
_COMPUTED_NAME = re.compile(rb"""(?<![\w])f["']\{__name__\}([\w.{}]+)["']""")
_PATTERN = re.compile(rb"""rf["']\{re\.escape\(__name__\)\}([^"'\s{}]+)["']""")
_GLOB = re.compile(rb"""\br?glob\(["']([\w*]+)\.py["']""")
_FOLDERS = re.compile(rb"^\s*__path__\s*\+?=(?!.*extend_path\()|\b__path__\.\w+\(", re.MULTILINE)


class ModuleMap(msgspec.Struct, frozen=True):
    """The packages that contain modules, for one Python version.

    `owners` maps each module to its package. If several packages contain the module, the
    alphabetically first package is used. `folders` maps each folder that contains modules but no
    `__init__` to its packages, sorted.
    """

    owners: dict[str, str]
    folders: dict[str, tuple[str, ...]]


class PackageSet:
    """Packages that are installed together. Implements `Modules` for `names.lookup`.

    `partial` means that packages were omitted deliberately, so whether a missing package is
    installed is unknown. `unread_versions` are installed packages of which only the version is
    known. `python` is "3.11" or "3.11.4".
    """

    def __init__(
        self,
        library_wheels: Sequence[LibraryWheel],
        library: Library,
        *,
        python: str,
        arch: Arch,
        glibc: str,
        partial: bool = False,
        unread_versions: Mapping[str, str] | None = None,
    ) -> None:
        self._library = library
        self._known = {
            normalize_package(name): version for name, version in (unread_versions or {}).items()
        }
        self.wheels: dict[str, LibraryWheel] = {
            library_wheel.package: library_wheel for library_wheel in library_wheels
        }
        self.python = python
        self._release = ".".join(python.split(".")[:2])
        self.arch = arch
        self.glibc = glibc
        self.partial = partial
        self._mentions: dict[tuple[str, str], tuple[str, ...]] = {}
        self._ahead: set[str] = set()
        self._injects: dict[str, Injections] = {}
        self._missing: dict[str, OpaqueModule | None] = {}
        self._shared: dict[str, bool] = {}

    @cached_property
    def tags(self) -> WheelTags:
        """The wheel tags that the machine supports."""
        return WheelTags(python=self.python, glibc=self.glibc, arch=self.arch)

    def use_in_copied_process(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for a forked process (see `Library.use_in_copied_process`)."""
        return self._library.use_in_copied_process()

    # -- packages

    @property
    def packages(self) -> tuple[str, ...]:
        """The names of all packages, normalized and sorted."""
        return tuple(sorted(self.wheels))

    def version(self, package: str) -> str | None:
        """Return the version of `package` (in any spelling), or None if it is not installed."""
        name = normalize_package(package)
        library_wheel = self.wheels.get(name)
        return library_wheel.version if library_wheel is not None else self._known.get(name)

    def metadata(self, package: str) -> WheelMetadata | None:
        """Return the METADATA of `package`, or None if it is not installed."""
        library_wheel = self.wheels.get(normalize_package(package))
        return library_wheel.metadata if library_wheel is not None else None

    def metadata_file(self, package: str) -> str:
        """Return the path of METADATA in the wheel of `package`."""
        return next((file for file in self.files(package) if is_metadata(file)), "METADATA")

    def files(self, package: str) -> Mapping[str, int]:
        """Map the paths in the wheel of `package` to sizes.

        Returns {} if the package is not installed.
        """
        library_wheel = self.wheels.get(normalize_package(package))
        return library_wheel.files if library_wheel is not None else {}

    def read(self, package: str, path: str) -> bytes | None:
        """Return the content of a small file of `package`, or None if it does not exist."""
        library_wheel = self.wheels.get(normalize_package(package))
        return library_wheel.read([path]).get(path) if library_wheel is not None else None

    def generated_code(self, package: str) -> tuple[GeneratedCode, ...]:
        """Return the protobuf-generated modules of `package` that check the protobuf version."""
        library_wheel = self.wheels.get(normalize_package(package))
        return library_wheel.generated_code if library_wheel is not None else ()

    def elf_facts(self) -> Iterator[tuple[str, ElfFacts]]:
        """Yield every shared object and program in local wheels, with its package."""
        self._library.prefetch_elf_facts([self.wheels[package] for package in self.packages])
        for package in self.packages:
            for facts in self.wheels[package].elf_facts():
                yield package, facts

    def assemblers(self) -> Iterator[tuple[str, ElfFacts]]:
        """Yield the assemblers for GPU code in local and remote wheels, with their packages."""
        for package in self.packages:
            for facts in self.wheels[package].assemblers:
                yield package, facts

    def advised_extras(self, package: str) -> tuple[AdvisedExtra, ...]:
        """Return the extras that `package` recommends in its import errors."""
        library_wheel = self.wheels.get(normalize_package(package))
        return library_wheel.advised_extras if library_wheel is not None else ()

    def loaded(self, package: str) -> NamesByFile:
        """Map each file of `package` that loads libraries by name to the names in its strings."""
        library_wheel = self.wheels.get(normalize_package(package))
        return library_wheel.loaded if library_wheel is not None else {}

    # -- modules

    def modules_of(self, package: str) -> Mapping[str, str]:
        """Map each module of `package` to its file in the wheel.

        Returns {} if the package is not installed.
        """
        library_wheel = self.wheels.get(normalize_package(package))
        return library_wheel.modules(self._release) if library_wheel is not None else {}

    def owner(self, module: str) -> str | None:
        """Return the package that contains `module` or its nearest parent, or None.

        A namespace that several packages share has no owner.
        """
        name = "" if self._is_stdlib(module) else module
        while name:
            if name in self._owners:
                return self._owners[name]
            if name in self._folders:
                owners = self._folders[name]
                return owners[0] if len(owners) == 1 else None
            name = name.rpartition(".")[0]
        return None

    def exists(self, module: str) -> bool | None:
        """Return whether `module` can be imported, or None if unknown. The module is not read."""
        if self._is_stdlib(module):
            return stdlib.opaque_module(module, self.python) is not None
        if module in self._owners or module in self._folders:
            return True
        opaque = self._missing_module(module)
        return None if opaque is not None else False

    def module(self, name: str) -> ModuleFacts | OpaqueModule | None:
        """Return the facts about a module, or None if it is missing.

        Returns an OpaqueModule if the names of the module are unknown.
        """
        if self._is_stdlib(name):
            return stdlib.opaque_module(name, self.python)
        owner = self._owners.get(name)
        if owner is not None:
            library_wheel = self.wheels[owner]
            if not library_wheel.modules(self._release)[name].endswith(".py"):
                return OpaqueModule(name, "compiled")
            return library_wheel.module(name)
        if name in self._folders:
            return OpaqueModule(name, "namespace")
        return self._missing_module(name)

    def prefetch(self, modules: Iterable[str]) -> None:
        """Read many modules together, which is faster than one by one."""
        requested: dict[LibraryWheel, list[str]] = {}
        for name in modules:
            owner = self._owners.get(name)
            if owner is not None:
                requested.setdefault(self.wheels[owner], []).append(name)
        self._library.prefetch(requested)

    @property
    def _owners(self) -> dict[str, str]:
        return self._module_map.owners

    @property
    def _folders(self) -> dict[str, tuple[str, ...]]:
        return self._module_map.folders

    @cached_property
    def _module_map(self) -> ModuleMap:
        """The packages of all modules, cached because the files of every wheel determine them."""
        return self._library.cached_set_value(
            MODULE_MAP, self._release, list(self.wheels.values()), ModuleMap, self._read_module_map
        )

    def _read_module_map(self) -> ModuleMap:
        owners: dict[str, str] = {}
        folders: dict[str, set[str]] = {}
        for package in self.packages:
            modules = self.modules_of(package)
            for module in modules:
                owners.setdefault(module, package)
                parent = module.rpartition(".")[0]
                while parent and parent not in modules:
                    folders.setdefault(parent, set()).add(package)
                    parent = parent.rpartition(".")[0]
        return ModuleMap(
            owners=owners,
            folders={
                name: tuple(sorted(packages))
                for name, packages in folders.items()
                if name not in owners
            },
        )

    def mentioning(self, package: str, word: str) -> tuple[str, ...]:
        """Return the modules below the module `package` whose source contains `word`."""
        owner = self._owners.get(package)
        if owner is None:
            return ()
        key = (package, word)
        if key not in self._mentions:
            matches = self.wheels[owner].mentioning(package, word)
            modules = self.modules_of(owner)
            self._mentions[key] = tuple(module for module in matches if module in modules)
        return self._mentions[key]

    def read_ahead(self, package: str) -> None:
        """Read the modules below `package` in advance, in several processes, if they are local."""
        owner = self._owners.get(package)
        local = owner is not None and self.wheels[owner].is_local and self._library.ahead
        if owner is None or package in self._ahead or not local:
            return
        self._ahead.add(package)
        self.prefetch(name for name in self.modules_of(owner) if name.startswith(f"{package}."))

    def _is_stdlib(self, module: str) -> bool:
        return module.partition(".")[0] in stdlib.stdlib_modules(self.python)

    def _missing_module(self, name: str) -> OpaqueModule | None:
        """Return `_injected_module(name)`, cached."""
        if name not in self._missing:
            self._missing[name] = self._injected_module(name)
        return self._missing[name]

    def _injected_module(self, name: str) -> OpaqueModule | None:
        """Return an OpaqueModule if a module that no wheel contains may exist, or else None."""
        if name.partition(".")[0] == "distutils" and "setuptools" in self.wheels:
            return OpaqueModule(name, "injected")
        parent = name.rpartition(".")[0]
        while parent:
            if parent in self._owners:
                if not self.modules_of(self._owners[parent])[parent].endswith(".py"):
                    return OpaqueModule(name, "compiled")
                if self._may_inject(name, parent) or self._may_serve(name, parent):
                    return OpaqueModule(name, "injected")
                break
            if parent in self._folders:
                break
            parent = parent.rpartition(".")[0]
        if (self.partial or self._known) and (not parent or self._is_shared(parent)):
            return OpaqueModule(name, "unknown")
        return None

    def _is_shared(self, module: str) -> bool:
        """Return whether missing packages may have modules below `module`, as below `nvidia`."""
        if module in self._folders:
            return True
        if module not in self._shared:
            self._shared[module] = self._has_shared_init(module)
        return self._shared[module]

    def _has_shared_init(self, module: str) -> bool:
        lines = self._source(module).splitlines() if "." not in module else [b"nested"]
        if self._owners[module] == normalize_package(module):
            # No package is called `nvidia`; a package of this name has all its modules here.
            return any(word in line for line in lines for word in _NAMESPACE_MARKS[1:])
        return all(
            not line.strip() or any(word in line for word in _NAMESPACE_MARKS) for line in lines
        )

    def _source(self, module: str) -> bytes:
        owner = self._owners[module]
        return self.read(owner, self.modules_of(owner)[module]) or b""

    def _may_inject(self, name: str, module: str) -> bool:
        return self._injections(module).may_create(name)

    def _may_serve(self, name: str, parent: str) -> bool:
        """Return whether the top-level module above `parent` creates modules with such names."""
        top = parent.partition(".")[0]
        facts = self.module(top) if top != parent else None
        registers = isinstance(facts, ModuleFacts) and (facts.registers or facts.aliases)
        return bool(registers) and self._injections(top).has_form_of(name)

    def _injections(self, module: str) -> Injections:
        if module not in self._injects:
            self._injects[module] = Injections(self._source(module), module)
        return self._injects[module]


class Injections:
    """Determines which submodules without a file the source of a module may create."""

    def __init__(self, source: bytes, module: str) -> None:
        self._source = source
        self._module = module
        self._any = _FOLDERS.search(source) is not None
        # Assigned in sys.modules under computed names: then parts of a name occur in the source.
        self._computed = _MODULES_UPDATE.search(source) is not None
        self._named: set[str] = set()
        for assigned in _MODULES_ASSIGNMENT.finditer(source):
            literal = _LITERAL.fullmatch(assigned[1].strip())
            if literal is not None:
                text = (literal[1] or b"{__name__}" + literal[2]).decode()
                self._named.add(text.replace("{__name__}", module))
            elif assigned[1].strip() != b"__name__":
                self._computed = True

    def has_form_of(self, name: str) -> bool:
        """Return whether the module may create `name` from its own name and from globbed files.

        An example of such a name is f"{__name__}.models.{model}.{module}_fast".
        """
        head, _, last = name.removeprefix(self._module).rpartition(".")
        return self._computed and any(
            form.fullmatch(f"{head}.{last}")
            and (not self._globs or any(fnmatchcase(last, f"{text}{end}") for text in self._globs))
            for form, end in self._forms
        )

    @cached_property
    def _globs(self) -> list[str]:
        return [text.decode() for text in _GLOB.findall(self._source)]

    @cached_property
    def _forms(self) -> list[tuple[re.Pattern[str], str]]:
        return list(self._read_forms())

    def _read_forms(self) -> Iterator[tuple[re.Pattern[str], str]]:
        for text in _COMPUTED_NAME.findall(self._source):
            *parts, end = re.split(r"\{\w+\}", text.decode())
            if parts and end:
                yield re.compile(r"\w+".join(map(re.escape, (*parts, end)))), end
        for text in _PATTERN.findall(self._source):
            with contextlib.suppress(re.error):
                yield re.compile(text.decode()), ""

    def may_create(self, name: str) -> bool:
        """Return whether the module may create `name`."""
        if self._any or any(name == each or name.startswith(f"{each}.") for each in self._named):
            return True
        child = name.removeprefix(f"{self._module}.").partition(".")[0].encode()
        if not self._computed or child not in self._source:
            return False
        return re.search(rb"\b%s\b" % re.escape(child), self._source) is not None


def open_package_set(  # noqa: PLR0913 - as PackageSet
    wheels: Sequence[Wheel],
    library: Library,
    *,
    python: str,
    arch: Arch,
    glibc: str,
    locate: Callable[[Wheel], Path | str],
    partial: bool = False,
    unread_versions: Mapping[str, str] | None = None,
    omit: Mapping[str, Sequence[str]] | None = None,
    kind: type[PackageSet] = PackageSet,
) -> PackageSet:
    """Return the package set of `wheels`. `locate` returns the path or URL of a wheel.

    `python` is, for example, "3.11", and `glibc` "2.36". For `partial` and `unread_versions`, see
    `PackageSet`. `omit` maps a package to patterns of omitted paths, relative to the prefix.
    """
    places = f"lib/python{python}/site-packages/"
    library_wheels = [
        library.wheel(
            wheel,
            locate(wheel),
            [
                pattern.removeprefix(places)
                for pattern in (omit or {}).get(wheel.package, ())
                if pattern.startswith(places)
            ],
        )
        for wheel in wheels
    ]
    return kind(
        library_wheels,
        library,
        python=python,
        arch=arch,
        glibc=glibc,
        partial=partial,
        unread_versions=unread_versions,
    )
