"""Packs a folder of a git commit as an sdist whose bytes depend only on the commit.

The archive is a tar file, sorted by path, with a single time and owner, in gzip format without
compression, so that the versions of git and zlib do not matter. File contents are the git objects:
line endings are not converted, attributes are ignored, and git-lfs files remain pointers. A
symbolic link to a file or folder in the repository becomes a copy of its target.
"""

from __future__ import annotations

import bisect
import hashlib
import posixpath
import re
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from packaging.version import Version

from imgbuild import codec
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, InputError, IntegrityError
from imgbuild.lock import addresses
from imgbuild.lock.addresses import GitAddress, is_commit
from imgbuild.lock.resolution import LockedFile
from imgbuild.system import decoding, git_fetch
from imgbuild.system.git_fetch import (
    EXECUTABLE,
    LINK,
    LINK_LIMIT,
    SUBMODULE,
    FetchedRepository,
    GitObjects,
    ObjectReader,
    TreeEntry,
)
from imgbuild.system.syntax import parse_version
from imgbuild.values import CONTROLS, FileSize, Sha256, sha256
from imgbuild.wheel.sdist import LARGEST, MEMBERS, read_members

FORMAT = 1  # of the archive; another one gives other bytes
FACT, DESCRIBED = "git-tree", "git-version"
TIME = 315532800  # 1980-01-01, in seconds
HOPS = 8  # links that lead to links
BLOCK = 0xFFFF  # bytes of a block that deflate does not compress
GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
REFUSED_NAME = re.compile(rf"[{CONTROLS}\\�]")
TEXTS = ("pyproject.toml", "setup.py", "setup.cfg", "CMakeLists.txt")
TEXT_LIMIT = 1 << 20
SHOWN_NAMES = 4
# Build requirements that read the version from git → the variable that sets it.
VERSION_VARIABLES = {
    "setuptools-scm": "SETUPTOOLS_SCM_PRETEND_VERSION",
    "setuptools_scm": "SETUPTOOLS_SCM_PRETEND_VERSION",
    "hatch-vcs": "SETUPTOOLS_SCM_PRETEND_VERSION",
    "use_scm_version": "SETUPTOOLS_SCM_PRETEND_VERSION",
    "pdm-backend": "PDM_BUILD_SCM_VERSION",
    "pbr": "PBR_VERSION",
}


class GitTree(msgspec.Struct, frozen=True, kw_only=True):
    """The git hash of a folder of a commit, and the folder's archive in the store.

    `left_out` contains the paths that cannot be archived: links to paths outside of the repository,
    and names with control characters. `submodules` contains the paths of submodules.
    """

    commit: str
    tree: str
    size: FileSize
    sha256: Sha256
    left_out: tuple[str, ...] = ()
    submodules: tuple[str, ...] = ()

    def as_locked_file(self, name: str) -> LockedFile:
        """Return the lock entry of the archive."""
        return LockedFile(file=name, size=self.size, sha256=self.sha256)


def fetch_git_url(
    text: str, label: str, context: Context, *, form: str
) -> tuple[GitAddress, GitTree]:
    """Resolve and fetch the git URL `text`. `label` is used in error messages.

    Raises InputError with the hint `form` if `text` is not the URL of a git repository. Also raises
    the same errors as `resolve_revision` and `fetch_tree`.
    """
    try:
        address = addresses.parse_address(text)
    except ValueError as error:
        message = f"{label}: {addresses.strip_secrets(text)}: {error}"
        raise InputError(message, hint=form) from None
    if not isinstance(address, GitAddress):
        message = f"{label}: {addresses.strip_secrets(text)}: not the URL of a git repository"
        raise InputError(message, hint=form)
    try:
        address = resolve_revision(address, context)
        return address, fetch_tree(address, context)
    except (FetchFailed, InputError) as error:
        message = f"{label}: {error.message}"
        raise type(error)(message, hint=error.hint) from error


