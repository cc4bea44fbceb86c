"""Fetches untrusted git repositories, and reads their objects.

Objects are fetched into a new bare repository, so that hooks and configuration of the remote
repository have no effect. Files are not checked out, so that no filter runs. Git uses the user's
credentials (credential helpers, netrc, ssh), but does not prompt.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

import msgspec

from imgbuild.errors import FetchFailed, InputError
from imgbuild.system import process

LIMIT = 900.0  # seconds of a command that uses the network
SHOWN_CHARACTERS = 300  # characters of git's message
# The protocols of a URL and of its replacements by the user's `insteadOf`. Redirects of a server
# from https to http are refused.
PROTOCOLS = {
    "https": "https:ssh",
    "ssh": "ssh:https",
    **{name: name for name in ("file", "http", "git")},
}
# Source: git-config(1) of 2.39.
SETTINGS = (
    *("-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "core.askPass="),
    *("-c", "fetch.recurseSubmodules=false", "-c", "submodule.recurse=false"),
    *("-c", "fetch.writeCommitGraph=false", "-c", "http.lowSpeedLimit=1000"),
    *("-c", "http.lowSpeedTime=60"),
)
# Read-only use of a repository: no replacement objects, no fetches from a remote.
READING_SETTINGS = (
    *("--no-replace-objects", "-c", "protocol.allow=never"),
    *("-c", "core.fsmonitor=false"),
)
PIECE = 1 << 20
LINK, SUBMODULE, EXECUTABLE = "120000", "160000", "100755"  # modes of tree entries
LINK_LIMIT = 4096  # bytes of a link
LARGEST_OBJECT = 64 << 20  # bytes of a file that is written to a folder
COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
SHORT_COMMIT = re.compile(r"[0-9a-f]{4,63}")
NAMED_REFS = 4  # branches and tags in a hint
HINT = (
    "git uses your credentials (credential helper, netrc, ssh); to test them, run: git ls-remote"
    " URL"
)


class TreeEntry(msgspec.Struct, frozen=True):
    """A file, link or submodule of a commit: octal `mode`, `object` ID, and `size` in bytes."""

    mode: str
    object: str
    size: int
    path: str


def remote_refs(url: str, *patterns: str) -> dict[str, str]:
    """Return the object IDs of the refs of the repository at `url`, by name.

    With `patterns`, only matching refs are returned. Raises FetchFailed if the server does not
    respond.
    """
    words = (*SETTINGS, "ls-remote", "--quiet", "--", url, *patterns)
    done = _run_git(words, env=_transport(url))
    if done.status != 0:
        raise _failure(url, done)
    pairs = (line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line)
    return {name: object_name for object_name, name in pairs}


def resolve_commit(url: str, revision: str, folder: Path) -> str:
    """Return the commit of a branch, tag or short hash. "" is the default branch.

    To find a short hash, the repository is fetched into the new folder `folder`. Raises InputError
    if the repository has no such revision, and FetchFailed if the server does not respond.
    """
    if COMMIT.fullmatch(revision):
        return revision
    refs = remote_refs(url, *_patterns(revision))
    for name in _patterns(revision):
        if name in refs:
            return refs[name]
    if SHORT_COMMIT.fullmatch(revision):
        folder.mkdir(parents=True)
        repository = FetchedRepository(folder)
        repository.fetch_all(url)
        commit = repository.resolve_object(f"{revision}^{{commit}}")
        if commit is not None:
            return commit
    if not revision:
        message = f"{url}: the repository has no default branch"
        raise InputError(message, hint="specify a branch, a tag or a commit: …@REV")
    names = sorted(name.rpartition("/")[2] for name in remote_refs(url))
    some = ", ".join([name for name in names if not name.endswith("^{}")][:NAMED_REFS])
    message = f"{url} has no branch, tag or commit {revision}"
    raise InputError(
        message,
        hint=f"specify a branch or tag of the repository, such as {some}"
        if some
        else "the repository has no branches or tags",
    )


def _patterns(revision: str) -> tuple[str, ...]:
    """Return the refs that a revision can match, by priority.

    The commit of an annotated tag precedes the tag object.
    """
    if not revision:
        return ("HEAD",)
    if revision.startswith("refs/"):
        return (f"{revision}^{{}}", revision)
    tag = f"refs/tags/{revision}"
    return (f"{tag}^{{}}", tag, f"refs/heads/{revision}")


def write_commit(url: str, commit: str, folder: Path, place: Path) -> None:
    """Write the files of a commit, as stored in git's objects, to the new folder `place`.

    The repository is fetched into the new folder `folder`. Submodules, and files larger than
    `LARGEST`, are omitted. Raises FetchFailed if the commit cannot be fetched or written.
    """
    folder.mkdir(parents=True)
    repository = FetchedRepository(folder, sha256=len(commit) == 64)
    repository.fetch_commit(url, commit)
    place.mkdir(parents=True)
    # Links are created last, the deepest first, so that nothing is written through one.
    entries = sorted(
        repository.list_entries(commit), key=lambda each: (each.mode == LINK, -each.path.count("/"))
    )
    try:
        with repository.open_reader() as reader:
            for entry in entries:
                if entry.mode != SUBMODULE and not {"", "..", ".git"} & set(entry.path.split("/")):
                    _write_entry(entry, reader, place / entry.path)
    except OSError as error:
        message = f"cannot write {url} at {commit[:12]} to {place}: {error.strerror}"
        raise FetchFailed(message, hint="use another revision, or a local clone") from error


def _write_entry(entry: TreeEntry, reader: ObjectReader, path: Path) -> None:
    if entry.size > (LINK_LIMIT if entry.mode == LINK else LARGEST_OBJECT) or os.path.lexists(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if entry.mode == LINK:
        target = reader.content(entry.object)
        if target and b"\0" not in target:
            path.symlink_to(os.fsdecode(target))
        return
    with path.open("xb") as file:
        for piece in reader.read_pieces(entry.object):
            file.write(piece)


class GitObjects:
    """Reads objects of the repository in the git folder `folder`. No hooks or filters are run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._words: tuple[str, ...] = ("--git-dir", str(folder), *READING_SETTINGS)

    def has(self, commit: str) -> bool:
        """Return whether the object `commit` exists."""
        return self._run_git("cat-file", "-e", commit).status == 0

    def resolve_object(self, name: str) -> str | None:
        """Return the object ID of `name` ("REV^{commit}", "COMMIT:folder").

        Returns None if the object is missing.
        """
        done = self._run_git("rev-parse", "--verify", "--quiet", "--end-of-options", name)
        return done.stdout.strip() if done.status == 0 else None

    def nearest_tag(self, commit: str) -> tuple[str, int] | None:
        """Return the nearest tag in the history of `commit`, and the number of commits after it.

        Only tags with a digit are considered. Returns None if there is none.
        """
        pattern = ("--tags", "--long", "--abbrev=40", "--match", "*[0-9]*")
        done = self._run_git("describe", *pattern, commit)
        parts = done.stdout.strip().rsplit("-", 2)
        return (parts[0], int(parts[1])) if done.status == 0 and len(parts) == 3 else None

    def count(self, commit: str) -> int:
        """Return the number of commits in the history of `commit`."""
        return int(self._run_git("rev-list", "--count", commit).stdout.strip() or 0)

    def list_entries(self, commit: str) -> list[TreeEntry]:
        """Return all files of a commit or tree. Bytes of paths that are not UTF-8 become U+FFFD."""
        done = self._run_git("ls-tree", "-r", "-z", "-l", "--full-tree", commit)
        entries = []
        for line in filter(None, done.stdout.split("\0")):
            head, _, path = line.partition("\t")
            mode, _, name, size = head.split()
            entries.append(TreeEntry(mode, name, int(size) if size.isdecimal() else 0, path))
        return entries

    @contextlib.contextmanager
    def open_reader(self) -> Iterator[ObjectReader]:
        """Open a reader for the contents of objects. Only one object can be read at a time."""
        command = [*_program(), *self._words, "cat-file", "--batch"]
        with process.start_piped(command) as running:
            if running.stdin is None or running.stdout is None:
                message = "git cat-file has no pipes"
                raise FetchFailed(message)
            try:
                yield ObjectReader(running.stdin, running.stdout)
            finally:
                running.kill()

    def _run_git(self, *words: str, env: Mapping[str, str] | None = None) -> process.ProcessResult:
        return _run_git((*self._words, *words), env=env)


