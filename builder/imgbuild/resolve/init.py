"""Creates a first `matrix.yaml` that extends a published target, and copies the target's lock.

lock.json and digests.json are copied to a folder next to the matrix, so that the user's repository
contains all inputs of a build. The schema of the matrix, for editors, and a .gitignore are also
written.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.errors import FetchFailed, InputError, NothingSelected
from imgbuild.http.client import HttpClient
from imgbuild.lock import lock_file, published
from imgbuild.lock.published import DIGESTS_FILE, LOCK, PublishedTarget
from imgbuild.matrix import project_paths
from imgbuild.matrix.fields import NAME
from imgbuild.matrix.notes import nearest_choice
from imgbuild.matrix.project_paths import CATALOGUE, Project
from imgbuild.matrix.schema import extension_schema_bytes
from imgbuild.matrix.settings import is_outside
from imgbuild.resolve import first_matrix
from imgbuild.resolve.first_matrix import WantedExtension
from imgbuild.smoke import recording
from imgbuild.smoke.records import TIERS
from imgbuild.system import boundary, files
from imgbuild.values import Arch

TARGET_NAME = re.compile(NAME)
FOLDER = f"{project_paths.FOLDER}/published"  # of the copies, from the folder of the matrix
REMOTE_PREFIX = re.compile(r"https?://")

CATALOGUE_PLACE = "catalogue"  # the `from` of targets that come from the catalogue of this imgbuild
DEFAULT_STACK = "vllm"  # as in `recommended:` of a matrix
GITIGNORE_TEXT = (
    "# Commit the other files in this folder: locks, digests and copied targets.\nbuild/\n"
)


def target_name_for(word: str) -> str:
    """Return the name of a new target.

    This is `word`, or the name of the current folder if `word` is the path of this folder. Raises
    InputError if `word` is another path or an invalid name.
    """
    if "/" not in word and word.strip("."):
        require_name(word)
        return word
    folder = files.expand_home(word).resolve()
    name = re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-") or "my-image"
    if folder != Path.cwd().resolve():
        message = f"{word} is another folder; a project is created in the current folder"
        there = shlex.quote(str(folder))
        raise InputError(message, hint=f"mkdir -p {there} && cd {there} && imgbuild init {name}")
    return name


def require_name(name: str) -> None:
    """Raise InputError if `name` is not a valid target name."""
    if TARGET_NAME.fullmatch(name) is None:
        message = f"invalid name for an image: {name} (expected lower-case letters, digits, . _ -)"
        near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "my-image"
        raise InputError(message, hint=f"imgbuild init {near}")


def require_target(project: Project, target: str) -> None:
    """Raise NothingSelected if `project` has no lock of `target`."""
    target_digests = project.locked_targets()
    if target not in target_digests:
        near = nearest_choice(target, target_digests)
        ask = f"did you mean {near}? " if near else ""
        where = project.root if project.writable else "the bundled catalogue"
        message = f"no locked target {target} in {where}"
        raise NothingSelected(message, hint=f"{ask}`imgbuild list` shows all targets")


def recommended_target(project: Project, stacks: Mapping[str, str], arch: Arch) -> str:
    """Return the target to extend by default.

    `stacks` maps each target to the stack for which it is recommended, or "". The target for vLLM
    is preferred, then other recommended targets, then targets that passed a higher tier of smoke
    tests on `arch`, then the first in `stacks`. Raises NothingSelected if no target is locked for
    `arch`.
    """
    target_digests = project.locked_targets()
    rank = {}
    for name, stack in ((name, stack) for name, stack in stacks.items() if name in target_digests):
        lock = lock_file.read_lock(project.images, name)
        if arch in lock.arch:
            tier = recording.highest_passed_tier(project, lock, [arch])
            order = TIERS.index(tier) if tier is not None else -1
            rank[name] = (stack == DEFAULT_STACK, stack != "", order)
    if not rank:
        message = f"no target in {project.matrix} is locked for {arch}"
        raise NothingSelected(message, hint="specify a target: imgbuild init --extends TARGET")
    return max(rank, key=lambda name: rank[name])


def copy_published_target(
    place: str, target: str, folder: Path, http: HttpClient, *, below: Path | None = None
) -> PublishedTarget:
    """Copy lock and digests of `target` from `place` into `folder`, and return the copy.

    `place` is INSTALLED, or the URL or path of a folder with both files, of a folder with a
    subfolder TARGET that contains the files, or of a project. Symbolic links between `below`, the
    user's repository, and `folder` are not followed. Raises InputError, and leaves `folder`
    unchanged, if the files do not exist or belong to another target.
    """
    place, files = _lock_files(place, target, http)
    with tempfile.TemporaryDirectory() as scratch:
        for name, data in files.items():
            codec.write_bytes(Path(scratch) / name, data)
        try:
            published.read_published_target(Path(scratch), target)
        except InputError as error:
            message = error.message.replace(scratch, place)
            raise InputError(
                message, hint="pass the folder of another target or release"
            ) from error
    for name, data in files.items():
        codec.write_bytes(folder / name, data, below=below)
    return published.read_published_target(folder, target)


def _lock_files(place: str, target: str, http: HttpClient) -> tuple[str, dict[str, bytes]]:
    place = str(CATALOGUE) if place == CATALOGUE_PLACE else place.rstrip("/")
    places = [place, f"{place}/{target}", f"{place}/images/{target}"]
    for each in places:
        lock = _read_file(f"{each}/{LOCK}", http)
        target_digests = _read_file(f"{each}/{DIGESTS_FILE}", http) if lock is not None else None
        if lock is not None and target_digests is not None:
            return each, {LOCK: lock, DIGESTS_FILE: target_digests}
    message = f"{place} has no {LOCK} and {DIGESTS_FILE} of {target}"
    tried = ", ".join(places)
    raise InputError(message, hint=f"pass the folder that contains both files; searched {tried}")


def _read_file(place: str, http: HttpClient) -> bytes | None:
    if REMOTE_PREFIX.match(place):
        try:
            return http.fetch_bytes(place)
        except FetchFailed as error:
            if getattr(error, "status", None) in (404, 410):
                return None
            raise
    path = files.expand_home(place)
    return boundary.read_regular_file(path) if path.is_file() else None


def begin_matrix(
    path: Path,
    extension: WantedExtension,
    *,
    extends: str,
    place: str,
    image: str,
    http: HttpClient,
) -> PublishedTarget:
    """Write a new matrix to `path`, and copy the target that it extends from `place`.

    An existing copy with the same bytes is used. Raises InputError, and removes all new files, if
    the matrix or a different copy exists, or if a file cannot be read.
    """
    folder = path.parent / FOLDER / extends
    refuse_existing(path)
    if folder.exists():
        _, contents = _lock_files(place, extends, http)
        if any(_read_file(f"{folder / name}", http) != data for name, data in contents.items()):
            message = f"{folder} already exists, and contains a different lock of {extends}"
            raise InputError(message, hint="remove the folder, or use another one")
        below = published.read_published_target(folder, extends)
        write_matrix(
            path, first_matrix.matrix_text(extension, below, f"{FOLDER}/{extends}", place, image)
        )
        return below
    try:
        below = copy_published_target(place, extends, folder, http, below=path.parent)
        write_matrix(
            path, first_matrix.matrix_text(extension, below, f"{FOLDER}/{extends}", place, image)
        )
    except BaseException:
        files.remove_tree(folder)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()
            folder.parent.parent.rmdir()
        raise
    return below


def refuse_existing(path: Path) -> None:
    """Raise InputError if `path` exists."""
    if path.exists():
        message = f"{path} already exists"
        hint = "add packages with `imgbuild add PACKAGE`, edit the file, or use another folder"
        raise InputError(message, hint=hint)


def write_matrix(path: Path, matrix: str) -> None:
    """Write a new matrix to `path`. Raises InputError if it is invalid."""
    codec.write_bytes(path, matrix.encode())
    try:
        published.load_matrix(path)
    except InputError as error:
        path.unlink()
        file = f"{path.name} (not written)"
        problems = tuple(msgspec.structs.replace(problem, file=file) for problem in error.problems)
        message = "these options do not result in a valid matrix" if problems else error.message
        raise InputError(message, problems=problems, hint=error.hint) from error


def write_editor_files(folder: Path) -> list[Path]:
    """Write the schema for editors and a .gitignore to `.imgbuild`, unless they exist."""
    inner = folder / project_paths.FOLDER
    contents = {
        inner / first_matrix.SCHEMA: extension_schema_bytes(),
        inner / ".gitignore": GITIGNORE_TEXT.encode(),
    }
    missing = [path for path in contents if not path.exists()]
    for path in missing:
        codec.write_bytes(path, contents[path], below=folder)
    return missing


class RenewedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A copied published target before and after a renewal. `before` is empty for a new copy."""

    target: str
    before: str
    after: str


