"""Reads the control files and the contents of a .deb: an `ar` of control.tar and data.tar.

The contents of files are written to a spool file. Only the compressed package is kept in memory.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Self, cast

import msgspec

from imgbuild.deb.control import parse_fields
from imgbuild.errors import IntegrityError
from imgbuild.oci.tar import MTIME, FileSlice, LayerMember, MemberKind
from imgbuild.system.boundary import LimitedStream, open_regular, reads_untrusted

MAGIC = b"!<arch>\n"
HEADER = 60
CHUNK = 1 << 20
# ValueError: a name that is not UTF-8.
DAMAGE_ERRORS = (tarfile.TarError, lzma.LZMAError, OSError, EOFError, zlib.error, ValueError)
DAMAGE_REMEDY = (
    "remove the file from the cache and fetch it again; if the error persists, correct the lock"
)

RATIO = 200  # ratio of unpacked to packed bytes; it is at most 30 in Debian packages
LEEWAY = 64 << 20
CONTROL_LIMIT = 16 << 20  # bytes of one control file, or of a copyright file


class DebContents(msgspec.Struct, frozen=True):
    """An unpacked package.

    `listing` contains all paths in the order of the archive, including skipped paths.
    """

    name: str
    control: dict[str, str]
    # the members of control.tar except `control`: scripts, md5sums, conffiles
    files: dict[str, bytes]
    listing: tuple[str, ...]
    members: tuple[LayerMember, ...]


@reads_untrusted("path", hint=DAMAGE_REMEDY)
def read_deb(path: Path, spool: Path, keep: Callable[[str, MemberKind], bool]) -> DebContents:
    """Unpack the .deb at `path`. Contents of files are appended to the new file `spool`.

    A member is unpacked if `keep` returns True for its path (without leading slash) and type.
    Raises IntegrityError for a damaged file, an unsafe path, a device, or a compression format that
    Debian 12 does not use.
    """
    parts = dict(_parts(path))
    if parts.get("debian-binary", b"")[:2] != b"2.":
        message = f"{path}: not a Debian package of format 2"
        raise IntegrityError(message, hint=DAMAGE_REMEDY)
    files = {}
    with _open_tar(path, parts, "control.tar") as control:
        for info in control:
            if info.isfile():
                files[info.name.removeprefix("./")] = control.content(info)
    if "control" not in files:
        message = f"{path}: control.tar has no control file"
        raise IntegrityError(message, hint=DAMAGE_REMEDY)
    about = parse_fields(files.pop("control").decode())
    listing: list[str] = []
    members: list[LayerMember] = []
    with _open_tar(path, parts, "data.tar") as data, spool.open("wb") as sink:
        for info in data:
            name = _name(path, info)
            listing.append(name)
            member = _member(path, info, name)
            if name and keep(name, member.kind):
                if member.kind is MemberKind.FILE:
                    content = _spool_content(data, info, sink, spool)
                    member = msgspec.structs.replace(member, content=content, size=info.size)
                members.append(member)
    return DebContents(about["Package"], about, files, tuple(listing), tuple(members))


@reads_untrusted("path", hint=DAMAGE_REMEDY)
def read_control(path: Path) -> dict[str, str]:
    """Read the control fields of the .deb at `path`. Raises IntegrityError for a damaged file."""
    with _open_tar(path, dict(_parts(path)), "control.tar") as members:
        for info in members:
            if info.isfile() and info.name.removeprefix("./") == "control":
                return parse_fields(members.content(info).decode())
    message = f"{path}: control.tar has no control file"
    raise IntegrityError(message, hint=DAMAGE_REMEDY)


class CopyrightNotice(msgspec.Struct, frozen=True):
    """The copyright file of a Debian package, or the package that contains this file."""

    text: str = ""
    package: str = ""


@reads_untrusted("path", hint=DAMAGE_REMEDY)
def read_notice(path: Path, package: str) -> CopyrightNotice:
    """Return the copyright file of `package` in the .deb at `path`, empty if there is none."""
    folder = f"usr/share/doc/{package}"
    with _open_tar(path, dict(_parts(path)), "data.tar") as members:
        for info in members:
            name = info.name.removeprefix("./").rstrip("/")
            if name == f"{folder}/copyright" and info.isfile():
                return CopyrightNotice(text=members.content(info).decode(errors="replace"))
            if info.issym() and name in (folder, f"{folder}/copyright"):
                leads = info.linkname.removesuffix("/copyright").rstrip("/")
                return CopyrightNotice(package=leads.rpartition("/")[2])
    return CopyrightNotice()


def _parts(path: Path) -> Iterator[tuple[str, bytes]]:
    with open(path, "rb", opener=open_regular) as file:
        total = os.fstat(file.fileno()).st_size
        if file.read(len(MAGIC)) != MAGIC:
            message = f"{path}: not a Debian package (no ar header)"
            raise IntegrityError(message, hint=DAMAGE_REMEDY)
        while header := file.read(HEADER):
            size = header[48:58].strip()
            if len(header) != HEADER or header[58:] != b"`\n" or not size.isdigit():
                message = f"{path}: damaged ar header"
                raise IntegrityError(message, hint=DAMAGE_REMEDY)
            data = file.read(min(int(size), total))
            if len(data) != int(size):
                message = f"{path}: the archive is truncated"
                raise IntegrityError(message, hint=DAMAGE_REMEDY)
            file.read(int(size) % 2)
            yield header[:16].decode(errors="replace").strip().rstrip("/"), data


class _TarStream:
    """A tar archive that is read as a stream. Raises IntegrityError if the archive is damaged."""

    def __init__(self, path: Path, name: str, source: IO[bytes]) -> None:
        self._path, self._name = path, name
        try:
            self._tar = tarfile.open(  # noqa: SIM115 (closed by __exit__)
                fileobj=source, mode="r|", encoding="utf-8", errors="strict"
            )
        except DAMAGE_ERRORS as error:
            raise self._damage_error(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()

    def __iter__(self) -> Iterator[tarfile.TarInfo]:
        try:
            yield from self._tar
        except DAMAGE_ERRORS as error:
            raise self._damage_error(error) from error

    def extractfile(self, info: tarfile.TarInfo) -> IO[bytes] | None:
        return self._tar.extractfile(info)

    def content(self, info: tarfile.TarInfo) -> bytes:
        """Return the content of `info`. Raises IntegrityError if it exceeds `CONTROL_LIMIT`."""
        if not 0 <= info.size <= CONTROL_LIMIT:
            message = f"{self._path}: {info.name} has {info.size} bytes (limit {CONTROL_LIMIT})"
            raise IntegrityError(message, hint=DAMAGE_REMEDY)
        source = self._tar.extractfile(info)
        return source.read() if source is not None else b""

    def _damage_error(self, error: Exception) -> IntegrityError:
        message = f"{self._path}: {self._name} is damaged: {error}"
        return IntegrityError(message, hint=DAMAGE_REMEDY)


def _open_tar(path: Path, parts: dict[str, bytes], name: str) -> _TarStream:
    for suffix, opener in ((".xz", lzma.open), (".gz", gzip.open), ("", None)):
        data = parts.get(name + suffix)
        if data is not None:
            source = io.BytesIO(data)
            opened = source if opener is None else cast("IO[bytes]", opener(source, "rb"))
            limit = len(data) * RATIO + LEEWAY
            return _TarStream(path, name + suffix, cast("IO[bytes]", LimitedStream(opened, limit)))
    member_name = next((part for part in parts if part.startswith(name)), None)
    if member_name is None:
        message = f"{path}: no {name}"
        raise IntegrityError(message, hint=DAMAGE_REMEDY)
    message = f"{path}: {member_name} has a compression format that Debian does not use"
    raise IntegrityError(
        message, hint="use the package from Debian's archive, which is compressed with xz"
    )


def _name(path: Path, info: tarfile.TarInfo) -> str:
    name = info.name.removeprefix("./").rstrip("/")
    name = "" if name == "." else name
    if name.startswith("/") or ".." in name.split("/"):
        message = f"{path}: {info.name!r} points outside the root"
        raise IntegrityError(message, hint="do not use this package")
    return name


def _member(path: Path, info: tarfile.TarInfo, name: str) -> LayerMember:
    if any(key.startswith("SCHILY.xattr.") for key in info.pax_headers):
        message = f"{path}: {name} has extended attributes, which a layer cannot store"
        raise IntegrityError(message, hint="remove the package from the base")
    mode, uid, gid = info.mode & 0o7777, info.uid, info.gid
    time = int(info.mtime)
    if info.isdir():
        # Packages that share a folder differ in its time, so folders have a constant time.
        return LayerMember(
            path=name, kind=MemberKind.FOLDER, mode=mode, uid=uid, gid=gid, mtime=MTIME
        )
    if info.issym():
        target = info.linkname
        return LayerMember(
            path=name, kind=MemberKind.LINK, mode=0o777, uid=uid, gid=gid, mtime=time, target=target
        )
    if info.islnk():
        target = info.linkname.removeprefix("./")
        return LayerMember(
            path=name, kind=MemberKind.HARD, mode=mode, uid=uid, gid=gid, mtime=time, target=target
        )
    if info.isreg() and not info.issparse() and info.size >= 0:
        # The time from the package, so that caches based on times (.pyc) detect an upgrade.
        return LayerMember(
            path=name, mode=mode, uid=uid, gid=gid, mtime=time, size=info.size, pack=True
        )
    message = f"{path}: {name} is sparse, or not a file, folder or link"
    raise IntegrityError(message, hint="remove the package from the base")


def _spool_content(
    data: _TarStream, info: tarfile.TarInfo, sink: IO[bytes], spool: Path
) -> FileSlice:
    offset, crc, left = sink.tell(), 0, info.size
    source = data.extractfile(info)
    while left and source is not None:
        chunk = source.read(min(CHUNK, left))
        if not chunk:
            message = f"{info.name} is truncated after {info.size - left} of {info.size} bytes"
            raise tarfile.ReadError(message)
        sink.write(chunk)
        crc = zlib.crc32(chunk, crc)
        left -= len(chunk)
    return FileSlice(path=spool, offset=offset, length=info.size, deflated=False, crc=crc)
