"""Creates wheels for tests: valid wheels from a table of files, and invalid wheels by byte."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

FILE = 0o100644
PROGRAM = 0o100755
LINK = 0o120777


class Entry(msgspec.Struct, kw_only=True):
    """A zip member with the values to write, which can be wrong."""

    name: bytes
    data: bytes = b""
    method: int = 8
    flags: int = 0
    mode: int = FILE
    system: int = 3
    stream: bytes | None = None
    size: int | None = None
    crc: int | None = None
    local_name: bytes | None = None
    local_flags: int | None = None
    local_method: int | None = None
    local_sizes: tuple[int, int, int] | None = None
    local_extra: bytes = b""
    central_extra: bytes = b""
    descriptor: bytes = b""
    after: bytes = b""
    start: int | None = None
    absent: bool = False
    central_sizes: tuple[int, int, int] | None = None


def deflate_bytes(data: bytes) -> bytes:
    """Compress `data` to a raw deflate stream."""
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def minimal_metadata(name: str, version: str) -> bytes:
    """The smallest valid METADATA."""
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()


WHEEL = b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    name: str = "demo",
    version: str = "1.0",
    modes: Mapping[str, int] | None = None,
    method: int = zipfile.ZIP_DEFLATED,
    record: str | None = None,
) -> Path:
    """A wheel with `files` and the three files that every wheel requires."""
    info = f"{name}-{version}.dist-info"
    required_files = {f"{info}/METADATA": minimal_metadata(name, version), f"{info}/WHEEL": WHEEL}
    everything = {**required_files, **files}
    rows = "".join(f"{path},,\n" for path in everything if path.isprintable() and "," not in path)
    listed = record if record is not None else f"{rows}{info}/RECORD,,\n"
    everything.setdefault(f"{info}/RECORD", listed.encode())
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", method) as wheel:
        for member, data in everything.items():
            item = zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0))
            item.create_system = 3
            item.external_attr = (modes or {}).get(member, FILE) << 16
            item.compress_type = method
            wheel.writestr(item, data)
    return path


def valid_entries(*extra: Entry) -> list[Entry]:
    """The entries of a valid wheel, preceded by `extra`."""
    info = b"demo-1.0.dist-info"
    return [
        *extra,
        Entry(name=info + b"/METADATA", data=minimal_metadata("demo", "1.0")),
        Entry(name=info + b"/WHEEL", data=WHEEL),
        Entry(name=info + b"/RECORD", data=info + b"/RECORD,,\n"),
    ]


def write_forged_zip(
    folder: Path,
    members: list[Entry],
    *,
    before: bytes = b"",
    between: bytes = b"",
    comment: bytes = b"",
    after: bytes = b"",
    count: int | None = None,
    zip64: bool = False,
    name: str = "demo-1.0-py3-none-any.whl",
) -> Path:
    """A zip file of `members`, without corrections."""
    out = bytearray(before)
    central = bytearray()
    for entry in members:
        start = len(out)
        stream = _stream(entry)
        true = (
            zlib.crc32(entry.data) if entry.crc is None else entry.crc,
            len(stream),
            len(entry.data) if entry.size is None else entry.size,
        )
        if not entry.absent:
            out += _local(entry, true) + stream + entry.descriptor + entry.after
        central += _central(entry, true, start if entry.start is None else entry.start)
    out += between
    directory = len(out)
    total = len(members) if count is None else count
    out += central
    size = len(central)
    if zip64:
        at = len(out)
        out += struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, total, total, size, directory)
        out += struct.pack("<4sLQL", b"PK\6\7", 0, at, 1)
        total, size, directory = 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, total, total, size, directory, len(comment))
    path = folder / name
    path.write_bytes(bytes(out) + end + comment + after)
    return path


def _stream(entry: Entry) -> bytes:
    if entry.stream is not None:
        return entry.stream
    return deflate_bytes(entry.data) if entry.method == 8 else entry.data


def _local(entry: Entry, true: tuple[int, int, int]) -> bytes:
    name = entry.name if entry.local_name is None else entry.local_name
    flags = entry.flags if entry.local_flags is None else entry.local_flags
    method = entry.method if entry.local_method is None else entry.local_method
    sizes = true if entry.local_sizes is None else entry.local_sizes
    head = struct.pack(
        "<4s5H3L2H", b"PK\3\4", 20, flags, method, 0, 33, *sizes, len(name), len(entry.local_extra)
    )
    return head + name + entry.local_extra


def _central(entry: Entry, true: tuple[int, int, int], start: int) -> bytes:
    sizes = true if entry.central_sizes is None else entry.central_sizes
    head = struct.pack(
        "<4s4B4HL2L5H2L",
        b"PK\1\2",
        *(20, entry.system, 20, 0),
        *(entry.flags, entry.method, 0, 33),
        *sizes,
        *(len(entry.name), len(entry.central_extra), 0, 0, 0),
        *(entry.mode << 16, start),
    )
    return head + entry.name + entry.central_extra
