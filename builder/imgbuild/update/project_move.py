"""Moves rows of a project to another published target.

Conflicts with the new target are determined from the project's files, the lock and the index.
"""

from __future__ import annotations

import datetime
import itertools
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.cache.context import Context
from imgbuild.errors import InputError, NothingSelected
from imgbuild.lock.locked_matrix import versions_of
from imgbuild.lock.project_requirements import (
    ProjectRequirements,
    contradicted,
    requirements_of,
)
from imgbuild.lock.published import LAYOUT, PublishedTarget
from imgbuild.matrix import constraints
from imgbuild.matrix.extension import Extension, Extensions
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import CATALOGUE
from imgbuild.resolve import engine_torch, first_matrix
from imgbuild.resolve.choose import LockedFacts, TargetChange
from imgbuild.resolve.demands import PackageDemand, demands
from imgbuild.resolve.edit_row import RowMove, apply_move
from imgbuild.resolve.feasible import IndexPages, obstacles
from imgbuild.resolve.range_conflicts import changes_for, range_conflicts
from imgbuild.solve.solve import python_of
from imgbuild.system import threads
from imgbuild.values import Arch, normalize
from imgbuild.wheel.tags import Tags


class ProjectMove(msgspec.Struct, frozen=True, kw_only=True):
    """Rows to move from the published target `old` to `new`, which was copied from `origin`.

    `old` and `new` have the same name if only the lock is newer. `lock` is the path for the copy of
    the lock, relative to the matrix.
    """

    rows: tuple[str, ...]
    old: PublishedTarget
    new: PublishedTarget
    origin: str
    lock: str

    @property
    def changes_nothing(self) -> bool:
        """Whether the project already has the lock of the new target."""
        return (self.old.name, self.old.hash, self.old.digest) == (
            self.new.name,
            self.new.hash,
            self.new.digest,
        )


def rows_of(value: Extensions, names: Sequence[str]) -> tuple[str, ...]:
    """The rows to move: those in `names`, or all.

    Raises NothingSelected for an unknown row.

    Raises InputError if the rows use several targets.
    """
    absent = [name for name in names if name not in value.targets]
    if absent:
        message = f"no target {' and '.join(absent)} in the project"
        raise NothingSelected(message, hint=f"specify one of: {', '.join(value.targets)}")
    chosen = tuple(names) or tuple(value.targets)
    below = {value.targets[name].below for name in chosen}
    if len(below) > 1:
        message = f"the rows {', '.join(chosen)} use different targets: {', '.join(sorted(below))}"
        raise InputError(message, hint="specify rows that use the same target")
    return chosen


def copy_place(value: Extensions, old: str, new: str) -> str:
    """The path for the copy of `new`, next to the copy of `old`."""
    lock = value.published[old].lock
    return lock if new == old else posixpath.join(posixpath.dirname(lock), new)


def new_matrix(path: Path, data: bytes, value: Extensions, move: ProjectMove) -> bytes:
    """The text of the matrix at `path` after the move, with comments."""
    old, new = move.old, move.new
    others = [
        name for name, row in value.targets.items()
        if row.below == old.name and name not in move.rows
    ]  # fmt: skip
    image = value.published[old.name].image
    edit = RowMove(
        rows={
            name: "like" if value.targets[name].like is not None else "extends"
            for name in move.rows
        },
        old=old.name,
        new=new.name,
        lock=move.lock,
        origin=move.origin,
        forget={name: _forgotten(value.targets[name], new) for name in move.rows},
        keep_old=bool(others),
        image=keeps_image(image, move),
    )
    text = apply_move(path, data, edit).decode()
    for before, after in _comments(old, new).items():
        text = text.replace(before, after)
    return text.encode()


def keeps_image(image: str, move: ProjectMove) -> bool:
    """Whether `image`, the location of the old target's layers, can also contain the new layers.

    True for a repository. A layout, a tag or a digest contains only a single image.
    """
    one = image.startswith(LAYOUT) or "@" in image or ":" in image.rsplit("/", 1)[-1]
    return not one and (move.old.name == move.new.name or move.old.name not in image)


def _forgotten(row: Extension, new: PublishedTarget) -> tuple[str, ...]:
    """The keys of a row to remove, because they are unnecessary or wrong with the new target."""
    keys = []
    if row.as_of is not None and row.as_of <= datetime.date.fromisoformat(new.lock.as_of):
        keys.append("as_of")
    if row.cuda == new.lock.cuda:
        keys.append("cuda")
    return tuple(keys)


