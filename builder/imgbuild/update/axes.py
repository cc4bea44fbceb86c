"""Finds newer releases of the pins of a row, and applies the cool-down period.

The packages that name a stack come first, because their versions restrict other packages. The
versions of packages that a row does not pin depend on the cut-off date.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from packaging.version import Version

from imgbuild.errors import InputError
from imgbuild.index.candidates import final_releases, public_version
from imgbuild.index.pages import IndexFile, IndexLookup
from imgbuild.matrix.model import Target
from imgbuild.system.amounts import join_first
from imgbuild.values import sha256

ORDER = (
    *("verl", "sglang", "vllm", "unsloth-zoo", "unsloth", "trl", "torch", "ray"),
    *("flashinfer-python", "deepspeed", "transformers"),
)
BASE = "base"  # the axis of the Debian snapshot
PYTHON = "python"  # the axis of a base's standalone Python; its versions are as 3.12.16+20261110
BASE_PARTS = (BASE, PYTHON)
LIMIT = 8  # newest releases of one package that are tried
SHOWN_ADVISORIES = 6

# Package, present and newer version → the advisories about the former that the latter fixes.
FixedAdvisories = Callable[[str, str, str], Sequence[str]]


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """A release on an index.

    `first` and `last` are upload times of files, or None if unknown. `files` is a hash of the file
    names.
    """

    version: str
    first: datetime.datetime | None
    last: datetime.datetime | None
    files: str


class VersionAxis(msgspec.Struct, frozen=True, kw_only=True):
    """A pin of a row, and newer final releases, newest first.

    `waiting` are newer releases in the cool-down. `fixing` maps versions that are exempt from the
    cool-down to the IDs of fixed advisories.
    """

    package: str
    version: str
    releases: tuple[Release, ...] = ()
    waiting: tuple[Release, ...] = ()
    fixing: dict[str, tuple[str, ...]] = {}


class CoolDown(msgspec.Struct, frozen=True, kw_only=True):
    """The minimum age of a release in days. None disables the cool-down."""

    days: int | None
    today: datetime.date

    @property
    def cut_day(self) -> datetime.date:
        """The cut-off date: only releases uploaded before this date are used."""
        return self.today - datetime.timedelta(days=self.days or 0)


def axis_names(target: Target) -> tuple[str, ...]:
    """Return the pinned packages of a row, in the order in which they are tried."""
    ranks = {package: rank for rank, package in enumerate(ORDER)}
    return tuple(sorted(target.pins, key=lambda name: (ranks.get(name, len(ORDER)), name)))


def list_final_releases(files: Iterable[IndexFile]) -> dict[Version, Release]:
    """Return the final releases of a package by version, without yanked releases."""
    return {version: _release(version, each) for version, each in final_releases(files).items()}


def _release(version: Version, files: Sequence[IndexFile]) -> Release:
    times = [file.uploaded for file in files if file.uploaded is not None]
    known = len(times) == len(files)
    return Release(
        version=str(version),
        first=min(times, default=None),
        last=max(times) if known and times else None,
        files=sha256("\n".join(sorted(file.name for file in files)).encode())[:16],
    )


def package_axis(
    indexes: IndexLookup, package: str, version: str, cool_down: CoolDown, fixed: FixedAdvisories
) -> VersionAxis:
    """Find the newer releases of a pinned package.

    `fixed` is called only for releases in the cool-down. Raises FetchFailed if the index does not
    respond.
    """
    present = public_version(version)
    newer = [
        release
        for found, release in sorted(
            list_final_releases(indexes.files(package)).items(), reverse=True
        )
        if found > present
    ][:LIMIT]
    ready, waiting = [], []
    fixing: dict[str, tuple[str, ...]] = {}
    for release in newer:
        if cool_down.days is not None and not is_past_cool_down(release, cool_down.cut_day):
            advisories = tuple(fixed(package, version, release.version))
            if not advisories:
                waiting.append(release)
                continue
            fixing[release.version] = advisories
        ready.append(release)
    return VersionAxis(
        package=package,
        version=version,
        releases=tuple(ready),
        waiting=tuple(waiting),
        fixing=fixing,
    )


def base_axis(part: str, before: str, after: str) -> VersionAxis:
    """Return the axis of a `part` of a base (BASE or PYTHON)."""
    release = Release(version=after, first=None, last=None, files="")
    return VersionAxis(package=part, version=before, releases=(release,))


def version_order(part: str, version: str) -> Version:
    """Return a sort key for a version, including the build date for a standalone Python."""
    return Version(version) if part == PYTHON else public_version(version)


def is_past_cool_down(release: Release, cut: datetime.date) -> bool:
    """Return whether the first file of a release was uploaded before the date `cut`."""
    return release.first is not None and release.first.date() < cut


def row_cut_off(target: Target, release: Release, cool_down: CoolDown) -> datetime.date:
    """Return the `as_of` that a row needs to include all files of a release."""
    days = [target.as_of, cool_down.cut_day]
    uploaded = release.last or release.first
    if uploaded is not None:
        days.append(uploaded.date() + datetime.timedelta(days=1))
    return max(days)


def require_times(indexes: Mapping[str, IndexLookup], targets: Mapping[str, Target]) -> None:
    """Raise InputError if an index gives no upload time for a release newer than a pin.

    The keys of `indexes` and `targets` are names of rows.
    """
    lacking: dict[str, list[str]] = {}
    for name, target in targets.items():
        for package, version in target.pins.items():
            place = indexes[name].place(package)
            present = public_version(version)
            newer = [
                release
                for found, release in list_final_releases(indexes[name].files(package)).items()
                if found > present and (not place.timed or release.last is None)
            ]
            if newer and package not in lacking.setdefault(place.name, []):
                lacking[place.name].append(package)
    lines = [
        f"the index {index}: {join_first(packages, SHOWN_ADVISORIES)}"
        for index, packages in lacking.items()
        if packages
    ]
    if lines:
        message = "\n  ".join(
            ("the cool-down cannot be applied, because upload times are unknown for:", *lines)
        )
        hint = (
            "add --no-cool-down, or use an index that reports upload times (PEP 700 or a JSON API)"
        )
        raise InputError(message, hint=hint)
