"""Pinned versions as a package set: the best wheel of each in an index, read from the server.

For sets that have no lock: a user's requirements, or a pair of packages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from imgbuild.errors import InputError, Problem
from imgbuild.index.candidates import best
from imgbuild.index.pages import Indexes, IndexFile
from imgbuild.index.remote_wheel import Ranges, lock_wheel
from imgbuild.lock.resolution import Wheel
from imgbuild.values import Sha256, normalize
from imgbuild.wheel.tags import Tags

ANY_GLIBC = "2.99"
_HASH = re.compile(r"\s--hash[= ]\S+")


class Picked(msgspec.Struct, frozen=True, kw_only=True):
    """The wheels of a set, their URLs, and the packages without a wheel for the machine.

    `public`: pins with a local version (`2.10.0+cu130`) of which the public version is read.
    """

    wheels: tuple[Wheel, ...]
    urls: dict[Sha256, str]
    lacking: tuple[str, ...] = ()
    public: tuple[str, ...] = ()


def pick(pins: Mapping[str, str], tags: Tags, indexes: Indexes, http: Ranges) -> Picked:
    """The best wheel of each pin, sorted by package; FetchFailed for an index error.

    A wheel for a newer glibc is taken if there is no other; the audit reports it.
    """
    wheels: list[Wheel] = []
    urls: dict[Sha256, str] = {}
    lacking: list[str] = []
    public: list[str] = []
    for package, version in sorted(pins.items()):
        exact = Version(version)
        file = _best(indexes, package, exact, tags)
        if file is None and exact.local:  # built for another index from the same code
            file = _best(indexes, package, Version(exact.public), tags)
            public += [f"{package}=={version}"] if file is not None else []
        if file is None:
            lacking.append(f"{package}=={version}")
            continue
        index = indexes.place(package).name
        wheel = lock_wheel(package, str(file.version), index, file, http)
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


def read_pins(text: str, name: str, tags: Tags) -> dict[str, str]:
    """The pins of a requirements file, for the machine; InputError for a line without a pin.

    Hashes, comments, markers and continued lines, as pip and uv write them, are understood.
    """
    pins: dict[str, str] = {}
    problems: list[Problem] = []
    start, whole = 1, ""
    for number, line in enumerate(text.splitlines(), start=1):
        start = start if whole else number
        whole += line.partition(" #")[0].rstrip() if not line.lstrip().startswith("#") else ""
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        statement, whole = _HASH.sub("", whole).strip(), ""
        if not statement or statement.startswith("-"):
            continue
        try:
            package, version = _pin(statement, tags)
        except (InvalidRequirement, InvalidVersion, ValueError) as error:
            problems.append(Problem(file=name, line=start, message=str(error)))
            continue
        if package:
            pins[package] = version
    if problems or not pins:
        message = f"{name} is not a list of pinned versions"
        hint = "write name==version, as `uv pip freeze` and `uv pip compile` do"
        raise InputError(message, problems=tuple(problems), hint=hint)
    return pins


def _of_file(requirement: Requirement) -> tuple[str, str]:
    """Package and version of `NAME @ URL`, by the name of the wheel."""
    file = unquote(urlsplit(requirement.url or "").path).rpartition("/")[2]
    try:
        name, version, *_ = parse_wheel_filename(file)
    except InvalidWheelFilename:
        message = f"{requirement} names no wheel, so its version is unknown"
        raise ValueError(message) from None
    return normalize(name), str(version)


def _pin(statement: str, tags: Tags) -> tuple[str, str]:
    """Package and version of one statement; empty if its marker does not match."""
    requirement = Requirement(statement)
    if requirement.url is not None:
        return _of_file(requirement)
    if requirement.marker is not None and not requirement.marker.evaluate(dict(tags.markers)):
        return "", ""
    exact = [
        one.version
        for one in requirement.specifier
        if one.operator in ("==", "===") and not one.version.endswith(".*")
    ]
    if len(exact) != 1:
        message = f"{statement} is not an exact version"
        raise ValueError(message)
    Version(exact[0])
    return normalize(requirement.name), exact[0]
