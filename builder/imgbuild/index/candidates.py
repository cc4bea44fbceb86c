"""Selects index files for a target by platform, glibc, Python, upload date and yanked state."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterable, Mapping

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imgbuild.index.pages import IndexFile
from imgbuild.matrix.fields import SDIST_ENDINGS
from imgbuild.wheel.tags import WheelTags


class FileRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules that select files. `pins` maps normalized package names to exact versions."""

    as_of: datetime.date
    tags: WheelTags
    pins: Mapping[str, str]

    @property
    def cut_off_time(self) -> datetime.datetime:
        """The exclusive cut-off time: `as_of` at 00:00 UTC."""
        return datetime.datetime.combine(self.as_of, datetime.time(), tzinfo=datetime.UTC)


def exclusion_reason(file: IndexFile, package: str, rules: FileRules, *, timed: bool) -> str | None:
    """Return the reason to exclude the wheel `file`, or None.

    `timed` means that the index provides upload times.
    """
    if not file.is_wheel:
        return "is not a wheel"
    if not rules.tags.is_compatible(file.name):
        return f"is for {wheel_platform_and_python(file.name)}"
    return cut_off_reason(file, rules, timed=timed) or unwanted_reason(file, package, rules)


def cut_off_reason(file: IndexFile, rules: FileRules, *, timed: bool) -> str | None:
    """Return the reason why the cut-off excludes `file`, or None.

    If `timed` is set, a file without an upload time is also excluded.
    """
    if not timed or (file.uploaded is not None and file.uploaded < rules.cut_off_time):
        return None
    if file.uploaded is None:
        return "has no upload time, which the cut-off date requires"
    return f"was uploaded {file.uploaded:%Y-%m-%d}, not before the cut-off {rules.as_of}"


def unwanted_reason(file: IndexFile, package: str, rules: FileRules) -> str | None:
    """Return a reason to exclude `file`, other than upload time and platform, or None."""
    if file.yanked and not same_version(file.version, rules.pins.get(package)):
        return "was yanked"
    if not accepts_python(file, rules):
        return f"requires Python {file.requires_python}"
    return None


def accepts_python(file: IndexFile, rules: FileRules) -> bool:
    """Return whether `requires_python` of a file allows the Python version in `rules`."""
    python = rules.tags.markers["python_full_version"]
    return _accepts_python(file.requires_python or "", python)


@functools.lru_cache(maxsize=10_000)  # the files of a package have few values
def _accepts_python(requires_python: str, python: str) -> bool:
    try:
        specifiers = SpecifierSet(requires_python)
    except InvalidSpecifier:
        return True  # uv has a different parser for such old specifiers
    return specifiers.contains(python, prereleases=True)


def same_version(version: Version | None, pin: str | None) -> bool:
    """Return whether `version` matches `pin`.

    A pin without a local part allows any local part (PEP 440).
    """
    if version is None or not pin:
        return False
    pinned = Version(pin)
    return version == pinned if pinned.local else Version(version.public) == pinned


def usable_files(
    files: Iterable[IndexFile], package: str, rules: FileRules, *, timed: bool
) -> list[IndexFile]:
    """Return the usable wheels in `files`, in the same order."""
    fitting = (file for file in files if file.is_wheel and rules.tags.is_compatible(file.name))
    return [file for file in fitting if exclusion_reason(file, package, rules, timed=timed) is None]


def best_wheel(files: Iterable[IndexFile], version: Version, tags: WheelTags) -> IndexFile | None:
    """Return the best wheel of `version` by tag, build number and name, or None."""
    ranked = [
        (rank, file)
        for file in files
        if file.version == version and (rank := tags.rank_wheel(file.name)) is not None
    ]
    return min(ranked, key=lambda pair: pair[0])[1] if ranked else None


def public_version(version: str) -> Version:
    """Parse `version`, and remove the local part, such as +cu124."""
    return Version(Version(version).public)


def final_releases(files: Iterable[IndexFile]) -> dict[Version, list[IndexFile]]:
    """Return the files of final versions that are not yanked, by public version."""
    releases: dict[Version, list[IndexFile]] = {}
    for file in files:
        version = file.version
        if version is not None and not version.is_prerelease and not file.yanked:
            releases.setdefault(Version(version.public), []).append(file)
    return releases


def is_sdist(file: IndexFile) -> bool:
    """Return whether the file name belongs to a source distribution."""
    return file.name.endswith(SDIST_ENDINGS) and file.version is not None


def wheel_platform_and_python(name: str) -> str:
    """Return the platform and Python of a wheel as text, such as "Linux x86_64, Python cp310"."""
    pythons = sorted({tag.interpreter for tag in _tags(name)})
    return (
        f"{wheel_platform(name)}, Python {'/'.join(pythons)}" if pythons else wheel_platform(name)
    )


def wheel_platform(name: str) -> str:
    """Return the platform of a wheel as text, such as "Linux x86_64"."""
    return "/".join(sorted({_system(tag.platform) for tag in _tags(name)})) or "an unknown platform"


def _tags(name: str) -> frozenset[Tag]:
    try:
        return parse_wheel_filename(name)[3]
    except ValueError:  # raised as InvalidWheelFilename, and for a number of 5,000 digits
        return frozenset()


def _system(platform: str) -> str:
    for start, system in (
        ("manylinux", "Linux"),
        ("linux", "Linux"),
        ("musllinux", "musl Linux"),
        ("macosx", "macOS"),
        ("win", "Windows"),
    ):
        if platform.startswith(start):
            machine = next(
                (
                    m
                    for m in (
                        "x86_64",
                        "aarch64",
                        "arm64",
                        "amd64",
                        "universal2",
                        "i686",
                        "ppc64le",
                        "s390x",
                        "armv7l",
                        "riscv64",
                    )
                    if platform.endswith(m)
                ),
                platform,
            )
            return f"{system} {machine}"
    return platform
