"""Selects locked targets by options, without reading the matrix.

The matrix is read only to explain an error, because reading it takes longer.
"""

from __future__ import annotations

import fnmatch
import platform
from collections.abc import Container, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from imgbuild.errors import InputError, LockStale, NothingSelected
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.project_paths import Project
from imgbuild.pipeline.opened import matrix_targets
from imgbuild.registry.image_reference import is_host, parse_repository
from imgbuild.values import Arch


class SelectedLock(msgspec.Struct, frozen=True, kw_only=True):
    """A lock and the selected architectures."""

    lock: Lock
    arches: tuple[Arch, ...]


def choose_locks(
    project: Project, patterns: Sequence[str], *, everything: bool, arches: Sequence[Arch]
) -> list[SelectedLock]:
    """Return the locks that match `patterns`, or all locks with `everything`.

    Without patterns, the only target of the project's matrix is selected. Without `arches`, all
    architectures are selected. Raises NothingSelected or NoSolution like
    `matrix.select.select_targets`, and LockStale if a target has no lock.
    """
    have = project.locked_targets()
    if not patterns and not everything:
        patterns = _only_target(project)
    names = [
        name
        for name in have
        if everything or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
    missed = [pattern for pattern in patterns if not fnmatch.filter(names, pattern)]
    if everything == bool(patterns) or missed:
        _refuse_selection(project, patterns, missed, everything=everything, arches=arches)
    selected = []
    for name in names:
        lock = lock_file.read_lock(project.images, name)
        absent = [arch for arch in arches if arch not in lock.arch]
        if absent and name in patterns:
            _refuse_selection(project, [name], [], everything=False, arches=absent)
        matching = tuple(arch for arch in lock.arch if not arches or arch in arches)
        if matching:
            selected.append(SelectedLock(lock=lock, arches=matching))
    if not selected:
        _refuse_selection(project, patterns, [], everything=everything, arches=arches)
    return selected


def single_target(names: Sequence[str]) -> str:
    """Return the name of the selected target. Raises InputError if several targets are selected."""
    if len(names) > 1:
        message = f"several targets match: {', '.join(names)}"
        raise InputError(message, hint="specify one target")
    return names[0]


def _only_target(project: Project) -> Sequence[str]:
    names = matrix_targets(project) if project.writable else []
    return names if len(names) == 1 else []


def _refuse_selection(
    project: Project,
    patterns: Sequence[str],
    missed: Sequence[str],
    *,
    everything: bool,
    arches: Sequence[Arch],
) -> NoReturn:
    # Only for an error: reading the matrix takes longer than everything that `digest` does.
    from imgbuild.lock.published import load_matrix
    from imgbuild.pipeline.session import select_in_matrix

    matrix = load_matrix(project.matrix)
    selected = select_in_matrix(project, matrix, patterns, everything=everything, arches=arches)
    named = [
        item.name for item in selected if not missed or item.name not in project.locked_targets()
    ]
    suffix = f" for {', '.join(arches)}" if arches else ""
    message = f"{project.images}: no lock for {', '.join(named)}{suffix}"
    raise LockStale(message, hint=f"run imgbuild lock {' '.join(named)}")


def at_most_one_arch(arches: Sequence[Arch] | None, what: str) -> Arch | None:
    """Return the selected architecture or None. Raises InputError with `what` for several."""
    named = list(dict.fromkeys(arches or []))
    if len(named) > 1:
        message = f"--arch {' --arch '.join(named)}: {what}"
        raise InputError(message, hint="specify one architecture")
    return named[0] if named else None


def split_places(words: Sequence[str] | None) -> tuple[list[str], str | None]:
    """Split words into target names and a repository, which is the only word with a slash."""
    slashed = [word for word in words or [] if "/" in word]
    if len(slashed) > 1:
        message = f"only one repository can be specified, not {' and '.join(slashed)}"
        raise InputError(message, hint="specify targets and one HOST/REPOSITORY")
    names = [word for word in words or [] if "/" not in word]
    return names, slashed[0] if slashed else None


def require_no_host(names: Sequence[str], targets: Container[str]) -> None:
    """Raise InputError if one of `names` is a host without a repository, and not a target."""
    for name in names:
        if name not in targets and is_host(name):
            parse_repository(name)  # raises


def selected_arch(have: Sequence[Arch], place: Path, arches: Sequence[Arch] | None) -> Arch:
    """Return the architecture in `arches`, or this machine's, or the only one of the image.

    `have` lists the architectures of the image. Raises NothingSelected if the image in `place`
    lacks the selected architecture.
    """
    selected = at_most_one_arch(arches, "only one architecture can be selected")
    if selected is None:
        try:
            selected = Arch.parse(platform.machine())
        except ValueError:
            selected = have[0]
        if selected not in have and len(have) == 1:
            selected = have[0]
    if selected not in have:
        message = f"{place} has no {selected}, only {', '.join(have)}"
        raise NothingSelected(
            message,
            hint=(
                "build the image for this architecture, or select another architecture with --arch"
            ),
        )
    return selected
