"""Finds libraries that a standalone Python requires but the image lacks (part of `elf`).

Debian declares the dependencies of its Python in packages, but an archive declares none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from imgbuild.audit.checks.linking import CHECK, base_library_remedy, lacks_version
from imgbuild.audit.packages.library_map import LibraryMap
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.source.facts import ElfFacts
from imgbuild.report import ConflictRelation, Evidence, Finding, Severity

PACKAGE = "cpython"  # in evidence and waivers


def check_standalone_python(
    package_set: PackageSet, base: Sequence[ElfFacts], interpreter: Sequence[ElfFacts]
) -> list[Finding]:
    """Return an error for each library or symbol version that files of `interpreter` lack.

    `base` contains the libraries of the base, including those that the interpreter loads.
    """
    files = [(PACKAGE, facts) for facts in interpreter]
    return list(_findings(package_set, LibraryMap(files, base, package_set.arch.value, {})))


def _findings(package_set: PackageSet, libraries: LibraryMap) -> Iterator[Finding]:
    missing: dict[str, list[str]] = {}
    old: dict[tuple[str, str], list[str]] = {}
    for _, facts in libraries.files:
        for library in facts.needed:
            if not _loaded_library(libraries, facts, library):
                missing.setdefault(library, []).append(facts.file)
        for library, versions in facts.required_versions.items():
            for version in versions:
                if lacks_version(
                    _loaded_library(libraries, facts, library), version, package_set.glibc
                ):
                    old.setdefault((library, version), []).append(facts.file)
    for library, users in sorted(missing.items()):
        text = f"linked to {library}, which neither its archive nor the base provides"
        yield _finding(
            package_set,
            users,
            ConflictRelation.LIBRARY,
            library,
            text,
            base_library_remedy(library),
        )
    for (library, version), users in sorted(old.items()):
        text = f"linked to version {version} of {library}, which the base does not have"
        remedy = f"choose an archive for an older glibc, or a base with a newer {library}"
        yield _finding(
            package_set, users, ConflictRelation.ABI, f"{library}:{version}", text, remedy
        )


def _loaded_library(libraries: LibraryMap, facts: ElfFacts, library: str) -> list[ElfFacts]:
    """Return the file, if any, that the dynamic linker loads as `library` for `facts`."""
    own, of_base = libraries.find_by_runpath(facts, library), libraries.base_library(library)
    if own is not None:
        return [own[1]]
    return [of_base] if of_base is not None else []


def _finding(
    package_set: PackageSet,
    users: Sequence[str],
    relation: ConflictRelation,
    subject: str,
    text: str,
    remedy: str,
) -> Finding:
    python = package_set.python
    verb = "is" if len(users) == 1 else "are"
    return Finding(
        check=CHECK,
        severity=Severity.ERROR,
        message=f"CPython {python}: {', '.join(users)} {verb} {text}",
        where=f"CPython {python} {users[0]}",
        remedy=remedy,
        evidence=Evidence(
            relation=relation,
            package=PACKAGE,
            version=python,
            file=users[0],
            subject=subject,
        ),
    )