def resolve_revision(address: GitAddress, context: Context) -> GitAddress:
    """Resolve the revision in `address` to a commit.

    A request is sent only if the revision is not a commit. Raises InputError if the repository
    contains no such branch, tag or commit.
    """
    if is_commit(address.rev):
        return address
    _refuse_offline(address, context)
    with context.store.scratch() as folder:
        commit = git_fetch.resolve_commit(address.url, address.rev, folder / "git")
    return msgspec.structs.replace(address, rev=commit)


def require_repository(address: GitAddress, context: Context) -> None:
    """Raise an error unless the repository in `address` contains the branch or tag.

    Raises FetchFailed if it does not respond, or else InputError. No request is sent for a commit
    in the store.
    """
    if not is_commit(address.rev):
        resolve_revision(address, context)
    elif context.store.fact(FACT, _key(address)) is None:
        _refuse_offline(address, context)
        git_fetch.remote_refs(address.url, "HEAD")


def fetch_tree(address: GitAddress, context: Context) -> GitTree:
    """Fetch the folder of a commit, and write its archive to the store.

    Raises InputError if the commit does not contain the folder, FetchFailed if the folder cannot be
    fetched, and IntegrityError if it exceeds the limits for sdists.
    """
    store, key = context.store, _key(address)
    stored = store.fact(FACT, key)
    if stored is not None:
        tree = decoding.decode_json(stored, GitTree)
        if store.file(tree.sha256) is not None:
            return tree
    _refuse_offline(address, context)
    with (
        context.reporter.step(f"fetching {address.url} at {address.rev[:12]}"),
        store.scratch() as folder,
    ):
        repository = _repository(folder / "git", address)
        tree = write_archive(repository, address, folder / "archive")
        store.add_file(folder / "archive", tree.sha256)
    store.put_fact(FACT, key, msgspec.json.encode(tree))
    if tree.left_out:
        names = ", ".join(map(repr, tree.left_out[:SHOWN_NAMES]))
        context.reporter.info(f"{address.url}: excluded from the archive: {names}")
    return tree


def _repository(folder: Path, address: GitAddress) -> FetchedRepository:
    folder.mkdir()
    repository = FetchedRepository(folder, sha256=len(address.rev) == 64)
    repository.fetch_commit(address.url, address.rev)
    return repository


def _key(address: GitAddress) -> str:
    return sha256(codec.encode_compact([FORMAT, address.url, address.rev, address.subdirectory]))


def _refuse_offline(address: GitAddress, context: Context) -> None:
    if context.http.offline and not address.url.startswith("file:"):
        message = (
            f"{address.url} at {address.rev or 'HEAD'} is not in the cache, and --offline is set"
        )
        raise FetchFailed(message, hint="run once without --offline")


def write_archive(repository: FetchedRepository, address: GitAddress, target: Path) -> GitTree:
    """Write the archive of the folder and commit in `address` to `target`."""
    commit = repository.resolve_object(f"{address.rev}^{{commit}}") or address.rev
    tree = repository.resolve_object(f"{commit}:{address.subdirectory}")
    entries = {entry.path: entry for entry in repository.list_entries(commit)}
    start = f"{address.subdirectory}/" if address.subdirectory else ""
    chosen = {path: each for path, each in entries.items() if path.startswith(start)}
    if tree is None or not chosen:
        message = f"{address.url} at {commit[:12]} has no folder {address.subdirectory or '/'}"
        raise InputError(message, hint="correct #subdirectory=")
    with repository.open_reader() as reader:
        files, left_out = _files(chosen, entries, reader)
        total = sum(entry.size for entry in files.values())
        if len(files) > MEMBERS or total > LARGEST:
            message = (
                f"{address.url} at {commit[:12]} has {len(files)} files of {total} bytes"
                f" (limits {MEMBERS}, {LARGEST})"
            )
            raise IntegrityError(
                message,
                hint="use a wheel, or add #subdirectory=FOLDER to the URL to select a folder",
            )
        named = {path.removeprefix(start): entry for path, entry in files.items()}
        digest, size = _write_pieces(gzip_pieces(_tar_pieces(commit, named, reader)), target)
    return GitTree(
        commit=commit,
        tree=tree,
        size=size,
        sha256=digest,
        left_out=tuple(left_out),
        submodules=tuple(path for path, each in sorted(chosen.items()) if each.mode == SUBMODULE),
    )


