"""Writes the tar headers of a layer's members, reproducibly.

The format is ustar. A PAX header is added only if a path or link is not ASCII or exceeds the limits
of ustar, or if a size exceeds 8 GiB. Owner names are empty, and all times are constant.
"""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

MTIME = 315532800  # 1980-01-01T00:00:00Z: the earliest time of a zip
BLOCK = 512
END = bytes(2 * BLOCK)
NAME_LIMIT = 100
LINK_LIMIT = 100
PREFIX_LIMIT = 155
NUMBER_LIMITS = {"uid": 8**7, "gid": 8**7, "size": 8**11, "mtime": 8**11}
PAX_NAME = b"././@PaxHeader"
# Magic, version, two empty owner names, two device numbers.
USTAR = b"ustar\x0000" + bytes(64) + b"0000000\x000000000\x00"


class MemberKind(enum.StrEnum):
    """The type of a layer member."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "symlink"
    HARD = "hardlink"


TYPES = {
    MemberKind.FILE: b"0",
    MemberKind.HARD: b"1",
    MemberKind.LINK: b"2",
    MemberKind.FOLDER: b"5",
}


class FileSlice(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a file on disk: `length` bytes at `offset`, uncompressed or a raw deflate stream.

    `crc` is the CRC-32 of the uncompressed content.
    """

    path: Path
    offset: int
    length: int
    deflated: bool
    crc: int


class LayerMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a layer. `path` has no slash at its start or end.

    `size` is the number of bytes of the uncompressed content. `content` is None except for files.
    If `pack` is set, the layer writer compresses content that is not a deflate stream.
    """

    path: str
    kind: MemberKind = MemberKind.FILE
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = MTIME
    size: int = 0
    target: str = ""
    content: bytes | FileSlice | None = None
    pack: bool = False


def file_member(path: str, text: str | bytes, mode: int = 0o644) -> LayerMember:
    """Return the layer member for a file with the content `text`."""
    data = text if isinstance(text, bytes) else text.encode()
    return LayerMember(path=path, mode=mode, size=len(data), content=data)


def folder_member(path: str, mode: int = 0o755) -> LayerMember:
    """Return the layer member for an empty folder."""
    return LayerMember(path=path, kind=MemberKind.FOLDER, mode=mode)


def link_member(path: str, target: str) -> LayerMember:
    """Return the layer member for a symbolic link."""
    return LayerMember(path=path, kind=MemberKind.LINK, mode=0o777, target=target)


def sort_key(member: LayerMember) -> bytes:
    """Return the key that sorts a layer's members: the path as bytes."""
    return member.path.encode()


def padding_size(size: int) -> int:
    """Return the number of zero bytes that follow `size` bytes of content in a tar."""
    return -size % BLOCK


def member_header(member: LayerMember) -> bytes:
    """Return the ustar header of `member`, after a PAX header if a field needs one."""
    path = member.path + "/" if member.kind is MemberKind.FOLDER else member.path
    size = member.size if member.kind is MemberKind.FILE else 0
    extended: dict[str, str] = {}
    prefix, name = _split_path(path)
    if name is None:
        extended["path"] = path
        prefix, name = b"", _fallback(path)
    target = member.target.encode()
    if len(target) > LINK_LIMIT or not member.target.isascii():
        extended["linkpath"] = member.target
        target = _fallback(member.target)
    numbers = {"uid": member.uid, "gid": member.gid, "size": size, "mtime": member.mtime}
    for field, value in numbers.items():
        if not 0 <= value < NUMBER_LIMITS[field]:
            extended[field] = str(value)
            numbers[field] = 0
    block = _block(name, prefix, TYPES[member.kind], member.mode, numbers, target)
    return _pax(extended) + block if extended else block


def _split_path(path: str) -> tuple[bytes, bytes | None]:
    """Return the prefix and name of `path` in ustar, or None as name if the path does not fit."""
    raw = path.encode()
    if not path.isascii():
        return b"", None
    if len(raw) <= NAME_LIMIT:
        return b"", raw
    slash = raw.find(b"/", len(raw) - NAME_LIMIT - 1, len(raw) - 1)
    if slash < 1 or slash > PREFIX_LIMIT:
        return b"", None
    return raw[:slash], raw[slash + 1 :]


def _fallback(text: str) -> bytes:
    """Return the start of `text` in ASCII, for readers without PAX support."""
    return text.encode("ascii", "replace")[:NAME_LIMIT]


def _block(
    name: bytes, prefix: bytes, kind: bytes, mode: int, numbers: dict[str, int], target: bytes
) -> bytes:
    fields = b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (
        mode,
        numbers["uid"],
        numbers["gid"],
        numbers["size"],
        numbers["mtime"],
    )
    tail = kind + target.ljust(LINK_LIMIT, b"\0") + USTAR + prefix.ljust(PREFIX_LIMIT + 12, b"\0")
    head = name.ljust(NAME_LIMIT, b"\0") + fields
    checksum = sum(head) + sum(tail) + 8 * 0x20  # the field of the checksum counts as spaces
    return head + b"%06o\0 " % checksum + tail


def _pax(fields: dict[str, str]) -> bytes:
    """Return a PAX header with `fields`, sorted by name. The header itself has a constant name."""
    records = b"".join(_record(key, value) for key, value in sorted(fields.items()))
    numbers = {"uid": 0, "gid": 0, "size": len(records), "mtime": MTIME}
    block = _block(PAX_NAME, b"", b"x", 0o644, numbers, b"")
    return block + records + bytes(padding_size(len(records)))


def _record(key: str, value: str) -> bytes:
    """Return a PAX record: `LENGTH KEY=VALUE` and a newline. LENGTH includes its own digits."""
    body = f" {key}={value}\n".encode()
    length = len(body) + 1
    while len(body) + len(str(length)) != length:
        length = len(body) + len(str(length))
    return str(length).encode() + body