def _comments(old: PublishedTarget, new: PublishedTarget) -> dict[str, str]:
    """Map comments that `imgbuild init` wrote for the old target to those for the new target."""
    words = [{"extends": each.name, "as_of": each.lock.as_of} for each in (old, new)]
    return {
        template.format(**words[0]): template.format(**words[1])
        for template in (first_matrix.NO_IMAGE, first_matrix.AS_OF)
    }


# -- conflicts with the move


def conflicts(
    name: str, row: Extension, move: ProjectMove, folder: Path, matrix: Matrix, context: Context
) -> list[str]:
    """A line for each requirement of the project in `folder` that the new target excludes.

    The indexes are those of `matrix`, the current matrix of the project.
    """
    lock = move.new.lock
    reasons = []
    for arch in row.arch or tuple(lock.arch):
        if arch not in lock.arch:
            reasons.append(f"matrix.yaml: {name} is for {arch}, but {move.new.name} is not")
            continue
        reasons += _on(arch, row, move.new, folder, matrix, context)
    return list(dict.fromkeys(reasons))


def _on(
    arch: Arch,
    row: Extension,
    new: PublishedTarget,
    folder: Path,
    matrix: Matrix,
    context: Context,
) -> list[str]:
    lock = new.lock
    bases = matrix.bases.values()
    base = next((each for each in bases if each.python == lock.base.python), next(iter(bases)))
    python = python_of(base, lock.arch[arch]) if base.python == lock.base.python else ""
    tags = Tags(python=python or lock.base.python, glibc=lock.base.glibc, arch=arch)
    required = requirements_of(row, folder, tags.markers)
    reasons = [
        f"{place}: requires Python {spec}, but {new.name} has {tags.python}"
        for spec, place in required.python
        if not SpecifierSet(spec).contains(tags.python, prereleases=True)
    ]
    versions = versions_of(lock) if row.extends is not None else {}
    reasons += _contradictions(row, required, versions, new.name)
    added = _added(row, required, versions, tags)
    day = row.as_of or datetime.date.fromisoformat(lock.as_of)
    day = max(day, datetime.date.fromisoformat(lock.as_of))
    pages = IndexPages(matrix, context, day)
    blocked = obstacles(added, pages, tags)
    reasons += map(str, blocked)
    names = {each.package for each in blocked}
    left = [each for each in added if each.package not in names and not each.source]
    if row.extends is not None:
        facts = LockedFacts(
            target=new.name, arch=arch, versions=versions, python=tags.python, cuda=lock.cuda,
            as_of=lock.as_of, learned=constraints.read(CATALOGUE / "images"),
        )  # fmt: skip
        reasons += _addition_conflicts(left, facts, pages, tags)
    return reasons


def _contradictions(
    row: Extension, required: ProjectRequirements, versions: Mapping[str, str], target: str
) -> list[str]:
    reasons = [
        f"{place}: requires {package}{spec}, but {target} has {versions[package]}"
        for package, spec, place in contradicted(required, versions)
    ]
    specs = {package: f"=={Version(pin)}" for package, pin in row.pins.items()}
    specs |= {package: wanted.spec for package, wanted in row.requires.items()}
    return reasons + [
        f"matrix.yaml: requires {package}{spec}, but {target} has {versions[package]}"
        for package, spec in specs.items()
        if package in versions
        and not SpecifierSet(spec).contains(versions[package], prereleases=True)
    ]


def _added(
    row: Extension, required: ProjectRequirements, versions: Mapping[str, str], tags: Tags
) -> list[PackageDemand]:
    """Packages from the default index that the files require and the target lacks."""
    left_out = {
        *versions,
        *map(normalize, (*row.exclude, *row.relax, *row.indexes)),
        *(each.package for each in required.declared.requirements if each.kind == "override"),
    }
    asked = demands(required.declared, tags.markers)
    return [each for each in asked if each.package not in left_out and each.installed]


def _addition_conflicts(
    added: Sequence[PackageDemand], facts: LockedFacts, pages: IndexPages, tags: Tags
) -> list[str]:
    """Requirements of added packages that conflict with versions of the target."""

    def _pinned(demand: PackageDemand, _: threads.Stop) -> list[TargetChange]:
        wheel = pages.pinned(demand, tags)
        if wheel is None:
            return []
        needed = engine_torch.required(demand, pages.metadata(wheel), tags.markers)
        needed += facts.requirements_of(demand.package, str(demand.pin))
        return changes_for(demand, str(demand.pin), needed, facts.versions)

    pins = [each for each in added if each.pin is not None]
    changes = range_conflicts(added, facts, pages, tags)
    changes += itertools.chain.from_iterable(threads.each(pins, _pinned, threads=8))
    return [
        f"{', '.join(map(str, change.places))}: {change.by} requires"
        f" {change.package}{change.wanted}, but {facts.target} has {change.has}"
        for change in changes
    ]
