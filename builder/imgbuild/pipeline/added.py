"""Selects the row for `imgbuild add` and `remove`, and checks that added packages exist."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.requirements import Requirement

from imgbuild.errors import InputError
from imgbuild.index.pages import index_addresses
from imgbuild.lock.published import project_row
from imgbuild.pipeline import source_packages
from imgbuild.pipeline.declared_files import unknown_debs
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import Session
from imgbuild.project.model import Declarations, DeclaredRequirement, FilePlace
from imgbuild.resolve.demands import package_demands
from imgbuild.resolve.feasible import IndexPages, find_obstacles
from imgbuild.solve import repository_name, uv
from imgbuild.wheel.tags import WheelTags


def find_row(session: Session, names: Sequence[str], verb: str) -> str:
    """Return the row to change: the one in `names`, or the only row of the matrix.

    Raises InputError if the target does not belong to a project, or if the project is the
    catalogue.
    """
    session.project.require_writable(verb)
    if len(names) > 1:
        message = f"only one target can be specified, not {' and '.join(names)}"
        raise InputError(message, hint="choose one of these targets")
    chosen = session.select_targets(names)
    if len(chosen) > 1:
        message = f"several targets match: {', '.join(item.name for item in chosen)}"
        raise InputError(message, hint="choose one with --target")
    name = chosen[0].name
    if project_row(session.matrix, name) is None:
        message = f"{session.project.matrix}: {name} is not a row of a project"
        raise InputError(message, hint=f"edit targets.{name} in this file")
    return name


def add_names(session: Session, requirements: Sequence[str]) -> list[str]:
    """Add package names to requirements that are only the URL of a git repository."""
    context = open_inputs(session).context
    return [repository_name.add_name(text, context) for text in requirements]


def addition_problems(
    session: Session, name: str, requirements: Sequence[Requirement], system: Sequence[str]
) -> list[str]:
    """Return the reasons why packages cannot be added to row `name`.

    `system` are Debian packages. Raises FetchFailed if an index or an archive does not respond.
    """
    item = project_row(session.matrix, name)
    if item is None:
        return []
    target = session.matrix.targets[name]
    base = session.matrix.bases[target.base]
    context = open_inputs(session).context
    declared = Declarations(
        requirements=tuple(
            DeclaredRequirement(text=str(each), place=FilePlace("")) for each in requirements
        )
    )
    reasons: list[str] = []
    addresses = index_addresses(session.matrix, target, uv.default_index)
    pages = IndexPages(session.matrix, context, target.as_of, addresses, item.row.indexes)
    for arch in target.arch:
        tags = WheelTags(python=base.python, glibc=base.glibc, arch=arch)
        asked = package_demands(declared, tags.markers)
        versions = item.published.lock.arch[arch].versions if item.row.extends else {}
        below = item.row.extends
        reasons += [
            f"{each}: {below} has {each.package} {versions[each.package]}, which cannot be changed"
            for each in asked
            if each.package in versions and not each.allows_version(versions[each.package])
        ]
        lacking = [each for each in asked if each.package not in versions]
        blocked = find_obstacles(lacking, pages, tags)
        reasons += source_packages.obstacle_reasons(item, blocked, lacking, pages, tags)
        for deb, near in unknown_debs(session.matrix, target.base, system, arch, context).items():
            reasons.append(f"Debian has no package {deb}" + (f"; nearest: {near}" if near else ""))
    return list(dict.fromkeys(reasons))
