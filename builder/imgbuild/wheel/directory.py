"""Reads the directory and local headers of a zip, and rejects ambiguous zips.

Central directory and local headers must agree. A zip is rejected if it has two end records, gaps,
overlaps, data before the first or after the last record, encryption, a compression other than
deflate, or sizes that deflate cannot reach.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import msgspec

from imgbuild.errors import IntegrityError
from imgbuild.oci.content import FileReader
from imgbuild.system.files import require_readable
from imgbuild.wheel.zipformat import (
    CENTRAL,
    DEFLATED,
    DESCRIPTOR,
    END,
    END64,
    FULL16,
    FULL32,
    LOCAL_STRUCT,
    LOCATOR64,
    MAX_RATIO,
    STORED,
    UTF8,
    DirectoryEntry,
    ZipMember,
    extra_fields,
    refuse_wheel,
    wide_values,
)

LEVEL_FLAGS = 0b110  # the compression level of the writer: no meaning for readers
KNOWN_FLAGS = UTF8 | DESCRIPTOR | LEVEL_FLAGS
UNIX_SYSTEMS = (3, 19)  # Unix, macOS


def read_directory(path: Path, label: str) -> tuple[ZipMember, ...]:
    """Return the members of the zip at `path`, in the order of the directory.

    Raises IntegrityError, with `label` as the name of the zip, if the zip is invalid or ambiguous.
    """
    with FileReader() as files:
        with require_readable(path, IntegrityError, hint="check that the file exists"):
            total = path.stat().st_size
        count, size, start = _read_end(files, path, total, label)
        records = _records(files.read(path, start, size), count, label)
        placed: dict[int, ZipMember] = {}
        end = start
        for record in sorted(records, key=lambda record: record.start, reverse=True):
            offset = check_local(files, path, record, end, label)
            placed[record.start] = msgspec.structs.replace(record.member, offset=offset)
            end = record.start
        if end != 0:
            refuse_wheel(label, None, f"{end} unexpected bytes before the first member")
    return tuple(placed[record.start] for record in records)


def _read_end(files: FileReader, path: Path, total: int, label: str) -> tuple[int, int, int]:
    """Return the number of members, and the size and offset of the central directory."""
    tail_size = min(total, END.size + FULL16)
    tail = files.read(path, total - tail_size, tail_size)
    places = (match.start() for match in re.finditer(re.escape(b"PK\5\6"), tail))
    ends = [at for at in places if _reaches_end(tail, at)]
    if not ends:
        refuse_wheel(label, None, "not a zip file: it does not end with an end record")
    if len(ends) > 1 or tail.rfind(b"PK\5\6") != ends[0]:
        refuse_wheel(
            label, None, "has more than one end record, which programs interpret differently"
        )
    at = total - tail_size + ends[0]
    _, disk, first, here, count, size, start, _ = END.unpack_from(tail, ends[0])
    stop = at
    locator = files.read(path, at - LOCATOR64.size, LOCATOR64.size) if at >= LOCATOR64.size else b""
    if locator.startswith(b"PK\6\7"):
        stop, wide = _read_end64(files, path, locator, at, label)
        narrow = (disk, first, here, count, size, start)
        limits = (FULL16, FULL16, FULL16, FULL16, FULL32, FULL32)
        for value, full, value64 in zip(narrow, limits, wide, strict=True):
            if value not in (full, value64):
                refuse_wheel(label, None, "its two end records (zip and zip64) do not match")
        disk, first, here, count, size, start = wide
    elif FULL16 in (count, here) or FULL32 in (size, start):
        refuse_wheel(label, None, "its end record refers to a zip64 record that is missing")
    if disk or first or here != count:
        refuse_wheel(label, None, "is part of a multi-volume zip")
    if start + size != stop:
        what = f"its directory ends at byte {start + size}, but its end record starts at {stop}"
        refuse_wheel(label, None, what)
    return count, size, start


def _reaches_end(tail: bytes, at: int) -> bool:
    if at + END.size > len(tail):
        return False
    comment = struct.unpack_from("<H", tail, at + END.size - 2)[0]
    return bool(at + END.size + comment == len(tail))


def _read_end64(
    files: FileReader, path: Path, locator: bytes, at: int, label: str
) -> tuple[int, tuple[int, ...]]:
    """Return the offset of the zip64 end record, and its six numbers."""
    _, disk, start, disks = LOCATOR64.unpack(locator)
    if disk or disks != 1 or start + END64.size != at - LOCATOR64.size:
        refuse_wheel(label, None, "its zip64 locator does not point to the record before it")
    signature, length, *_, here_disk, first, here, count, size, offset = END64.unpack(
        files.read(path, start, END64.size)
    )
    if signature != b"PK\6\6" or length != END64.size - 12:
        refuse_wheel(label, None, "has an invalid zip64 end record")
    return start, (here_disk, first, here, count, size, offset)


def _records(data: bytes, count: int, label: str) -> list[DirectoryEntry]:
    records: list[DirectoryEntry] = []
    at = 0
    while at < len(data):
        if at + CENTRAL.size > len(data) or data[at : at + 4] != b"PK\1\2":
            refuse_wheel(label, None, f"its directory has no valid entry at byte {at}")
        record, at = _record(data, at, label)
        records.append(record)
    if len(records) != count or at != len(data):
        refuse_wheel(
            label,
            None,
            f"its directory has {len(records)} entries, but its end record lists {count}",
        )
    return records


def _record(data: bytes, at: int, label: str) -> tuple[DirectoryEntry, int]:
    (_, _, system, _, _, flags, method, _, _, crc, compressed, size, name_length, extra_length,
     comment_length, disk, _, external, start) = CENTRAL.unpack_from(data, at)  # fmt: skip
    name_at = at + CENTRAL.size
    extra_at = name_at + name_length
    following = extra_at + extra_length + comment_length
    if following > len(data):
        refuse_wheel(label, None, f"the entry at byte {at} of its directory is truncated")
    raw_name = data[name_at:extra_at]
    name = _name(raw_name, flags, label)
    extra = extra_fields(data[extra_at : extra_at + extra_length], label, name)
    if 0x7075 in extra and extra[0x7075][5:] != raw_name:
        refuse_wheel(label, name, "has a second name, which programs interpret differently")
    if FULL32 in (compressed, size, start):
        size, compressed, start = wide_values(extra, (size, compressed, start), label, name)
    _check_readable(name, flags, method, disk, label)
    _check_sizes(name, method, compressed, size, label)
    mode = external >> 16 if system in UNIX_SYSTEMS else 0
    # `offset` needs the length of the local header, which is read later.
    member = ZipMember(
        name=name, method=method, offset=0, compressed=compressed, size=size, crc=crc, mode=mode
    )
    return DirectoryEntry(member=member, raw_name=raw_name, flags=flags, start=start), following


def _name(raw: bytes, flags: int, label: str) -> str:
    try:
        name = raw.decode("utf-8" if flags & UTF8 else "ascii")
    except UnicodeDecodeError:
        refuse_wheel(label, repr(raw), "its name is not ASCII, and is not marked as UTF-8")
    return name


def _check_readable(name: str, flags: int, method: int, disk: int, label: str) -> None:
    if flags & 1 or flags & (1 << 6) or flags & (1 << 13):
        refuse_wheel(label, name, "is encrypted")
    if flags & ~KNOWN_FLAGS:
        refuse_wheel(label, name, f"has unknown flags ({flags:#06x})")
    if method not in (STORED, DEFLATED):
        refuse_wheel(
            label,
            name,
            f"unsupported compression method {method} (expected 0, stored, or 8, deflate)",
        )
    if disk:
        refuse_wheel(label, name, "is on another volume of the zip")


def _check_sizes(name: str, method: int, compressed: int, size: int, label: str) -> None:
    if method == STORED and compressed != size:
        refuse_wheel(
            label, name, f"is stored, but its sizes differ ({compressed} and {size} bytes)"
        )
    if method == DEFLATED and (compressed == 0 or size > compressed * MAX_RATIO):
        refuse_wheel(
            label, name, f"cannot inflate from {compressed} to {size} bytes (possibly a zip bomb)"
        )


def check_local(
    files: FileReader, path: Path, record: DirectoryEntry, limit: int, label: str
) -> int:
    """Return the offset of the data of `record`.

    The member must end exactly at `limit`, where the next member or the directory starts. Raises
    IntegrityError if the local header contradicts `record`.
    """
    member, name = record.member, record.member.name
    fixed_end = record.start + LOCAL_STRUCT.size
    if fixed_end + len(record.raw_name) > limit:
        refuse_wheel(
            label, name, f"its local header at byte {record.start} overlaps the following data"
        )
    head = files.read(path, record.start, LOCAL_STRUCT.size + len(record.raw_name))
    signature, _, flags, method, _, _, crc, compressed, size, name_length, extra_length = (
        LOCAL_STRUCT.unpack_from(head)
    )
    if signature != b"PK\3\4":
        refuse_wheel(label, name, f"no local header at byte {record.start}")
    if name_length != len(record.raw_name) or head[LOCAL_STRUCT.size :] != record.raw_name:
        refuse_wheel(label, name, "its local header has a different name")
    if flags != record.flags or method != member.method:
        refuse_wheel(
            label, name, "its local header has a different compression method or different flags"
        )
    extra_at = fixed_end + name_length
    offset: int = extra_at + extra_length
    if offset + member.compressed > limit:
        refuse_wheel(label, name, f"its data overlaps the record at byte {limit}")
    extra = extra_fields(files.read(path, extra_at, extra_length), label, name)
    if FULL32 in (size, compressed):
        size, compressed = wide_values(extra, (size, compressed), label, name)
    stated = (crc, compressed, size)
    true = (member.crc, member.compressed, member.size)
    if flags & DESCRIPTOR:
        # Writers that stream leave zeros here and write the values after the data.
        if any(value not in (0, right) for value, right in zip(stated, true, strict=True)):
            refuse_wheel(label, name, "its local header does not match the directory")
        _check_descriptor(files, path, member, offset + member.compressed, limit, label)
    elif stated != true:
        refuse_wheel(label, name, "CRC or sizes in its local header do not match the directory")
    elif offset + member.compressed != limit:
        what = f"unexpected bytes {offset + member.compressed} to {limit} after its data"
        refuse_wheel(label, name, what)
    return offset


def _check_descriptor(
    files: FileReader, path: Path, member: ZipMember, start: int, limit: int, label: str
) -> None:
    """Check that a data descriptor in one of the four common formats fills the gap to `limit`."""
    sizes = (member.crc, member.compressed, member.size)
    if limit - start not in (12, 16, 20, 24):
        refuse_wheel(label, member.name, f"no data descriptor between bytes {start} and {limit}")
    data = files.read(path, start, limit - start)
    forms = []
    for layout in ("<LLL", "<LQQ"):
        if layout == "<LQQ" or max(sizes) <= FULL32:
            body = struct.pack(layout, *sizes)
            forms += [body, b"PK\7\x08" + body]
    if data not in forms:
        refuse_wheel(label, member.name, "its data descriptor does not match the directory")
