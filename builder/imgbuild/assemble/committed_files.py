"""Reads the committed files of a project folder from git objects, as members of a layer.

Contents are read from the objects, as in `solve.git_tree`, so that filters, attributes and hooks of
the repository have no effect. Files that only imgbuild reads are excluded.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from imgbuild.errors import InputError
from imgbuild.matrix.project_paths import FOLDER, MATRIX
from imgbuild.oci.tar import FileSlice, LayerMember, MemberKind
from imgbuild.solve.git_tree import REFUSED_NAME
from imgbuild.system import git
from imgbuild.system.git_fetch import (
    EXECUTABLE,
    LINK,
    LINK_LIMIT,
    PIECE,
    SUBMODULE,
    GitObjects,
    ObjectReader,
    TreeEntry,
)

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
LFS_LIMIT = 1024  # bytes; a git-lfs pointer has about 130
TEXT_LIMIT = 1 << 20  # bytes files up to this size are compared with carriage returns ignored
WORK_MODE = 0o1777  # modes of the working folder, as in the image: any user may write to it


class CommittedFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder at HEAD: the git directory, the commit, and the git tree of the folder."""

    folder: Path
    git_folder: Path
    commit: str
    tree: str


class CommittedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a `CommittedFolder` as layer members, and the paths without content.

    `left_out` lists paths with names that a layer cannot contain. `submodules` lists folders of
    other repositories. `pointers` lists files whose content is stored by git-lfs. `entries` are the
    files that the folder should contain.
    """

    members: tuple[LayerMember, ...]
    entries: tuple[TreeEntry, ...]
    left_out: tuple[str, ...] = ()
    submodules: tuple[str, ...] = ()
    pointers: tuple[str, ...] = ()


def find_committed_folder(folder: Path) -> CommittedFolder:
    """Return `folder` at HEAD.

    Raises InputError if the folder is not in a repository or has no committed file.
    """
    hint = "commit the project's files with git init, git add and git commit"
    inside = git.run_git(folder, "rev-parse", "--absolute-git-dir", "--show-prefix")
    if inside.status != 0:
        errors = inside.stderr.strip().splitlines()
        message = ": ".join((f"{folder} is not in a readable git checkout", *errors[:1]))
        raise InputError(message, hint=hint)
    git_folder, _, prefix = inside.stdout.rstrip("\n").partition("\n")
    repository = GitObjects(Path(git_folder))
    commit = repository.resolve_object("HEAD^{commit}")
    if commit is None:
        message = f"the git repository with {folder} has no commit"
        raise InputError(message, hint=hint)
    tree = repository.resolve_object(f"{commit}:{prefix.rstrip('/')}")
    if tree is None:
        message = f"commit {commit[:12]} contains no file of {folder}"
        raise InputError(message, hint="commit the project's files with git add and git commit")
    return CommittedFolder(folder=folder, git_folder=Path(git_folder), commit=commit, tree=tree)


def read_committed_files(
    committed: CommittedFolder, workdir: str, contents: Path
) -> CommittedFiles:
    """Read the members below `workdir`, an absolute path, and write contents to `contents`."""
    repository = GitObjects(committed.git_folder)
    top = workdir.strip("/")
    members = [LayerMember(path=top, kind=MemberKind.FOLDER, mode=WORK_MODE)]
    entries: list[TreeEntry] = []
    left_out: list[str] = []
    submodules: list[str] = []
    pointers: list[str] = []
    with repository.open_reader() as reader, contents.open("xb") as file:
        for entry in repository.list_entries(committed.tree):
            if _belongs_to_imgbuild(entry.path):
                continue
            if entry.mode == SUBMODULE:
                submodules.append(entry.path)
                continue
            if REFUSED_NAME.search(entry.path) or (entry.mode == LINK and entry.size > LINK_LIMIT):
                left_out.append(entry.path)
                continue
            path = f"{top}/{entry.path}"
            if entry.mode == LINK:
                target = reader.content(entry.object).decode("utf-8", "replace")
                if REFUSED_NAME.search(target):
                    left_out.append(entry.path)
                    continue
                members.append(
                    LayerMember(path=path, kind=MemberKind.LINK, mode=0o777, target=target)
                )
            else:
                part, first = _append_content(entry, reader, file)
                mode = 0o755 if entry.mode == EXECUTABLE else 0o644
                members.append(
                    LayerMember(path=path, mode=mode, size=entry.size, content=part, pack=True)
                )
                if entry.size < LFS_LIMIT and first.startswith(LFS_POINTER):
                    pointers.append(entry.path)
                    continue
            entries.append(entry)
    return CommittedFiles(
        members=tuple(members),
        entries=tuple(entries),
        left_out=tuple(left_out),
        submodules=tuple(submodules),
        pointers=tuple(pointers),
    )


def _append_content(
    entry: TreeEntry, reader: ObjectReader, file: BinaryIO
) -> tuple[FileSlice, bytes]:
    """Append the content of `entry` to `file`. Returns the slice of `file`, and the first bytes."""
    offset, crc, first = file.tell(), 0, b""
    for piece in reader.read_pieces(entry.object):
        first = first or piece
        crc = zlib.crc32(piece, crc)
        file.write(piece)
    place = Path(file.name)
    part = FileSlice(path=place, offset=offset, length=entry.size, deflated=False, crc=crc)
    return part, first


def find_differences(committed: CommittedFolder, files: CommittedFiles) -> tuple[str, ...]:
    """Return the paths that are not committed or differ from the commit.

    Ignored paths and files whose content is stored by git-lfs are excluded.
    """
    listed = ("--cached", "--others", "--exclude-standard", "-z")
    present = git.run_git(committed.folder, "ls-files", *listed).stdout.split("\0")
    in_commit = {entry.path for entry in files.entries}
    in_commit |= {*files.left_out, *files.submodules, *files.pointers}
    new = [
        path
        for path in filter(None, present)
        if path not in in_commit
        and not _belongs_to_imgbuild(path)
        and os.path.lexists(committed.folder / path)
    ]
    return tuple(sorted({*new, *_changed_paths(committed.folder, files.entries)}))


def _belongs_to_imgbuild(path: str) -> bool:
    return path == MATRIX or path.startswith(f"{FOLDER}/")


def _changed_paths(folder: Path, entries: Sequence[TreeEntry]) -> Iterable[str]:
    for entry in entries:
        try:
            if not _is_committed(folder / entry.path, entry):
                yield entry.path
        except OSError:
            yield entry.path


def _is_committed(path: Path, entry: TreeEntry) -> bool:
    """Return whether the file has the content and the type of `entry`.

    Line endings that git converted on checkout are ignored. Raises OSError if the file is
    unreadable.
    """
    status = path.lstat()
    if entry.mode == LINK:
        if not stat.S_ISLNK(status.st_mode):
            return False
        target = os.fsencode(os.readlink(path))  # noqa: PTH115 - bytes as they are
        return _object_name(entry, len(target), [target]) == entry.object
    executable = bool(status.st_mode & stat.S_IXUSR)
    if not stat.S_ISREG(status.st_mode) or executable != (entry.mode == EXECUTABLE):
        return False
    if status.st_size == entry.size:
        with path.open("rb") as file:
            pieces = iter(lambda: file.read(PIECE), b"")
            return _object_name(entry, entry.size, pieces) == entry.object
    if status.st_size > TEXT_LIMIT:
        return False
    data = path.read_bytes().replace(b"\r\n", b"\n")
    return _object_name(entry, len(data), [data]) == entry.object


def _object_name(entry: TreeEntry, size: int, pieces: Iterable[bytes]) -> str:
    form = "sha256" if len(entry.object) == 64 else "sha1"
    hasher = hashlib.new(form, b"blob %d\0" % size, usedforsecurity=False)
    for piece in pieces:
        hasher.update(piece)
    return hasher.hexdigest()