class FetchedRepository(GitObjects):
    """A bare repository for fetched objects in the empty `folder`.

    With `sha256`, object IDs are SHA-256.
    """

    def __init__(self, folder: Path, *, sha256: bool = False) -> None:
        super().__init__(folder)
        self._words = ("--git-dir", str(folder), *SETTINGS)
        form = "sha256" if sha256 else "sha1"
        _run_git(
            ("init", "--quiet", "--bare", "--template=", f"--object-format={form}", str(folder)),
            check=True,
        )

    def fetch_commit(self, url: str, commit: str) -> None:
        """Fetch `commit` without history. If the server rejects this, fetch all branches and tags.

        Raises FetchFailed if the repository does not have the commit.
        """
        done = self._run_fetch(url, commit, "--depth=1")
        if done.status == 0 and self.has(commit):
            return
        self.fetch_all(url)
        if not self.has(commit):
            message = f"{url}: no branch or tag contains commit {commit}"
            raise FetchFailed(
                message, hint="use another revision; this commit may have been removed"
            )

    def fetch_all(self, url: str) -> None:
        """Fetch all branches and tags with their history. Raises FetchFailed on failure."""
        done = self._run_fetch(url, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
        if done.status != 0:
            raise _failure(url, done)

    def fetch_history(self, url: str, commit: str) -> None:
        """Fetch all tags and the history of the fetched `commit`.

        Raises FetchFailed on failure.
        """
        shallow = self._run_git("rev-parse", "--is-shallow-repository").stdout.strip() == "true"
        deeper = ("--unshallow",) if shallow else ()
        done = self._run_fetch(url, commit, "+refs/tags/*:refs/tags/*", *deeper)
        if done.status != 0:
            self.fetch_all(url)

    def _run_fetch(self, url: str, *words: str) -> process.ProcessResult:
        options = [word for word in words if word.startswith("--")]
        specs = [word for word in words if not word.startswith("--")]
        command = ("fetch", "--quiet", "--no-tags", "--no-recurse-submodules", *options)
        return self._run_git(*command, "--", url, *specs, env=_transport(url))


class ObjectReader:
    """Reads objects through the pipes of `git cat-file --batch`."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests = requests
        self._answers = answers

    def read_pieces(self, name: str) -> Iterator[bytes]:
        """Yield the content of an object in pieces.

        All pieces must be read before the next object.
        """
        self._requests.write(f"{name}\n".encode())
        self._requests.flush()
        head = self._answers.readline().split()
        if len(head) != 3:
            message = f"the repository lacks the object {name}"
            raise FetchFailed(
                message, hint="the revision is damaged on the server; use another revision"
            )
        left = int(head[2])
        while left:
            piece = self._answers.read(min(left, PIECE))
            if not piece:
                message = f"git ended before the object {name} was read"
                raise FetchFailed(message)
            left -= len(piece)
            yield piece
        self._answers.read(1)

    def content(self, name: str) -> bytes:
        """Read the complete content of a small object."""
        return b"".join(self.read_pieces(name))


def _program() -> list[str]:
    return [process.find_program("git", remedy="install git")]


def _run_git(
    words: Iterable[str], *, env: Mapping[str, str] | None = None, check: bool = False
) -> process.ProcessResult:
    return process.run_command(
        [*_program(), *words], env=env, cwd=Path("/"), check=check, limit=LIMIT
    )


def _transport(url: str) -> dict[str, str]:
    """Return the variables that disable prompts and all protocols except the protocol of `url`."""
    variables = {
        "GIT_ALLOW_PROTOCOL": PROTOCOLS[url.partition(":")[0]],
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "SSH_ASKPASS_REQUIRE": "never",
        "GCM_INTERACTIVE": "never",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "LC_ALL": "C.UTF-8",
    }
    if "GIT_SSH" not in os.environ:
        ssh = os.environ.get("GIT_SSH_COMMAND") or _configured_ssh() or "ssh"
        program = Path((shlex.split(ssh) or [""])[0]).name
        quiet = " -o BatchMode=yes" if program == "ssh" else ""  # OpenSSH's option
        variables["GIT_SSH_COMMAND"] = ssh + quiet
    return variables


def _configured_ssh() -> str:
    return _run_git(("config", "--get", "core.sshCommand")).stdout.strip()


def _failure(url: str, done: process.ProcessResult) -> FetchFailed:
    text = re.sub(r"://[^/@\s]*@", "://", done.stderr.strip())
    lines = [line.removeprefix("fatal: ") for line in text.splitlines() if line.strip()]
    reason = "; ".join(lines[-3:])[-SHOWN_CHARACTERS:] or f"git ended with status {done.status}"
    return FetchFailed(
        f"{url}: git cannot access the repository: {reason}", hint=HINT.replace("ADDRESS", url)
    )
