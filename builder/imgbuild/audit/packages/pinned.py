"""Pinned versions as a package set: the best wheel of each in an index, read from the server.

For sets that have no lock: a user's requirements, or a pair of packages.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from imgbuild.errors import FetchFailed, InputError, Problem
from imgbuild.index.candidates import best
from imgbuild.index.pages import Indexes, IndexFile
from imgbuild.index.remote_wheel import Ranges, lock_wheel
from imgbuild.lock.resolution import Wheel
from imgbuild.report import Unread
from imgbuild.values import Sha256, normalize
from imgbuild.wheel.tags import Tags

ANY_GLIBC = "2.99"
_EDITABLE = re.compile(r"(?:-e|--editable)[ =]\s*(\S+)")
_INCLUDED = re.compile(r"(?:-r|--requirement)[ =]?\s*(\S+)")
_HASH = re.compile(r"\s--hash[= ]\S+")


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a package; `url` is the address of `NAME @ URL`, "" without one."""

    version: str
    url: str = ""


class PinList(msgspec.Struct, frozen=True, kw_only=True):
    """Package → pin, and the lines of which the version is unknown."""

    pins: dict[str, Pin]
    unread: tuple[Unread, ...] = ()

    @property
    def versions(self) -> dict[str, str]:
        """Package → version."""
        return {package: pin.version for package, pin in self.pins.items()}


class Picked(msgspec.Struct, frozen=True, kw_only=True):
    """The wheels of a set, their URLs, and the packages without a wheel for the machine.

    `public`: pins with a local version (`2.10.0+cu130`) of which the public version is read.
    """

    wheels: tuple[Wheel, ...]
    urls: dict[Sha256, str]
    lacking: tuple[str, ...] = ()
    public: tuple[str, ...] = ()


def pick(
    pins: Mapping[str, str],
    tags: Tags,
    indexes: Indexes,
    http: Ranges,
    *,
    builds: Callable[[str], Sequence[Indexes]] = lambda _: (),
) -> Picked:
    """The best wheel of each pin, sorted by package; FetchFailed for an index error.

    A wheel for a newer glibc is taken if there is no other; the audit reports it. `builds` returns
    other indexes that may have the builds of a local version ("cu130"); one that does not answer is
    skipped.
    """
    wheels: list[Wheel] = []
    urls: dict[Sha256, str] = {}
    lacking: list[str] = []
    public: list[str] = []
    for package, version in sorted(pins.items()):
        exact = Version(version)
        own, file = indexes, _best(indexes, package, exact, tags)
        for other in builds(exact.local) if file is None and exact.local else ():
            with contextlib.suppress(FetchFailed):
                own, file = other, _best(other, package, exact, tags)
            if file is not None:
                break
        if file is None and exact.local:  # built for another index from the same code
            own, file = indexes, _best(indexes, package, Version(exact.public), tags)
            public += [f"{package}=={version}"] if file is not None else []
        if file is None:
            lacking.append(f"{package}=={version}")
            continue
        wheel = lock_wheel(package, str(file.version), own.place(package).name, file, http)
        wheels.append(wheel)
        urls[wheel.sha256] = file.url
    return Picked(wheels=tuple(wheels), urls=urls, lacking=tuple(lacking), public=tuple(public))


def _best(indexes: Indexes, package: str, version: Version, tags: Tags) -> IndexFile | None:
    files = indexes.files(package)
    if not version.local:  # a pin without a local part allows any (PEP 440)
        matching = [file.version for file in files if file.version and file.is_wheel]
        public = [each for each in matching if Version(each.public) == version]
        version = max(public, default=version)
    newer = Tags(python=tags.python, glibc=ANY_GLIBC, arch=tags.arch)
    return best(files, version, tags) or best(files, version, newer)


def read_pins(text: str, name: str, tags: Tags) -> PinList:
    """The pins of a requirements file, for the machine; InputError for a line without a pin.

    Hashes, comments, markers and continued lines, as pip and uv write them, are understood.
    """
    pins: dict[str, Pin] = {}
    unread: list[Unread] = []
    problems: list[Problem] = []
    for number, statement in _statements(text):
        try:
            found = _option(statement) if statement.startswith("-") else _pin(statement, tags)
        except (InvalidRequirement, InvalidVersion, ValueError) as error:
            problems.append(Problem(file=name, line=number, message=str(error)))
            continue
        if isinstance(found, Unread):
            unread.append(found)
        elif found is not None:
            pins[found[0]] = found[1]
    if problems or not (pins or unread):
        message = f"{name} is not a list of pinned versions"
        hint = "write name==version, as `uv pip freeze` and `uv pip compile` do"
        raise InputError(message, problems=tuple(problems), hint=hint)
    return PinList(pins=pins, unread=tuple(unread))


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """The number of its first line and the text of each statement, without comments and hashes."""
    start, whole = 1, ""
    for number, line in enumerate(text.splitlines(), start=1):
        start = start if whole else number
        whole += line.partition(" #")[0].rstrip() if not line.lstrip().startswith("#") else ""
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        statement, whole = _HASH.sub("", whole).strip(), ""
        if statement:
            yield start, statement


def _option(statement: str) -> Unread | None:
    """What a line that begins with an option leaves unread."""
    if found := _EDITABLE.match(statement):
        why = "an editable installation, which --environment reads"
        return Unread(what=found[1], why=why, required=True)
    if found := _INCLUDED.match(statement):
        return Unread(what=found[1], why="a file in a file; name it with -r", required=True)
    return None


def _of_url(requirement: Requirement) -> tuple[str, Pin] | Unread:
    """The package of `NAME @ URL`, with the version in the name of a wheel or sdist."""
    url = requirement.url or ""
    file = unquote(urlsplit(url).path).rpartition("/")[2]
    with contextlib.suppress(InvalidWheelFilename):
        return normalize(requirement.name), Pin(version=str(parse_wheel_filename(file)[1]), url=url)
    with contextlib.suppress(InvalidSdistFilename):
        return normalize(requirement.name), Pin(version=str(parse_sdist_filename(file)[1]), url=url)
    why = "names neither a wheel nor an sdist, so its version is unknown"
    return Unread(what=str(requirement), why=why, required=True)


def _pin(statement: str, tags: Tags) -> tuple[str, Pin] | Unread | None:
    """Package and pin of one statement; None if its marker does not match."""
    requirement = Requirement(statement)
    if requirement.marker is not None and not requirement.marker.evaluate(dict(tags.markers)):
        return None
    if requirement.url is not None:
        return _of_url(requirement)
    exact = [
        one.version
        for one in requirement.specifier
        if one.operator in ("==", "===") and not one.version.endswith(".*")
    ]
    if len(exact) != 1:
        message = f"{statement} is not an exact version"
        raise ValueError(message)
    Version(exact[0])
    return normalize(requirement.name), Pin(version=exact[0])