def _files(
    chosen: Mapping[str, TreeEntry], entries: Mapping[str, TreeEntry], reader: ObjectReader
) -> tuple[dict[str, TreeEntry], list[str]]:
    """Return the files by path, with links replaced by their targets, and the omitted paths."""
    files: dict[str, TreeEntry] = {}
    left_out: list[str] = []
    paths = sorted(entries)
    for path, entry in chosen.items():
        if entry.mode == SUBMODULE:
            continue
        if REFUSED_NAME.search(path):
            left_out.append(path)
            continue
        if entry.mode != LINK:
            files[path] = entry
            continue
        led = _link_target(path, entry, entries, reader)
        below = [] if led is None or led in entries else _paths_below(led, paths)
        if led is not None and led in entries:
            files[path] = entries[led]
        elif not below:
            left_out.append(path)
        for each in below:
            if entries[each].mode not in (LINK, SUBMODULE) and not REFUSED_NAME.search(each):
                files[f"{path}/{each.removeprefix(f'{led}/')}"] = entries[each]
        if len(files) > MEMBERS:
            break
    return files, left_out


def _link_target(
    path: str, entry: TreeEntry, entries: Mapping[str, TreeEntry], reader: ObjectReader
) -> str | None:
    """Return the path in the repository to which a link points, or None if it is outside."""
    for _ in range(HOPS):
        if entry.size > LINK_LIMIT:
            return None
        target = reader.content(entry.object).decode("utf-8", "replace")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if path in (".", "..") or path.startswith(("/", "../")):
            return None
        other = entries.get(path)
        if other is None or other.mode not in (LINK, SUBMODULE):
            return path
        if other.mode == SUBMODULE:
            return None
        entry = other
    return None


def _paths_below(folder: str, paths: Sequence[str]) -> Sequence[str]:
    start = bisect.bisect_left(paths, f"{folder}/")
    return paths[start : bisect.bisect_left(paths, f"{folder}0")]  # "0" follows "/"


def _tar_pieces(top: str, files: Mapping[str, TreeEntry], reader: ObjectReader) -> Iterator[bytes]:
    yield _header(top, tarfile.DIRTYPE, 0, 0o755)
    for path in sorted(files, key=str.encode):
        entry = files[path]
        mode = 0o755 if entry.mode == EXECUTABLE else 0o644
        yield _header(f"{top}/{path}", tarfile.REGTYPE, entry.size, mode)
        yield from reader.read_pieces(entry.object)
        yield b"\0" * (-entry.size % tarfile.BLOCKSIZE)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


