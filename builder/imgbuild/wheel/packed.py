"""Writes a wheel of data files, compressed and reproducible: the same files give the same bytes.

Members are sorted and have one constant time. libdeflate compresses them; its release is pinned,
since it writes base layers too. `solve.sdist_wheel` stores its files uncompressed instead.
"""

from __future__ import annotations

import types
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import deflate

from imgbuild.errors import InputError
from imgbuild.system import files as disk
from imgbuild.wheel.record import RecordRow, digest, write_record
from imgbuild.wheel.zipformat import CENTRAL, DEFLATED, END, FULL16, FULL32, LOCAL, STORED, UTF8

LEVEL = 6
VERSION = 20  # the version of the zip format that a reader must support: 2.0, for deflate
UNIX = 3
MODE = 0o100644 << 16
DAY = 1 << 5 | 1  # 1980-01-01, the earliest date of a zip


def write(
    package: str,
    version: str,
    tag: str,
    files: Mapping[str, bytes | Path],
    out: Path,
    *,
    modules: Mapping[str, bytes] = types.MappingProxyType({}),
    requires: Sequence[str] = (),
) -> Path:
    """Write a wheel of `files` to the folder `out`; its path.

    `files` (path → content) are installed below the prefix of the environment; `modules`, Python
    modules and their data, into site-packages. `requires` are its requirements.

    InputError if it exceeds the limits of a zip without zip64 (65,535 files, 4 GiB).
    """
    name = package.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    members: dict[str, bytes | Path] = {**about(package, version, tag, requires), **modules}
    members |= {f"{name}-{version}.data/data/{path}": place for path, place in files.items()}
    if len(members) + 1 >= FULL16:
        message = f"too many files for one wheel: {len(files) + len(modules)} (limit {FULL16})"
        raise InputError(message, hint="select fewer files")
    wheel = out / f"{name}-{version}-{tag}.whl"
    with disk.replacing(wheel) as file:
        _write(file, members, f"{info}/RECORD")
    return wheel


def about(package: str, version: str, tag: str, requires: Sequence[str] = ()) -> dict[str, bytes]:
    """The `.dist-info` files of a wheel made by imgbuild, except RECORD: path → content."""
    info = f"{package.replace('-', '_')}-{version}.dist-info"
    pure = "true" if tag.endswith("-any") else "false"
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {each}\n" for each in requires),
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: imgbuild\nRoot-Is-Purelib: {pure}\nTag: {tag}\n",
    }
    return {f"{info}/{each}": text.encode() for each, text in texts.items()}


def _write(file: BinaryIO, members: Mapping[str, bytes | Path], record: str) -> None:
    """Write a zip of `members` followed by their RECORD."""
    central = bytearray()
    rows = [RecordRow(path=record, digest="", size=None)]
    for path, content in _sorted(members):
        rows.append(RecordRow(path=path, digest=digest([content]), size=len(content)))
        central += _member(file, path, content)
    central += _member(file, record, write_record(rows))
    start, count = file.tell(), len(rows)
    if start + len(central) >= FULL32:
        message = f"wheel too large: {start} bytes (limit 4 GiB)"
        raise InputError(message, hint="select fewer files")
    file.write(central)
    file.write(END.pack(b"PK\5\6", 0, 0, count, count, len(central), start, 0))


def _sorted(members: Mapping[str, bytes | Path]) -> Iterator[tuple[str, bytes]]:
    for path in sorted(members, key=str.encode):
        content = members[path]
        yield path, content if isinstance(content, bytes) else content.read_bytes()


def _member(file: BinaryIO, path: str, content: bytes) -> bytes:
    """Write one member; returns its entry of the central directory."""
    start = file.tell()
    packed = bytes(deflate.deflate_compress(content, LEVEL))
    method = DEFLATED if len(packed) < len(content) else STORED
    body = packed if method == DEFLATED else content
    name = path.encode()
    flags = 0 if path.isascii() else UTF8
    same = (flags, method, 0, DAY, zlib.crc32(content), len(body), len(content), len(name), 0)
    if start + len(body) >= FULL32:
        message = f"wheel too large: {path} makes it exceed 4 GiB"
        raise InputError(message, hint="select fewer files")
    file.write(LOCAL.pack(b"PK\3\4", VERSION, *same))
    file.write(name)
    file.write(body)
    return _entry(same, start) + name


def _entry(same: tuple[int, ...], start: int) -> bytes:
    return CENTRAL.pack(b"PK\1\2", VERSION, UNIX, VERSION, 0, *same, 0, 0, 0, MODE, start)
