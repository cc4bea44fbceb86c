"""Finds the best wheel on the index for pins without a lock (`audit torch==2.6`).

The pins are a user's requirements, or a pair of packages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import msgspec
from packaging.version import Version

from imgbuild.errors import FetchFailed
from imgbuild.index.candidates import best_wheel
from imgbuild.index.pages import IndexFile, IndexLookup
from imgbuild.index.remote_wheel import RangeClient, lock_wheel
from imgbuild.lock.resolution import Wheel
from imgbuild.project.model import DeclaredIndex
from imgbuild.report import UncheckedPart
from imgbuild.values import Sha256
from imgbuild.wheel.tags import WheelTags

ANY_GLIBC = "2.99"


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a package, with the requested extras.

    `url` is the URL in `NAME @ URL`, or "".
    """

    version: str
    url: str = ""
    extras: tuple[str, ...] = ()


class PinList(msgspec.Struct, frozen=True, kw_only=True):
    """The pins by package, the lines whose version is unknown, and the indexes in the files."""

    pins: dict[str, Pin]
    unread: tuple[UncheckedPart, ...] = ()
    indexes: tuple[DeclaredIndex, ...] = ()

    @property
    def versions(self) -> dict[str, str]:
        """The version of each package."""
        return {package: pin.version for package, pin in self.pins.items()}


class PickedWheels(msgspec.Struct, frozen=True, kw_only=True):
    """The wheels of a package set, their URLs, and the packages without a wheel for the machine.

    `public` are pins with a local version (`2.10.0+cu130`) whose public version is read instead.
    """

    wheels: tuple[Wheel, ...]
    urls: dict[Sha256, str]
    lacking: tuple[str, ...] = ()
    public: tuple[str, ...] = ()


def pick_wheels(
    pins: Mapping[str, str],
    tags: WheelTags,
    indexes: IndexLookup,
    http: RangeClient,
    *,
    builds: Callable[[str], Sequence[IndexLookup]] = lambda _: (),
) -> PickedWheels:
    """Return the best wheel of each pin, sorted by package.

    If all wheels require a newer glibc than the machine has, one of them is used, and the audit
    reports it. `builds` returns additional indexes for the builds of a local version ("cu130"). An
    additional index that does not respond is skipped. Raises FetchFailed for an error of another
    index.
    """
    wheels: list[Wheel] = []
    urls: dict[Sha256, str] = {}
    lacking: list[str] = []
    public: list[str] = []
    for package, version in sorted(pins.items()):
        exact = Version(version)
        source, file = indexes, _best_wheel(indexes, package, exact, tags)
        for other in builds(exact.local) if file is None and exact.local else ():
            with contextlib.suppress(FetchFailed):
                source, file = other, _best_wheel(other, package, exact, tags)
            if file is not None:
                break
        if file is None and exact.local:  # built for another index from the same code
            source, file = indexes, _best_wheel(indexes, package, Version(exact.public), tags)
            public += [f"{package}=={version}"] if file is not None else []
        if file is None:
            lacking.append(f"{package}=={version}")
            continue
        wheel = lock_wheel(package, str(file.version), source.place(package).name, file, http)
        wheels.append(wheel)
        urls[wheel.sha256] = file.url
    return PickedWheels(
        wheels=tuple(wheels), urls=urls, lacking=tuple(lacking), public=tuple(public)
    )


def _best_wheel(
    indexes: IndexLookup, package: str, version: Version, tags: WheelTags
) -> IndexFile | None:
    files = indexes.files(package)
    if not version.local:  # a pin without a local part allows any (PEP 440)
        matching = [file.version for file in files if file.version and file.is_wheel]
        public = [each for each in matching if Version(each.public) == version]
        version = max(public, default=version)
    newer = WheelTags(python=tags.python, glibc=ANY_GLIBC, arch=tags.arch)
    return best_wheel(files, version, tags) or best_wheel(files, version, newer)
