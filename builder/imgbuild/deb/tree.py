"""Merges the files of Debian packages into one tree, with a merged /usr.

The output is sorted, and has each path once. Each hard link comes after its target.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

import msgspec

from imgbuild.errors import IntegrityError
from imgbuild.oci.tar import FileSlice, LayerMember, MemberKind, sort_key

ALIASES = ("bin", "sbin", "lib", "lib32", "lib64", "libo32", "libx32")
ALWAYS_LINKED = ("bin", "sbin", "lib")
SET_ID_BITS = 0o6000  # the setuid and setgid bits of a mode
LINKS = 16  # links followed before a path counts as a loop


def merge_usr(path: str) -> str:
    """Move `path` below /usr: `bin/sh` becomes `usr/bin/sh`. Leading slashes are removed."""
    path = path.lstrip("/")
    return f"usr/{path}" if path.partition("/")[0] in ALIASES else path


class DebTree:
    """Layer members by path.

    Raises IntegrityError if two packages have different members at a path.
    """

    def __init__(self) -> None:
        self._members: dict[str, LayerMember] = {}
        self._owners: dict[str, str] = {}

    def __contains__(self, path: str) -> bool:
        return merge_usr(path) in self._members

    def add(self, member: LayerMember, owner: str) -> None:
        """Add a member of the package `owner`, moved below /usr.

        The targets of symbolic links do not change.
        """
        if member.path in ALIASES and member.target == f"usr/{member.path}":
            return  # base-files ships the links since Debian 13: `members` creates them
        path = merge_usr(member.path)
        if member.kind is MemberKind.HARD:
            member = msgspec.structs.replace(member, target=merge_usr(member.target))
        member = msgspec.structs.replace(member, path=path)
        existing = self._members.get(path)
        if existing is not None and existing != member:
            message = (
                f"{owner} and {self._owners[path]} both contain /{path}: {member.kind}"
                f" {member.mode:04o} and {existing.kind} {existing.mode:04o}"
            )
            raise IntegrityError(message, hint="remove one of these packages from the base")
        self._members[path] = member
        self._owners.setdefault(path, owner)

    def put(self, member: LayerMember) -> None:
        """Add a member that an effect creates. It replaces any member with the same path."""
        path = merge_usr(member.path)
        self._members[path] = msgspec.structs.replace(member, path=path)
        self._owners[path] = "an effect"

    def file(self, path: str, data: bytes, *, mode: int = 0o644, gid: int = 0) -> None:
        """Add a file owned by root at `path`."""
        self.put(
            LayerMember(path=path, mode=mode, gid=gid, size=len(data), content=data, pack=True)
        )

    def add_link(self, path: str, target: str) -> None:
        """Add a symbolic link at `path`."""
        self.put(LayerMember(path=path, kind=MemberKind.LINK, mode=0o777, target=target))

    def get(self, path: str) -> LayerMember | None:
        """Return the member at `path`. If it is a link, the link itself is returned."""
        return self._members.get(merge_usr(path))

    def resolve_member(self, path: str) -> LayerMember | None:
        """Return the member at `path` after following all links, or None if a link is broken."""
        place = merge_usr(posixpath.normpath(path))
        for _ in range(LINKS):
            parts = place.split("/")
            for end in range(1, len(parts) + 1):
                member = self._members.get("/".join(parts[:end]))
                if member is not None and member.kind is MemberKind.LINK:
                    folder = "/" + "/".join(parts[: end - 1])
                    joined = posixpath.join(folder, member.target, *parts[end:])
                    place = merge_usr(posixpath.normpath(joined))
                    break
            else:
                return self._file(self._members.get(place))
        return None

    def read(self, path: str) -> bytes:
        """Return the content of the file at `path`, following links.

        Raises IntegrityError if `path` is not a file.
        """
        member = self.resolve_member(path)
        if member is None or member.content is None:
            message = f"an effect reads /{path.lstrip('/')}, but this file is not in the base"
            raise IntegrityError(message, hint="correct the effects in imgbuild/data/debian")
        if isinstance(member.content, FileSlice):
            with member.content.path.open("rb") as file:
                file.seek(member.content.offset)
                return file.read(member.content.length)
        return member.content

    def clear_set_id(self) -> None:
        """Clear the setuid and setgid bits of all files, but not of folders."""
        for path, member in self._members.items():
            if member.kind is not MemberKind.FOLDER:
                self._members[path] = msgspec.structs.replace(
                    member, mode=member.mode & ~SET_ID_BITS
                )

    def members_below(self, folder: str, *, deep: bool = False) -> list[LayerMember]:
        """Return the sorted members in `folder`, including those in subfolders if `deep` is set."""
        prefix = merge_usr(folder).rstrip("/") + "/"
        members = [
            member
            for path, member in self._members.items()
            if path.startswith(prefix) and (deep or "/" not in path[len(prefix) :])
        ]
        return sorted(members, key=sort_key)

    def members(self) -> list[LayerMember]:
        """Return all members in byte order of the paths, including the links of merged /usr."""
        for alias in ALIASES:
            used = any(path.startswith(f"usr/{alias}/") for path in self._members)
            if alias in ALWAYS_LINKED or used:
                self._members[alias] = LayerMember(
                    path=alias, kind=MemberKind.LINK, mode=0o777, target=f"usr/{alias}"
                )
        return sorted(_hard_links(self._members.values()), key=sort_key)

    def _file(self, member: LayerMember | None) -> LayerMember | None:
        if member is not None and member.kind is MemberKind.HARD:
            return self._members.get(member.target)
        return member


def _hard_links(members: Iterable[LayerMember]) -> list[LayerMember]:
    """Move each hard-linked file in `members` to its first path, and make other paths links.

    A program that unpacks the archive can only link to files that it has already created.
    """
    result: dict[str, LayerMember] = {}
    groups: dict[str, list[str]] = {}
    for member in members:
        result[member.path] = member
        if member.kind is MemberKind.HARD:
            groups.setdefault(member.target, []).append(member.path)
    for target, links in groups.items():
        original = result.get(target)
        if original is None or original.kind is not MemberKind.FILE:
            message = f"/{links[0]} is a hard link to /{target}, but the base has no such file"
            raise IntegrityError(
                message, hint="change the exclude pattern that matches the file but not the link"
            )
        first, *others = sorted([target, *links], key=str.encode)
        result[first] = msgspec.structs.replace(original, path=first)
        for path in others:
            result[path] = msgspec.structs.replace(
                original,
                path=path,
                kind=MemberKind.HARD,
                target=first,
                content=None,
                size=0,
                pack=False,
            )
    return list(result.values())
