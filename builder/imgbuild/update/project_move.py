"""Moves rows of a project to another published target.

Conflicts with the new target are found from the project's files, the lock and the index.
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
from imgbuild.lock.locked_matrix import locked_versions
from imgbuild.lock.project_requirements import (
    ProjectRequirements,
    contradicted_versions,
    row_requirements,
)
from imgbuild.lock.published import LAYOUT, PublishedTarget
from imgbuild.matrix import constraints
from imgbuild.matrix.extension import Extension, Extensions
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import CATALOGUE
from imgbuild.resolve import engine_torch, first_matrix
from imgbuild.resolve.choose import LockedFacts, TargetChange
from imgbuild.resolve.demands import PackageDemand, package_demands
from imgbuild.resolve.edit_row import RowMove, apply_move
from imgbuild.resolve.feasible import IndexPages, find_obstacles
from imgbuild.resolve.range_conflicts import range_conflicts, required_changes
from imgbuild.solve.base import base_python
from imgbuild.system import threads
from imgbuild.values import Arch, normalize_package
from imgbuild.wheel.tags import WheelTags


class ProjectMove(msgspec.Struct, frozen=True, kw_only=True):
    """The rows to move from the published target `old` to `new`, which was copied from `origin`.

    If only the lock is newer, `old` and `new` have the same name. `lock` is the path of the copy of
    the lock, relative to the matrix.
    """

    rows: tuple[str, ...]
    old: PublishedTarget
    new: PublishedTarget
    origin: str
    lock: str

    @property
    def changes_nothing(self) -> bool:
        """True if the project already contains the lock of the new target."""
        return (self.old.name, self.old.hash, self.old.digest) == (
            self.new.name,
            self.new.hash,
            self.new.digest,
        )


def rows_to_move(value: Extensions, names: Sequence[str]) -> tuple[str, ...]:
    """Return the rows `names`, or by default all rows.

    Raises NothingSelected if a row does not exist, and InputError if the rows use different
    targets.
    """
    absent = [name for name in names if name not in value.targets]
    if absent:
        message = f"no target {' and '.join(absent)} in the project"
        raise NothingSelected(message, hint=f"specify one of: {', '.join(value.targets)}")
    chosen = tuple(names) or tuple(value.targets)
    below = {value.targets[name].published_name for name in chosen}
    if len(below) > 1:
        message = f"the rows {', '.join(chosen)} use different targets: {', '.join(sorted(below))}"
        raise InputError(message, hint="specify rows that use the same target")
    return chosen


def copy_place(value: Extensions, old: str, new: str) -> str:
    """Return the path of the copy of `new`, next to the copy of `old`."""
    lock = value.published[old].lock
    return lock if new == old else posixpath.join(posixpath.dirname(lock), new)


def new_matrix(path: Path, data: bytes, value: Extensions, move: ProjectMove) -> bytes:
    """Return the text of the matrix at `path` after the move, with comments."""
    old, new = move.old, move.new
    others = [
        name for name, row in value.targets.items()
        if row.published_name == old.name and name not in move.rows
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
        forget={name: _superseded_keys(value.targets[name], new) for name in move.rows},
        keep_old=bool(others),
        image=keeps_image(image, move),
    )
    text = apply_move(path, data, edit).decode()
    for before, after in _comments(old, new).items():
        text = text.replace(before, after)
    return text.encode()


def keeps_image(image: str, move: ProjectMove) -> bool:
    """Return whether `image`, the location of the old layers, can also contain the new layers.

    This is true for a repository. A layout, a tag or a digest refers to a single image.
    """
    one = image.startswith(LAYOUT) or "@" in image or ":" in image.rsplit("/", 1)[-1]
    return not one and (move.old.name == move.new.name or move.old.name not in image)


def _superseded_keys(row: Extension, new: PublishedTarget) -> tuple[str, ...]:
    """Return the keys of a row that are unnecessary or wrong for the new target."""
    keys = []
    if row.as_of is not None and row.as_of <= datetime.date.fromisoformat(new.lock.as_of):
        keys.append("as_of")
    if row.cuda == new.lock.cuda:
        keys.append("cuda")
    return tuple(keys)


def _comments(old: PublishedTarget, new: PublishedTarget) -> dict[str, str]:
    """Map comments that `imgbuild init` wrote for `old` to the comments for `new`."""
    words = [{"extends": each.name, "as_of": each.lock.as_of} for each in (old, new)]
    return {
        template.format(**words[0]): template.format(**words[1])
        for template in (first_matrix.NO_IMAGE_COMMENT, first_matrix.AS_OF_COMMENT)
    }


# -- conflicts with the move


def move_conflicts(
    name: str, row: Extension, move: ProjectMove, folder: Path, matrix: Matrix, context: Context
) -> list[str]:
    """Return a line for each requirement of the project in `folder` that the new target excludes.

    Packages are looked up on the indexes in `matrix`, the current matrix of the project.
    """
    lock = move.new.lock
    reasons = []
    for arch in row.arch or tuple(lock.arch):
        if arch not in lock.arch:
            reasons.append(
                f"matrix.yaml: {name} is for {arch}, but {move.new.name} does not support {arch}"
            )
            continue
        reasons += _arch_conflicts(arch, row, move.new, folder, matrix, context)
    return list(dict.fromkeys(reasons))


def _arch_conflicts(
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
    python = base_python(base, lock.arch[arch]) if base.python == lock.base.python else ""
    tags = WheelTags(python=python or lock.base.python, glibc=lock.base.glibc, arch=arch)
    required = row_requirements(row, folder, tags.markers)
    reasons = [
        f"{place}: requires Python {spec}, but {new.name} has {tags.python}"
        for spec, place in required.python
        if not SpecifierSet(spec).contains(tags.python, prereleases=True)
    ]
    versions = locked_versions(lock) if row.extends is not None else {}
    reasons += _contradictions(row, required, versions, new.name)
    added = _added_packages(row, required, versions, tags)
    day = row.as_of or datetime.date.fromisoformat(lock.as_of)
    day = max(day, datetime.date.fromisoformat(lock.as_of))
    pages = IndexPages(matrix, context, day)
    blocked = find_obstacles(added, pages, tags)
    reasons += map(str, blocked)
    names = {each.package for each in blocked}
    left = [each for each in added if each.package not in names and not each.source]
    if row.extends is not None:
        facts = LockedFacts(
            target=new.name, arch=arch, versions=versions, python=tags.python, cuda=lock.cuda,
            as_of=lock.as_of, learned=constraints.read_constraints(CATALOGUE / "images"),
        )  # fmt: skip
        reasons += _addition_conflicts(left, facts, pages, tags)
    return reasons


def _contradictions(
    row: Extension, required: ProjectRequirements, versions: Mapping[str, str], target: str
) -> list[str]:
    reasons = [
        f"{place}: requires {package}{spec}, but {target} has {versions[package]}"
        for package, spec, place in contradicted_versions(required, versions)
    ]
    specs = {package: f"=={Version(pin)}" for package, pin in row.pins.items()}
    specs |= {package: wanted.spec for package, wanted in row.requires.items()}
    return reasons + [
        f"matrix.yaml: requires {package}{spec}, but {target} has {versions[package]}"
        for package, spec in specs.items()
        if package in versions
        and not SpecifierSet(spec).contains(versions[package], prereleases=True)
    ]


def _added_packages(
    row: Extension, required: ProjectRequirements, versions: Mapping[str, str], tags: WheelTags
) -> list[PackageDemand]:
    left_out = {
        *versions,
        *map(normalize_package, (*row.exclude, *row.relax, *row.indexes)),
        *(each.package for each in required.declared.requirements if each.kind == "override"),
    }
    asked = package_demands(required.declared, tags.markers)
    return [each for each in asked if each.package not in left_out and each.installed]


def _addition_conflicts(
    added: Sequence[PackageDemand], facts: LockedFacts, pages: IndexPages, tags: WheelTags
) -> list[str]:
    def _pin_conflicts(demand: PackageDemand, _: threads.StopFlag) -> list[TargetChange]:
        wheel = pages.pinned_wheel(demand, tags)
        if wheel is None:
            return []
        needed = engine_torch.required_with_extras(demand, pages.metadata(wheel), tags.markers)
        needed += facts.learned_requirements(demand.package, str(demand.pin))
        return required_changes(demand, str(demand.pin), needed, facts.versions)

    pins = [each for each in added if each.pin is not None]
    changes = range_conflicts(added, facts, pages, tags)
    changes += itertools.chain.from_iterable(threads.run_for_each(pins, _pin_conflicts, threads=8))
    return [
        f"{', '.join(map(str, change.places))}: {change.by} requires"
        f" {change.package}{change.wanted}, but {facts.target} has {change.has}"
        for change in changes
    ]
