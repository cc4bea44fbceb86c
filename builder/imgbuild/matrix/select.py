"""Selects targets and architectures by the names or shell patterns on a command line."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from imgbuild.errors import InputError, NoSolution, NothingSelected
from imgbuild.matrix.model import Matrix, Target
from imgbuild.matrix.near import similar_target_lines
from imgbuild.values import Arch

LISTED_NAMES = 8  # targets of a hint


class Selected(msgspec.Struct, frozen=True, kw_only=True):
    """A selected target with the selected architectures, in the order of the matrix."""

    name: str
    target: Target
    arches: tuple[Arch, ...]


def select_targets(
    matrix: Matrix, patterns: Sequence[str], *, everything: bool, arches: Sequence[Arch]
) -> list[Selected]:
    """Select the targets that match `patterns`, or all targets with `everything`.

    Without `arches`, all architectures of a target are selected. Without `patterns`, the only
    target of a matrix is selected. A target that lacks one of `arches` is omitted if a wildcard
    selected it (see `excluded_arches`). Targets and architectures are in the order of the matrix.

    Raises NothingSelected if a pattern matches no target, and NoSolution if a target that is
    selected by name lacks one of `arches`.
    """
    chosen = _names(matrix, patterns, everything=everything)
    selected = []
    passed: list[tuple[str, Arch]] = []
    for name, target in matrix.targets.items():
        if name not in chosen:
            continue
        absent = [arch for arch in arches if arch not in target.arch]
        if absent and name in patterns:
            raise _no_target_error(matrix, [(name, absent[0])])
        selected_arches = tuple(arch for arch in target.arch if not arches or arch in arches)
        passed.extend((name, arch) for arch in absent)
        if selected_arches:
            selected.append(Selected(name=name, target=target, arches=selected_arches))
    if not selected:
        raise _no_target_error(matrix, passed)
    return selected


def excluded_arches(
    matrix: Matrix, patterns: Sequence[str], *, everything: bool, arches: Sequence[Arch]
) -> tuple[str, ...]:
    """Return a message with the reason for each architecture that `select_targets` omits."""
    chosen = _names(matrix, patterns, everything=everything)
    return tuple(
        f"skipping {name} on {arch}: {_exclusion_reason(target, arch)}"
        for name, target in matrix.targets.items()
        for arch in arches
        if name in chosen and arch not in target.arch
    )


def _names(matrix: Matrix, patterns: Sequence[str], *, everything: bool) -> set[str]:
    names = list(matrix.targets)
    if everything and not patterns:
        return set(names)
    if everything:
        message = f"--all cannot be combined with {' '.join(patterns)}"
        raise InputError(message, hint="pass either --all or the names of targets")
    if not patterns and len(names) == 1:
        return set(names)
    if not patterns:
        message = "no target was selected"
        listed = f" ({', '.join(names)})" if len(names) <= LISTED_NAMES else ""
        hint = f"specify a target{listed}, or pass --all; `imgbuild list` shows all targets"
        raise NothingSelected(message, hint=hint)
    chosen: set[str] = set()
    for pattern in patterns:
        matching = {name for name in names if name == pattern or fnmatchcase(name, pattern)}
        if not matching:
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.6)
            message = f"no target matches {pattern}"
            suggestion = f"did you mean {' or '.join(near)}? " if near else ""
            raise NothingSelected(message, hint=f"{suggestion}`imgbuild list` shows all targets")
        chosen |= matching
    return chosen


def _no_target_error(matrix: Matrix, absent: Sequence[tuple[str, Arch]]) -> NoSolution:
    requested = {arch for _, arch in absent}
    have = [name for name, target in matrix.targets.items() if requested & set(target.arch)]
    message = "; ".join(f"{name} is not available on {arch}" for name, arch in absent)
    reasons = tuple(
        f"{name} on {arch}: {_exclusion_reason(matrix.targets[name], arch)}"
        for name, arch in absent
    )
    arches = " or ".join(sorted(requested))
    hint = f"targets on {arches}: {', '.join(have)}" if have else f"no target supports {arches}"
    first = absent[0]
    return NoSolution(
        message, reasons=reasons, nearest=similar_target_lines(matrix, *first), hint=hint
    )


def _exclusion_reason(target: Target, arch: Arch) -> str:
    return target.exclude.get(
        arch, f"the matrix lists only {', '.join(target.arch)} for this target"
    )
