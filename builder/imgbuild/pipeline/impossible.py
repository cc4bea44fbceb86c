"""Reports all requirements that no file of the index satisfies (separate: before resolving)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from imgbuild.cache.context import Context
from imgbuild.errors import ImpossibleRequirements
from imgbuild.lock import published
from imgbuild.lock.locked_matrix import versions_of
from imgbuild.matrix.model import Matrix
from imgbuild.pipeline import source_packages
from imgbuild.project import fetch
from imgbuild.project.model import DeclaredName
from imgbuild.resolve import repositories
from imgbuild.resolve.demands import demands
from imgbuild.resolve.feasible import IndexPages, obstacles
from imgbuild.solve import repository_name
from imgbuild.values import normalize
from imgbuild.wheel.tags import Tags


def refuse(matrix: Matrix, name: str, context: Context) -> None:
    """ImpossibleRequirements, with file, line and reason of each, for a row of a project.

    Packages kept by `extends`, and those of other indexes than the default, are not looked up.
    """
    row = published.project_row(matrix, name)
    if row is None:
        return
    target, lock = matrix.targets[name], row.published.lock
    declared = row.requirements.declared
    left_out = {
        *(versions_of(lock) if row.row.extends is not None else ()),
        *map(normalize, (*row.row.exclude, *row.row.relax)),
        *(each.package for each in declared.requirements if each.kind == "override"),
        *target.indexes,
    }
    tags = Tags(python=lock.base.python, glibc=lock.base.glibc, arch=target.arch[0])
    asked = [each for each in demands(declared, tags.markers) if each.package not in left_out]
    pages = IndexPages(matrix, context, target.as_of)
    blocked = obstacles(asked, pages, tags)
    names, failures = repository_name.read_all(declared.unnamed, context)
    failures += repositories.failures(asked, context)
    reasons = [
        *source_packages.reasons(row, blocked, asked, pages, tags),
        *_unnamed(declared.unnamed, names),
    ]
    if failures and not reasons:
        raise repositories.refusal(failures)
    reasons += repositories.reasons(failures)
    if not reasons:
        return
    message = f"{name} has requirements that are not on the index for Python {lock.base.python}"
    hint = (
        "change them in the project's files, or exclude one in matrix.yaml:"
        " exclude: {PACKAGE: REASON}"
    )
    raise ImpossibleRequirements(message, reasons=tuple(reasons), hint=hint)


def _unnamed(declared: Sequence[DeclaredName], names: Mapping[str, str]) -> list[str]:
    """The repositories required without a name, with the entries for the row."""
    return [
        f"{each.place}: {address} has no name: write it as {names[address]} @ …, or into the row:"
        f' names: {{"{address}": {names[address]}}}'
        for each in declared
        if (address := fetch.repository(each.name)) in names
    ]
