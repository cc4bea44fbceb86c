"""Finds newer archives of a standalone Python in the publisher's list of releases.

Each line of the list is a JSON object: a release with archives and SHA-256 hashes. The newest
release is first. Sources of the format: generate-version-metadata.py of python-build-standalone
(writer) and crates/uv-python/src/downloads.rs of uv (reader).
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, unquote, urlsplit

import msgspec

from imgbuild import codec
from imgbuild.cache.context import Context
from imgbuild.errors import FetchFailed, InputError
from imgbuild.http.client import HttpClient
from imgbuild.http.credentials import redact_url
from imgbuild.http.request import Request
from imgbuild.matrix.fields import ARCHIVE_URL
from imgbuild.matrix.model import StandalonePython
from imgbuild.system.boundary import NONSENSE
from imgbuild.values import Arch, Sha256

if TYPE_CHECKING:
    from imgbuild.http.session import Response

LIST = "https://raw.githubusercontent.com/astral-sh/versions/main/v1/python-build-standalone.ndjson"
LINE = 8 << 20  # bytes of a line; a release has some 300 archives of 300 bytes
LIMIT = 256 << 20  # bytes of a list; it is read up to the release that is in use
EXAMPLE = "cpython-3.12.16+20261110-x86_64-unknown-linux-gnu-install_only.tar.gz"
LIST_KIND = "list of Python releases"
_NAME = re.compile(
    r"cpython-(?P<python>3\.[0-9]+)\.(?P<patch>[0-9]+)\+(?P<build>[0-9]{8})"
    r"-(?P<platform>(?:x86_64(?:_v[234])?|aarch64)-unknown-linux-gnu)"
    r"-(?P<variant>install_only(?:_stripped)?)\.tar\.gz"
)
_VERSION = re.compile(r"(?P<python>3\.[0-9]+)\.(?P<patch>[0-9]+)\+(?P<build>[0-9]{8})")


class PythonUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A Python release that is newer than the release in a base.

    Versions have the form "3.12.16+20261110".
    """

    version: str
    newest: str
    archives: dict[Arch, str]
    sha256: dict[Arch, Sha256]

    @property
    def built(self) -> datetime.date:
        """The date of the build of the newer release."""
        return _day(self.newest.partition("+")[2])


class _ReleaseArtifact(msgspec.Struct, frozen=True):
    platform: str
    variant: str
    url: str
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")] | None = None


class _ReleaseEntry(msgspec.Struct, frozen=True):
    version: str
    artifacts: tuple[_ReleaseArtifact, ...]


class _BaseArchive(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    python: str
    patch: int
    build: str
    platform: str
    variant: str

    @property
    def version(self) -> str:
        return f"{self.python}.{self.patch}+{self.build}"


def find_newer_release(
    source: StandalonePython, context: Context, before: datetime.date | None = None
) -> PythonUpdate | None:
    """Return the newest release of the same Python minor version for all architectures of `source`.

    Return None if no newer release was built before the date `before`. Raises InputError if the
    file name of an archive of `source` does not have the publisher's format, and FetchFailed if the
    list cannot be read.
    """
    present = {arch: _archive(url) for arch, url in source.archives.items()}
    place = source.releases or LIST
    http = HttpClient(offline=context.http.offline, attempts=1)  # nothing waits for it
    request = Request(place, {"Accept": "application/x-ndjson, */*"})
    return http.retry_request(
        request,
        lambda response: _newest_release(present, _releases(response, http, place), place, before),
    )


def _newest_release(
    present: dict[Arch, _BaseArchive],
    releases: Iterator[_ReleaseEntry],
    place: str,
    before: datetime.date | None,
) -> PythonUpdate | None:
    oldest = min(present.values(), key=lambda archive: (archive.patch, archive.build))
    for release in releases:
        match = _VERSION.fullmatch(release.version)
        if match is None or match["python"] != oldest.python:
            continue  # a pre-release, or another Python
        if (int(match["patch"]), match["build"]) <= (oldest.patch, oldest.build):
            return None
        if before is not None and _day(match["build"]) >= before:
            continue
        chosen = {arch: _same_kind(release, each, place) for arch, each in present.items()}
        fitting = {arch: each for arch, each in chosen.items() if each is not None}
        if len(fitting) == len(present):
            return PythonUpdate(
                version=oldest.version,
                newest=release.version,
                archives={
                    arch: _url(present[arch], each, match["build"])
                    for arch, each in fitting.items()
                },
                sha256={arch: each.sha256 or "" for arch, each in fitting.items()},
            )
    return None


def _archive(url: str) -> _BaseArchive:
    name = unquote(urlsplit(url).path.rpartition("/")[2])
    match = _NAME.fullmatch(name)
    if match is None:
        message = f"{name!r} is not a file name of a python-build-standalone archive"
        hint = f"use a name such as {EXAMPLE}"
        raise InputError(message, hint=hint)
    return _BaseArchive(
        url=url,
        python=match["python"],
        patch=int(match["patch"]),
        build=match["build"],
        platform=match["platform"],
        variant=match["variant"],
    )


def _day(build: str) -> datetime.date:
    """Parse the date of a build, such as 20261110. Return date.min if it is invalid."""
    try:
        return datetime.date(int(build[:4]), int(build[4:6]), int(build[6:8]))
    except ValueError:
        return datetime.date.min


def _same_kind(
    release: _ReleaseEntry, present: _BaseArchive, place: str
) -> _ReleaseArtifact | None:
    """Find the archive in `release` with the platform and type of `present` and a SHA-256 hash.

    Raises FetchFailed if the URL is not the URL of this archive.
    """
    for artifact in release.artifacts:
        kind = (artifact.platform, artifact.variant)
        if kind != (present.platform, present.variant) or not artifact.sha256:
            continue
        named = f"cpython-{release.version}-{present.platform}-{present.variant}.tar.gz"
        name = unquote(artifact.url.rpartition("/")[2])
        if re.fullmatch(ARCHIVE_URL, artifact.url) is None or name != named:
            message = f"{redact_url(place)}: {artifact.url[:200]!r} is not a URL of {named}"
            raise FetchFailed(message, hint=NONSENSE)
        return artifact
    return None


def _url(present: _BaseArchive, newer_one: _ReleaseArtifact, build: str) -> str:
    """Return the URL of a newer archive, on the same server as `present` if possible."""
    folder = present.url.rpartition("/")[0]
    above, _, last = folder.rpartition("/")
    name = unquote(newer_one.url.rpartition("/")[2])
    return f"{above}/{build}/{quote(name, safe='')}" if last == present.build else newer_one.url


def _releases(response: Response, http: HttpClient, place: str) -> Iterator[_ReleaseEntry]:
    rest, size, number = b"", 0, 0
    for chunk in http.chunks(response, decode=True):
        size += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        if size > LIMIT or len(rest) > LINE:
            message = (
                f"{redact_url(place)} is longer than {LIMIT} bytes, or has a line of more than"
                f" {LINE}"
                " bytes"
            )
            raise FetchFailed(message, hint=NONSENSE)
        for line in lines:
            number += 1
            yield from _release(line, f"{redact_url(place)}, line {number}")
    yield from _release(rest, f"{redact_url(place)}, line {number + 1}")


def _release(line: bytes, place: str) -> Iterator[_ReleaseEntry]:
    if line.strip():
        yield codec.decode(line, _ReleaseEntry, file=place, what=LIST_KIND, hint=NONSENSE)
