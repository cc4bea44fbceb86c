"""Reads the files of a wheel, and checks them for damage and unsafe paths.

`read_wheel` runs the checks that do not require decompression; the CRC and the size of a file are
checked when it is read. Source: PyPA's specification of the binary distribution format.
"""

from __future__ import annotations

import posixpath
import re
import stat
from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import msgspec
from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    canonicalize_version,
    parse_wheel_filename,
)

from imgbuild.oci.content import FileReader, content_pieces
from imgbuild.oci.tar import FileSlice
from imgbuild.system.boundary import convert_read_errors
from imgbuild.wheel.directory import read_directory
from imgbuild.wheel.zipformat import DEFLATED, REMEDY, ZipMember, refuse_wheel

MAX_TOTAL_RATIO = 100  # the highest ratio of the 157 wheels of cu124 is 7 (fastapi)
TOTAL_LEEWAY = 16 << 20
TEXT_LIMIT = 64 << 20  # METADATA, RECORD and similar files are read as a whole
NAME_LIMIT = 255  # bytes of one path component, on every file system that images are unpacked to
PATH_LIMIT = 3840  # bytes of a path: Linux allows 4,095, including the target folder


class WheelArchive(msgspec.Struct, frozen=True, kw_only=True):
    """A wheel that was read and checked.

    `members` are the files of the wheel, sorted by path. `label` is the name of the wheel in
    errors.
    """

    path: Path
    label: str
    members: dict[str, ZipMember]
    dist_info: str

    @property
    def name(self) -> str:
        """The distribution name in the name of the `.dist-info` folder."""
        return self.dist_info.removesuffix(".dist-info").rpartition("-")[0]

    @property
    def version(self) -> str:
        """The version in the name of the `.dist-info` folder."""
        return self.dist_info.removesuffix(".dist-info").rpartition("-")[2]

    def place(self, member: ZipMember) -> FileSlice:
        """Return the position of the member's content in the wheel file."""
        return FileSlice(
            path=self.path,
            offset=member.offset,
            length=member.compressed,
            deflated=member.method == DEFLATED,
            crc=member.crc,
        )

    def chunks(self, member: ZipMember) -> Iterator[bytes]:
        """Yield the content of the member. Raises IntegrityError if its size or CRC is wrong."""
        with FileReader() as files:
            where = f"{self.label}: {member.name!r}"
            yield from content_pieces(self.place(member), member.size, where, files)

    def content(self, path: str) -> bytes | None:
        """Return the content of the file at `path`, or None if it does not exist.

        Raises IntegrityError if the file is larger than `TEXT_LIMIT`.
        """
        member = self.members.get(path)
        if member is None:
            return None
        if member.size > TEXT_LIMIT:
            refuse_wheel(
                self.label, path, f"is too large ({member.size} bytes, limit {TEXT_LIMIT})"
            )
        return b"".join(self.chunks(member))

    def text(self, name: str) -> str | None:
        """Return the text of a file in `.dist-info`, such as "METADATA", or None."""
        data = self.content(f"{self.dist_info}/{name}")
        if data is None:
            return None
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            refuse_wheel(self.label, f"{self.dist_info}/{name}", "is not UTF-8")

    def headers(self, name: str) -> Any:
        """Parse a file in `.dist-info` with headers, such as METADATA or WHEEL."""
        text = self.text(name)
        if text is None:
            refuse_wheel(self.label, None, f"has no {self.dist_info}/{name}")
        return HeaderParser().parsestr(text)


def read_wheel(path: Path, *, label: str | None = None) -> WheelArchive:
    """Read the wheel at `path`.

    `label` is the file name of the wheel, if it differs from `path`. Raises IntegrityError, with
    the wheel, the member and the problem in the message.
    """
    with convert_read_errors(label or path.name, hint=REMEDY):
        return _read_members(path, label or path.name)


def _read_members(path: Path, label: str) -> WheelArchive:
    members = _files(read_directory(path, label), label)
    stated = sum(member.size for member in members.values())
    limit = path.stat().st_size * MAX_TOTAL_RATIO + TOTAL_LEEWAY
    if stated > limit:
        refuse_wheel(
            label,
            None,
            f"unpacks to {stated} bytes, more than the limit of {limit} (possibly a zip bomb)",
        )
    archive = WheelArchive(
        path=path, label=label, members=members, dist_info=_dist_info(members, label)
    )
    _check_links(archive)
    _check_wheel(archive)
    return archive


