"""Finds libraries that are loaded by a name that does not exist.

Only names without a version are reported, and only if the library exists under a versioned name,
because other names are for other platforms. A file that also contains a versioned name tries both
names. A package is assumed to load its own libraries by their correct names.
"""

# A separate module: strings.
from __future__ import annotations

import posixpath
from collections.abc import Iterator

from imgbuild.audit.binaries.libraries import Libraries
from imgbuild.audit.checks.findings import FindingPlace, finding_at
from imgbuild.audit.packages.library_map import LibraryMap, is_private
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.report import ConflictRelation, Finding, Severity

CHECK = "elf"
TOOLKIT = "nvidia-"


def check_loaded_libraries(
    package_set: PackageSet, libraries: LibraryMap, known: Libraries
) -> Iterator[Finding]:
    """Yield a warning for each name under which no library exists.

    The findings are not errors, because code that loads a library can be optional.
    """
    for package, facts in libraries.files:
        names = package_set.loaded(package).get(facts.file, ()) if facts.undefined else ()
        for name in names:
            if not name.endswith(".so") or any(other.startswith(f"{name}.") for other in names):
                continue
            near = libraries.similar_libraries(name)
            if (
                near
                and not any(_is_same(package, owner) for owner, _ in near)
                and not is_private(facts.file)
                and libraries.base_library(name) is None
                and not known.is_driver(f"{name}.1")
                and not libraries.providers(package, facts, name)
            ):
                owner, relative = near[0]
                yield _finding(package_set, package, facts.file, name, owner, relative.file)


def _is_same(package: str, owner: str) -> bool:
    """Return whether both packages are components of the same product, such as the CUDA toolkit."""
    toolkit = package.startswith(TOOLKIT) and owner.startswith(TOOLKIT)
    return package == owner or toolkit


def _finding(
    package_set: PackageSet, package: str, file: str, name: str, owner: str, near: str
) -> Finding:
    version, other_version = package_set.version(package) or "", package_set.version(owner) or ""
    there = posixpath.basename(near)
    return finding_at(
        FindingPlace(package, version, file),
        CHECK,
        Severity.WARNING,
        f"{package} {version}: {file} loads {name}, which is not in a folder that the dynamic "
        f"linker searches; {owner} {other_version} has {there}",
        relation=ConflictRelation.LIBRARY,
        remedy=f"if this part of {package} is used, add a link /usr/lib/{name} to {near}",
        subject=name,
        other=owner,
        other_version=other_version,
    )
