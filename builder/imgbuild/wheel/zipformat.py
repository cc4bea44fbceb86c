"""Parses structures of the zip format: end records, central and local headers, zip64 fields.

Source: APPNOTE.TXT 6.3.10, sections 4.3 to 4.5.
"""

from __future__ import annotations

import struct
from typing import NoReturn

import msgspec

from imgbuild.errors import IntegrityError

STORED, DEFLATED = 0, 8
UTF8 = 1 << 11
DESCRIPTOR = 1 << 3
END = struct.Struct("<4s4H2LH")
END64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR64 = struct.Struct("<4sLQL")
CENTRAL = struct.Struct("<4s4B4HL2L5H2L")
LOCAL_STRUCT = struct.Struct("<4s5H3L2H")
FULL16, FULL32 = 0xFFFF, 0xFFFFFFFF
MAX_RATIO = 1032  # deflate encodes at best 258 bytes in two bits
REMEDY = (
    "the wheel is damaged or malicious; run `imgbuild cache verify` to remove damaged files, or"
    " use another file or version of the package"
)


class ZipMember(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder in a zip. Sizes are in bytes, and `offset` is the start of the data.

    `mode` is the Unix mode with type bits, or 0 if the zip was not created on Unix.
    """

    name: str
    method: int
    offset: int
    compressed: int
    size: int
    crc: int
    mode: int


class DirectoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the central directory. `start` is the offset of the local header."""

    member: ZipMember
    raw_name: bytes
    flags: int
    start: int


def refuse_wheel(file: str, member: str | None, what: str) -> NoReturn:
    """Raise IntegrityError with the problem `what` of `member`, or of `file`."""
    message = f"{file}: {member!r}: {what}" if member is not None else f"{file}: {what}"
    raise IntegrityError(message, hint=REMEDY)


def extra_fields(data: bytes, label: str, name: str) -> dict[int, bytes]:
    """Return the extra fields by number.

    Raises IntegrityError if a field that imgbuild reads appears twice.
    """
    fields: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(data):
        kind, length = struct.unpack_from("<HH", data, at)
        if at + 4 + length > len(data):
            break
        if kind in fields and kind in (0x0001, 0x7075):
            refuse_wheel(label, name, f"has the extra field {kind:#06x} twice")
        fields[kind] = data[at + 4 : at + 4 + length]
        at += 4 + length
    return fields


def wide_values(
    extra: dict[int, bytes], narrow: tuple[int, ...], label: str, name: str
) -> tuple[int, ...]:
    """Replace saturated values in `narrow` with the values in the zip64 field, in order."""
    data = extra.get(0x0001, b"")
    at = 0
    values = []
    for value in narrow:
        if value == FULL32:
            if at + 8 > len(data):
                refuse_wheel(label, name, "its zip64 field is missing or too short")
            values.append(struct.unpack_from("<Q", data, at)[0])
            at += 8
        else:
            values.append(value)
    return tuple(values)
