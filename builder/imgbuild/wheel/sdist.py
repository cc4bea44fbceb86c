"""Reads the members of an sdist without unpacking it.

`read_entries` yields all members of the archive. `read_members` yields files and folders with safe
paths, and rejects the archive if it has any other member. Links are rejected, because the target of
a link depends on all previous members, and sdists of pure Python do not need links.
"""

from __future__ import annotations

import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from imgbuild.errors import IntegrityError
from imgbuild.oci.content import FileReader, content_pieces
from imgbuild.oci.reader import DEVICES, FILES, ZSTD, TarReader, open_decompressed
from imgbuild.oci.tar import FileSlice
from imgbuild.system.boundary import convert_read_errors, open_regular
from imgbuild.wheel.archive import NAME_LIMIT, PATH_LIMIT
from imgbuild.wheel.directory import read_directory
from imgbuild.wheel.zipformat import DEFLATED

ZIPS = (b"PK\3\4", b"PK\5\6")
OTHER_MAGIC = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", ZSTD: "zstd"}  # the first bytes
LONGEST_MAGIC = max(map(len, OTHER_MAGIC))
DEPTH_LIMIT = 100  # folders of a path
LARGEST, MEMBERS = 2 << 30, 200_000  # bytes and entries of an sdist
REMEDY = "use another version, or pin a version that has a wheel"
MemberType = Literal["file", "folder", "link", "device", "pipe", "unknown"]
KINDS = {"device": "a device", "pipe": "a pipe", "unknown": "of an unknown type"}
ContentReader = Callable[[], Iterator[bytes]]


class SdistMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of an sdist. `size` is in bytes, and `mtime` in seconds (None in a zip)."""

    path: str
    kind: MemberType
    size: int = 0
    executable: bool = False
    mtime: int | None = None
    target: str = ""


def read_entries(sdist: Path, label: str) -> Iterator[tuple[SdistMember, ContentReader]]:
    """Yield each member with a reader of its content, which is valid until the next member.

    `sdist` is a zip, or a tar that is plain or compressed with gzip. Raises IntegrityError, with
    `label` in the message, if the file is damaged, has another compression, or has sparse members.
    """
    with convert_read_errors(label, hint=REMEDY), open(sdist, "rb", opener=open_regular) as file:
        start = file.peek(LONGEST_MAGIC)
        for magic, name in OTHER_MAGIC.items():
            if start.startswith(magic):
                message = f"{label} is compressed with {name}, but an sdist must be .tar.gz or .zip"
                raise IntegrityError(message, hint=REMEDY)
        if start.startswith(ZIPS):
            yield from _zip_entries(sdist, label)
            return
        with open_decompressed(sdist) as stream:
            reader = TarReader(stream, label, hint=REMEDY)
            for entry in reader:
                kinds: dict[bytes, MemberType] = {
                    **dict.fromkeys(FILES, "file"),
                    **dict.fromkeys(DEVICES, "device"),
                    **dict.fromkeys((tarfile.SYMTYPE, tarfile.LNKTYPE), "link"),
                    tarfile.DIRTYPE: "folder",
                    tarfile.FIFOTYPE: "pipe",
                }
                member = SdistMember(
                    path=entry.path,
                    kind=kinds.get(entry.type, "unknown"),
                    size=entry.size,
                    executable=bool(entry.mode & 0o100),
                    mtime=entry.mtime,
                    target=entry.target,
                )
                yield member, reader.content


def _zip_entries(sdist: Path, label: str) -> Iterator[tuple[SdistMember, ContentReader]]:
    with FileReader() as files:
        for record in read_directory(sdist, label):
            data = FileSlice(
                path=sdist,
                offset=record.offset,
                length=record.compressed,
                deflated=record.method == DEFLATED,
                crc=record.crc,
            )
            kinds: dict[int, MemberType] = {0: "file", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
            kind = kinds.get(stat.S_IFMT(record.mode), "unknown")
            folder = record.name.endswith("/") and stat.S_IFMT(record.mode) in (0, stat.S_IFDIR)
            member = SdistMember(
                path=record.name, kind="folder" if folder else kind, size=record.size
            )
            where = f"{label}: {record.name!r}"
            yield (
                member,
                lambda data=data, size=record.size, where=where: content_pieces(  # type: ignore[misc]
                    data, size, where, files
                ),
            )


def read_members(sdist: Path, label: str) -> Iterator[tuple[SdistMember, ContentReader]]:
    """Yield the files and folders of `sdist`, with paths relative to the top-level folder.

    Raises IntegrityError for a member of another type, for a path that is too long, duplicate or
    outside of the top-level folder, and for too many members.
    """
    top = ""
    files: set[str] = set()
    folders: set[str] = set()
    count = total = 0
    for member, content in read_entries(sdist, label):
        count, total = count + 1, total + member.size
        if count > MEMBERS or total > LARGEST:
            message = f"{label} has {count} entries of {total} bytes (limits {MEMBERS}, {LARGEST})"
            raise IntegrityError(message, hint=REMEDY)
        parts = _check_parts(member, label)
        if not parts:  # the folder `.`
            continue
        top = top or parts[0]
        if parts[0] != top or (len(parts) == 1 and member.kind != "folder"):
            _refuse_member(
                label, member, f"is not in {top!r}: an sdist must have one top-level folder"
            )
        path = "/".join(parts[1:])
        above = {"/".join(parts[1:end]) for end in range(2, len(parts))}
        if member.kind == "folder":
            above.add(path)
        elif path in files or path in folders:
            _refuse_member(label, member, "is in the archive twice")
        else:
            files.add(path)
        folders |= above
        if above & files:
            _refuse_member(label, member, "is in a folder whose path is also a file")
        if path:
            yield msgspec.structs.replace(member, path=path), content


def _check_parts(member: SdistMember, label: str) -> list[str]:
    if member.kind == "link":
        _refuse_member(
            label, member, f"is a link to {member.target!r}" if member.target else "is a link"
        )
    if member.kind not in ("file", "folder"):
        _refuse_member(label, member, f"is not a file or a folder, but {KINDS[member.kind]}")
    if member.path.startswith("/"):
        _refuse_member(label, member, "is an absolute path")
    parts = [part for part in member.path.split("/") if part not in ("", ".")]
    if ".." in parts:
        _refuse_member(label, member, "contains `..`")
    if "\0" in member.path or "\\" in member.path:
        _refuse_member(label, member, "has a backslash or a zero byte in its path")
    if not parts and member.kind == "file":
        _refuse_member(label, member, "is an empty path")
    sizes = [len(part.encode(errors="surrogateescape")) for part in parts]
    if max(sizes, default=0) > NAME_LIMIT or sum(sizes) + len(sizes) > PATH_LIMIT:
        what = (
            f"has a name of more than {NAME_LIMIT} bytes, or a path of more than {PATH_LIMIT} bytes"
        )
        _refuse_member(label, member, what)
    if len(parts) > DEPTH_LIMIT:
        _refuse_member(label, member, f"is in more than {DEPTH_LIMIT} folders")
    return parts


def _refuse_member(label: str, member: SdistMember, what: str) -> NoReturn:
    path = member.path if len(member.path) <= NAME_LIMIT else f"{member.path[:NAME_LIMIT]}…"
    message = f"{label}: {path!r} {what}"
    raise IntegrityError(message, hint=REMEDY)
