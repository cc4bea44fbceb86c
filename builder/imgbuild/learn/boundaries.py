"""Finds the version of a package that introduces or resolves an incompatibility.

Modules of remote wheels are read with range requests. Results are cached in the store.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from packaging.version import Version

from imgbuild.audit.main_path import policy, registries
from imgbuild.audit.names import classes, signatures
from imgbuild.audit.names.lookup import look_up
from imgbuild.audit.names.model import LookupResult
from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.package_set import PackageSet, open_package_set
from imgbuild.audit.packages.sdist_code import code_wheel
from imgbuild.audit.source.facts import Function, ModuleFacts
from imgbuild.cache.store import Store
from imgbuild.codec import encode_compact
from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.index.candidates import best_wheel, is_sdist, same_version, unwanted_reason
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.pages import IndexFile
from imgbuild.index.remote_wheel import lock_wheel
from imgbuild.lock.resolution import Wheel
from imgbuild.report import ConflictRelation, Evidence
from imgbuild.system import decoding
from imgbuild.system.code_digest import code_digest
from imgbuild.values import sha256

T = TypeVar("T")
ANSWERS = "audit-probe"
STEP = 8  # releases that a search skips at most, or more if there are over STEP * STEPS
STEPS = 24


class PackageRelease(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a package that can be used, with its best compatible wheel."""

    version: Version
    file: IndexFile

    @property
    def upload_time(self) -> datetime.datetime | None:
        """The upload time of the wheel, or None if the index does not provide it."""
        return self.file.uploaded


class ReleaseCatalogue:
    """The releases of packages on the indexes of a target, regardless of the cut-off."""

    def __init__(self, catalogue: FileCatalogue, library: Library, store: Store) -> None:
        self.catalogue = catalogue
        self.library = library
        self.store = store
        self._releases: dict[str, tuple[PackageRelease, ...]] = {}
        self._readable: dict[str, tuple[PackageRelease, ...]] = {}

    def package_releases(self, package: str) -> tuple[PackageRelease, ...]:
        """Return all final versions with a compatible wheel that is not yanked, oldest first.

        A pinned version is included even if it is a pre-release.
        """
        if package not in self._releases:
            rules = self.catalogue.rules
            listed = self.catalogue.indexes.files(package)
            files = [
                file
                for file in listed
                if file.is_wheel and not unwanted_reason(file, package, rules)
            ]
            versions = {
                file.version
                for file in files
                if file.version is not None
                and (
                    not file.version.is_prerelease
                    or same_version(file.version, rules.pins.get(package))
                )
            }
            releases = [
                PackageRelease(version=version, file=file)
                for version in sorted(versions)
                if (file := best_wheel(files, version, rules.tags)) is not None
            ]
            self._releases[package] = tuple(releases)
        return self._releases[package]

    def readable_releases(self, package: str) -> tuple[PackageRelease, ...]:
        """Return the releases of a package that can be read.

        If the package has no wheels, these are final versions whose sdist has a known hash. Only
        the Python code of an sdist is read.
        """
        if package not in self._readable:
            self._readable[package] = self.package_releases(package) or self._sdists(package)
        return self._readable[package]

    def releases_for_older_python(self, package: str) -> tuple[PackageRelease, ...]:
        """Return a sample of older final versions whose wheels are for other versions of Python.

        Every `STEP`-th version is included, newest first, because a name that a package once had is
        usually in several releases.
        """
        oldest = next(iter(self.package_releases(package)), None)
        wheels: dict[Version, IndexFile] = {}
        for file in self.catalogue.indexes.files(package):
            if oldest is None or not file.is_wheel or file.version is None or file.yanked:
                continue
            if file.version < oldest.version and not file.version.is_prerelease:
                wheels.setdefault(file.version, file)
        ordered = sorted(wheels.items(), reverse=True)
        return tuple(
            PackageRelease(version=version, file=file) for version, file in ordered[::STEP]
        )

    def _sdists(self, package: str) -> tuple[PackageRelease, ...]:
        sdists = [
            PackageRelease(version=file.version, file=file)
            for file in self.catalogue.indexes.files(package)
            if is_sdist(file) and file.name.endswith(".tar.gz") and file.sha256
            if file.version is not None and not file.version.is_prerelease
            if not unwanted_reason(file, package, self.catalogue.rules)
        ]
        return tuple(sorted(sdists, key=lambda release: release.version))

    def release(self, package: str, version: str) -> PackageRelease | None:
        """Return the release of `version`, or None."""
        expected = Version(version)
        matches = (item for item in self.package_releases(package) if item.version == expected)
        return next(matches, None)

    def wheel(self, package: str, release: PackageRelease) -> Wheel:
        """Return the wheel of a release as a locked file.

        Raises FetchFailed if the index provides no hash of the wheel and downloads are not allowed.
        """
        if is_sdist(release.file):
            return self._store_sdist_code(package, release)
        index = self.catalogue.indexes.place(package).name
        http = self.library.http
        if release.file.sha256 is None or release.file.size is None:
            if http is None:
                message = (
                    f"{release.file.name}: the index {index} has no hash of this file, and"
                    " downloads are not allowed"
                )
                raise FetchFailed(message, hint="run once without --offline")
            return lock_wheel(package, str(release.version), index, release.file, http)
        return Wheel(
            package=package,
            version=str(release.version),
            index=index,
            file=release.file.name,
            size=release.file.size,
            sha256=release.file.sha256,
        )

    def _store_sdist_code(self, package: str, release: PackageRelease) -> Wheel:
        file, http, store = release.file, self.library.http, self.store
        digest = file.sha256 or ""
        with store.scratch() as folder:

            def _fetch() -> Path:
                path = store.file(digest) or folder / "sdist.tar.gz"
                if not path.exists():
                    if http is None:
                        message = f"{file.name}: downloads are not allowed"
                        raise FetchFailed(message, hint="run once without --offline")
                    path.write_bytes(content := http.fetch_bytes(file.url))
                    if sha256(content) != digest:
                        message = f"{file.name}: its hash differs from the hash on the index"
                        raise IntegrityError(message)
                return path

            return code_wheel(package, str(release.version), digest, _fetch, store)[0]

    def create_package_set(self, releases: Mapping[str, PackageRelease]) -> PackageSet:
        """Return a partial package set of `releases`."""
        wheels, urls = [], {}
        for package, release in releases.items():
            wheel = self.wheel(package, release)
            wheels.append(wheel)
            urls[wheel.sha256] = release.file.url  # that of an sdist is in the store
        tags = self.catalogue.rules.tags
        return open_package_set(
            wheels,
            self.library,
            python=tags.python,
            arch=tags.arch,
            glibc=tags.glibc,
            locate=lambda wheel: self.store.file(wheel.sha256) or urls[wheel.sha256],
            partial=True,
        )

    def compute_cached(self, key: Sequence[object], compute: Callable[[], T], form: type[T]) -> T:
        """Return the result of `compute`, cached by `key`, the code of imgbuild and Python.

        `key` must identify immutable files.
        """
        python = self.catalogue.rules.tags.python
        name = encode_compact([code_digest(compute.__module__), python, *key]).decode()
        cached = self.store.fact(ANSWERS, name)
        if cached is not None:
            return decoding.decode_json(cached, form)
        answer = compute()
        self.store.put_fact(ANSWERS, name, msgspec.json.encode(answer))
        return answer


