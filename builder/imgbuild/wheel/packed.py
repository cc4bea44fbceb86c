"""A wheel of data files that imgbuild made, compressed: same files, same bytes.

Comes in: a package, its version and tag, files by their paths below the environment's prefix. Goes
out: a wheel, sorted, with one fixed time, each file compressed by libdeflate, whose release is
pinned since it writes base layers too. `wheel.build.repack` stores: what is large goes this way.
"""

from __future__ import annotations

import types
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import deflate

from imgbuild.errors import InputError
from imgbuild.wheel.record import Row, digest, write_record
from imgbuild.wheel.zipformat import CENTRAL, DEFLATED, END, FULL16, FULL32, LOCAL, STORED, UTF8

LEVEL = 6
VERSION = 20  # of the format that a reader must know: 2.0, for deflate
UNIX = 3
MODE = 0o100644 << 16
DAY = 1 << 5 | 1  # 1980-01-01, the first that a zip can hold


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
    """The wheel of `files` in the folder `out`; installed, they lie below the prefix.

    `modules` are Python's and their data, and are installed where it imports from; `requires` are
    the packages that it is of use with.

    InputError if they are more than a zip without extensions holds (65,535 files, 4 GiB).
    """
    name = package.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    members: dict[str, bytes | Path] = {**about(package, version, tag, requires), **modules}
    members |= {f"{name}-{version}.data/data/{path}": place for path, place in files.items()}
    if len(members) + 1 >= FULL16:
        message = f"{len(files) + len(modules)} files are more than a wheel of imgbuild holds"
        raise InputError(message, hint="name what is wanted, so that fewer are taken")
    out.mkdir(parents=True, exist_ok=True)
    wheel = out / f"{name}-{version}-{tag}.whl"
    temporary = out / f".{wheel.name}.tmp"
    try:
        with temporary.open("wb") as file:
            _write(file, members, f"{info}/RECORD")
        temporary.replace(wheel)
    finally:
        temporary.unlink(missing_ok=True)
    return wheel


def about(package: str, version: str, tag: str, requires: Sequence[str] = ()) -> dict[str, bytes]:
    """What a wheel that imgbuild made says of itself, by path, but for its RECORD."""
    info = f"{package.replace('-', '_')}-{version}.dist-info"
    pure = "true" if tag.endswith("-any") else "false"
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {each}\n" for each in requires),
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: imgbuild\nRoot-Is-Purelib: {pure}\nTag: {tag}\n",
    }
    return {f"{info}/{each}": text.encode() for each, text in texts.items()}


def _write(file: BinaryIO, members: Mapping[str, bytes | Path], record: str) -> None:
    """A zip of `members`, and behind them the RECORD of them all."""
    central = bytearray()
    rows = [Row(path=record, digest="", size=None)]
    for path, content in _sorted(members):
        rows.append(Row(path=path, digest=digest([content]), size=len(content)))
        central += _member(file, path, content)
    central += _member(file, record, write_record(rows))
    start, count = file.tell(), len(rows)
    if start + len(central) >= FULL32:
        message = f"{start} bytes are more than a wheel of imgbuild holds"
        raise InputError(message, hint="name what is wanted, so that less is taken")
    file.write(central)
    file.write(END.pack(b"PK\5\6", 0, 0, count, count, len(central), start, 0))


def _sorted(members: Mapping[str, bytes | Path]) -> Iterator[tuple[str, bytes]]:
    for path in sorted(members, key=str.encode):
        content = members[path]
        yield path, content if isinstance(content, bytes) else content.read_bytes()


def _member(file: BinaryIO, path: str, content: bytes) -> bytes:
    """Write one member; its entry of the directory."""
    start = file.tell()
    packed = bytes(deflate.deflate_compress(content, LEVEL))
    method = DEFLATED if len(packed) < len(content) else STORED
    body = packed if method == DEFLATED else content
    name = path.encode()
    flags = 0 if path.isascii() else UTF8
    same = (flags, method, 0, DAY, zlib.crc32(content), len(body), len(content), len(name), 0)
    if start + len(body) >= FULL32:
        message = f"{path}: with it the wheel has more than 4 GiB"
        raise InputError(message, hint="name what is wanted, so that less is taken")
    file.write(LOCAL.pack(b"PK\3\4", VERSION, *same))
    file.write(name)
    file.write(body)
    return _entry(same, start) + name


def _entry(same: tuple[int, ...], start: int) -> bytes:
    return CENTRAL.pack(b"PK\1\2", VERSION, UNIX, VERSION, 0, *same, 0, 0, 0, MODE, start)
