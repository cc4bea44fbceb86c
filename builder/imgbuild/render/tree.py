"""Converts files, folders and links of a layer to shell commands of a Dockerfile."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

import msgspec

from imgbuild.oci.tar import LayerMember, MemberKind
from imgbuild.system import quoting
from imgbuild.system.quoting import QuotedText
from imgbuild.values import Arch

COMMON_FOLDER = "files"  # the folder next to a Dockerfile with the files of all architectures


class TreeFolder(msgspec.Struct, frozen=True, kw_only=True):
    """Folders with the same mode and owner."""

    paths: tuple[str, ...]
    mode: str
    uid: int = 0
    gid: int = 0

    def command(self, *, owners: bool) -> QuotedText:
        """Return the command that creates the folders."""
        other = owners and (self.uid or self.gid)
        owner = ("-o", str(self.uid), "-g", str(self.gid)) if other else ()
        return quoting.quote_words(("install", "-d", "-m", self.mode, *owner, *self.paths))


class TreeLink(msgspec.Struct, frozen=True, kw_only=True):
    """A symbolic link and its target."""

    path: str
    target: str


class TreeFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file at `source` in the build context.

    With `by_arch`, the file differs between architectures.
    """

    path: str
    source: str
    mode: str
    by_arch: bool = False

    def command(self, context: str, arch: str | None) -> QuotedText:
        """Return the command that copies the file.

        For `arch` None, the command contains $TARGETARCH, which BuildKit sets.
        """
        suffix = f"-{arch}" if arch else '-"$TARGETARCH"'
        folder = f"{context}/{COMMON_FOLDER}{suffix if self.by_arch else ''}"
        source = quoting.quote_word("/" + self.source.partition("/")[2])
        mode, path = quoting.quote_word(self.mode), quoting.quote_word(self.path)
        return QuotedText(f"install -D -T -m {mode} {folder}{source} {path}")


class LayerTree(msgspec.Struct, frozen=True, kw_only=True):
    """The members that a layer adds, in the order of creation."""

    folders: tuple[TreeFolder, ...]
    parents: tuple[str, ...]
    links: tuple[TreeLink, ...]
    files: tuple[TreeFile, ...]

    def steps(
        self, context: str, *, owners: bool = True, arch: str | None = None
    ) -> tuple[QuotedText, ...]:
        """Return commands that create the members from the files in the build context `context`.

        Without `owners`, all files belong to the user who runs the commands. `arch` is Docker's
        name of the architecture, by default $TARGETARCH. Like a layer, the commands replace
        existing files and links. They fail if a folder exists at the path of a file.
        """
        return (
            *(folder.command(owners=owners) for folder in self.folders),
            *(file.command(context, arch) for file in self.files),
            *((quoting.quote_words(("mkdir", "-p", *self.parents)),) if self.parents else ()),
            *(quoting.quote_words(("ln", "-sfT", link.target, link.path)) for link in self.links),
        )


def create_tree(members: Mapping[Arch, Sequence[LayerMember]]) -> LayerTree:
    """Combine the members of a layer. Only file contents may differ between architectures."""
    first = next(iter(members.values()))
    folders: dict[tuple[str, int, int], list[str]] = {}
    for member in first:
        if member.kind is MemberKind.FOLDER:
            key = (f"{member.mode:04o}", member.uid, member.gid)
            folders.setdefault(key, []).append("/" + member.path)
    links = tuple(
        TreeLink(path="/" + member.path, target=member.target)
        for member in first
        if member.kind is MemberKind.LINK
    )
    folder_paths = {path for paths in folders.values() for path in paths}
    parents = {posixpath.dirname(link.path) for link in links}
    files = tuple(
        TreeFile(
            path="/" + member.path,
            source=f"{COMMON_FOLDER}/{member.path}",
            mode=f"{member.mode:04o}",
            by_arch=len(_texts(members, member.path)) > 1,
        )
        for member in first
        if member.kind is MemberKind.FILE
    )
    return LayerTree(
        folders=tuple(
            TreeFolder(paths=tuple(paths), mode=mode, uid=uid, gid=gid)
            for (mode, uid, gid), paths in folders.items()
        ),
        parents=tuple(sorted(parent for parent in parents if not _is_below(folder_paths, parent))),
        links=links,
        files=files,
    )


def source_files(members: Mapping[Arch, Sequence[LayerMember]]) -> dict[str, bytes]:
    """Return the files of a layer by path in the folder of the Dockerfile."""
    contents: dict[str, bytes] = {}
    for arch, every in members.items():
        for member in every:
            if member.kind is MemberKind.FILE:
                differs = len(_texts(members, member.path)) > 1
                folder = f"{COMMON_FOLDER}-{arch.oci}" if differs else COMMON_FOLDER
                contents[f"{folder}/{member.path}"] = _content(member)
    return contents


def _texts(members: Mapping[Arch, Sequence[LayerMember]], path: str) -> set[bytes]:
    return {
        _content(member) for every in members.values() for member in every if member.path == path
    }


def _content(member: LayerMember) -> bytes:
    if not isinstance(member.content, bytes):
        message = f"{member.path} is not one of imgbuild's text files"
        raise TypeError(message)
    return member.content


def _is_below(folders: set[str], path: str) -> bool:
    return any(folder == path or folder.startswith(path + "/") for folder in folders)
