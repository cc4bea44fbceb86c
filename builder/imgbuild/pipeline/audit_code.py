"""Audits a user's code against the packages of a lock, of pins or of an environment.

A report is kept by the content of all files and by the package set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from imgbuild import codec, project_paths
from imgbuild.assemble.inputs import Inputs
from imgbuild.audit.code import check
from imgbuild.audit.code.code_files import find_files
from imgbuild.audit.code.model import CodeReport, CodeText
from imgbuild.audit.code.other_sets import OtherSet
from imgbuild.audit.code.reading import texts_key
from imgbuild.audit.main_path import policy
from imgbuild.audit.packages.library import Library, LibraryWheel, pack, unpack
from imgbuild.audit.packages.package_set import PackageSet, open_package_set, wheels_of
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, ImgbuildError, LockStale
from imgbuild.index.remote_wheel import LATER, Blocks
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import Wheel
from imgbuild.pipeline.audit_lock import LockedRanges, LockFiles
from imgbuild.plan.plan import omitted
from imgbuild.project_paths import Project
from imgbuild.report import Unread
from imgbuild.system.code_digest import code_digest
from imgbuild.system.console import console
from imgbuild.values import Arch, sha256

KEPT = "code-report"
JUDGING = "imgbuild.audit.code.check"


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """The user's files, read once for all package sets; `again` ignores reports that are kept."""

    texts: tuple[CodeText, ...]
    again: bool = False


def read_code(paths: Iterable[Path], *, again: bool = False) -> Code:
    """The files at and below `paths`; InputError for a path that does not exist."""
    return Code(texts=find_files(paths), again=again)


def audit_locked(lock: Lock, arch: Arch, inputs: Inputs, code: Code) -> CodeReport:
    """The findings in `code` for the packages that `lock` has for `arch`.

    LockStale if it holds nothing for `arch`; FetchFailed if code of a package is not available.
    """
    resolution = lock.arch.get(arch)
    if resolution is None:
        message = f"the lock of {lock.target} is for {', '.join(lock.arch)}, not for {arch}"
        raise LockStale(message, hint=f"imgbuild lock {lock.target}")
    wheels = {wheel.sha256: wheel for wheel in wheels_of(resolution)}
    ranges = LockedRanges(lock, wheels, inputs, LockFiles(lock, inputs))
    with Library(inputs.store, Blocks(ranges)) as library:
        # A package that would have to be built first is not read: that can take an hour.
        built = {build.wheel.sha256 for build in resolution.built}
        here = Library(inputs.store, published=library.published, ahead=False)
        unread = [
            wheel.package
            for wheel in wheels.values()
            if wheel.sha256 in built and not _at_hand(here, wheel)
        ]
        read = [wheel for wheel in wheels.values() if wheel.package not in unread]
        package_set = _open(lock, arch, read, library)
        others = other_sets(lock.target, inputs.store, library)
        return audit_code(
            package_set, code, inputs.store, target=lock.target, others=others, unread=unread
        )


def audit_code(
    package_set: PackageSet,
    code: Code,
    store: Store,
    *,
    target: str,
    others: Sequence[OtherSet] = (),
    unread: Sequence[str] = (),
) -> CodeReport:
    """The findings in `code` for `package_set`: kept ones, or new ones, which are kept.

    `unread` are packages that are installed and were not read.
    """
    installed = {name: each.wheel.sha256 for name, each in package_set.wheels.items()}
    key_parts = [
        *(code_digest(JUDGING, alone=__name__), package_set.python, package_set.arch),
        *(package_set.partial, installed, texts_key(code.texts)),
        {other.target: other.versions for other in others},
    ]
    key = sha256(codec.compact(key_parts))
    cached = store.fact(KEPT, key) if not code.again else None
    report = unpack(cached, CodeReport) if cached is not None else None
    if report is None:
        with console.step(f"auditing {len(code.texts)} files of code for {target}"):
            findings = check.check(package_set, code.texts, store, others, unread)
        report = CodeReport(
            target=target,
            arch=package_set.arch,
            tier="code",
            findings=tuple(findings),
            files=len(code.texts),
            unread=tuple(Unread(what=name, why="it is not built yet") for name in unread),
        )
        store.put_fact(KEPT, key, pack(report))
    return msgspec.structs.replace(report, target=target)


def _open(
    lock: Lock, arch: Arch, wheels: Sequence[Wheel], library: Library, *, partial_set: bool = False
) -> PackageSet:
    return open_package_set(
        wheels,
        library,
        python=lock.base.python,
        arch=arch,
        glibc=lock.base.glibc,
        locate=lambda wheel: library.store.file(wheel.sha256) or f"{LATER}{wheel.sha256}",
        partial=partial_set,
        omit=omitted(lock.drop, wheels),
    )


# -- other targets, of which only facts at hand are read


def other_sets(target: str, store: Store, library: Library) -> list[OtherSet]:
    """The locked targets of the project and of the catalogue but `target`, of this machine.

    Each has the packages that users' code is about, as far as their facts are at hand.
    """
    library = Library(store, published=library.published, ahead=False)
    sets = {}
    projects = [project_paths.catalogue(), project_paths.find(None)]
    for project in projects:
        for name in project.locked_targets():
            if name != target:
                lock = _readable(project, name)
                if lock is not None and Arch.X86_64 in lock.arch:
                    sets[name] = _other(lock, library)
    return list(sets.values())


def _readable(project: Project, name: str) -> Lock | None:
    try:
        return lock_file.read_lock(project.images, name)
    except ImgbuildError:
        return None


def _other(lock: Lock, library: Library) -> OtherSet:
    walked = policy.load().walk
    wheels = [wheel for wheel in wheels_of(lock.arch[Arch.X86_64]) if wheel.package in walked]
    opened: Callable[[], PackageSet] = partial(_opened, lock, wheels, library, {})
    return OtherSet(lock.target, {wheel.package: wheel.version for wheel in wheels}, opened)


def _opened(
    lock: Lock, wheels: Sequence[Wheel], library: Library, memory: dict[str, PackageSet]
) -> PackageSet:
    """The package set of the wheels whose facts are at hand."""
    if "" not in memory:
        here = [wheel for wheel in wheels if _at_hand(library, wheel)]
        memory[""] = _open(lock, Arch.X86_64, here, library, partial_set=True)
    return memory[""]


def _at_hand(library: Library, wheel: Wheel) -> bool:
    where: Path | str = library.store.file(wheel.sha256) or f"{LATER}{wheel.sha256}"
    library_wheel: LibraryWheel = library.wheel(wheel, where)
    try:
        return bool(library_wheel.index.files)
    except FetchFailed:
        return False