def refresh_targets(path: Path, http: HttpClient) -> list[RenewedTarget]:
    """Renew the copies of the targets that the matrix at `path` extends."""
    renewed = []
    for name, item in published.published_sources(path).items():
        if not item.origin:
            message = f"{path}: published.{name} has no source (`from`)"
            raise InputError(message, hint="add `from:`, a URL or a path")
        folder = path.parent / item.lock
        before = _digest(folder)
        place = item.origin
        if place != CATALOGUE_PLACE and not REMOTE_PREFIX.match(place):
            place = str(path.parent / files.expand_home(place))
        after = copy_published_target(place, name, folder, http, below=path.parent)
        renewed.append(RenewedTarget(target=name, before=before, after=after.digest))
    return renewed


def _digest(folder: Path) -> str:
    try:
        return str(json.loads(boundary.read_regular_file(folder / DIGESTS_FILE))["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def parse_file_pairs(words: Sequence[str]) -> tuple[tuple[Path, str], ...]:
    """Parse words of the form `SRC:DST`.

    The returned local paths are relative to the folder of the matrix. Raises InputError for other
    words and for missing files.
    """
    pairs = []
    for word in words:
        here, _, there = word.rpartition(":")
        if not here or not there.startswith("/"):
            message = (
                f"--file {word}: expected a local path, a colon and an absolute path in the image"
            )
            raise InputError(message, hint="--file train.sh:/opt/team/train.sh")
        if not Path(here).is_file():
            message = f"--file {word}: no such file: {here}"
            raise InputError(message, hint="create the file first; it may be empty")
        place = Path(os.path.relpath(here))
        led = Path(here).resolve()
        if is_outside(str(place)) or led != place.resolve() or not led.is_relative_to(Path.cwd()):
            message = f"--file {word}: {here} is outside this folder"
            raise InputError(message, hint="copy the file into your repository")
        pairs.append((place, there))
    return tuple(pairs)
