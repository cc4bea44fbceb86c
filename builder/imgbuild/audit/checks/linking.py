"""Checks that the dynamic linker can find libraries and symbols: the check `elf`.

Reports libraries that no package provides, undefined symbols, missing symbol versions, and code
compiled for an incompatible numpy. Libraries of the driver are mounted from the host. If the base
is unknown or the package set is partial, only certain errors are reported.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import msgspec
from packaging.version import Version

from imgbuild.audit.binaries import libraries
from imgbuild.audit.binaries.libraries import Libraries
from imgbuild.audit.binaries.mangled import other_abi_names
from imgbuild.audit.checks import loaded
from imgbuild.audit.checks.findings import FindingPlace, finding_at
from imgbuild.audit.checks.floors import GLIBC
from imgbuild.audit.names import releases
from imgbuild.audit.packages import variants
from imgbuild.audit.packages.library_map import LibraryMap, is_private
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.packages.protocols import ModuleSource
from imgbuild.audit.packages.reading import required_packages
from imgbuild.audit.source.facts import ElfFacts, Guard, Import, ModuleFacts
from imgbuild.report import ConflictRelation, Finding, Severity

HIDING_GUARDS = frozenset(("handled", "absent", "typing", "unknown", "platform", "result"))

CHECK = "elf"
MANY_SYMBOLS = 3  # modules of one package that were compiled against numpy 1
SHOWN_SYMBOLS = 3  # symbols of one file with a finding each
_TAG = re.compile(r"\.cpython-(\d)(\d+)\w*-")
_RUNTIME = re.compile(r"@(?:GLIBC|GCC|GLIBCXX|CXXABI|GOMP|OMP|OACC|ZLIB|LIBATOMIC)")
_PYTHON = ("Py", "_Py")


def check_linking(package_set: PackageSet, base: Sequence[ElfFacts] = ()) -> list[Finding]:
    """Return all findings of the check `elf`.

    `base` contains the libraries of the base, and is empty if they are unknown.
    """
    return list(_Linker(package_set, base).run())


class _Linker:
    def __init__(self, package_set: PackageSet, base: Sequence[ElfFacts]) -> None:
        self._package_set = package_set
        self._known: Libraries = libraries.load_libraries()
        self._map = LibraryMap(
            package_set.elf_facts(),
            base,
            package_set.arch.value,
            _transitive_requirements(package_set),
        )
        self._loading = LoadedBinaries(package_set, self._map, self._known)
        self._complete = (
            bool(base) and not package_set.partial
        )  # whether anything not found is missing
        self._read = {package for package, _ in self._map.files}
        self._variants = variants.find_skipped_variants(self._map.files)
        self._for_numpy_1 = _numpy_1_packages(self._map.files)

    def run(self) -> Iterator[Finding]:
        for package, facts in self._map.files:
            if self._is_for_another_python(facts) or self._is_skipped_variant(package, facts):
                continue
            missing = [
                library
                for library in facts.needed
                if not self._is_found(package, facts, library)
                and (self._complete or self._is_certainly_missing(library))
            ]
            if missing:
                yield from self._libraries(package, facts, missing)
            else:
                yield from self._symbols(package, facts)
            yield from self._versions(package, facts)
            yield from self._numpy_findings(package, facts)
        if self._complete:
            yield from loaded.check_loaded_libraries(self._package_set, self._map, self._known)

    def _is_for_another_python(self, facts: ElfFacts) -> bool:
        tag = _TAG.search(posixpath.basename(facts.file))
        return tag is not None and [tag[1], tag[2]] != self._package_set.python.split(".")[:2]

    def _is_skipped_variant(self, package: str, facts: ElfFacts) -> bool:
        """Return whether a file is for another CUDA family and has a variant for this family."""
        return self._known.is_choice(facts.file) or (package, facts.file) in self._variants

    def _is_found(self, package: str, facts: ElfFacts, library: str) -> bool:
        return (
            self._map.base_library(library) is not None
            or self._known.is_driver(library)
            or bool(self._map.providers(package, facts, library))
            or library in self._unread_libraries
        )

    @cached_property
    def _unread_libraries(self) -> frozenset[str]:
        read_files = {facts.file for _, facts in self._map.files}
        return frozenset(
            posixpath.basename(file)
            for package in self._package_set.packages
            for file in self._package_set.files(package)
            if ".so" in file and file not in read_files and not is_private(file)
        )

    # -- libraries

    def _libraries(
        self, package: str, facts: ElfFacts, missing: Sequence[str]
    ) -> Iterator[Finding]:
        library, *more = sorted(
            missing,
            key=lambda name: (
                not self._map.similar_libraries(name),
                not self._known.provider(name),
            ),
        )
        owner = self._known.provider(library)
        version = self._package_set.version(owner) if owner else None
        near = self._map.similar_libraries(library)
        text = f"{facts.file} is linked to {library}, which nothing in the image provides"
        if version is not None:
            text += f": {owner} {version} does not have it"
            text += " (it is a CPU build)" if library.endswith("_cuda.so") else ""
        elif near:
            names = {relative.soname or posixpath.basename(relative.file) for _, relative in near}
            text += f"; available: {', '.join(sorted(names))}"
        if more:
            text += f"; also missing: {', '.join(more)}"
        other = owner if version is not None else near[0][0] if near else ""
        remedy = _choose_matching(package, other)
        if owner and version is None:
            remedy = f"add {owner}, or choose a {package} built for the installed libraries"
        elif not other:
            remedy = f"if this part of {package} is used, {base_library_remedy(library)}"
        yield self._finding(package, facts, ConflictRelation.LIBRARY, other, library, text, remedy)

    def _is_certainly_missing(self, library: str) -> bool:
        owner = self._known.provider(library)
        there = bool(owner) and self._package_set.version(owner) is not None
        return there or bool(self._map.similar_libraries(library))

    # -- symbols

    def _symbols(self, package: str, facts: ElfFacts) -> Iterator[Finding]:
        absent = [symbol for symbol in facts.undefined if self._is_absent(package, symbol)]
        # Symbols that a known package should provide are first: they are most specific.
        absent.sort(key=lambda symbol: (not self._owner(symbol), symbol))
        every = tuple(sorted({symbol.partition("@")[0] for symbol in absent}))
        for place, symbol in enumerate(absent[:SHOWN_SYMBOLS], start=1):
            name = symbol.partition("@")[0]
            other = self._owner(symbol)
            text = f"{facts.file} needs symbol {name}, which nothing in the image defines"
            text += self._hint(package, name, other)
            if len(absent) > 1:
                text += f" ({place} of {len(absent)} undefined symbols)"
            remedy = (
                _choose_matching(package, other)
                if other
                else f"choose another version of {package}"
            )
            yield self._finding(
                package,
                facts,
                ConflictRelation.SYMBOL,
                other,
                name,
                text,
                remedy,
                every if place == 1 and len(every) > 1 else (),
            )

    def _is_absent(self, package: str, symbol: str) -> bool:
        name = symbol.partition("@")[0]
        if self._known.is_driver_symbol(name) or self._map.defines_symbol(package, name):
            return False
        if self._complete:
            return True
        # Without a base, its symbols and Python's are unknown; torch's are known by their names.
        if _RUNTIME.search(symbol) or name.startswith(_PYTHON):
            return False
        return self._owner(symbol) in self._read

    def _owner(self, symbol: str) -> str:
        """Return the installed package that should define a symbol, or "" if unknown."""
        name, _, version = symbol.partition("@")
        owner = self._known.owner(name) or (self._known.provider(version) if version else "")
        return owner if owner and self._package_set.version(owner) is not None else ""

    def _hint(self, package: str, name: str, other: str) -> str:
        for spelt, what in other_abi_names(name):
            if self._map.defines_symbol(package, spelt):
                whose = f"{other} {self._package_set.version(other)}" if other else "the image"
                return f": {whose} defines it {what} ({spelt})"
        return ""

    # -- versions

    def _versions(self, package: str, facts: ElfFacts) -> Iterator[Finding]:
        for library, versions in facts.required_versions.items():
            lacking = [
                version
                for version in versions
                if self._lacks_symbol_version(package, facts, library, version)
            ]
            if not lacking:
                continue
            newest = max(lacking, key=_order)
            text = (
                f"{facts.file} needs version {newest} of {library}, which the image does not have"
            )
            if newest.startswith("GLIBC_"):
                text += f" (glibc {self._package_set.glibc})"
            providers = self._map.providers(package, facts, library)
            other = providers[0][0] if providers and providers[0][0] != package else ""
            remedy = (
                _choose_matching(package, other)
                if other
                else f"choose a base with a newer {library}, or an older {package}"
            )
            subject = f"{library}:{newest}"
            yield self._finding(package, facts, ConflictRelation.ABI, other, subject, text, remedy)

    def _lacks_symbol_version(
        self, package: str, facts: ElfFacts, library: str, version: str
    ) -> bool:
        providers = [provider for _, provider in self._map.providers(package, facts, library)]
        base_library = self._map.base_library(library)
        candidates = providers or ([base_library] if base_library is not None else [])
        return lacks_version(candidates, version, self._package_set.glibc)

    # -- numpy

    def _numpy_findings(self, package: str, facts: ElfFacts) -> Iterator[Finding]:
        version = self._package_set.version("numpy")
        if facts.numpy != 1 or version is None or package == "numpy" or _major_version(version) < 2:
            return
        text = (
            f"{facts.file} was compiled against numpy 1 and fails with numpy {version}:"
            " it imports numpy.core._multiarray_umath instead of numpy._core"
        )
        remedy = f"choose a release of {package} compiled against numpy 2, or numpy<2"
        finding = self._finding(
            package, facts, ConflictRelation.ABI, "numpy", "numpy<2", text, remedy
        )
        if package in self._for_numpy_1:
            finding = msgspec.structs.replace(finding, severity=Severity.ERROR)
        yield finding

    def _finding(
        self,
        package: str,
        facts: ElfFacts,
        relation: ConflictRelation,
        other: str,
        subject: str,
        text: str,
        remedy: str,
        symbols: tuple[str, ...] = (),
    ) -> Finding:
        version = self._package_set.version(package) or ""
        severity = Severity.NOTE
        if self._loading.is_on_main_path(package, facts):
            severity = Severity.ERROR
        elif relation is ConflictRelation.SYMBOL and other:
            # Built for a different version of `other`: the package works without it, but more
            # slowly.
            severity = Severity.WARNING
        return finding_at(
            FindingPlace(package, version, facts.file),
            CHECK,
            severity,
            f"{package} {version}: {text}",
            relation=relation,
            remedy=remedy,
            subject=subject,
            other=other,
            other_version=(self._package_set.version(other) or "") if other else "",
            spec="<2" if subject == "numpy<2" else "",
            symbols=symbols,
        )


def lacks_version(candidates: Sequence[ElfFacts], version: str, glibc: str) -> bool:
    """Return whether none of `candidates`, the files of a library, has the symbol version.

    `glibc` is the version in the base, or "" if unknown. A library without symbol versions is
    accepted, because the dynamic linker only warns about it.
    """
    of_glibc = GLIBC.fullmatch(version)
    if of_glibc is not None and glibc:
        return Version(of_glibc[1]) > Version(glibc)
    return bool(candidates) and not any(
        not candidate.defined_versions or version in candidate.defined_versions
        for candidate in candidates
    )


def base_library_remedy(library: str) -> str:
    """Return the remedy for a library that is missing in the base.

    The remedy contains the library's Debian package, if it is known.
    """
    package = releases.load_name_table().system_libraries.get(library)
    if package is None:
        return f"add {library} to the base"
    return f"add the Debian package {package}, which has {library}, to the base"


def _numpy_1_packages(files: Iterable[tuple[str, ElfFacts]]) -> frozenset[str]:
    """Return packages whose numpy extension modules were all compiled for numpy 1.

    A package with MANY or more such modules cannot work without them, however they are imported.
    """
    counts: dict[str, Counter[int]] = {}
    for package, facts in files:
        counts.setdefault(package, Counter())[facts.numpy] += 1
    return frozenset(
        name
        for name, module_counts in counts.items()
        if module_counts[1] >= MANY_SYMBOLS and not module_counts[2]
    )


def _choose_matching(package: str, other: str) -> str:
    return f"choose versions of {package} and {other} built for each other"


def _transitive_requirements(package_set: PackageSet) -> dict[str, frozenset[str]]:
    """Map each package to all packages that it requires, directly or indirectly.

    Markers are ignored.
    """
    direct = {
        package: required_packages(package_set.metadata(package))
        for package in package_set.packages
    }
    requirements = {}
    for package, names in direct.items():
        seen: set[str] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += direct.get(name, ())
        requirements[package] = frozenset(seen)
    return requirements


def _major_version(version: str) -> int:
    try:
        return Version(version).major
    except ValueError:
        return 0


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


class LoadedBinaries:
    """Determines which binaries are on the main path, one package at a time."""

    def __init__(self, code: ModuleSource, placed: LibraryMap, libraries: Libraries) -> None:
        self._code = code
        self._placed = placed
        self._known = libraries
        self._imported: dict[str, frozenset[str]] = {}
        self._users: dict[tuple[str, str], list[tuple[str, ElfFacts]]] | None = None

    def is_on_main_path(self, package: str, facts: ElfFacts) -> bool:
        """Return whether using `package` loads the file."""
        seen: set[tuple[str, str]] = set()
        todo = [(package, facts)]
        while todo:
            owner, current = todo.pop()
            if (owner, current.file) in seen:
                continue
            seen.add((owner, current.file))
            if self._is_loaded_at_import(owner, current):
                return True
            todo += self._linking_files(owner, current)
        return False

    def _is_loaded_at_import(self, package: str, facts: ElfFacts) -> bool:
        return self._known.is_loaded(facts.file) or facts.file in self._extensions(package)

    def _linking_files(self, package: str, facts: ElfFacts) -> list[tuple[str, ElfFacts]]:
        if self._users is None:
            self._users = {}
            for owner, user in self._placed.files:
                for library in user.needed:
                    for provider, target in self._placed.providers(owner, user, library):
                        self._users.setdefault((provider, target.file), []).append((owner, user))
        return self._users.get((package, facts.file), [])

    def _extensions(self, package: str) -> frozenset[str]:
        if package not in self._imported:
            self._imported[package] = frozenset(self._loaded_modules(package))
        return self._imported[package]

    def _loaded_modules(self, package: str) -> Iterable[str]:
        modules = self._code.modules_of(package)
        todo = [name for name in modules if "." not in name and not name.startswith("_")]
        # The package's own extension module, which it may load by other means: cv2/cv2.abi3.so.
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
        facts = self._code.module(name)
        if isinstance(facts, ModuleFacts):
            for statement in facts.imports:
                if not statement.scope and not is_hidden(statement.guards):
                    yield from _targets(statement)


def is_hidden(guards: Iterable[Guard]) -> bool:
    """Return whether a statement may be skipped, or its exceptions are caught."""
    return any(guard.kind in HIDING_GUARDS for guard in guards)


def _targets(statement: Import) -> Iterable[str]:
    parts = statement.module.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    if statement.name and statement.name != "*":
        yield f"{statement.module}.{statement.name}"
