"""Compares the local headers of a zip with its central directory."""

from __future__ import annotations

import struct
from pathlib import Path

from imgbuild.oci.content import Files
from imgbuild.wheel.zipformat import (
    DESCRIPTOR,
    FULL32,
    LOCAL,
    DirectoryEntry,
    ZipMember,
    extra_fields,
    refuse,
    wide_values,
)


def check_local(files: Files, path: Path, record: DirectoryEntry, limit: int, label: str) -> int:
    """The offset of the data of `record`; IntegrityError if its local header does not agree.

    The member must end exactly at `limit`, where the next one or the directory starts.
    """
    member, name = record.member, record.member.name
    fixed_end = record.start + LOCAL.size
    if fixed_end + len(record.raw_name) > limit:
        refuse(label, name, f"its local header at byte {record.start} overlaps what follows")
    head = files.read(path, record.start, LOCAL.size + len(record.raw_name))
    signature, _, flags, method, _, _, crc, compressed, size, name_length, extra_length = (
        LOCAL.unpack_from(head)
    )
    if signature != b"PK\3\4":
        refuse(label, name, f"no local header at byte {record.start}")
    if name_length != len(record.raw_name) or head[LOCAL.size :] != record.raw_name:
        refuse(label, name, "its local header has another name")
    if flags != record.flags or method != member.method:
        refuse(label, name, "its local header has another compression method or other flags")
    extra_at = fixed_end + name_length
    offset: int = extra_at + extra_length
    if offset + member.compressed > limit:
        refuse(label, name, f"its data overlap what starts at byte {limit}")
    extra = extra_fields(files.read(path, extra_at, extra_length), label, name)
    if FULL32 in (size, compressed):
        size, compressed = wide_values(extra, (size, compressed), label, name)
    stated = (crc, compressed, size)
    true = (member.crc, member.compressed, member.size)
    if flags & DESCRIPTOR:
        # Writers that stream leave zeros here and write the values after the data.
        if any(value not in (0, right) for value, right in zip(stated, true, strict=True)):
            refuse(label, name, "its local header disagrees with the directory")
        _check_descriptor(files, path, member, offset + member.compressed, limit, label)
    elif stated != true:
        refuse(label, name, "its local header disagrees with the directory about CRC or sizes")
    elif offset + member.compressed != limit:
        what = f"unexpected bytes {offset + member.compressed} to {limit} after its data"
        refuse(label, name, what)
    return offset


def _check_descriptor(
    files: Files, path: Path, member: ZipMember, start: int, limit: int, label: str
) -> None:
    """Check that a data descriptor, in one of the four forms in use, fills the gap to `limit`."""
    sizes = (member.crc, member.compressed, member.size)
    if limit - start not in (12, 16, 20, 24):
        refuse(label, member.name, f"no data descriptor between bytes {start} and {limit}")
    data = files.read(path, start, limit - start)
    forms = []
    for layout in ("<LLL", "<LQQ"):
        if layout == "<LQQ" or max(sizes) <= FULL32:
            body = struct.pack(layout, *sizes)
            forms += [body, b"PK\7\x08" + body]
    if data not in forms:
        refuse(label, member.name, "its data descriptor disagrees with the directory")
