"""Reads individual members of a wheel from a file or a server.

A server transfers only the central directory of the zip file and the requested members. Adjacent
members are transferred in one request. The Python code of a 400 MB wheel takes a few megabytes. The
CRC of every member is checked.
"""

from __future__ import annotations

import bisect
import io
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from imgbuild.errors import IntegrityError
from imgbuild.index.remote_wheel import RangeClient, RemoteFile
from imgbuild.oci.content import CHUNK, ContentChecker, DeflateInflater, FileReader
from imgbuild.system.boundary import open_regular, reads_untrusted
from imgbuild.system.threads import run_for_each
from imgbuild.wheel.zipformat import DEFLATED, LOCAL_STRUCT, STORED, refuse_wheel

GAP = (
    256 * 1024
)  # a gap of fewer bytes between two members is cheaper to read than a second request
LONGEST_REQUEST = 4 << 20  # bytes in one request, so that threads share the work
THREADS = 4
LIMIT = 64 << 20  # bytes of a member that is read whole


class WheelMember(msgspec.Struct, frozen=True, array_like=True):
    """A file in a zip archive.

    `start` is the offset of its local header, and `end` the offset of the next header.
    """

    start: int
    end: int
    compressed: int
    size: int
    crc: int
    method: int


class WheelContent(Protocol):
    """A wheel whose members can be read."""

    label: str
    path: Path | None

    def members(self) -> Mapping[str, WheelMember]:
        """Return all members by name in the zip archive."""

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of the members `names`. Missing members are omitted."""

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content of a member in pieces, while checking it."""


class LocalContent:
    """A wheel in a local file."""

    def __init__(self, path: Path, label: str) -> None:
        self.path: Path | None = path
        self.label = label
        self._path = path
        self._members: dict[str, WheelMember] | None = None

    def members(self) -> Mapping[str, WheelMember]:
        """Return all members by name in the zip archive.

        Raises IntegrityError if the file is not a zip file.
        """
        if self._members is None:
            try:
                with open(self._path, "rb", opener=open_regular) as file:
                    self._members = _directory(file, self.label)
            except OSError as error:
                message = f"cannot read {self._path}: {error.strerror}"
                raise IntegrityError(message, hint="check that the file exists") from error
        return self._members

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of the members `names`. Missing members are omitted."""
        members = self.members()
        return {name: self._read_whole(name) for name in names if name in members}

    def _read_whole(self, name: str) -> bytes:
        if (size := self.members()[name].size) > LIMIT:
            refuse_wheel(self.label, name, f"is too large to read into memory ({size} bytes)")
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content of a member in pieces, while checking it."""
        member = self.members()[name]
        with FileReader() as files:

            def _stored() -> Iterator[bytes]:
                head = files.read(self._path, member.start, LOCAL_STRUCT.size)
                at = member.start + _header(head, self.label, name)
                for begin in range(at, at + member.compressed, CHUNK):
                    length = min(CHUNK, at + member.compressed - begin)
                    yield files.read(self._path, begin, length)

            yield from _inflate_member(_stored(), member, f"{self.label}: {name!r}")


