"""Fetches and checks the archive of a base's standalone Python."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from imgbuild.cache.context import Context
from imgbuild.cache.download import FileRequest, download_unlocked, fetch_all
from imgbuild.cpython import python_archive
from imgbuild.cpython.python_archive import StandaloneBuild
from imgbuild.errors import FetchFailed, InputError, IntegrityError
from imgbuild.lock.resolution import PythonArchive
from imgbuild.matrix.model import DebianBase, StandalonePython
from imgbuild.system import decoding
from imgbuild.values import Arch, Sha256

COPY_REMEDY = (
    "add a copy of the archive on another server to `archives` of the base (see "
    "docs/howto/python-version.md)"
)
FACT, PLACE = "python-archive-2", "python-archive-url"  # the former by sha256, the latter by URL
REPLACED_REMEDY = (
    "the file was replaced, or the sha256 in matrix.yaml belongs to another file; compare the "
    "sha256 with the checksums of the release"
)


def fetch_archive(source: StandalonePython, arch: Arch, context: Context) -> PythonArchive:
    """Fetch the archive of `source` for `arch` into the store.

    If no sha256 is given, the URL is downloaded once for each cache. Raises InputError if `arch`
    has no URL, FetchFailed if the archive cannot be fetched, and IntegrityError if its sha256
    differs from the matrix or `python_archive.describe_archive` rejects it.
    """
    url = source.archives.get(arch)
    if url is None:
        message = f"the base has no archive of Python {source.version} for {arch}"
        raise InputError(
            message, hint=f"add an archive to `archives`, or remove {arch} from `arch`"
        )
    path, name = _stored_archive(source, arch, url, context), file_name(url)
    if path is None:
        try:
            locked = download_unlocked(url, name, context)
        except FetchFailed as error:
            hint = f"{error.hint}; or {COPY_REMEDY}" if error.hint else COPY_REMEDY
            raise FetchFailed(error.message, hint=hint) from error
        expected = source.sha256.get(arch, locked.sha256)
        if locked.sha256 != expected:
            message = f"{url} has sha256 {locked.sha256}, but the matrix has {expected}"
            raise IntegrityError(message, hint=REPLACED_REMEDY)
        context.store.put_fact(PLACE, url, locked.sha256.encode())
        path = context.store.file(locked.sha256)
    if path is None:
        message = f"{name} was removed from the cache while it was in use"
        raise IntegrityError(message, hint="run the same command again")
    size = path.stat().st_size
    if size > python_archive.LARGEST_ARCHIVE:
        message = f"{name} has {size} bytes (limit {python_archive.LARGEST_ARCHIVE})"
        raise IntegrityError(message, hint=python_archive.HINT)
    build = _describe_archive(path, name, source.version, arch, context)
    return PythonArchive(file=name, size=size, sha256=path.name, version=build.version)


def _stored_archive(
    source: StandalonePython, arch: Arch, url: str, context: Context
) -> Path | None:
    """Return the archive with the sha256 that is in the matrix or recorded for the URL."""
    sha256: Sha256 = source.sha256.get(arch, "")
    if not sha256:
        fact = context.store.fact(PLACE, url)
        sha256 = fact.decode() if fact is not None else ""
    return context.store.file(sha256) if sha256 else None


def _describe_archive(
    path: Path, name: str, python: str, arch: Arch, context: Context
) -> StandaloneBuild:
    key = f"{path.name} {python} {arch}"
    stored = context.store.fact(FACT, key)
    if stored is not None:
        return decoding.decode_json(stored, StandaloneBuild)
    build = python_archive.describe_archive(path, name, python=python, arch=arch)
    context.store.put_fact(FACT, key, msgspec.json.encode(build))
    return build


def file_name(url: str) -> str:
    """Return the file name in `url`, reduced to plain characters."""
    name = unquote(urlsplit(url).path.rpartition("/")[2])
    return re.sub(r"[^A-Za-z0-9._+~-]", "_", name)


def archive_request(locked: PythonArchive, urls: Sequence[str]) -> FileRequest:
    """Return a request for a locked archive at `urls`."""
    hint = (
        "add another URL of the same file under `archives` in matrix.yaml, or fill a mirror on a"
        " machine with access: imgbuild registry mirror push"
    )
    return FileRequest(locked, lambda: urls, hint)


def fetch_locked_archive(
    base: DebianBase, locked: PythonArchive | None, arch: Arch, context: Context
) -> tuple[PythonArchive, Path] | None:
    """Return the archive of `base` and its path, and fetch it if it is not in the store.

    `locked` is the archive in a lock, if known. Return None for a base with Debian's Python. Raises
    the same errors as `fetch_archive` and `fetch_all`.
    """
    source = base.standalone_python
    if source is None:
        return None
    chosen = locked or fetch_archive(source, arch, context)
    wants = [archive_request(chosen, [url for key, url in source.archives.items() if key == arch])]
    return chosen, fetch_all(wants, context, title=f"fetching {chosen.file}")[chosen.sha256]
