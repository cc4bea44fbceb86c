"""Audits packages without a lock: pins of packages on an index, or an installed environment.

Reports are cached. A report on pins is valid until the end of the day, because files on an index
can change. A report on an environment is valid until a file in the environment changes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.version import Version

from imgbuild import codec
from imgbuild.audit import judge
from imgbuild.audit.judge import CHECKS, AuditTerms
from imgbuild.audit.main_path.closure import MainPath
from imgbuild.audit.packages.environment import InstalledEnvironment
from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.package_set import PackageSet, open_package_set
from imgbuild.audit.packages.pinned import Pin, PinList, pick_wheels
from imgbuild.audit.packages.reading import required_packages
from imgbuild.audit.source import stdlib
from imgbuild.cache.context import Context
from imgbuild.cache.download import FileRequest, fetch_all
from imgbuild.cache.fact_values import read_fact, write_fact
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed
from imgbuild.index import pages
from imgbuild.index.pages import IndexAddress, IndexFile, IndexLookup
from imgbuild.index.remote_wheel import BlockCache, lock_file
from imgbuild.lock import addresses
from imgbuild.lock.resolution import Wheel
from imgbuild.matrix.model import Matrix
from imgbuild.pipeline.sdist_pins import read_sdists
from imgbuild.project import releases
from imgbuild.report import Finding, Report, UncheckedPart
from imgbuild.resolve.project_indexes import ProjectIndexes
from imgbuild.resolve.resolve_request import today_utc
from imgbuild.system.amounts import join_first
from imgbuild.system.code_digest import code_digest
from imgbuild.values import Sha256, sha256
from imgbuild.wheel.tags import WheelTags

REPORT_FACT = "audit-set"
FILE = "audit-file"  # the sha256 of a local wheel, by its path, size and time
# As of audit_lock, and what lists the files. It is not imported here: a cached report does not need
# it.
JUDGING_MODULES = (
    "imgbuild.audit.judge",
    "imgbuild.learn.removed_attributes",
    "imgbuild.audit.packages.environment",
    "imgbuild.audit.packages.pinned",
    "imgbuild.audit.packages.sdist_code",
)
LARGEST_DOWNLOAD = 128 << 20  # size limit of a wheel that is downloaded for its shared objects
_CUDA = re.compile(rb"^cuda(?:: [\w\[\]]+)? = ['\"](\d+\.\d+)", re.MULTILINE)


class PackageFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a package set: wheels, their locations, and packages without wheels.

    `known` maps packages without a readable file to versions. If `partial` is set, packages that
    are not listed may also be installed. `unread` lists what the audit does not check.
    """

    wheels: tuple[Wheel, ...]
    places: Mapping[Sha256, Path | str]
    known: Mapping[str, str] = {}
    partial: bool = False
    unread: tuple[UncheckedPart, ...] = ()

    @property
    def versions(self) -> dict[str, str]:
        """The versions of packages, by name."""
        return {**self.known, **{wheel.package: wheel.version for wheel in self.wheels}}


class SetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an audit of a package set.

    `index` returns the URL of the default index. `indexes` are other indexes that files declare. If
    `again` is set, cached reports are ignored. `code` audits the user's code against the opened
    package set, which does not contain the packages in `replaced`; it also takes the versions of
    all packages.
    """

    machine: WheelTags
    index: Callable[[], str]
    context: Context
    terms: AuditTerms
    indexes: ProjectIndexes = ProjectIndexes()
    checks: Sequence[str] = CHECKS
    offline: bool = False
    again: bool = False
    code: Callable[[PackageSet, Mapping[str, str]], Report] | None = None
    replaced: tuple[str, ...] = ()


def audit_pins(
    listed: PinList, request: SetRequest, *, partial: bool = False, matrix: Matrix | None = None
) -> Report:
    """Audit a set of pins.

    Remote wheels are not downloaded completely. If `partial` is set, missing requirements are not
    errors. The indexes with builds for a CUDA release (`torch==2.10.0+cu130`) are taken from
    `matrix`.
    """
    context = request.context
    extras = {package: pin.extras for package, pin in listed.pins.items() if pin.extras}
    terms = msgspec.structs.replace(request.terms, extras=extras)
    request = msgspec.structs.replace(request, terms=terms)
    if not request.terms.cuda and "torch" in listed.pins:
        # The index may lack this build, so that another one is read.
        build = Version(listed.pins["torch"].version).local
        terms = msgspec.structs.replace(
            request.terms, cuda=releases.cuda_of_local_version(build) or ""
        )
        request = msgspec.structs.replace(request, terms=terms)
    local = {
        package: _local_wheel(path, package, pin.version, context.store)
        for package, pin in listed.pins.items()
        if (path := _path(pin)) is not None
    }
    machine = request.machine
    key = [
        *("pins", today_utc(), machine.python, machine.arch, machine.glibc, request.index()),
        *(listed, {package: wheel.sha256 for package, (wheel, _) in local.items()}),
        *(partial, matrix.indexes if matrix else None, request.indexes),
    ]

    def _new_report() -> tuple[Report, bool]:
        files = _pinned_files(listed, local, request, partial=partial, matrix=matrix)
        return _audit_files(files, request, history_may_fail=False)

    if request.code is not None:
        return _new_report()[0]
    return _cached_report(key, request, _new_report)


def audit_environment(environment: InstalledEnvironment, request: SetRequest) -> Report:
    """Audit the files installed in an environment."""
    wheels = tuple(package.wheel for package in environment.packages)
    files = PackageFiles(
        wheels=wheels,
        places={package.wheel.sha256: package.info for package in environment.packages},
        partial=bool(environment.unread),
        unread=environment.unread,
    )
    machine = request.machine
    key = [
        *("environment", machine.python, machine.arch, machine.glibc, wheels, files.unread),
    ]
    if request.code is not None:
        return _audit_files(files, request, history_may_fail=True)[0]
    return _cached_report(key, request, lambda: _audit_files(files, request, history_may_fail=True))


def _cached_report(
    key: Sequence[object], request: SetRequest, make: Callable[[], tuple[Report, bool]]
) -> Report:
    """Return the cached report, or create and cache a report.

    If an index did not respond, the incomplete report is used again only with `offline`.
    """
    store = request.context.store
    terms = msgspec.structs.replace(request.terms, target="")
    parts = [code_digest(*JUDGING_MODULES, alone=__name__), terms, tuple(request.checks), *key]
    complete, offline = (
        sha256(codec.encode_compact([prefix, *parts])) for prefix in ("complete", "offline")
    )
    for name in () if request.again else (complete, *([offline] if request.offline else [])):
        report = read_fact(store, REPORT_FACT, name, Report)
        if report is not None:
            request.context.reporter.info(
                "using the cached report; use --again to repeat the audit"
            )
            return msgspec.structs.replace(report, target=request.terms.target)
    report, whole = make()
    if whole or request.offline:
        write_fact(store, REPORT_FACT, complete if whole else offline, report)
    return report


# -- files of pins


def _path(pin: Pin) -> Path | None:
    parts = urlsplit(pin.url)
    path = Path(unquote(parts.path))
    return path if parts.scheme == "file" and path.suffix == ".whl" and path.is_file() else None


def _local_wheel(path: Path, package: str, version: str, store: Store) -> tuple[Wheel, Path]:
    status = path.stat()
    key = f"{path.absolute()} {status.st_size} {status.st_mtime_ns}"
    digest = store.fact(FILE, key)
    if digest is None:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest().encode()
        store.put_fact(FILE, key, digest)
    wheel = Wheel(
        package=package,
        version=version,
        index="file",
        file=path.name,
        size=status.st_size,
        sha256=digest.decode(),
    )
    return wheel, path


def _pinned_files(
    listed: PinList,
    local: Mapping[str, tuple[Wheel, Path]],
    request: SetRequest,
    *,
    partial: bool,
    matrix: Matrix | None,
) -> PackageFiles:
    http = request.context.http
    elsewhere = {name: version for name, version in listed.versions.items() if name not in local}
    by_address, failed = _wheels_by_address(listed, local, request)
    picked = pick_wheels(
        elsewhere,
        request.machine,
        open_indexes(request, by_address),
        http,
        builds=lambda tag: _builds(tag, matrix, request),
    )
    sdists = read_sdists(picked.lacking, open_indexes(request), request.context)
    unread = list(listed.unread)
    for pin in picked.lacking:
        package = pin.partition("==")[0]
        reason = f"; {sdists.refused[package]}" if package in sdists.refused else ""
        why = f"the index has no compatible wheel{reason}; only the version was checked"
        if package in sdists.packages:
            why = "read from the sdist, which lacks files that a build adds"
        unread.append(UncheckedPart(what=pin, why=why, required=package not in sdists.packages))
    for pin in picked.public:
        why = f"not on the index; {pin.partition('+')[0]} was read instead"
        unread.append(UncheckedPart(what=pin, why=why))
    for package, pinned in listed.pins.items():
        if package in failed:
            why = (
                f"could not read {pinned.url} ({failed[package]}); this version was read from the"
                " index instead"
            )
            unread.append(UncheckedPart(what=f"{package}=={pinned.version}", why=why))
        elif pinned.url and package not in local and package not in by_address:
            why = f"{pinned.url} was not read; this version was read from the index instead"
            unread.append(UncheckedPart(what=f"{package}=={pinned.version}", why=why))
    lacking = {name.partition("==")[0] for name in picked.lacking} - sdists.packages
    here = (*local.values(), *sdists.wheels)
    places: dict[Sha256, Path | str] = {wheel.sha256: path for wheel, path in here}
    return PackageFiles(
        wheels=(*(wheel for wheel, _ in here), *picked.wheels),
        places={**places, **picked.urls},
        known={name: version for name, version in listed.versions.items() if name in lacking},
        partial=partial or bool(listed.unread) or bool(picked.public),
        unread=tuple(unread),
    )


def open_indexes(
    request: SetRequest, by_address: Mapping[str, tuple[IndexFile, ...]] = pages.NO_FILES
) -> IndexLookup:
    """Return the default index, the other indexes of the request, and the wheels with a URL."""
    place = IndexAddress(name="default index", address=request.index())  # no file's has a space
    others = request.indexes
    places = {place.name: place, **others.addresses}
    return IndexLookup(places, others.packages, place.name, request.context.http, by_address)


def _wheels_by_address(
    listed: PinList, local: Mapping[str, object], request: SetRequest
) -> tuple[dict[str, tuple[IndexFile, ...]], dict[str, str]]:
    """Find the wheels that are required by URL. Return files and errors by package."""
    files: dict[str, tuple[IndexFile, ...]] = {}
    failed: dict[str, str] = {}
    for package, pin in listed.pins.items():
        if package in local or not urlsplit(pin.url).path.endswith(".whl"):
            continue
        try:
            address = addresses.parse_wheel_address(pin.url)
            hashes = [text.partition(":")[2] for text in address.hashes if "sha256:" in text]
            file = IndexFile(name=address.name, url=address.place, sha256=(*hashes, None)[0])
            locked = lock_file(file, request.context.http)
        except ValueError as error:
            failed[package] = str(error)
        except FetchFailed as error:
            failed[package] = error.message
        else:
            full = msgspec.structs.replace(file, sha256=locked.sha256, size=locked.size)
            files[package] = (full,)
    return files, failed


def _builds(tag: str, matrix: Matrix | None, request: SetRequest) -> list[IndexLookup]:
    """Open the indexes of the matrix that have builds for the CUDA release `tag` ("cu130")."""
    cuda = releases.cuda_of_tag(tag)
    if cuda is None or matrix is None:
        return []
    build_indexes = []
    for name, index in matrix.indexes.items():
        if "{cuda_tag}" in (index.url or "") and "{torch}" not in (index.url or ""):
            address = pages.fill_address(index, cuda=cuda, torch=None) or ""
            place = IndexAddress(name=name, address=address, flat=index.flat, timed=False)
            build_indexes.append(IndexLookup({name: place}, {}, name, request.context.http))
    return build_indexes


# -- the audit


def _audit_files(
    files: PackageFiles, request: SetRequest, *, history_may_fail: bool
) -> tuple[Report, bool]:
    """Return the report, and whether all queried indexes responded."""
    from imgbuild.pipeline import audit_lock

    http = BlockCache(request.context.http)
    failed: list[UncheckedPart] = []
    with (
        Library(request.context.store, http) as library,
        library.progress("auditing", len(files.versions), request.context.reporter),
    ):
        kept = tuple(wheel for wheel in files.wheels if wheel.package not in request.replaced)
        left = msgspec.structs.replace(files, wheels=kept)
        package_set = _open_package_set(left, library, request)
        if request.code is not None:
            report = request.code(package_set, files.versions)
            return msgspec.structs.replace(report, unread=(*files.unread, *report.unread)), True
        if not request.offline and "elf" in request.checks:
            fetched = _download_wheels(package_set, files, request)
            if fetched:
                files = msgspec.structs.replace(files, places={**files.places, **fetched})
                package_set = _open_package_set(files, library, request)
        check = audit_lock.removed_attributes_check(
            package_set, lambda: open_indexes(request), library, http, files.versions
        )

        def _past(path: MainPath) -> list[Finding]:
            try:
                return check(path)
            except FetchFailed as error:
                if not history_may_fail:
                    raise
                why = f"older releases could not be read: {error.message}"
                failed.append(
                    UncheckedPart(what="attributes of objects whose class is unknown", why=why)
                )
                return []

        terms = request.terms
        terms = msgspec.structs.replace(
            terms,
            named=tuple(files.versions),
            cuda=terms.cuda or torch_cuda(package_set),
        )
        report = judge.audit_package_set(package_set, terms, checks=request.checks, past=_past)
        unread = (
            *(*files.unread, *failed, *_unread_binaries(package_set, files, request.checks)),
            *stdlib.unread_parts(request.machine.python),
        )
    # The complete requirements on a host can be determined only with all shared objects.
    return msgspec.structs.replace(report, floors=None, unread=unread), not failed


def _open_package_set(files: PackageFiles, library: Library, request: SetRequest) -> PackageSet:
    return open_package_set(
        files.wheels,
        library,
        python=request.machine.python,
        arch=request.machine.arch,
        glibc=request.machine.glibc,
        locate=lambda wheel: files.places[wheel.sha256],
        partial=files.partial,
        unread_versions=files.known,
    )


def _download_wheels(
    package_set: PackageSet, files: PackageFiles, request: SetRequest
) -> dict[Sha256, Path]:
    """Download the wheels whose shared objects are checked.

    These are torch and compiled packages that require torch, because the C++ symbols of torch
    change with each release. With numpy 2, compiled packages of up to LARGEST bytes that require
    numpy are included, because even wheels released after numpy 2 can be compiled against numpy 1.
    """
    urls = {sha: place for sha, place in files.places.items() if isinstance(place, str)}
    remote = {
        wheel.package: wheel
        for wheel in files.wheels
        if wheel.sha256 in urls and any(".so" in file for file in package_set.files(wheel.package))
    }
    selected = _wheels_requiring("torch", remote, package_set)
    if selected and "torch" in remote:
        selected.append(remote["torch"])
    numpy = package_set.version("numpy")
    if numpy is not None and Version(numpy).major >= 2:
        compiled = _wheels_requiring("numpy", remote, package_set)
        selected += [
            wheel for wheel in compiled if wheel.size <= LARGEST_DOWNLOAD and wheel not in selected
        ]
    selected = [
        wheel for wheel in selected if package_set.wheels[wheel.package].stored_elf_facts() is None
    ]
    requests = [FileRequest(wheel, lambda url=urls[wheel.sha256]: [url]) for wheel in selected]  # type: ignore[misc]
    return fetch_all(requests, request.context, title="packages compiled against torch or numpy")


def _wheels_requiring(
    name: str, wheels: Mapping[str, Wheel], package_set: PackageSet
) -> list[Wheel]:
    """Return the wheels that require package `name` according to METADATA."""
    return [
        wheel
        for wheel in wheels.values()
        if name in required_packages(package_set.metadata(wheel.package))
    ]


def torch_cuda(package_set: PackageSet) -> str:
    """Return the CUDA release that torch is built for, such as "12.8", or "" if unknown."""
    version = package_set.version("torch")
    if version is None:
        return ""
    if tagged := releases.cuda_of_local_version(Version(version).local):
        return tagged
    match = _CUDA.search(package_set.read("torch", "torch/version.py") or b"")
    return match[1].decode() if match is not None else ""


def _unread_binaries(
    package_set: PackageSet, files: PackageFiles, checks: Sequence[str]
) -> list[UncheckedPart]:
    """Return what was not checked in compiled packages, with reasons."""
    if not {"elf", "cuda"} & set(checks):
        return []
    compiled = [
        wheel
        for wheel in files.wheels
        if any(".so" in file for file in package_set.files(wheel.package))
    ]
    remote = [
        wheel.package
        for wheel in compiled
        if not isinstance(files.places[wheel.sha256], Path)
        and package_set.wheels[wheel.package].stored_elf_facts() is None
    ]
    unread = []
    if remote:
        why = "their wheels were not downloaded"
        unread.append(UncheckedPart(what=f"shared objects of {join_first(remote, 3)}", why=why))
    if len(remote) < len(compiled):
        what = "GPU code, and libraries that are not in the packages"
        unread.append(
            UncheckedPart(
                what=what, why="a check needs GPUs and a base image, which only locked targets have"
            )
        )
    return unread
