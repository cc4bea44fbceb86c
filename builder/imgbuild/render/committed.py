"""The rendered files that are committed beside a lock, and whether they are current."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from imgbuild import codec
from imgbuild.lock.lock import Lock
from imgbuild.matrix.model import Matrix
from imgbuild.plan.plan import FilesRecipe, VenvRecipe, plan
from imgbuild.plan.seal import Seal
from imgbuild.project import Project
from imgbuild.render import dockerfile, templates, tree
from imgbuild.values import Arch

DOCKERFILE = "Dockerfile"


def files(project: Project, matrix: Matrix, lock: Lock, sealed: Seal) -> dict[str, bytes]:
    """Path beside the lock → content of everything that is kept there of one target."""
    made = dockerfile.dockerfile(lock, sealed, matrix)
    text = templates.render("dockerfile.j2", made, images=project.images)
    return {DOCKERFILE: text.encode(), **copied(lock, tuple(lock.arch), matrix)}


def copied(lock: Lock, arches: Sequence[Arch], matrix: Matrix) -> dict[str, bytes]:
    """The files that a Dockerfile copies into the image."""
    plans = {arch: plan(lock, arch) for arch in arches}
    found: dict[str, bytes] = {}
    for kind in (VenvRecipe, FilesRecipe):
        own = {arch: dockerfile.members(planned, kind) for arch, planned in plans.items()}
        found |= tree.sources(own)
    added = {arch: dockerfile.added(lock, planned, matrix) for arch, planned in plans.items()}
    return found | tree.sources(added)


def write(project: Project, target: str, due: dict[str, bytes]) -> bool:
    """Make the rendered files of `target` those of `due`; whether anything changed."""
    folder = project.images / target
    changed = False
    for name in sorted(_present(folder) - due.keys()):
        (folder / name).unlink()
        changed = True
    for name, content in due.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        changed |= codec.write_bytes(folder / name, content)
    return changed


def stale(project: Project, target: str, due: dict[str, bytes]) -> list[str]:
    """Every file of `target` that does not match its lock."""
    folder = project.images / target
    present = _present(folder)
    found = [
        f"{folder / name} does not follow from the lock"
        for name, content in due.items()
        if name not in present or (folder / name).read_bytes() != content
    ]
    return found + [f"{folder / name} belongs to no step" for name in sorted(present - due.keys())]


def _present(folder: Path) -> set[str]:
    """The rendered files that are there, by their path below `folder`."""
    every = [folder / DOCKERFILE]
    for top in folder.glob(f"{tree.COMMON}*"):
        every += top.rglob("*")
    return {path.relative_to(folder).as_posix() for path in every if path.is_file()}
