"""Audits a user's code against the packages of a lock, pins or an environment.

The cache key of a report is a hash of all files and of the package set.
"""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.assemble.inputs import Inputs
from imgbuild.audit.code import check, release_names
from imgbuild.audit.code.code_files import find_files, fork_texts
from imgbuild.audit.code.code_set import possible_roots
from imgbuild.audit.code.model import MOST_IN_FILE, CodeFinding, CodeReport, CodeText, Fork
from imgbuild.audit.code.other_sets import OtherSet
from imgbuild.audit.code.reading import CodeFacts, texts_key
from imgbuild.audit.main_path import policy
from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.package_set import PackageSet, open_package_set
from imgbuild.audit.source.facts import ModuleFacts, OpaqueModule
from imgbuild.cache.context import Context
from imgbuild.cache.fact_values import read_fact, write_fact
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, ImgbuildError, InputError, LockStale
from imgbuild.index.remote_wheel import LOCKED_PREFIX, BlockCache
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import Wheel, installed_wheels
from imgbuild.matrix import project_paths
from imgbuild.matrix.project_paths import Project
from imgbuild.pipeline.audit_lock import LockedRanges, LockFiles
from imgbuild.pipeline.session import Session
from imgbuild.plan.plan import omitted_paths
from imgbuild.report import Severity, UncheckedPart
from imgbuild.solve import git_tree
from imgbuild.system.amounts import format_count
from imgbuild.system.code_digest import code_digest
from imgbuild.system.collector import pause_collector
from imgbuild.system.console import console
from imgbuild.values import Arch, normalize_package, sha256
from imgbuild.wheel.sdist import read_members

FORM = "git+https://HOST/PATH@REV"
REPORT_FACT = "code-report"
JUDGING_MODULE = "imgbuild.audit.code.check"
COMMAND_LINE = "command line"
NO_SOURCES = (
    "options and variables were not checked, because the sources of the packages are not in the "
    "cache"
)
BYTES_PER_SECOND = 500_000  # of code that is checked with cached facts


