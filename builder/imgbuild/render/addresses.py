"""Looks up the current URLs of a lock's wheels and sdists for rendered files."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterable

from imgbuild.assemble import sources
from imgbuild.errors import FetchFailed, InputError
from imgbuild.http.client import HttpClient
from imgbuild.lock.addresses import GIT
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import LockedFile
from imgbuild.matrix.model import Matrix
from imgbuild.system.threads import run_for_each

READERS = 16
Addresses = Callable[[str, LockedFile], str]

_FOLDER_HINT = (
    "use a format that includes the wheels, for example a Dockerfile rendered without --online"
)


def address_lookup(
    lock: Lock, matrix: Matrix, http: HttpClient, packages: Iterable[str] = ()
) -> Addresses:
    """Return a function that looks up the URL of a locked file.

    The URL contains no password. The pages of `packages` are requested immediately, and other pages
    when needed. Raises FetchFailed if the file was removed from the index, and InputError for a
    file in a folder.
    """
    indexes = sources.open_indexes(lock, matrix, http)
    run_for_each(sorted(set(packages)), lambda package, _: indexes.files(package), threads=READERS)

    def _address(package: str, locked: LockedFile) -> str:
        urls = indexes.file_urls(package, locked)
        if not urls:
            place = indexes.place(package)
            message = f"{locked.file} is no longer on the index {place.name}"
            raise FetchFailed(
                message, hint="use imgbuild build, which works if the file is in the cache"
            )
        return _public_address(urls[0], locked)

    return _address


def _public_address(url: str, locked: LockedFile) -> str:
    parts = urllib.parse.urlsplit(url)
    if url.startswith(GIT):
        message = f"{locked.file} is built from {url}, so it cannot be downloaded"
        raise InputError(message, hint=_FOLDER_HINT)
    if parts.scheme not in ("http", "https"):
        message = f"{locked.file} is in a local folder, which other machines cannot access"
        raise InputError(message, hint=_FOLDER_HINT)
    host = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit(parts._replace(netloc=host, fragment=""))
