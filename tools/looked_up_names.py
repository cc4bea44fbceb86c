"""Records the names that the audit of a published target looks up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import msgspec

from imgbuild.assemble.inputs import Inputs
from imgbuild.audit import judge
from imgbuild.audit.judge import AuditTerms
from imgbuild.audit.main_path.closure import MainPath, main_path
from imgbuild.audit.main_path.named import add_named_packages
from imgbuild.audit.packages.advised import AdvisedExtra
from imgbuild.audit.packages.generated import GeneratedCode
from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.loaded import NamesByFile
from imgbuild.audit.packages.package_set import PackageSet, open_package_set
from imgbuild.audit.packages.queried import normalized_name, package_set_key
from imgbuild.audit.packages.reading import WheelMetadata
from imgbuild.audit.source.facts import ModuleFacts, OpaqueModule
from imgbuild.index.remote_wheel import LOCKED_PREFIX, BlockCache
from imgbuild.learn.loop import READABLE_CHECKS
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import installed_wheels
from imgbuild.pipeline import audit_lock
from imgbuild.report import Finding, Severity
from imgbuild.solve.base import base_python
from imgbuild.values import Arch, Sha256, normalize_package

# The package that provides the module distutils to Python 3.12 and later.
_PROVIDERS = ("setuptools",)


class RecordingPackageSet(PackageSet):
    """A package set that records the packages and top-level modules in all lookups."""

    @cached_property
    def names(self) -> set[str]:
        """The normalized names of all looked-up packages and modules."""
        return set(_PROVIDERS)

    def _root(self, module: str) -> str:
        self.names.add(normalized_name(module))
        return module

    def _package(self, package: str) -> str:
        self._root(package)
        self.names.add(normalize_package(package))
        return package

    def version(self, package: str) -> str | None:
        """Return the version of a package and record its name."""
        return super().version(self._package(package))

    def metadata(self, package: str) -> WheelMetadata | None:
        """Return the metadata of a package and record its name."""
        return super().metadata(self._package(package))

    def files(self, package: str) -> Mapping[str, int]:
        """Return the files of a package and record its name."""
        return super().files(self._package(package))

    def read(self, package: str, path: str) -> bytes | None:
        """Read a file of a package and record the name of the package."""
        return super().read(self._package(package), path)

    def generated_code(self, package: str) -> tuple[GeneratedCode, ...]:
        """Return the generated code of a package and record its name."""
        return super().generated_code(self._package(package))

    def advised_extras(self, package: str) -> tuple[AdvisedExtra, ...]:
        """Return the advised extras of a package and record its name."""
        return super().advised_extras(self._package(package))

    def loaded(self, package: str) -> NamesByFile:
        """Return the names that a package loads and record its name."""
        return super().loaded(self._package(package))

    def modules_of(self, package: str) -> Mapping[str, str]:
        """Return the modules of a package and record its name."""
        return super().modules_of(self._package(package))

    def owner(self, module: str) -> str | None:
        """Return the owner of a module and record the top-level module."""
        return super().owner(self._root(module))

    def exists(self, module: str) -> bool | None:
        """Return whether a module exists and record the top-level module."""
        return super().exists(self._root(module))

    def module(self, name: str) -> ModuleFacts | OpaqueModule | None:
        """Return the facts of a module and record the top-level module."""
        return super().module(self._root(name))

    def mentioning(self, package: str, word: str) -> tuple[str, ...]:
        """Return the files of a package that mention a word and record its name."""
        return super().mentioning(self._root(package), word)


def names_looked_up(lock: Lock, arch: Arch, inputs: Inputs) -> tuple[Sha256, tuple[str, ...]]:
    """Return the key of a target's packages, and the names that an audit of their code looks up."""
    resolution = lock.arch[arch]
    # As `lock` audits: with the exact Python of the base.
    target = inputs.matrix.targets[lock.target]
    python = base_python(inputs.matrix.bases[target.base], resolution)
    wheels = {wheel.sha256: wheel for wheel in installed_wheels(resolution)}
    supply = audit_lock.LockFiles(lock, inputs)
    ranges = audit_lock.LockedRanges(lock, wheels, inputs, supply)
    terms = msgspec.structs.replace(audit_lock.audit_terms(lock, inputs.matrix), named=())
    with Library(inputs.store, BlockCache(ranges), ahead=False) as library:
        package_set = open_package_set(
            tuple(wheels.values()),
            library,
            python=python,
            arch=arch,
            glibc=lock.base.glibc,
            locate=lambda wheel: (
                inputs.store.file(wheel.sha256) or f"{LOCKED_PREFIX}{wheel.sha256}"
            ),
            kind=RecordingPackageSet,
        )
        past = audit_lock.removed_attributes_check(
            package_set, ranges.indexes, library, inputs.context.http, resolution.versions,
            published=package_set.packages,
        )  # fmt: skip
        names = names_looked_up_by_audit(package_set, terms, past)
    key = package_set_key(list(wheels.values()), package_set.python, arch, package_set.glibc)
    return key, names


def names_looked_up_by_audit(
    package_set: PackageSet,
    terms: AuditTerms,
    past: Callable[[MainPath], list[Finding]] | None = None,
) -> tuple[str, ...]:
    """Return the names that an audit of `package_set` looks up.

    Names from checks of METADATA and rules are not recorded, because these checks read all packages
    of an extension. Raises ValueError if the audit has errors.
    """
    report = judge.audit_package_set(
        package_set,
        terms,
        path=main_path(package_set, add_named_packages(package_set, ())),
        past=past,
        checks=[check for check in READABLE_CHECKS if check not in ("metadata", "rules")],
        published=package_set.packages,
    )
    errors = [each.message for each in report.findings if each.severity is Severity.ERROR]
    if errors or not isinstance(package_set, RecordingPackageSet):
        message = f"the audit of {terms.target} found errors: {'; '.join(errors)}"
        raise ValueError(message)
    return tuple(sorted(package_set.names))
