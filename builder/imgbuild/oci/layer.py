"""Writes layers as gzipped tars, and copies deflate streams from wheels unchanged.

A gzip file can have several members, so the blob consists of runs:

- a *stored* run: tar headers, padding and small contents in stored deflate blocks;
- a *spliced* member: the deflate stream of a file in a wheel, after a gzip header of ten bytes and
  before the CRC and size from the zip directory;
- a *packed* run: headers and contents of members with `pack`, compressed by libdeflate in pieces
  of a fixed size.

The runs depend only on the members. A change to these bytes requires new format numbers in
`plan/plan.py`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from typing import BinaryIO

import deflate
import msgspec
from isal import isal_zlib

from imgbuild.errors import IntegrityError
from imgbuild.oci.content import CHUNK, DeflateInflater, FileReader, content_pieces
from imgbuild.oci.tar import (
    END,
    FileSlice,
    LayerMember,
    MemberKind,
    member_header,
    padding_size,
    sort_key,
)
from imgbuild.values import Bytes, Digest

GZIP_HEADER = bytes((0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255))  # no name, no time, unknown system
STORED_LIMIT = 0xFFFF
PACK_RUN = 4 << 20
PACK_LEVEL = 6
# The overhead of a spliced member: a gzip header and trailer, and a header, trailer and block
# header for the stored run after it.
SPLICE_COST = 18 + 18 + 5


class LayerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A written layer: the blob's digest and size, and the tar's digest (diff ID) and size."""

    digest: Digest
    size: Bytes
    diff_id: Digest
    unpacked: Bytes