# -- one version


def lacks_item(
    release_catalogue: ReleaseCatalogue, evidence: Evidence, release: PackageRelease
) -> bool | None:
    """Return whether `release` lacks or rejects the item in `evidence`.

    Return None if this is unknown, or if the evidence does not concern a name.
    """
    if evidence.relation not in NAMED_TESTS:
        return None
    wheel = release_catalogue.wheel(evidence.other, release)
    key = ("lacks", evidence.relation, evidence.subject, *evidence.preferred, wheel.sha256)

    def _compute_lack() -> bool | None:
        package_set = release_catalogue.create_package_set({evidence.other: release})
        if any(_has_all(package_set, subjects) for subjects in evidence.preferred):
            return False
        return NAMED_TESTS[evidence.relation](package_set, evidence.subject)

    return release_catalogue.compute_cached(key, _compute_lack, bool | None)  # type: ignore[arg-type]


def has_module(
    release_catalogue: ReleaseCatalogue, package: str, release: PackageRelease, module: str
) -> bool:
    """Return whether `release` of `package` contains the module, according to its file names."""
    wheel = release_catalogue.wheel(package, release)

    def _compute_presence() -> bool:
        return module in release_catalogue.create_package_set({package: release}).modules_of(
            package
        )

    return release_catalogue.compute_cached(
        ("brings", module, wheel.sha256), _compute_presence, bool
    )


def _lacks_module(package_set: PackageSet, subject: str) -> bool | None:
    there = package_set.exists(subject)
    return None if there is None else not there and package_set.module(subject) is None


def _lacks_name(package_set: PackageSet, subject: str) -> bool | None:
    module, _, name = subject.partition(":")
    first, *rest = name.split(".")
    lookup_result = look_up(package_set, module, first)
    for part in rest:
        if lookup_result.state != "defined":
            break
        lookup_result = classes.find_member(package_set, lookup_result, part)
    return _is_absent(lookup_result)


def _has_all(package_set: PackageSet, subjects: Iterable[str]) -> bool:
    """Return whether all `subjects` (modules, and names in modules) certainly exist."""
    return all(
        (_lacks_name if ":" in subject else _lacks_module)(package_set, subject) is False
        for subject in subjects
    )


