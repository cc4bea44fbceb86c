"""Writes and checks the Dockerfiles next to locks."""

# A separate module: these files are not optional.
from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.plan.plan import FilesRecipe, VenvRecipe, create_plan
from imgbuild.render import dockerfile, templates, tree
from imgbuild.system.folder import OpenFolder
from imgbuild.values import Arch

DOCKERFILE = "Dockerfile"
PLACES = (
    tree.COMMON_FOLDER,
    *(f"{tree.COMMON_FOLDER}-{arch.oci}" for arch in Arch),
)  # of what it copies
# A file in a command of `tree.TreeFile`: the folder next to the Dockerfile, and the path in it.
_COPY_SOURCE = re.compile(
    rf"/({tree.COMMON_FOLDER}(?:-\w+|-\"\$TARGETARCH\")?)('/[^'\n]*'|/[^\s'\"]+) "
)


def rendered_files(
    project: Project, matrix: Matrix, lock: Lock, document: dockerfile.DockerfileModel
) -> dict[str, bytes]:
    """Return the contents of all rendered files of a target, by path relative to the lock."""
    text = templates.render_template("dockerfile.j2", document, images=project.images)
    return {DOCKERFILE: text.encode(), **copied_files(lock, tuple(lock.arch), matrix)}


def copied_files(lock: Lock, arches: Sequence[Arch], matrix: Matrix) -> dict[str, bytes]:
    """Return the files that a Dockerfile copies into the image, by path."""
    plans = {arch: create_plan(lock, arch) for arch in arches}
    copies: dict[str, bytes] = {}
    for kind in (VenvRecipe, FilesRecipe):
        members = {arch: dockerfile.layer_members(planned, kind) for arch, planned in plans.items()}
        copies |= tree.source_files(members)
    added = {
        arch: dockerfile.added_members(lock, planned, matrix) for arch, planned in plans.items()
    }
    return copies | tree.source_files(added)


def write_rendered(project: Project, target: str, expected: dict[str, bytes]) -> bool:
    """Write the rendered files `expected` of `target`, and return whether a file changed.

    An obsolete file is removed only if the current Dockerfile copies it, because imgbuild created
    only such files.
    """
    changed = False
    images = project.images.relative_to(project.root).as_posix()
    with (
        OpenFolder.open(project.root) as root,
        root.folder(f"{images}/{target}", make=True) as folder,
    ):
        present = _present_files(folder)
        former = _copied_names(folder.read(DOCKERFILE)) if DOCKERFILE in present else set()
        for name in sorted((present & former) - expected.keys()):
            changed |= folder.remove(name)
        for name, content in expected.items():
            changed |= folder.write(name, content)
    return changed


def stale_files(project: Project, target: str, expected: dict[str, bytes]) -> list[str]:
    """Return messages about files of `target` that do not match the lock."""
    with OpenFolder.open(project.images) as images, images.folder(target) as folder:
        present = _present_files(folder)
        problems = [
            f"{folder.path / name} does not match the lock"
            for name, content in expected.items()
            if name not in present or folder.read(name) != content
        ]
    others = sorted(present - expected.keys())
    return problems + [
        f"{folder.path / name} is not used by the Dockerfile, so it can be removed"
        for name in others
    ]


def _present_files(folder: OpenFolder) -> set[str]:
    present = {DOCKERFILE} if folder.require_file(DOCKERFILE) is not None else set()
    for top in PLACES:
        if folder.status(top) is not None:
            with folder.folder(top) as below:
                present |= {f"{top}/{name}" for name in below.file_paths()}
    return present


def _copied_names(text: bytes) -> set[str]:
    named = {DOCKERFILE}
    for top, quoted in _COPY_SOURCE.findall(text.decode("utf-8", "replace")):
        tops = PLACES[1:] if "TARGETARCH" in top else (top,)
        named |= {f"{each}{path}" for each in tops for path in shlex.split(quoted)}
    return named