def _files(members: Iterable[ZipMember], label: str) -> dict[str, ZipMember]:
    """Return the files by normalized path. Raises IntegrityError for unsafe or duplicate paths."""
    files: dict[str, ZipMember] = {}
    folders: set[str] = set()
    for member in members:
        path = _checked_path(member.name, label)
        _check_type(member, label)
        if member.name.endswith("/"):
            if member.size:
                refuse_wheel(label, member.name, f"is a folder with {member.size} bytes of content")
            folders.add(path)
            continue
        if path in files:
            refuse_wheel(label, member.name, "is in the zip twice")
        files[path] = member
    for path in files:
        parent = path.rpartition("/")[0]
        while parent and parent not in folders:
            folders.add(parent)
            parent = parent.rpartition("/")[0]
    for path in files.keys() & folders:
        refuse_wheel(label, path, "is a file, but other members are in a folder with this name")
    return dict(sorted(files.items()))


def _checked_path(name: str, label: str) -> str:
    """Remove empty and `.` components from `name`.

    Raises IntegrityError if the path could leave its folder.
    """
    if name.startswith("/"):
        refuse_wheel(label, name, "is an absolute path")
    if "\\" in name:
        refuse_wheel(label, name, "has a backslash in its path")
    if re.match(r"[A-Za-z]:", name):
        refuse_wheel(label, name, "starts with a drive letter")
    if re.search(r"[\x00-\x1f\x7f-\x9f]", name):
        refuse_wheel(label, name, "has control characters in its path")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        refuse_wheel(label, name, "contains `..`")
    if not parts:
        refuse_wheel(label, name, "is an empty path")
    if any(len(part.encode()) > NAME_LIMIT for part in parts):
        refuse_wheel(label, name, f"has a path component of more than {NAME_LIMIT} bytes")
    if len(name.encode()) > PATH_LIMIT:
        refuse_wheel(label, f"{name[:NAME_LIMIT]}…", f"is a path of more than {PATH_LIMIT} bytes")
    return "/".join(parts)


def _check_type(member: ZipMember, label: str) -> None:
    kind = stat.S_IFMT(member.mode)
    allowed = (0, stat.S_IFDIR) if member.name.endswith("/") else (0, stat.S_IFREG, stat.S_IFLNK)
    if kind not in allowed:
        refuse_wheel(label, member.name, f"is not a file or folder (mode {member.mode:o})")


def _dist_info(members: Iterable[str], label: str) -> str:
    folders = {path.split("/", 1)[0] for path in members if "/" in path}
    names = sorted(name for name in folders if name.endswith(".dist-info"))
    if len(names) != 1:
        listed = ", ".join(names) or "none"
        refuse_wheel(label, None, f"expected exactly one .dist-info folder, found {listed}")
    if names[0].count("-") < 2:  # name-version.dist-info has two
        refuse_wheel(label, names[0], "is not named NAME-VERSION.dist-info")
    return names[0]


def _check_links(archive: WheelArchive) -> None:
    """Reject links out of the wheel. Installers write a link as a file that contains the target."""
    for path, member in archive.members.items():
        if stat.S_ISLNK(member.mode):
            target = (archive.content(path) or b"").decode("utf-8", "replace")
            landing = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            if target.startswith("/") or landing.startswith("..") or "\0" in target:
                refuse_wheel(
                    archive.label, path, f"is a link to {target!r}, which is outside the wheel"
                )


def _check_wheel(archive: WheelArchive) -> None:
    """Check the version in WHEEL, and that METADATA, folder name and file name agree."""
    label = archive.label
    wheel_version = archive.headers("WHEEL").get("Wheel-Version", "")
    if wheel_version.strip().split(".")[0] != "1":
        refuse_wheel(label, None, f"unsupported Wheel-Version {wheel_version!r} (expected 1.x)")
    metadata = archive.headers("METADATA")
    stated = (metadata.get("Name", ""), metadata.get("Version", ""))
    true = _identity(*stated)
    if _identity(archive.name, archive.version) != true:
        refuse_wheel(label, archive.dist_info, "its METADATA belongs to {} {}".format(*stated))
    if label.endswith(".whl"):
        try:
            name, version, *_ = parse_wheel_filename(label)
        except InvalidWheelFilename as error:
            refuse_wheel(label, None, f"invalid file name of a wheel: {error}")
        if _identity(name, str(version)) != true:
            refuse_wheel(label, None, "its METADATA belongs to {} {}".format(*stated))


def _identity(name: str, version: str) -> tuple[str, str]:
    return canonicalize_name(name), canonicalize_version(version)