def _lacks_attribute(package_set: PackageSet, subject: str) -> bool | None:
    lookup_result = look_up_path(package_set, subject)
    if lookup_result.state != "unknown":
        return _is_absent(lookup_result)
    owner, _, name = subject.rpartition(".")
    return True if never_mentions(package_set, look_up_path(package_set, owner), name) else None


def never_mentions(package_set: PackageSet, lookup_result: LookupResult, name: str) -> bool:
    """Return whether a class and its bases can be read and do not contain the word `name`.

    In this case, a `__getattr__` that uses a table cannot provide the name.
    """
    word = re.compile(rb"\b%s\b" % re.escape(name.encode()))
    for ancestor in classes.class_ancestors(
        package_set, classes.follow_assignment(package_set, lookup_result)
    ):
        owner = package_set.owner(ancestor.home.module) if ancestor.home is not None else None
        source = (
            package_set.read(owner, ancestor.home.file)
            if owner is not None and ancestor.home
            else None
        )
        if source is None or word.search(source):
            return False
    return True


def _lacks_keyword(package_set: PackageSet, subject: str) -> bool | None:
    callee, _, keyword = subject.removesuffix(")").partition("(")
    taken = signatures.find_signature(package_set, look_up_path(package_set, callee))
    return None if taken is None else not taken.accepts_keyword(keyword)


def _refuses_arguments(package_set: PackageSet, subject: str) -> bool | None:
    """Return whether a call omits a required argument or has too many positional arguments."""
    callee, _, what = subject.removesuffix(")").partition("(")
    lookup_result = look_up_path(package_set, callee)
    taken = signatures.find_signature(package_set, lookup_result)
    if taken is None:
        return None
    if not what.isdecimal():
        return any(
            parameter.name == what and not parameter.default for parameter in taken.parameters
        )
    definition = classes.follow_assignment(package_set, lookup_result).definition
    if isinstance(definition, Function) and lookup_result.owner is not None:
        return None  # it is unknown whether self is among the positional arguments
    places = [parameter for parameter in taken.parameters if parameter.kind != "keyword"]
    return not taken.varargs and len(places) <= int(what)


def _has_registered(package_set: PackageSet, subject: str) -> bool | None:
    name = subject.rpartition("(")[2].removesuffix(")")
    rules = policy.load_policy()
    packages = package_set.packages
    return any(
        registries.has_registered_name(package_set, rules, package, name) for package in packages
    )


NAMED_TESTS: dict[ConflictRelation, Callable[[PackageSet, str], bool | None]] = {
    ConflictRelation.MODULE: _lacks_module,
    ConflictRelation.NAME: _lacks_name,
    ConflictRelation.ATTRIBUTE: _lacks_attribute,
    ConflictRelation.KEYWORD: _lacks_keyword,
    ConflictRelation.ARGUMENT: _refuses_arguments,
    ConflictRelation.REGISTERED: _has_registered,
}


def _is_absent(lookup_result: LookupResult) -> bool | None:
    return None if lookup_result.state == "unknown" else lookup_result.state == "absent"


def look_up_path(package_set: PackageSet, path: str) -> LookupResult:
    """Return the object at a path such as "vllm.SamplingParams" or "a.b:C.d"."""
    first, *rest = path.replace(":", ".").split(".")
    facts = package_set.module(first)
    if not isinstance(facts, ModuleFacts):
        return LookupResult(state="unknown" if facts is not None else "absent")
    lookup_result = LookupResult(state="defined", definition=facts, home=facts)
    for part in rest:
        if lookup_result.state != "defined":
            break
        lookup_result = classes.find_member(package_set, lookup_result, part)
    return lookup_result


def find_boundary(
    releases: Sequence[T], start: int, is_incompatible: Callable[[T], bool], step: int
) -> tuple[T, T | None]:
    """Return the last incompatible and the first compatible release.

    The search starts at `releases[start]` in the direction `step` (1 or -1), with increasing steps
    and then by bisection, so that few releases are read. The steps are limited, because a name may
    exist in few releases only. The result is a pair of adjacent releases, even if the
    incompatibility disappears and returns.
    """
    bad, good, width = start, None, 1
    widest = max(STEP, len(releases) // STEPS)
    edge = len(releases) - 1 if step > 0 else 0
    while bad != edge:
        reach = bad + step * width
        reach = min(reach, edge) if step > 0 else max(reach, edge)
        if not is_incompatible(releases[reach]):
            good = reach
            break
        bad, width = reach, min(width * 2, widest)
    if good is None:
        return releases[bad], None
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        if is_incompatible(releases[middle]):
            bad = middle
        else:
            good = middle
    return releases[bad], releases[good]


def newest_at_time(
    releases: Sequence[PackageRelease], moment: datetime.datetime | None
) -> PackageRelease | None:
    """Return the newest version that existed at `moment`, or None if unknown."""
    if moment is None:
        return None
    old = [item for item in releases if item.upload_time is not None and item.upload_time <= moment]
    return old[-1] if old else None
