"""Writes and compares the Dockerfiles committed next to a lock (separate: not on request)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.plan.plan import FilesRecipe, VenvRecipe, plan
from imgbuild.render import dockerfile, templates, tree
from imgbuild.system.folder import OpenFolder
from imgbuild.values import Arch

DOCKERFILE = "Dockerfile"
PLACES = (tree.COMMON, *(f"{tree.COMMON}-{arch.oci}" for arch in Arch))  # of what it copies
# A file in a command of `tree.File`: the folder next to the Dockerfile, and the path in it.
_COPIED = re.compile(rf"/({tree.COMMON}(?:-\w+|-\"\$TARGETARCH\")?)('/[^'\n]*'|/[^\s'\"]+) ")


def files(
    project: Project, matrix: Matrix, lock: Lock, document: dockerfile.Dockerfile
) -> dict[str, bytes]:
    """The contents of all rendered files of a target, by path relative to the lock."""
    text = templates.render("dockerfile.j2", document, images=project.images)
    return {DOCKERFILE: text.encode(), **copied(lock, tuple(lock.arch), matrix)}


def copied(lock: Lock, arches: Sequence[Arch], matrix: Matrix) -> dict[str, bytes]:
    """The files that a Dockerfile copies into the image."""
    plans = {arch: plan(lock, arch) for arch in arches}
    copies: dict[str, bytes] = {}
    for kind in (VenvRecipe, FilesRecipe):
        members = {arch: dockerfile.members(planned, kind) for arch, planned in plans.items()}
        copies |= tree.sources(members)
    added = {arch: dockerfile.added(lock, planned, matrix) for arch, planned in plans.items()}
    return copies | tree.sources(added)


def write(project: Project, target: str, expected: dict[str, bytes]) -> bool:
    """Write the rendered files `expected` of `target`. Returns whether a file changed.

    Other files are removed only if the current Dockerfile copies them, because imgbuild created
    these.
    """
    changed = False
    images = project.images.relative_to(project.root).as_posix()
    with (
        OpenFolder.open(project.root) as root,
        root.folder(f"{images}/{target}", make=True) as folder,
    ):
        present = _present(folder)
        former = _named(folder.read(DOCKERFILE)) if DOCKERFILE in present else set()
        for name in sorted((present & former) - expected.keys()):
            changed |= folder.remove(name)
        for name, content in expected.items():
            changed |= folder.write(name, content)
    return changed


def stale(project: Project, target: str, expected: dict[str, bytes]) -> list[str]:
    """Messages on files of `target` that do not match the lock."""
    with OpenFolder.open(project.images) as images, images.folder(target) as folder:
        present = _present(folder)
        problems = [
            f"{folder.path / name} does not match the lock"
            for name, content in expected.items()
            if name not in present or folder.read(name) != content
        ]
    others = sorted(present - expected.keys())
    return problems + [
        f"{folder.path / name} is not used by any step, so it can be removed" for name in others
    ]


def _present(folder: OpenFolder) -> set[str]:
    """The contents of existing rendered files, by path below `folder`.

    Raises InputError for a link, or for anything but files and folders.
    """
    present = {DOCKERFILE} if folder.require_file(DOCKERFILE) is not None else set()
    for top in PLACES:
        if folder.status(top) is not None:
            with folder.folder(top) as below:
                present |= {f"{top}/{name}" for name in below.tree()}
    return present


def _named(text: bytes) -> set[str]:
    """The files that the Dockerfile `text` copies from its folder, and the Dockerfile."""
    named = {DOCKERFILE}
    for top, quoted in _COPIED.findall(text.decode("utf-8", "replace")):
        tops = PLACES[1:] if "TARGETARCH" in top else (top,)
        named |= {f"{each}{path}" for each in tops for path in shlex.split(quoted)}
    return named