def write_layer(
    members: Iterable[LayerMember],
    sink: BinaryIO | None,
    *,
    diff_id: str | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> LayerRecord:
    """Write `members`, in any order, as a layer to `sink`.

    If `sink` is None, only digests are computed. Missing parent folders are added (0755, root).
    Members are sorted by the bytes of their path. A given `diff_id` is trusted, and spliced
    contents are copied without inflating them. Without a `diff_id`, they are inflated and checked.
    `advance` is called with the size of each piece of the blob. Raises IntegrityError for
    conflicting paths and for contents with a wrong size or CRC.
    """
    with FileReader() as files:
        blob = _LayerWriter(sink, hashing=diff_id is None, advance=advance)
        for member in _order_members(members):
            blob.add(member_header(member), pack=_is_packed(member))
            if member.kind is MemberKind.FILE and member.size:
                _add_content(blob, member, files)
        blob.add(END, pack=None)
        return blob.close(diff_id)


def _is_packed(member: LayerMember) -> bool | None:
    """Return whether the header belongs in a packed run, or None for the current run."""
    return member.pack if member.kind is MemberKind.FILE else None


def _add_content(blob: _LayerWriter, member: LayerMember, files: FileReader) -> None:
    content = member.content
    if content is None:
        message = f"{member.path} has a size of {member.size} bytes but no content"
        raise IntegrityError(message, hint="this is a bug in imgbuild; please report it")
    if isinstance(content, FileSlice) and (
        content.deflated and member.size > content.length + SPLICE_COST
    ):
        blob.splice_stream(content, member, files)
    else:
        for piece in content_pieces(content, member.size, member.path, files):
            blob.add(piece, pack=member.pack)
    blob.add(bytes(padding_size(member.size)), pack=None)


def _order_members(members: Iterable[LayerMember]) -> list[LayerMember]:
    """Sort `members` and their parent folders. Raises IntegrityError for conflicting paths."""
    by_path: dict[str, LayerMember] = {}
    for member in members:
        if member.path in by_path:
            message = f"{member.path} appears twice in the layer"
            raise IntegrityError(
                message, hint="exclude the file from one of the packages, with `drop`"
            )
        by_path[member.path] = member
    for path in list(by_path):
        parent = path.rpartition("/")[0]
        while parent:
            there = by_path.get(parent)
            if there is None:
                by_path[parent] = LayerMember(path=parent, kind=MemberKind.FOLDER, mode=0o755)
            elif there.kind is not MemberKind.FOLDER:
                message = f"{parent} is a {there.kind}, but {path} requires a folder with this name"
                raise IntegrityError(message, hint="exclude one of these paths, with `drop`")
            else:
                break
            parent = parent.rpartition("/")[0]
    ordered = sorted(by_path.values(), key=sort_key)
    _check_links(ordered)
    return ordered


def _check_links(ordered: list[LayerMember]) -> None:
    seen: set[str] = set()
    for member in ordered:
        if member.kind is MemberKind.FILE:
            seen.add(member.path)
        elif member.kind is MemberKind.HARD and member.target not in seen:
            message = f"{member.path} is a hard link to {member.target}, which is not in the layer"
            raise IntegrityError(message, hint="this is a bug in imgbuild; please report it")


class _LayerWriter:
    def __init__(
        self, sink: BinaryIO | None, *, hashing: bool, advance: Callable[[int], None]
    ) -> None:
        self._sink = sink
        self._advance = advance
        self._blob_hash = hashlib.sha256()
        self._tar_hash = hashlib.sha256() if hashing else None
        self._blob_size = 0
        self._tar_size = 0
        self._out = bytearray()  # bytes of the blob not yet written
        self._plain = bytearray()  # tar bytes not yet hashed
        self._run = bytearray()  # tar bytes of the open run not yet turned into deflate blocks
        self._run_pack = False
        self._run_open = False
        self._run_size = 0
        self._run_crc = 0

    def add(self, data: bytes, *, pack: bool | None) -> None:
        """Add tar bytes to a packed run, a stored run or, if `pack` is None, the current run."""
        if not data:
            return
        if pack is not None and pack is not self._run_pack:
            self._end_run()
            self._run_pack = pack
        self._hash_tar(data)
        self._run += data
        if self._run_pack:
            while len(self._run) >= PACK_RUN:
                self._pack_data(self._run[:PACK_RUN])
                del self._run[:PACK_RUN]
        elif len(self._run) > STORED_LIMIT:
            self._store_blocks(final=False)

    def splice_stream(self, content: FileSlice, member: LayerMember, files: FileReader) -> None:
        """Add a deflate stream as a gzip member. The stream is inflated only to hash the tar."""
        self._end_run()
        self._write_bytes(GZIP_HEADER)
        if self._tar_hash is None:
            self._tar_size += member.size
            for chunk in files.chunks(content):
                self._write_bytes(chunk)
        else:
            inflater = DeflateInflater(member.path, member.size, content.crc)
            for chunk in files.chunks(content):
                self._write_bytes(chunk)
                for piece in inflater.inflate(chunk):
                    self._hash_tar(piece)
            inflater.finish()
        self._write_bytes(struct.pack("<II", content.crc, member.size & 0xFFFFFFFF))

    def close(self, diff_id: str | None) -> LayerRecord:
        self._end_run()
        self._flush_runs()
        if self._tar_hash is not None:
            self._tar_hash.update(self._plain)
            diff_id = f"sha256:{self._tar_hash.hexdigest()}"
        return LayerRecord(
            digest=f"sha256:{self._blob_hash.hexdigest()}",
            size=self._blob_size,
            diff_id=diff_id or "",
            unpacked=self._tar_size,
        )

    def _hash_tar(self, data: bytes) -> None:
        self._tar_size += len(data)
        if self._tar_hash is None:
            return
        if len(data) >= CHUNK // 4:  # hash large pieces without copying, collect small ones
            self._tar_hash.update(self._plain)
            self._plain.clear()
            self._tar_hash.update(data)
            return
        self._plain += data
        if len(self._plain) >= CHUNK:
            self._tar_hash.update(self._plain)
            self._plain.clear()

    def _write_bytes(self, data: bytes | bytearray | memoryview) -> None:
        self._out += data
        if len(self._out) >= CHUNK:
            self._flush_runs()

    def _flush_runs(self) -> None:
        self._blob_hash.update(self._out)
        self._blob_size += len(self._out)
        if self._sink is not None:
            self._sink.write(self._out)
        self._advance(len(self._out))
        self._out = bytearray()

    def _end_run(self) -> None:
        if self._run_pack:
            if self._run:
                self._pack_data(self._run)
        elif self._run_open or self._run:
            self._store_blocks(final=True)
        self._run.clear()

    def _pack_data(self, data: bytearray) -> None:
        self._write_bytes(GZIP_HEADER)
        self._write_bytes(deflate.deflate_compress(bytes(data), PACK_LEVEL))
        self._write_bytes(struct.pack("<II", isal_zlib.crc32(data), len(data)))

    def _store_blocks(self, *, final: bool) -> None:
        """Write the collected bytes in blocks of `STORED_LIMIT`.

        If `final`, end the gzip member.
        """
        if not self._run_open:
            self._write_bytes(GZIP_HEADER)
            self._run_open = True
            self._run_size = self._run_crc = 0
        start = 0
        with memoryview(self._run) as run:
            while len(run) - start > STORED_LIMIT:
                self._write_bytes(b"\0\xff\xff\0\0")
                self._write_bytes(run[start : start + STORED_LIMIT])
                start += STORED_LIMIT
            if final:
                length = len(run) - start
                self._write_bytes(struct.pack("<BHH", 1, length, length ^ 0xFFFF))
                self._write_bytes(run[start:])
                start = len(run)
            self._run_crc = isal_zlib.crc32(run[:start], self._run_crc)
        self._run_size += start
        del self._run[:start]
        if final:
            self._write_bytes(struct.pack("<II", self._run_crc, self._run_size & 0xFFFFFFFF))
            self._run_open = False