class RemoteContent:
    """A wheel on a server. Not thread-safe, although it uses threads."""

    def __init__(self, url: str, label: str, http: RangeClient) -> None:
        self.path: Path | None = None
        self.label = label
        self._url = url
        self._http = http
        self._members: dict[str, WheelMember] | None = None

    def members(self) -> Mapping[str, WheelMember]:
        """Return all members by name in the zip archive.

        Raises FetchFailed, or IntegrityError if the file is not a zip file.
        """
        if self._members is None:
            file = RemoteFile(self._url, self._http)
            self._members = _directory(io.BufferedReader(file, 1 << 16), self.label)
        return self._members

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of the members `names`. Missing members are omitted."""
        members = self.members()
        requested = sorted(
            {name: members[name] for name in names if name in members}.items(),
            key=lambda item: item[1].start,
        )
        groups = group_members(requested)
        contents = run_for_each(groups, lambda group, _: self._group(group), threads=THREADS)
        return dict(pair for pairs in contents for pair in pairs)

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content of a member, fetched in one request."""
        yield self.read([name])[name]

    def _group(self, group: Sequence[tuple[str, WheelMember]]) -> list[tuple[str, bytes]]:
        start, end = group[0][1].start, group[-1][1].end
        if end - start > LIMIT:
            refuse_wheel(
                self.label, group[0][0], f"is too large to read into memory ({end - start} bytes)"
            )
        data = memoryview(self._http.fetch_part(self._url, start, end - start))
        contents = []
        for name, member in group:
            where = f"{self.label}: {name!r}"
            if member.size > LIMIT:
                refuse_wheel(
                    self.label, name, f"is too large to read into memory ({member.size} bytes)"
                )
            at = member.start - start
            at += _header(bytes(data[at : at + LOCAL_STRUCT.size]), self.label, name)
            body = bytes(data[at : at + member.compressed])
            contents.append((name, b"".join(_inflate_member(iter([body]), member, where))))
        return contents


def group_members(
    members: Sequence[tuple[str, WheelMember]],
) -> list[list[tuple[str, WheelMember]]]:
    """Return the members in the order of the file, grouped into requests."""
    groups: list[list[tuple[str, WheelMember]]] = []
    for name, member in members:
        if groups:
            first, last = groups[-1][0][1], groups[-1][-1][1]
            if member.start - last.end <= GAP and member.end - first.start <= LONGEST_REQUEST:
                groups[-1].append((name, member))
                continue
        groups.append([(name, member)])
    return groups


@reads_untrusted("label")
def _directory(file: io.BufferedReader, label: str) -> dict[str, WheelMember]:
    try:
        with zipfile.ZipFile(file) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
            end: int = archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, struct.error) as error:
        message = f"{label} is not a readable wheel: {error}"
        raise IntegrityError(message) from error
    infos.sort(key=lambda info: info.header_offset)
    ends = [*(info.header_offset for info in infos[1:]), end]
    return {
        info.filename: WheelMember(
            start=info.header_offset,
            end=stop,
            compressed=info.compress_size,
            size=info.file_size,
            crc=info.CRC,
            method=info.compress_type,
        )
        for info, stop in zip(infos, ends, strict=True)
    }


def _header(head: bytes, label: str, name: str) -> int:
    if len(head) < LOCAL_STRUCT.size or head[:4] != b"PK\3\4":
        refuse_wheel(label, name, "no local header at the offset listed in the directory")
    *_, name_length, extra_length = LOCAL_STRUCT.unpack(head)
    return int(LOCAL_STRUCT.size + name_length + extra_length)


def _inflate_member(data: Iterator[bytes], member: WheelMember, where: str) -> Iterator[bytes]:
    if member.method not in (STORED, DEFLATED):
        message = f"{where} uses compression method {member.method}; supported are 0 and 8"
        raise IntegrityError(message)
    if member.method == DEFLATED:
        inflater = DeflateInflater(where, member.size, member.crc)
        for piece in data:
            yield from inflater.inflate(piece)
        inflater.finish()
        return
    checker = ContentChecker(where, member.size, member.crc)
    for piece in data:
        yield checker.add_piece(piece)
    checker.finish()


class SearchText(msgspec.Struct, frozen=True):
    """The sources of many modules in one string, for fast text search.

    `ends` contains the offset in `source` at which each of `modules` ends.
    """

    modules: tuple[str, ...]
    ends: tuple[int, ...]
    source: bytes

    def modules_containing(self, word: bytes) -> tuple[str, ...]:
        """Return the modules whose source contains `word`."""
        modules = []
        at = self.source.find(word)
        while at >= 0:
            place = bisect.bisect_right(self.ends, at)
            if at + len(word) <= self.ends[place]:
                modules.append(self.modules[place])
                at = self.ends[place] - 1
            at = self.source.find(word, at + 1)
        return tuple(dict.fromkeys(modules))
