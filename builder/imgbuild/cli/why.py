"""Implements `imgbuild why`, which shows why a package is in a target."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated

import msgspec
import typer
from packaging.version import Version

from imgbuild.cli import _dependencies
from imgbuild.cli._help import create_command
from imgbuild.cli._options import Offline, complete_target
from imgbuild.cli._output import align_columns, format_count, print_result, size_text
from imgbuild.cli._targets import FilterOptions
from imgbuild.cli._verb import create_verb
from imgbuild.errors import ImgbuildError, InputError, NothingSelected
from imgbuild.learn import recorded
from imgbuild.lock import published
from imgbuild.lock.lock_file import Lock, lock_path
from imgbuild.matrix import constraints, tried_updates
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.plan import image_digests
from imgbuild.plan.plan import create_plan
from imgbuild.resolve import source_only
from imgbuild.resolve.python_support import HOW_TO_PAGE, OTHER_PYTHON_REMEDY
from imgbuild.resolve.resolve_request import PYTHON_NAME
from imgbuild.show import dependencies
from imgbuild.show.dependencies import AbsentPackage, PackageLayer, VersionReason
from imgbuild.system.amounts import join_first, wrap_paragraph
from imgbuild.system.syntax import parse_version
from imgbuild.values import Arch, normalize_package

WIDTH = 80
OTHER_BASE = f"another Python is another base ({HOW_TO_PAGE})"
SHOWN_NEWER = 4  # shown targets with a newer version, and versions of a package that a target lacks
VERSION = re.compile("[<>=!~]")  # of a requirement with a version
SHOWN_MISSING = 12  # shown packages that it would need, too
PACKAGE = Annotated[
    str, typer.Argument(metavar="PACKAGE", help="The package, such as transformers.")
]
TARGET = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="The locked target. By default, all targets with the package are listed, one line"
        " each.",
        autocompletion=complete_target,
        show_default=False,
    ),
]


@create_verb
def why(
    selection: FilterOptions, package: PACKAGE, name: TARGET = None, offline: Offline = False
) -> None:
    """Show why a target contains a package, and what limits its version.

    Lists the requirements of the target and of packages that depend on the package, learned
    constraints with evidence, and the cut-off date. For a pinned package, also lists the bounds
    without the pin, the exact versions of other packages that it requires, newer versions in other
    targets, notes of the target, and versions that `imgbuild update` rejected. If the target does
    not contain the package, lists the versions in other targets, with the requirements that this
    target does not satisfy. Requirements are read from the lock, or from the index if `imgbuild
    lock` could not record them. The last line lists the layers that another version of the package
    would change, with sizes.

    Examples:

        imgbuild why transformers cu124-vllm

        imgbuild why numpy

        imgbuild why torch cu130-vllm --arch arm64 --json

        imgbuild why verl cu124-vllm0.8.5
    """
    if name and lock_path(selection.project().images, package).exists():
        message = f"{package} is a target, but the first argument is the package"
        raise InputError(message, hint=f"run imgbuild why {name} {package}")
    _refuse_version(package, name, selection)
    package_name = normalize_package(package)
    chosen = _dependencies.locks_of_targets(selection, [name] if name else [])
    several = len(chosen) > 1
    if several:
        chosen = [(lock, arch) for lock, arch in chosen if package_name in lock.arch[arch].versions]
        if not chosen:
            message = f"no locked target has the package {package}"
            packages = "to list packages, run: imgbuild show TARGET --packages"
            if package_name == PYTHON_NAME:
                packages = "to show the Python of each target, run: imgbuild list --wide"
            raise NothingSelected(message, hint=source_only.absence_text(package_name) or packages)
    project = selection.project([name] if name else [])
    learned = constraints.read_constraints(project.images)
    if not several and package_name not in (lock := chosen[0][0]).arch[chosen[0][1]].versions:
        absent = _absent_package_reasons(
            selection, package_name, chosen[0], learned, offline=offline
        )
        if not absent:  # an error that names similar packages
            if hint := source_only.absence_text(package_name):
                message = f"{lock.target} has no package {package}"
                raise InputError(message, hint=hint)
            if package_name == PYTHON_NAME:
                message = f"{lock.target} has Python {lock.base.python}, of its base"
                raise InputError(message, hint=OTHER_PYTHON_REMEDY)
            dependencies.package_name(package, lock.arch[chosen[0][1]].versions, lock.target)
        print_result(absent, [*_absent_lines(absent, chosen[0][0].base.python)])
        return
    reasons = [
        msgspec.structs.replace(
            dependencies.version_reason(graph, package_name, lock.as_of, learned),
            layer=_layer(selection.project([lock.target]), lock, graph.arch, package_name),
        )
        for lock, graph in _dependencies.dependency_graphs(selection, chosen, offline=offline)
    ]
    if several:
        rows = [
            (reason.target, reason.version, dependencies.bounds_summary(reason))
            for reason in reasons
        ]
        print_result(reasons, align_columns([("target", package_name, "bounds"), *rows]))
        return
    (reason,) = reasons
    newer = ""
    if (reason.target_spec or "").startswith("=="):
        matrix = published.load_matrix(project.matrix)
        reason = _add_recorded_notes(reason, matrix, project)
        newer = _newest_pin(reason, matrix, project.locked_targets())
    print_result([reason], [*_lines(reason, newer)])


def _refuse_version(package: str, name: str | None, selection: FilterOptions) -> None:
    names = (package, *([name] if name else []))
    project = selection.project()
    if VERSION.search(" ".join(names)) or (
        name
        and not lock_path(project.images, name).exists()
        and any(
            normalize_package(name) in row.pins
            for row in published.load_matrix(project.matrix).targets.values()
        )
    ):
        words = " ".join(map(_resolve_word, names))
        hint = f"to check whether versions are compatible, run: imgbuild resolve {words}"
        message = f"{' '.join(names)}: expected a package and a target"
        raise InputError(message, hint=hint)


def _resolve_word(requirement: str) -> str:
    package, _, release = requirement.partition("==")
    if package.lower() == PYTHON_NAME and release:
        return f"--python {shlex.quote(release)}"
    return shlex.quote(requirement)


def _absent_package_reasons(
    selection: FilterOptions,
    package: str,
    chosen: tuple[Lock, Arch],
    learned: Sequence[Constraint],
    *,
    offline: bool,
) -> list[AbsentPackage]:
    lock, arch = chosen
    others: dict[str, list[Lock]] = {}
    for other, _ in _dependencies.locks_of_targets(selection, []):
        if arch in other.arch and (version := other.arch[arch].versions.get(package)):
            others.setdefault(version, []).append(other)
    first = [(locks[0], arch) for locks in others.values()]
    found = [
        msgspec.structs.replace(
            dependencies.absent_package(graph, package, lock, arch, learned),
            targets=tuple(each.target for each in others[graph.packages[package]]),
            pythons=tuple({each.base.python: "" for each in others[graph.packages[package]]}),
        )
        for _, graph in _dependencies.dependency_graphs(selection, first, offline=offline)
    ]
    return sorted(found, key=lambda each: parse_version(each.version) or Version("0"), reverse=True)


def _absent_lines(absent: Sequence[AbsentPackage], python: str) -> Iterator[str]:
    """Yield the reasons against adding each version of a package to a target with `python`."""
    first = absent[0]
    yield f"{first.package} is not in {first.target} ({first.arch})"
    for each in absent[:SHOWN_NEWER]:
        yield from _wrap_text(
            f"{each.package} {each.version} of {join_first(each.targets, SHOWN_NEWER)}:"
        )
        for need in each.obstacles:
            source = "code" if need.learned else "METADATA"
            yield f"    needs {need.package}{need.spec} ({source}), not {need.version}"
        if python not in each.pythons:
            yield f"    locked with Python {' and '.join(each.pythons)}, not {python}"
        if not each.obstacles:
            yield (
                "    no requirement prevents this version; to solve and audit it, run imgbuild lock"
            )
        if each.lacks:
            also = f"also requires {join_first(each.lacks, SHOWN_MISSING)}"
            yield from wrap_paragraph(also, WIDTH, "    ", "      ")
    if any(python not in each.pythons for each in absent[:SHOWN_NEWER]):
        yield from _wrap_text(OTHER_BASE)


def _add_recorded_notes(reason: VersionReason, matrix: Matrix, project: Project) -> VersionReason:
    """Add notes on a pinned package, and versions rejected for the row or for its original row."""
    updates = tried_updates.read_updates(project.images)
    origin = updates.origin_of_row(reason.target)
    return msgspec.structs.replace(
        reason,
        notes=recorded.notes_on_package(matrix, reason.target, reason.package),
        refused=tuple(
            f"{item.package} {item.version} in {origin}: {'; '.join(item.reasons)}"
            for item in updates.refused.get(origin, ())
            if item.package == reason.package
        ),
    )


def _newest_pin(reason: VersionReason, matrix: Matrix, locked: Collection[str]) -> str:
    """Describe the newest pin of the package in the matrix if it is newer than the lock's.

    Targets with another Python than that of the lock, and targets that are not `locked`, are noted.
    """
    pins = [
        (pin, name)
        for name, target in matrix.targets.items()
        if not target.retired and (pin := target.pins.get(reason.package))
    ]
    current = parse_version(reason.version)
    newer = [
        (version, pin, name)
        for pin, name in pins
        if (version := parse_version(pin)) and current and version > current
    ]
    newest = max(newer, default=None)
    if newest is None:
        return ""
    pythons = {name: matrix.bases[target.base].python for name, target in matrix.targets.items()}
    python = pythons.get(reason.target)
    names = {name: pythons[name] for version, _, name in newer if version == newest[0]}
    notes = {
        name: [
            *([f"Python {has}"] if has != python else []),
            *([] if name in locked else ["not locked"]),
        ]
        for name, has in names.items()
    }
    texts = [f"{name} ({', '.join(each)})" if each else name for name, each in notes.items()]
    other = "" if python is None or python in names.values() else f"; {OTHER_BASE}"
    return f"{newest[1]} in {join_first(texts, SHOWN_NEWER)}{other}"


def _lines(reason: VersionReason, newer: str) -> Iterator[str]:
    yield f"{reason.package} {reason.version} in {reason.target} ({reason.arch})"
    rows = [("", *pair) for pair in dependencies.why_lines(reason)]
    yield from align_columns(rows)
    if reason.bounds:
        yield from _wrap_text(f"all bounds combined: {reason.bounds}")
    if reason.unpinned != reason.bounds and (reason.target_spec or "").startswith("=="):
        yield from _wrap_text(f"without the pin: {reason.unpinned or dependencies.ANY_VERSION}")
    if reason.exact:
        needs = ", ".join(f"{need.needs}{need.spec}" for need in reason.exact)
        yield from _wrap_text(f"required exact versions: {needs}")
    for constraint in reason.learned:
        yield from _wrap_text(_learned_constraint_text(constraint, reason))
    for text in reason.notes:
        yield from _wrap_text(f"note: {text}")
    for text in reason.refused:
        yield from _wrap_text(f"refused: {text}")
    if newer:
        yield from _wrap_text(f"newer in the matrix: {newer}")
    if reason.layer is not None:
        yield from _wrap_text(_layer_text(reason.package, reason.layer))


def _wrap_text(text: str) -> list[str]:
    return wrap_paragraph(text, WIDTH, "  ", "    ")


def _learned_constraint_text(constraint: Constraint, reason: VersionReason) -> str:
    if constraint.package == reason.package and not constraint.restricts_other_for(reason.version):
        return f"learned from versions other than {reason.version}: {constraint}"
    return f"learned: {constraint}"


def _layer(project: Project, lock: Lock, arch: Arch, package: str) -> PackageLayer | None:
    """Return the layers that a new version of `package` changes, or None for stale digests."""
    try:
        digests = image_digests.read_digests(project.images, lock)
    except ImgbuildError:
        return None
    return dependencies.replaced_layers(create_plan(lock, arch), digests.arch[arch].layers, package)


def _layer_text(package: str, layer: PackageLayer) -> str:
    others = f", with {format_count(layer.others, 'other package')}" if layer.others else ""
    size = f"{layer.size:,} bytes" + (f" ({size_text(layer.size)})" if layer.size > 1e6 else "")
    more = f" and {', '.join(layer.layers[1:])}" if layer.layers[1:] else ""
    return (
        f"layer {layer.position}, {layer.name}{others}: another version of {package} changes only "
        f"this layer{more}, {size} to pull"
    )


COMMAND = create_command(why)