def _header(name: str, kind: bytes, size: int, mode: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mode, info.mtime = kind, size, mode, TIME
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")


def gzip_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield `pieces` in gzip format with stored blocks (RFC 1951, 3.2.4; RFC 1952)."""
    yield GZIP_HEAD
    check, size, rest = 0, 0, bytearray()
    for piece in pieces:
        check, size = zlib.crc32(piece, check), size + len(piece)
        rest += piece
        while len(rest) > BLOCK:
            yield _stored_block(bytes(rest[:BLOCK]), last=False)
            del rest[:BLOCK]
    yield _stored_block(bytes(rest), last=True)
    yield struct.pack("<II", check, size & 0xFFFFFFFF)


def _stored_block(data: bytes, *, last: bool) -> bytes:
    return struct.pack("<BHH", last, len(data), len(data) ^ 0xFFFF) + data


def _write_pieces(pieces: Iterable[bytes], target: Path) -> tuple[str, int]:
    hasher, size = hashlib.sha256(), 0
    with target.open("xb") as file:
        for piece in pieces:
            hasher.update(piece)
            size += file.write(piece)
    return hasher.hexdigest(), size


# -- contents of the files


def stored_archive(tree: GitTree, store: Store, label: str) -> Path:
    """Return the archive of `tree` in the store. Raises IntegrityError if it was deleted."""
    path = store.file(tree.sha256)
    if path is None:
        message = f"{label} was removed from the cache while it was in use"
        raise IntegrityError(message, hint="run the same command again")
    return path


def build_texts(tree: GitTree, store: Store, label: str) -> dict[str, str]:
    """Return the contents of the build configuration files, by name."""
    return {
        member.path: b"".join(content()).decode("utf-8", "replace")
        for member, content in read_members(stored_archive(tree, store, label), label)
        if member.path in TEXTS and member.kind == "file" and member.size <= TEXT_LIMIT
    }


def version_variables(
    address: GitAddress, files: Mapping[str, str], context: Context
) -> dict[str, str]:
    """Return environment variables that set the version of a build from git.

    The result is empty if the build backend reads no such variable. The version is the default of
    setuptools-scm: the nearest tag, or else the next release followed by the number of commits
    since the tag and the commit.
    """
    variables = scm_variables(files)
    return dict.fromkeys(variables, describe_version(address, context)) if variables else {}


def scm_variables(files: Mapping[str, str]) -> list[str]:
    """Return the environment variables from which a build backend reads the version, sorted."""
    text = "\n".join(files.get(name, "") for name in ("pyproject.toml", "setup.py", "setup.cfg"))
    variables = {
        variable
        for word, variable in VERSION_VARIABLES.items()
        if re.search(rf"(?<![\w-]){word}(?![\w-])", text)
    }
    if re.search(r"pdm-backend", text) and not re.search(r"source\s*=\s*[\"']scm[\"']", text):
        variables.discard("PDM_BUILD_SCM_VERSION")
    return sorted(variables)


def describe_version(address: GitAddress, context: Context) -> str:
    """Return the version of the commit in `address` according to its history.

    Raises FetchFailed if the history cannot be fetched.
    """
    store = context.store
    key = sha256(codec.encode_compact([FORMAT, address.url, address.rev]))
    stored = store.fact(DESCRIBED, key)
    if stored is not None:
        return stored.decode()
    _refuse_offline(address, context)
    with (
        context.reporter.step(f"fetching the history of {address.url}"),
        store.scratch() as folder,
    ):
        repository = _repository(folder / "git", address)
        repository.fetch_history(address.url, address.rev)
        version = version_from_history(repository, address.rev)
    store.put_fact(DESCRIBED, key, version.encode())
    return version


def version_from_history(repository: GitObjects, commit: str) -> str:
    """Return the version of a commit according to the history in `repository`."""
    tag = repository.nearest_tag(commit)
    count = repository.count(commit) if tag is None else tag[1]
    return version_after_tag(tag[0] if tag is not None else "", count, commit)


def version_after_tag(tag: str, distance: int, commit: str) -> str:
    """Return the version of a commit that is `distance` commits after `tag`.

    `tag` is "" if there is no tag.
    """
    local = f"g{commit[:9]}"
    number = re.search(r"[0-9].*", tag)
    version = parse_version(number[0] if number is not None else None) or Version("0.0")
    if tag and distance == 0:
        return str(version)
    release = list(version.release)
    if version.pre is not None and version.pre[1] >= 0:
        base = f"{version.epoch}!" if version.epoch else ""
        numbers = ".".join(map(str, release))
        return f"{base}{numbers}{version.pre[0]}{version.pre[1] + 1}.dev{distance}+{local}"
    release[-1] += 1
    base = f"{version.epoch}!" if version.epoch else ""
    return f"{base}{'.'.join(map(str, release))}.dev{distance}+{local}"
