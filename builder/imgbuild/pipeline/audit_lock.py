"""Audits a lock, and caches the report.

Facts about a wheel are cached under its hash, and a report under a hash of all its inputs. A second
audit therefore reads no wheels and downloads nothing.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.assemble.inputs import Inputs, split_into_batches
from imgbuild.audit import judge
from imgbuild.audit.judge import CHECKS, AuditTerms
from imgbuild.audit.main_path.closure import MainPath
from imgbuild.audit.packages.base import (
    libraries_loaded_first,
    linked_libraries,
    read_base,
    read_standalone,
)
from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.package_set import PackageSet, open_package_set
from imgbuild.audit.source.facts import ElfFacts
from imgbuild.cache.fact_values import read_fact, write_fact
from imgbuild.errors import FetchFailed, LockStale
from imgbuild.index.candidates import FileRules
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.pages import PROJECT, IndexLookup
from imgbuild.index.remote_wheel import LOCKED_PREFIX, BlockCache, RangeClient, ResolvedAddresses
from imgbuild.learn import removed_attributes
from imgbuild.learn.boundaries import ReleaseCatalogue
from imgbuild.lock import lock_file, published
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.project_requirements import ProjectRequirements
from imgbuild.lock.resolution import (
    Deb,
    LockedFile,
    PythonArchive,
    Resolution,
    Wheel,
    installed_wheels,
)
from imgbuild.matrix import constraints
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.plan.plan import omitted_paths
from imgbuild.report import Finding, Report
from imgbuild.system.code_digest import code_digest
from imgbuild.system.console import console
from imgbuild.values import Arch, Sha256, sha256
from imgbuild.wheel.tags import WheelTags

REPORT_FACT = "audit-lock"
# The code that a report depends on: the checks, what reads the base, and what finds removed
# attributes. Code that only locates and fetches files, which are locked by hash, is excluded.
JUDGING_MODULES = (
    "imgbuild.audit.judge",
    "imgbuild.audit.packages.base",
    "imgbuild.learn.removed_attributes",
)


def audit_target(
    project: Project,
    name: str,
    arch: Arch,
    inputs: Inputs,
    *,
    checks: Sequence[str] = CHECKS,
    drop: bool = False,
    again: bool = False,
) -> Report:
    """Audit the lock of target `name`, with the waivers in the matrix.

    If `drop` is set, downloaded wheels are removed from the cache after the audit. If `again` is
    set, a cached report is ignored. Raises LockStale if the target has no lock.
    """
    lock = lock_file.read_lock(project.images, name)
    learned = constraints.read_constraints(project.images)
    return audit_lock(lock, arch, inputs, learned, checks=checks, drop=drop, again=again)


def audit_lock(
    lock: Lock,
    arch: Arch,
    inputs: Inputs,
    learned: Sequence[constraints.Constraint] = (),
    *,
    checks: Sequence[str] = CHECKS,
    drop: bool = False,
    again: bool = False,
) -> Report:
    """Audit `lock` on `arch`.

    Raises LockStale if the lock does not include `arch`, and FetchFailed if a file is not
    available.
    """
    resolution = lock.arch.get(arch)
    if resolution is None:
        message = f"the lock of {lock.target} does not include {arch}, only {', '.join(lock.arch)}"
        raise LockStale(message, hint=f"run imgbuild lock {lock.target}")
    terms = judge.restrict_constraints(
        audit_terms(lock, inputs.matrix, learned), resolution.versions
    )
    if lock.project is not None:
        markers = WheelTags(python=lock.base.python, glibc=lock.base.glibc, arch=arch).markers
        extras = judge.requested_extras(lock.project.requirements, markers)
        terms = msgspec.structs.replace(terms, extras=extras)
    if lock.extends is not None:
        terms = judge.terms_for_additions(terms, lock.requirements, lock.extends.arch[arch].wheels)
    code = code_digest(*JUDGING_MODULES, alone=__name__)
    key_parts = [code, arch, lock.base, resolution, lock.drop, _links(lock), terms, tuple(checks)]
    key = sha256(codec.encode_compact(key_parts))
    report = read_fact(inputs.store, REPORT_FACT, key, Report) if not again else None
    if report is None:
        part = "" if set(checks) == set(CHECKS) else f"{', '.join(checks)} of "
        with console.step(f"auditing {part}{lock.target} for {arch}"):
            report = _LockAudit(lock, arch, inputs, drop=drop).run(terms, checks)
        write_fact(inputs.store, REPORT_FACT, key, report)
    return report


def audit_terms(
    lock: Lock, matrix: Matrix, learned: Sequence[constraints.Constraint] = ()
) -> AuditTerms:
    """Return the inputs of an audit other than packages, such as CUDA release and waivers."""
    target = matrix.targets.get(lock.target)
    row = published.project_row(matrix, lock.target)
    required = row.requirements if row is not None else ProjectRequirements()
    pins = {*target.pins, *required.direct_packages} if target is not None else set()
    optional_gpus = row is not None and row.prefers_gpus
    gpu = target.gpu if target is not None else ()
    return AuditTerms(
        target=lock.target,
        cuda=lock.cuda,
        gpu=lock.gpu if optional_gpus else gpu,
        all_gpus=not optional_gpus,
        waivers=target.waive if target is not None else (),
        constraints=tuple(learned),
        named=tuple(sorted(pins)),
        exempt=required.exempt,
        alone=required.no_deps,
    )


def _links(lock: Lock) -> dict[str, str]:
    return lock.settings.links | (lock.extends.links if lock.extends is not None else {})


class _LockAudit:
    def __init__(self, lock: Lock, arch: Arch, inputs: Inputs, *, drop: bool) -> None:
        self._lock = lock
        self._arch = arch
        self._inputs = inputs
        self._store = inputs.store
        self._drop = drop
        self._resolution: Resolution = lock.arch[arch]
        self._wheels = {wheel.sha256: wheel for wheel in installed_wheels(self._resolution)}
        self._supply = LockFiles(lock, inputs)
        self._turn = threading.Lock()  # threads read the base

    def run(self, terms: AuditTerms, checks: Sequence[str]) -> Report:
        try:
            return self._judge_files(terms, checks)
        finally:
            if self._drop:
                self._inputs.drop_files(self._supply.used_up)

    def _judge_files(self, terms: AuditTerms, checks: Sequence[str]) -> Report:
        base = self._lock.base
        elsewhere = LockedRanges(self._lock, self._wheels, self._inputs, self._supply)
        with (
            Library(self._store, BlockCache(elsewhere)) as library,
            library.progress("auditing", len(self._wheels), console),
        ):
            if "elf" in checks or "cuda" in checks:
                self._read_elf_facts(library)
            package_set = open_package_set(
                tuple(self._wheels.values()),
                library,
                python=base.python,
                arch=self._arch,
                glibc=base.glibc,
                locate=self._path_or_url,
                omit=omitted_paths(self._lock.drop, self._wheels.values()),
            )
            return judge.audit_package_set(
                package_set,
                terms,
                libraries=self._libraries,
                interpreter=self._interpreter,
                checks=checks,
                past=self._removed_attributes(package_set, elsewhere, library),
            )

    def _removed_attributes(
        self, package_set: PackageSet, elsewhere: LockedRanges, library: Library
    ) -> Callable[[MainPath], list[Finding]]:
        http, pins = self._inputs.context.http, self._resolution.versions
        extends = self._lock.extends
        added = extends.arch[self._arch].wheels if extends is not None else ()
        published = pins.keys() - set(added) if extends is not None else ()
        check = removed_attributes_check(
            package_set, elsewhere.indexes, library, http, pins, published=published
        )

        def _check_removed_attributes(path: MainPath) -> list[Finding]:
            try:
                return check(path)
            except FetchFailed as error:
                message = (
                    f"could not read older releases of packages of {self._lock.target}: "
                    f"{error.message}"
                )
                raise FetchFailed(message, hint=error.hint) from error

        return _check_removed_attributes

    def _path_or_url(self, wheel: Wheel) -> Path | str:
        return self._store.file(wheel.sha256) or f"{LOCKED_PREFIX}{wheel.sha256}"

    def _read_elf_facts(self, library: Library) -> None:
        unread = [
            wheel
            for wheel in self._wheels.values()
            if library.wheel(wheel, self._path_or_url(wheel)).stored_elf_facts() is None
        ]
        for batch in split_into_batches(unread, lambda wheel: wheel.size, bounded=self._drop):
            fetched = self._supply.fetch_missing(batch)
            here = [library.wheel(wheel, self._file(wheel)) for wheel in batch]
            library.prefetch_elf_facts(here)
            if self._drop:
                for library_wheel in here:
                    _ = library_wheel.files  # read its directory while the file is available
                self._inputs.drop_files(fetched)

    def _libraries(self) -> Sequence[ElfFacts]:
        links = linked_libraries(_links(self._lock))
        debs = read_base(self._resolution.debs, self._file, self._store)
        return [*links, *debs, *libraries_loaded_first(self._interpreter(), self._lock.base.python)]

    def _interpreter(self) -> Sequence[ElfFacts]:
        """Return the shared objects of the standalone Python, or () if Python is from Debian."""
        archive = self._resolution.python
        if not archive:
            return []
        return read_standalone(archive, self._lock.base.python, self._file, self._store)

    def _file(self, item: Wheel | Deb | PythonArchive) -> Path:
        """Return the path of `item`. If it is missing, fetch all files of its type."""
        with self._turn:
            rest = self._resolution.debs if isinstance(item, Deb) else (item,)
            return self._supply.path(item, rest)


class LockFiles:
    """Fetches the files of a lock into the store when an audit needs them.

    `used_up` are files that were fetched only to build sdists.
    """

    def __init__(self, lock: Lock, inputs: Inputs) -> None:
        self._lock = lock
        self._inputs = inputs
        self._built = {built.wheel.sha256 for each in lock.arch.values() for built in each.built}
        self.used_up: set[Sha256] = set()

    def is_built(self, wheel: Wheel) -> bool:
        """Return whether `wheel` is built from an sdist because no index has a wheel."""
        return wheel.sha256 in self._built

    def path(self, item: LockedFile, rest: Iterable[LockedFile] = ()) -> Path:
        """Return the path of `item`. If it is missing, fetch `item` and `rest`."""
        store = self._inputs.store
        path = store.file(item.sha256)
        if path is None:
            self.fetch_missing((item, *rest))
            path = store.file(item.sha256)
        if path is None:
            message = f"{item.file} was fetched, but is missing from {store.root}"
            raise FetchFailed(
                message, hint="make sure that no other program removes files from the cache"
            )
        return path

    def fetch_missing(self, items: Iterable[LockedFile]) -> set[Sha256]:
        """Fetch or build missing `items`, and return the hashes of fetched files."""
        missing = self._missing_hashes(item.sha256 for item in items)
        located = self._inputs.sources(self._lock).locate(missing)
        self.used_up |= self._missing_hashes(located.ingredients)
        self._inputs.fetch_missing(self._lock, missing)
        return missing - self._built

    def _missing_hashes(self, hashes: Iterable[Sha256]) -> set[Sha256]:
        return {each for each in hashes if self._inputs.store.file(each) is None}


class LockedRanges(ResolvedAddresses):
    """A `RangeClient` for locked wheels, whose URLs are looked up on the first read.

    Wheels that must be built from an sdist are built on the first read. URLs of wheels that are not
    locked are used unchanged.
    """

    def __init__(
        self, lock: Lock, wheels: Mapping[Sha256, Wheel], inputs: Inputs, supply: LockFiles
    ) -> None:
        super().__init__(inputs.context.http, self._path_or_url)
        self._lock = lock
        self._wheels = wheels
        self._inputs = inputs
        self._supply = supply
        self._sources = inputs.sources(lock)
        self._opening = threading.Lock()

    def indexes(self) -> IndexLookup:
        """Return the indexes of the lock, opened on first use."""
        with self._opening:
            return self._sources.indexes

    def _path_or_url(self, sha256: Sha256) -> str:
        wheel = self._wheels[sha256]
        if self._supply.is_built(wheel) or wheel.index == PROJECT:
            return self._supply.path(wheel).as_uri()
        return self._listed_url(wheel)

    def _listed_url(self, wheel: Wheel) -> str:
        """Return the URL of a wheel on its index. Raises FetchFailed if the wheel was removed."""
        indexes = self.indexes()
        if self._inputs.offline and not indexes.place(wheel.package).is_local:
            message = f"{wheel.file} of {self._lock.target} is not in {self._inputs.store.root}"
            raise FetchFailed(message, hint="run once without --offline")
        addresses = indexes.file_urls(wheel.package, wheel)
        if not addresses:
            message = f"{wheel.file} is no longer on the index {wheel.index}"
            raise FetchFailed(message, hint=f"run imgbuild lock {self._lock.target}")
        return addresses[0]


def removed_attributes_check(
    package_set: PackageSet,
    indexes: Callable[[], IndexLookup],
    library: Library,
    http: RangeClient,
    pins: Mapping[str, str],
    *,
    published: Collection[str] = (),
) -> Callable[[MainPath], list[Finding]]:
    """Create a check that finds removed class attributes by comparing releases of packages.

    Indexes are opened, and requests are sent, only if an attribute may have been removed.
    `published` is as in `removed_attributes.check_removed_attributes`.
    """

    def _releases() -> ReleaseCatalogue:
        rules = FileRules(as_of=datetime.date.max, tags=package_set.tags, pins=pins)
        return ReleaseCatalogue(
            FileCatalogue(indexes(), rules, http, library.store), library, library.store
        )

    return lambda path: removed_attributes.check_removed_attributes(
        package_set, path, _releases, published=published
    )
