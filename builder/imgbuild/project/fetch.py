"""Clones the git repository of a project without running its code."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from urllib.parse import unquote

import msgspec

from imgbuild.errors import InputError
from imgbuild.project import addresses, submodules
from imgbuild.project.model import NotRead
from imgbuild.project.project_files import ProjectFiles, relative_path
from imgbuild.system import git_fetch

FORMS = (
    "https://HOST/PATH.git@REVISION, ssh://USER@HOST/PATH.git@REVISION, or git@HOST:PATH@REVISION"
)
ADDRESS = re.compile(r"(?:git\+)?(https?|ssh|git|file)://")
SHORT_PATTERN = re.compile(r"(?:git\+)?(?:[\w.-]+@)?[\w.-]+:(?!//)[^\s]+")


class RevisionAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A git repository, and the revision and folder of a project in it.

    `revision` is a branch, a tag, a commit, or "" for the default branch. `folder` is the project's
    folder in the repository, or "." for the root.
    """

    url: str
    revision: str = ""
    folder: str = "."


class ClonedProject(msgspec.Struct, frozen=True, kw_only=True):
    """A cloned project. `not_read` lists submodules, which are not fetched."""

    folder: Path
    commit: str
    not_read: tuple[NotRead, ...] = ()


def is_address(text: str) -> bool:
    """Return whether `text` is the URL of a git repository on another machine instead of a path."""
    return bool(ADDRESS.match(text)) or (
        not Path(text).exists() and bool(SHORT_PATTERN.fullmatch(text))
    )


def parse_revision_address(text: str) -> RevisionAddress:
    """Parse `[git+]URL[@REVISION][#subdirectory=FOLDER]`. Raises InputError for other forms."""
    address, _, fragment = text.strip().removeprefix("git+").partition("#")
    folder = addresses.url_fragment(f"#{fragment}").get("subdirectory", ".")
    short = not ADDRESS.match(address)
    if short and not SHORT_PATTERN.fullmatch(address):
        message = f"{text!r} is not the URL of a git repository"
        raise InputError(message, hint=f"write {FORMS}")
    head, colon, path = address.partition(":") if short else (address, "", "")
    if short:
        path, _, revision = path.partition("@")
        url = f"ssh://{head}/{path}" if colon else address
    else:
        parts = addresses.split_url(address)
        if parts is None:
            message = f"{text!r} is not the URL of a git repository"
            raise InputError(message, hint=f"write {FORMS}")
        before, mark, revision = parts.path.rpartition("@")
        revision = unquote(revision) if mark else ""
        url = parts._replace(path=before if mark else parts.path).geturl()
        if parts.password is not None:
            message = "the URL of the git repository contains a password"
            raise InputError(message, hint="remove the password and use git's credential storage")
    folder = relative_path(".", folder)
    if revision.startswith("-") or folder.startswith(("/", "..")):
        message = f"{text!r} is not the URL of a git repository"
        raise InputError(message, hint=f"write {FORMS}")
    return RevisionAddress(url=url, revision=revision, folder=folder)


def repository_url(text: str) -> str:
    """Remove the revision from the URL `text`.

    Raises the same errors as `parse_revision_address`.
    """
    address = parse_revision_address(text)
    folder = f"#subdirectory={address.folder}" if address.folder != "." else ""
    return f"git+{address.url}{folder}"


def clone_repository(address: RevisionAddress, place: Path) -> ClonedProject:
    """Clone the repository into the new folder `place`.

    Hooks, filters and the repository's configuration are not used, and git does not prompt for a
    password. Raises InputError if the revision or the folder does not exist, and FetchFailed if git
    cannot fetch the repository.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        commit = git_fetch.resolve_commit(address.url, address.revision, folder / "refs")
        git_fetch.write_commit(address.url, commit, folder / "git", place)
    folder = place / address.folder
    sources = ProjectFiles(place)
    if not sources.is_inside(address.folder) or not folder.is_dir():
        message = f"{address.url} has no folder {address.folder}"
        raise InputError(message, hint="specify a folder of the repository with #subdirectory=")
    return ClonedProject(
        folder=folder, commit=commit, not_read=tuple(submodules.missing_submodules(sources))
    )
