"""Reads METADATA of a wheel on an index without downloading the wheel.

METADATA is read from the index's metadata file (PEP 658) or, if there is none, from the wheel with
HTTP range requests, and is cached by the SHA-256 of the wheel. If a server ignores ranges, the
whole wheel is downloaded, but only the end is kept in memory.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.index.pages import IndexFile
from imgbuild.lock.resolution import LockedFile, Wheel
from imgbuild.values import Sha256, sha256
from imgbuild.wheel.metadata import read_metadata

# The last kilobytes of a wheel contain its directory and, since dist-info is usually last, METADATA
# too.
TAIL = 64 * 1024
FACT = "metadata"
LOCKED_PREFIX = "locked:"  # prefix of the URL of a wheel identified by its hash
ByteString = bytes  # inside Blocks, `bytes` is the method


class RangeClient(Protocol):
    """The methods of `http.client.HttpClient` that read ranges of files."""

    def fetch_part(self, url: str, start: int, length: int) -> bytes:
        """Read `length` bytes of the file from offset `start`."""

    def part_end(self, url: str, length: int) -> tuple[bytes, int]:
        """Read the last `length` bytes, and return them with the size of the file."""

    def fetch_bytes(self, url: str) -> bytes:
        """Read the whole file."""

    def hash_remote_file(self, url: str) -> tuple[str, int]:
        """Compute the SHA-256 (in hex) and the size of the file."""


class FactStore(Protocol):
    """The methods of `store.Store` for facts."""

    def fact(self, kind: str, key: str) -> bytes | None:
        """Return the data stored under `kind` and `key`, or None."""

    def put_fact(self, kind: str, key: str, data: bytes) -> None:
        """Store `data` under `kind` and `key`."""


class BlockCache:
    """A `RangeClient` that fetches whole blocks, and keeps the last block for adjacent reads."""

    def __init__(self, http: RangeClient, *, block: int = 1 << 19, limit: int = 256) -> None:
        self._http = http
        self._block = block
        self._limit = limit
        self._sizes: dict[str, int] = {}
        self._kept: OrderedDict[tuple[str, int], ByteString] = OrderedDict()
        self._lock = threading.Lock()

    def fetch_part(self, url: str, start: int, length: int) -> ByteString:
        """Read `length` bytes of the file from offset `start`."""
        size = self._sizes.get(url)
        if size is None or start + length > size:
            return self._http.fetch_part(url, start, length)
        first, last = start // self._block, (start + length - 1) // self._block
        missing = [at for at in range(first, last + 1) if (url, at) not in self._kept]
        if missing:
            begin = missing[0] * self._block
            end = min(size, (missing[-1] + 1) * self._block)
            data = self._http.fetch_part(url, begin, end - begin)
            self._keep_block(url, missing[0], data)
        with self._lock:
            blocks = [self._kept.get((url, at), b"") for at in range(first, last + 1)]
        if not all(blocks):  # more than is kept, or other threads were faster
            return self._http.fetch_part(url, start, length)
        whole = b"".join(blocks)
        skip = start - first * self._block
        return whole[skip : skip + length]

    def part_end(self, url: str, length: int) -> tuple[ByteString, int]:
        """Read the last `length` bytes, and return them with the size of the file."""
        data, size = self._http.part_end(url, length)
        self._sizes[url] = size
        return data, size

    def fetch_bytes(self, url: str) -> ByteString:
        """Read the whole file."""
        return self._http.fetch_bytes(url)

    def hash_remote_file(self, url: str) -> tuple[str, int]:
        """Compute the SHA-256 (in hex) and the size of the file."""
        return self._http.hash_remote_file(url)

    def _keep_block(self, url: str, first: int, data: ByteString) -> None:
        with self._lock:
            for at in range(0, len(data), self._block):
                key = (url, first + at // self._block)
                self._kept[key] = data[at : at + self._block]
                self._kept.move_to_end(key)
            while len(self._kept) > self._limit:
                self._kept.popitem(last=False)


class ResolvedAddresses:
    """A `RangeClient` that looks up URLs of the form `LOCKED_PREFIX` + hash on the first read."""

    def __init__(self, http: RangeClient, look_up: Callable[[Sha256], str]) -> None:
        self._http = http
        self._look_up = look_up
        self._addresses: dict[str, str] = {}
        self._turn = threading.RLock()

    def fetch_part(self, url: str, start: int, length: int) -> ByteString:
        """Read `length` bytes of the file from offset `start`."""
        return self._http.fetch_part(self._address(url), start, length)

    def part_end(self, url: str, length: int) -> tuple[ByteString, int]:
        """Read the last `length` bytes, and return them with the size of the file."""
        return self._http.part_end(self._address(url), length)

    def fetch_bytes(self, url: str) -> ByteString:
        """Read the whole file."""
        return self._http.fetch_bytes(self._address(url))

    def hash_remote_file(self, url: str) -> tuple[str, int]:
        """Compute the SHA-256 (in hex) and the size of the file."""
        return self._http.hash_remote_file(self._address(url))

    def _address(self, url: str) -> str:
        if not url.startswith(LOCKED_PREFIX):
            return url
        with self._turn:
            if url not in self._addresses:
                self._addresses[url] = self._look_up(url.removeprefix(LOCKED_PREFIX))
            return self._addresses[url]


class RemoteFile(io.RawIOBase):
    """A readable and seekable file on a server. Fetched ranges are kept in memory."""

    def __init__(self, url: str, http: RangeClient) -> None:
        super().__init__()
        self._url = url
        self._http = http
        self._tail, self.size = http.part_end(url, TAIL)
        self._position = 0

    def readable(self) -> bool:
        """Return True: the file can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: the position can be changed."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position, and return the new position in bytes."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with the next bytes, and return their number."""
        start, length = self._position, min(len(buffer), self.size - self._position)
        if length <= 0:
            return 0
        cached_from = self.size - len(self._tail)
        if start >= cached_from:
            data = self._tail[start - cached_from :][:length]
        else:
            data = self._http.fetch_part(self._url, start, length)
        buffer[:length] = data
        self._position += length
        return length


def read_wheel_metadata(file: IndexFile, http: RangeClient, facts: FactStore) -> bytes:
    """Read METADATA of the wheel `file`.

    Raises FetchFailed if METADATA cannot be fetched, and IntegrityError if it does not match the
    index.
    """
    if file.sha256 and (cached := facts.fact(FACT, file.sha256)) is not None:
        return cached
    data = _metadata_file(file, http) if file.metadata else None
    if data is None:
        data = read_metadata(io.BufferedReader(RemoteFile(file.url, http), 1 << 16), file.name)
    if file.sha256:
        facts.put_fact(FACT, file.sha256, data)
    return data


def _metadata_file(file: IndexFile, http: RangeClient) -> bytes | None:
    with contextlib.suppress(FetchFailed):  # announced, but not served: read it from the wheel
        data = http.fetch_bytes(f"{file.url}.metadata")
        if file.metadata_sha256 and sha256(data) != file.metadata_sha256:
            message = f"{file.name}.metadata does not match the index: sha256 {sha256(data)}"
            raise IntegrityError(message, hint=f"the index lists sha256 {file.metadata_sha256}")
        return data
    return None


def lock_file(file: IndexFile, http: RangeClient) -> LockedFile:
    """Convert `file` to a locked file.

    Values that the index does not list are requested from the server or computed.
    """
    digest, size = file.sha256, file.size
    if digest is None:
        digest, size = http.hash_remote_file(file.url)
    elif size is None:
        size = http.part_end(file.url, 1)[1]
    return LockedFile(file=file.name, size=size, sha256=digest)


def lock_wheel(package: str, version: str, index: str, file: IndexFile, http: RangeClient) -> Wheel:
    """Convert `file` to a locked wheel of `package`. `index` is the name of the index."""
    locked = lock_file(file, http)
    return Wheel(
        package=package,
        version=version,
        index=index,
        file=locked.file,
        size=locked.size,
        sha256=locked.sha256,
    )