class UserCode(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a user, read once for all package sets.

    If `again` is set, cached reports are ignored. `forks` replace packages of locked targets.
    """

    texts: tuple[CodeText, ...]
    again: bool = False
    forks: tuple[Fork, ...] = ()


def read_code(
    paths: Iterable[Path], *, again: bool = False, forks: Iterable[Fork] = ()
) -> UserCode:
    """Read the files at and below `paths`. Raises InputError for a path that does not exist."""
    return UserCode(texts=find_files(paths), again=again, forks=tuple(forks))


def read_fork(text: str, context: Context) -> Fork:
    """Read the fork in `text`, which is `NAME=PATH` or `NAME=git+URL@REV`.

    Raises InputError for other texts.
    """
    name, _, place = text.partition("=")
    if not name or not place:
        message = f"--replace {text}: expected NAME=PATH or NAME={FORM}"
        hint = f"write, for example, --replace verl=../verl or --replace verl={FORM}"
        raise InputError(message, hint=hint)
    package = normalize_package(name)
    if not place.startswith("git+"):
        return Fork(package=package, texts=fork_texts(Path(place), package))
    address, tree = git_tree.fetch_git_url(
        place, f"--replace {name}", context, form=f"--replace {name}={FORM}"
    )
    archive = git_tree.stored_archive(tree, context.store, str(address))
    with context.store.scratch() as folder:
        for member, content in read_members(archive, name):
            if member.kind == "file" and member.path.endswith(".py"):
                path = folder / name / Path(*Path(member.path).parts[1:])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"".join(content()))
        texts = fork_texts(folder / name, package)
        shown = [
            msgspec.structs.replace(text, file=text.file.removeprefix(f"{folder}/"))
            for text in texts
        ]
    return Fork(package=package, texts=tuple(shown))


def audit_locked(
    lock: Lock, arch: Arch, inputs: Inputs, code: UserCode, *, title: str = ""
) -> CodeReport:
    """Audit `code` against the packages of `lock` on `arch`.

    `title` names the packages in messages; by default, the target. Raises LockStale if the lock
    does not include `arch`, and FetchFailed if the code of a package is not available.
    """
    resolution = lock.arch.get(arch)
    if resolution is None:
        message = f"the lock of {lock.target} does not include {arch}, only {', '.join(lock.arch)}"
        raise LockStale(message, hint=f"run imgbuild lock {lock.target}")
    wheels = {wheel.sha256: wheel for wheel in installed_wheels(resolution)}
    ranges = LockedRanges(lock, wheels, inputs, LockFiles(lock, inputs))
    store = inputs.store
    with Library(store, BlockCache(ranges)) as library:
        # A package that would have to be built first is not read, because a build can take an hour.
        at_hand = Library(store, published=library.published, ahead=False)
        built = {build.wheel.sha256 for build in resolution.built}
        unread = [
            wheel.package
            for wheel in wheels.values()
            if wheel.sha256 in built and not _is_cached(at_hand, wheel)
        ]
        versions = {wheel.package: wheel.version for wheel in wheels.values()}
        code = set_fork_versions(code, versions, lock.target)
        left_out = {*unread, *(fork.package for fork in code.forks)}
        read = [wheel for wheel in wheels.values() if wheel.package not in left_out]
        packages = CodePackages(
            installed={wheel.package: wheel.sha256 for wheel in read},
            machine=(lock.base.python, arch, "offline" if inputs.offline else ""),
            open=lambda: _open_package_set(
                lock, arch, read, library, lambda wheel: _place(store, wheel)
            ),
            others=lambda: other_sets(lock.target, library),
            others_key=_others_key(),
            unread=tuple(unread),
        )
        return audit_code(packages, code, store, target=lock.target, title=title)


def set_fork_versions(code: UserCode, versions: Mapping[str, str], target: str) -> UserCode:
    """Return `code` with the versions that its forks replace.

    Raises InputError if a package is not in `versions`. `target` names the packages in messages.
    """
    for fork in code.forks:
        if fork.package not in versions:
            message = f"--replace {fork.package}: {target} does not have this package"
            raise InputError(
                message,
                hint="specify one of its packages; to list those of a target, run: imgbuild show "
                "TARGET --packages",
            )
    forks = [msgspec.structs.replace(fork, version=versions[fork.package]) for fork in code.forks]
    return msgspec.structs.replace(code, forks=tuple(forks))


class CodePackages(msgspec.Struct, frozen=True, kw_only=True):
    """A package set that is opened only if no report is cached.

    `installed` maps packages to SHA-256 hashes. `machine` lists the Python version, the
    architecture and other properties that affect the report. `others` returns package sets that are
    searched for alternatives, and `others_key` is their cache key. `unread` are installed packages
    that were not read.
    """

    installed: Mapping[str, str]
    machine: tuple[str, ...]
    open: Callable[[], PackageSet]
    others: Callable[[], Sequence[OtherSet]] = tuple
    others_key: str = ""
    unread: tuple[str, ...] = ()


def open_code_packages(package_set: PackageSet) -> CodePackages:
    """Convert a package set that is already open to `CodePackages`."""
    return CodePackages(
        installed={name: each.wheel.sha256 for name, each in package_set.wheels.items()},
        machine=(package_set.python, package_set.arch, str(package_set.partial)),
        open=lambda: package_set,
    )


def audit_code(
    packages: CodePackages, code: UserCode, store: Store, *, target: str, title: str = ""
) -> CodeReport:
    """Audit `code` against `packages`, or return the cached report."""
    key_parts = [
        *(code_digest(JUDGING_MODULE, alone=__name__), packages.machine, packages.installed),
        *(packages.others_key, packages.unread),
        {fork.package: (fork.version, texts_key(fork.texts)) for fork in code.forks},
    ]
    set_key = sha256(codec.encode_compact(key_parts))
    key = sha256(codec.encode_compact([set_key, texts_key(code.texts)]))
    report = read_fact(store, REPORT_FACT, key, CodeReport) if not code.again else None
    if report is None:
        number = len(code.texts) + sum(len(fork.texts) for fork in code.forks)
        step = f"auditing {format_count(number, 'file')} of code for {title or target}"
        with pause_collector(freeze=True), console.step(step):
            checked = check.check_code(
                packages.open(),
                code.texts,
                store,
                packages.others(),
                packages.unread,
                code.forks,
                "" if code.again else set_key,
            )
        report = CodeReport(
            target=target,
            arch=packages.machine[1],
            tier="code",
            findings=checked.findings,
            files=number,
            unread=(
                *(UncheckedPart(what=name, why="it is not built yet") for name in packages.unread),
                *(UncheckedPart(what=name, why=NO_SOURCES) for name in checked.absent),
                *(
                    UncheckedPart(what=file, why=f"only {MOST_IN_FILE} of its findings are listed")
                    for file, count in Counter(each.file for each in checked.findings).items()
                    if count >= MOST_IN_FILE
                ),
            ),
        )
        if not checked.absent:
            write_fact(store, REPORT_FACT, key, report)
    return msgspec.structs.replace(report, target=target)


def _place(store: Store, wheel: Wheel) -> Path | str:
    return store.file(wheel.sha256) or _address(wheel)


def _address(wheel: Wheel) -> str:
    """Return a placeholder URL: no file is fetched for cached facts."""
    return f"{LOCKED_PREFIX}{wheel.sha256}"


def _open_package_set(
    lock: Lock,
    arch: Arch,
    wheels: Sequence[Wheel],
    library: Library,
    place: Callable[[Wheel], Path | str] = _address,
    *,
    partial_set: bool = False,
    kind: type[PackageSet] = PackageSet,
) -> PackageSet:
    return open_package_set(
        wheels,
        library,
        python=lock.base.python,
        arch=arch,
        glibc=lock.base.glibc,
        locate=place,
        partial=partial_set,
        omit=omitted_paths(lock.drop, wheels),
        kind=kind,
    )


# -- targets, read only from cached facts


class CachedPackages(PackageSet):
    """A package set that reads only cached facts. Modules without cached facts are unknown.

    Methods raise TimeoutError after `deadline` (a value of `time.monotonic`).
    """

    deadline = math.inf

    @functools.cached_property
    def lacking(self) -> set[str]:
        """The packages with modules that were looked up but have no cached facts."""
        return set()

    def module(self, name: str) -> ModuleFacts | OpaqueModule | None:
        """Look up a module by name, as `PackageSet` does."""
        if time.monotonic() > self.deadline:
            raise TimeoutError
        try:
            return super().module(name)
        except FetchFailed:
            self.lacking.add(self.owner(name) or name)
            return OpaqueModule(name, "unknown")

    def mentioning(self, package: str, word: str) -> tuple[str, ...]:
        """Search sources as `PackageSet` does. Raises NotCachedError if they are not cached."""
        try:
            return super().mentioning(package, word)
        except FetchFailed as error:
            raise NotCachedError(self.owner(package) or package) from error

    def read(self, package: str, path: str) -> bytes | None:
        """Read a file as `PackageSet` does. Raises NotCachedError if it must be fetched."""
        try:
            return super().read(package, path)
        except FetchFailed as error:
            raise NotCachedError(package) from error

    def read_ahead(self, package: str) -> None:
        """Do nothing, because facts are read only when a check needs them."""


class NotCachedError(FetchFailed):
    """Raised if a check needs all facts of a package, but some are not cached."""


def cached_findings(
    lock: Lock,
    arch: Arch,
    store: Store,
    code: UserCode,
    deadline: float = math.inf,
    only: Collection[str] | None = None,
) -> tuple[list[CodeFinding], list[str]]:
    """Audit code with cached facts. Return findings, and the packages whose facts are missing.

    Facts are required for imported packages and for packages with a module that a check looked up.
    Nothing is fetched. If `only` is set, only these packages are read. Raises TimeoutError after
    `deadline` (a value of `time.monotonic`).
    """
    library = Library(store, ahead=False)
    wheels = installed_wheels(lock.arch[arch])
    unread = {
        wheel.package
        for wheel in wheels
        if (only is not None and wheel.package not in only) or not _is_cached(library, wheel)
    }
    lacking: set[str] = set()
    every: list[CodeFinding] | None = None
    while every is None:
        here = [wheel for wheel in wheels if wheel.package not in unread]
        package_set = _open_package_set(lock, arch, here, library, kind=CachedPackages)
        if isinstance(package_set, CachedPackages):
            package_set.deadline = deadline
        try:
            checked = check.check_code(package_set, code.texts, library.store, (), sorted(unread))
            every = list(checked.findings)
            lacking = package_set.lacking if isinstance(package_set, CachedPackages) else set()
        except NotCachedError as error:
            unread.add(str(error))
    imported = check.imported_modules(code.texts, library.store)
    return every, sorted(lacking | {name for name in unread if possible_roots(name) & imported})


def compare_releases(
    lock: Lock, arch: Arch, store: Store, code: UserCode, unread: Sequence[str]
) -> release_names.ReleaseCheck:
    """Compare the uses of the packages `unread` with the bundled tables of releases."""
    versions = lock.arch[arch].versions
    named = [name for name in unread if name in versions]
    return release_names.check_release_names(
        code.texts, CodeFacts(code.texts, store), named, versions
    )


def find_run_errors(
    session: Session, name: str, arch: Arch, command: str, *, project: bool, seconds: float
) -> list[CodeFinding] | None:
    """Find errors in a command line and, with `project`, in the project's code.

    Only cached facts are used. Return None if the check would take longer than `seconds`.
    """
    texts: tuple[CodeText, ...] = ()
    if command:
        texts = (CodeText(file=COMMAND_LINE, kind="shell", source=command.encode()),)
    try:
        lock = lock_file.read_lock(session.project.images, name)
        deadline = time.monotonic() + seconds
        if project:
            texts = (*texts, *find_files([session.project.code], deadline=deadline))
        small = sum(len(text.source) for text in texts) <= seconds * BYTES_PER_SECOND
        if not small or arch not in lock.arch:
            return None
        only = None if project else check.compared_packages()
        every, _ = cached_findings(lock, arch, Store.open(), UserCode(texts=texts), deadline, only)
    except TimeoutError:
        return None
    except (ImgbuildError, OSError, ValueError, RecursionError):
        return []  # `imgbuild audit` reports the error
    return [
        each
        for each in every
        if each.severity is Severity.ERROR
        or (each.file == COMMAND_LINE and each.severity is Severity.WARNING)
    ]


# -- other targets


def _projects() -> list[Project]:
    """Return the catalogue and the project, which are the same in a checkout of imgbuild."""
    both = (project_paths.catalogue_project(), project_paths.find_project(None))
    return list({project.images.resolve(): project for project in both}.values())


def _others_key() -> str:
    locks = [
        path.read_bytes()
        for project in _projects()
        for path in sorted(project.images.glob("*/lock.json"))
    ]
    return sha256(b"".join(locks))


def other_sets(target: str, library: Library) -> list[OtherSet]:
    """Return the locked targets of the project and the catalogue for this machine, except `target`.

    Each package set contains the packages that the code uses and whose facts are published with
    imgbuild, so that the remedies of findings do not depend on the cache.
    """
    library = Library(library.store, published=library.published, ahead=False, stored=False)
    sets = {}
    for project in _projects():
        for name in project.locked_targets():
            if name != target:
                lock = _readable_lock(project, name)
                if lock is not None and Arch.X86_64 in lock.arch:
                    sets[name] = _other_set(lock, library)
    return list(sets.values())


def _readable_lock(project: Project, name: str) -> Lock | None:
    try:
        return lock_file.read_lock(project.images, name)
    except ImgbuildError:
        return None


def _other_set(lock: Lock, library: Library) -> OtherSet:
    walked = policy.load_policy().walk
    wheels = [
        wheel for wheel in installed_wheels(lock.arch[Arch.X86_64]) if wheel.package in walked
    ]

    @functools.cache
    def _open_published_set() -> PackageSet:
        here = [wheel for wheel in wheels if _is_cached(library, wheel)]
        return _open_package_set(lock, Arch.X86_64, here, library, partial_set=True)

    return OtherSet(
        lock.target, {wheel.package: wheel.version for wheel in wheels}, _open_published_set
    )


def _is_cached(library: Library, wheel: Wheel) -> bool:
    return library.wheel(wheel, _address(wheel)).has_cached_index
