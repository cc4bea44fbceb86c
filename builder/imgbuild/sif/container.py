"""Reads and writes SIF, Apptainer's file format: header, descriptors and objects.

A SIF is little endian. The header has 128 bytes, and each of the 48 descriptors has 585 bytes. A
descriptor contains the offset and size of its object. The file system starts at a multiple of 4096
bytes. The file depends only on the image: the ID is nil, and all times are the creation time of the
image.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec

from imgbuild.errors import InputError
from imgbuild.system.boundary import open_regular, reads_untrusted
from imgbuild.system.files import require_readable
from imgbuild.values import Arch, Bytes

LAUNCH_LINE = b"#!/usr/bin/env run-singularity\n"
MAGIC = b"SIF_MAGIC"
VERSION = b"01"
ARCHES = {Arch.X86_64: b"02", Arch.ARM64: b"04"}
HEADER = struct.Struct("<32s10s3s3s16sqqqqqqqq")
DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
PARTITION = struct.Struct("<ii3s")
DESCRIPTORS_OFFSET = 4096
DESCRIPTORS = 48
DATA_OFFSET = DESCRIPTORS_OFFSET + DESCRIPTORS * DESCRIPTOR.size
PAGE = 4096
GROUP = 0xF0000001  # group 1, of which an object is a member
LINK_NONE = 0
LARGEST_OBJECT = 1 << 26  # bytes of all objects that are read

DEFINITION = 0x4001
FILE_SYSTEM = 0x4004
JSON = 0x4006
SQUASHFS = 1
PRIMARY_PARTITION = 2  # the partition with the root file system


class DataObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object other than the file system: a definition file, or named JSON."""

    kind: int
    name: str = ""
    data: bytes


def file_system_offset(objects: Sequence[DataObject]) -> Bytes:
    """Return the offset of the file system that follows `objects`."""
    return _align_offset(DATA_OFFSET + sum(len(each.data) for each in objects))


def write_container(path: Path, objects: Sequence[DataObject], arch: Arch, time: int) -> None:
    """Write the header, the descriptors and `objects` to `path`, which contains the file system.

    The file system starts at `file_system_offset(objects)`. `time` is the creation time of the
    image, in seconds since 1970.
    """
    start = file_system_offset(objects)
    descriptors, at = [], DATA_OFFSET
    for number, each in enumerate(objects, 1):
        size = len(each.data)
        descriptors.append(_descriptor(each.kind, number, (at, size, size), time, each.name))
        at += size
    size = path.stat().st_size - start
    extra = PARTITION.pack(SQUASHFS, PRIMARY_PARTITION, ARCHES[arch])
    place = (start, size, start + size - at)
    descriptors.append(_descriptor(FILE_SYSTEM, len(objects) + 1, place, time, extra=extra))
    header = HEADER.pack(
        LAUNCH_LINE,
        MAGIC,
        VERSION,
        ARCHES[arch],
        bytes(16),
        time,
        time,
        DESCRIPTORS - len(descriptors),
        DESCRIPTORS,
        DESCRIPTORS_OFFSET,
        DATA_OFFSET - DESCRIPTORS_OFFSET,
        DATA_OFFSET,
        start + size - DATA_OFFSET,
    )
    head = header.ljust(DESCRIPTORS_OFFSET, b"\0") + b"".join(descriptors)
    front = head.ljust(DATA_OFFSET, b"\0") + b"".join(each.data for each in objects)
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(file, front.ljust(start, b"\0"), 0)
        os.fsync(file)
    finally:
        os.close(file)


@reads_untrusted("path")
def read_arch(path: Path) -> Arch:
    """Return the architecture of the SIF at `path`. Raises InputError if it is not a SIF."""
    hint = "pass a SIF file, for example from `imgbuild build TARGET --format sif`"
    with require_readable(path, hint=hint), open(path, "rb", opener=open_regular) as file:
        head = file.read(HEADER.size).ljust(HEADER.size, b"\0")
    _, magic, _, number, *_ = HEADER.unpack(head)
    for arch, code in ARCHES.items():
        if (magic.rstrip(b"\0"), number.rstrip(b"\0")) == (MAGIC, code):
            return arch
    message = f"{path} is not a SIF file for {' or '.join(ARCHES)}"
    raise InputError(
        message, hint="pass a SIF file, for example from `imgbuild build TARGET --format sif`"
    )


@reads_untrusted("path")
def read_objects(path: Path) -> list[DataObject]:
    """Return the objects of the SIF at `path`.

    Raises InputError if it is not a SIF or is truncated.
    """
    read_arch(path)
    with path.open("rb") as file:
        *_, total, at = HEADER.unpack(file.read(HEADER.size))[:10]
        end = os.fstat(file.fileno()).st_size
        file.seek(min(max(at, 0), end))
        table = file.read(max(0, min(total, DESCRIPTORS)) * DESCRIPTOR.size)
        objects = []
        left = LARGEST_OBJECT
        for row in DESCRIPTOR.iter_unpack(table[: len(table) // DESCRIPTOR.size * DESCRIPTOR.size]):
            kind, used, *_, name, _ = row
            start, size = row[5:7]
            if not used or kind not in (DEFINITION, JSON) or not 0 <= size <= left:
                continue
            file.seek(min(max(start, 0), end))
            data = file.read(size)
            left -= size
            if len(data) < size:
                message = f"{path} is truncated before byte {start + size}"
                raise InputError(
                    message, hint="to build the file again, run: imgbuild build TARGET --format sif"
                )
            text = name.rstrip(b"\0").decode(errors="replace")
            objects.append(DataObject(kind=kind, name=text, data=data))
    return objects


def _descriptor(
    kind: int,
    number: int,
    place: tuple[int, int, int],
    time: int,
    name: str = "",
    extra: bytes = b"",
) -> bytes:
    """Return a descriptor. `place` is the offset, the size, and the size with preceding padding."""
    owner = 0
    return DESCRIPTOR.pack(
        kind, True, number, GROUP, LINK_NONE, *place, time, time, owner, owner, name.encode(), extra
    )


def _align_offset(offset: int) -> int:
    return offset + -offset % PAGE
