"""Implements `imgbuild outdated`, which lists newer versions of packages."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from imgbuild.attest.sbom import packages
from imgbuild.attest.sbom.packages import Package
from imgbuild.audit.packages.pinned import ANY_GLIBC
from imgbuild.cache.context import Context
from imgbuild.cli import _outdated_report
from imgbuild.cli._help import create_command
from imgbuild.cli._options import PACKAGES, PYTHON, REQUIREMENTS, SOLVE
from imgbuild.cli._outdated_report import OutdatedReport
from imgbuild.cli._output import format_count, print_result
from imgbuild.cli._selection import SelectedLock, at_most_one_arch
from imgbuild.cli._targets import SelectionOptions
from imgbuild.cli._verb import create_verb
from imgbuild.cves.check import CveCase
from imgbuild.errors import FetchFailed, InputError
from imgbuild.index.pages import IndexAddress, IndexLookup
from imgbuild.learn import recorded
from imgbuild.lock import lock_file, published
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.published import load_matrix, project_row
from imgbuild.lock.resolution import installed_wheels
from imgbuild.matrix import project_paths
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Matrix, Target
from imgbuild.pipeline import declared_files, locked_packages
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import Session, open_session
from imgbuild.project.model import Declarations
from imgbuild.resolve import declared_requests, demands, resolve_request
from imgbuild.show import table
from imgbuild.solve import uv
from imgbuild.system import boundary, threads
from imgbuild.system.amounts import join_first
from imgbuild.system.console import console
from imgbuild.update import newer, newer_targets, other_updates, solved_version, version_sets
from imgbuild.update.newer import NewerVersion, VersionSet
from imgbuild.update.newer_targets import NewerTarget
from imgbuild.update.other_updates import BaseUpdates, KnownVulnerabilities
from imgbuild.update.solved_version import SolvedVersion
from imgbuild.update.version_sets import LockedElsewhere
from imgbuild.values import Arch, Sha256, native_arch_first
from imgbuild.wheel.tags import WheelTags

SHOWN = 5  # packages in an error
Files = Annotated[list[Path] | None, REQUIREMENTS()]
Packages = Annotated[
    bool,
    PACKAGES(
        "Without this option, only direct requirements and the packages in `imgbuild list` are "
        "listed."
    ),
]
Python = Annotated[
    str | None, PYTHON("Applies to --requirements. Default: a version that the files accept.")
]
Solve = Annotated[
    bool,
    SOLVE(
        "Solve with each newer version of a package, and audit the solution if all of its "
        "packages are in the cache. Takes about a minute per version."
    ),
]


@create_verb
def outdated(
    selection: SelectionOptions,
    requirements: Files = None,
    every: Packages = False,
    solve: Solve = False,
    python: Python = None,
) -> None:
    """List newer versions of the packages in a target, a project or a file.

    For each required package, lists the newest version on the index, the newest version that
    package metadata allows without changing other pinned packages, and below these, the reasons
    against the newest version. A lock has only files that were uploaded before its date `as_of`, so
    that it can be solved again with the same result. Pre-releases and yanked releases are ignored.
    Reads only the index and package metadata; with --solve, also checks whether the code of an
    allowed version works with the other packages. For targets, also lists updates of Debian
    packages in the base and known vulnerabilities, if the servers respond. Exits with status 7 if
    the index could not be read for a package.

    Without targets, checks the targets of the project in the current folder.

    Examples:

        imgbuild outdated

        imgbuild outdated cu124-vllm0.8.5 --packages

        imgbuild outdated -r requirements.txt --python 3.12

        imgbuild outdated cu130-vllm --solve --json
    """
    if requirements:
        if selection.named_targets or selection.everything:
            message = "--requirements and targets cannot be combined"
            raise InputError(message, hint="omit either --requirements or the targets")
        reports = [_file_report(requirements, selection, python, solve=solve)]
    else:
        if python is not None:
            message = f"--python {python} does not apply to locked targets"
            raise InputError(message, hint="omit --python, or specify files with --requirements")
        session = open_session(selection.matrix, names=selection.named_targets)
        if not (selection.named_targets or selection.everything or session.project.writable):
            message = "Missing argument 'TARGET'"
            hint = (
                "specify a target, specify a file with --requirements, or run the command in the "
                "folder of a project"
            )
            raise InputError(message, hint=hint)
        reports = _target_reports(session, selection, every=every, solve=solve)
    print_result(
        reports,
        [
            line
            for each in reports
            for line in _outdated_report.report_lines(each, whole=every, files=requirements or ())
        ],
    )
    _refuse_unreachable(reports)


def _refuse_unreachable(reports: Sequence[OutdatedReport]) -> None:
    """Raise FetchFailed if the index could not be read for packages in `reports`."""
    names = {row.package for each in reports for row in each.packages if row.unreachable}
    if not names:
        return
    if console.json:  # the result has been printed
        raise typer.Exit(FetchFailed.exit_code)
    shown = join_first(sorted(names), SHOWN)
    message = f"{format_count(len(names), 'package')} could not be checked: {shown}"
    raise FetchFailed(
        message, hint="the reasons are in the lines marked `not checked`; run the command again"
    )


# -- targets


def _target_reports(
    session: Session, selection: SelectionOptions, *, every: bool, solve: bool
) -> list[OutdatedReport]:
    named = selection.named_targets
    everything = selection.everything or not named
    chosen = [
        msgspec.structs.replace(item, arches=native_arch_first(item.arches))
        for item in msgspec.structs.replace(selection, everything=everything).selected_locks(
            session.project
        )
    ]
    records = packages.recorded_packages(
        [project_paths.catalogue_project().images, session.project.images]
    )
    return [_target_report(session, item, records, every=every, solve=solve) for item in chosen]


def _target_report(
    session: Session,
    item: SelectedLock,
    records: dict[Sha256, Package],
    *,
    every: bool,
    solve: bool,
) -> OutdatedReport:
    lock, matrix, context = item.lock, session.matrix, open_inputs(session).context
    known = published.known_constraints(matrix, session.project.images)
    compared, arch = _version_set(session, item, records, known), item.arches[0]
    target = matrix.targets[lock.target]
    names = _listed_packages(compared, target, every=every)
    indexes = version_sets.open_indexes(matrix, lock.target, context)
    base = matrix.bases[target.base]
    case = CveCase(lock=lock, arch=arch, accepted=target.accept_cves, shared=matrix.accept_cves)
    rows: list[NewerVersion] = []
    bases: list[BaseUpdates] = []
    advisories: list[KnownVulnerabilities] = []
    with console.progress(
        f"checking {format_count(len(names), 'package')} of {lock.target} for newer versions",
        len(names),
        unit="packages",
    ) as bar:
        tasks: list[Callable[[], object]] = [
            lambda: rows.extend(
                newer.look_up_newer(compared, names, indexes, context, bar.advance)
            ),
            lambda: bases.append(other_updates.base_updates(lock, base, arch, context)),
            lambda: advisories.append(other_updates.image_vulnerabilities(case, records, context)),
        ]
        threads.run_for_each(tasks, lambda task, _: task(), threads=len(tasks))
    locks = [lock_file.read_lock(session.project.images, name)
             for name in session.project.locked_targets()]  # fmt: skip
    shown = tuple(
        msgspec.structs.replace(
            row,
            pinned=row.package in target.pins and row.package not in compared.kept,
            notes=recorded.notes_on_package(matrix, lock.target, row.package),
            elsewhere=newer_targets.locked_with(row.package, row.allowed, lock, arch, locks),
        )
        for row in rows
        if row.is_outdated
    )
    return OutdatedReport(
        name=lock.target,
        arch=item.arches,
        python=compared.tags[0].python,
        cuda=lock.cuda,
        as_of=lock.as_of,
        looked_up=len(names),
        unlisted=len(compared.versions) - len(names),
        packages=shown,
        base=bases[0],
        vulnerabilities=advisories[0],
        solved=_solve_newer_versions(session, compared, shown, known, context) if solve else (),
        retired=" ".join(target.retired.split()),
        targets=_newer_targets(session, item, locks),
    )


def _version_set(
    session: Session,
    item: SelectedLock,
    records: dict[Sha256, Package],
    known: tuple[Constraint, ...],
) -> VersionSet:
    requires = _locked_requirements(session, item, records)
    elsewhere = _locked_elsewhere(session, item)
    return version_sets.version_set_of_lock(
        item.lock, item.arches, session.matrix, requires, known, elsewhere
    )


def _listed_packages(compared: VersionSet, target: Target, *, every: bool) -> list[str]:
    listed = {*compared.wanted, *table.NAMED_PACKAGES, *(target.pins.keys() - compared.kept.keys())}
    return [name for name in sorted(compared.versions) if every or name in listed]


def _newer_targets(
    session: Session, item: SelectedLock, locks: Sequence[Lock]
) -> tuple[NewerTarget, ...] | None:
    """Return newer targets of the matrix, or of the catalogue for a project's row.

    Return None if the row is derived from a target that the catalogue lacks.
    """
    project, matrix, lock = session.project, session.matrix, item.lock
    row = project_row(matrix, lock.target)
    if row is not None:
        project = project_paths.catalogue_project()
        matrix = load_matrix(project.matrix)
        if row.published.name not in matrix.targets:
            return None
        lock = msgspec.structs.replace(lock, target=row.published.name)
        locks = [lock_file.read_lock(project.images, name) for name in project.locked_targets()]
    return newer_targets.find_newer_targets(project, matrix, lock, item.arches[0], locks)


def _locked_requirements(
    session: Session, item: SelectedLock, records: dict[Sha256, Package]
) -> dict[str, Sequence[str]]:
    wheels = installed_wheels(item.lock.arch[item.arches[0]])
    lacking = [wheel for wheel in wheels if wheel.sha256 not in records]
    if lacking:
        try:
            records |= locked_packages.read_package_records(
                item.lock, lacking, open_inputs(session)
            )
        except FetchFailed as error:
            console.warn(
                f"the requirements of {format_count(len(lacking), 'package')} are unknown:"
                f" {error.message}"
            )
    return locked_packages.package_requirements(wheels, records)


def _locked_elsewhere(session: Session, item: SelectedLock) -> list[LockedElsewhere]:
    """Return the targets of the catalogue that a row with `extends` could extend instead."""
    row = project_row(session.matrix, item.lock.target)
    if row is None or row.row.extends is None:
        return []
    catalogue = project_paths.catalogue_project()
    current = {
        name for name, target in load_matrix(catalogue.matrix).targets.items() if not target.retired
    }
    locks = [
        lock_file.read_lock(catalogue.images, name)
        for name in catalogue.locked_targets()
        if name in current and name != row.row.extends
    ]
    return [
        LockedElsewhere(target=each.target, versions=each.arch[item.arches[0]].versions)
        for each in locks
        if item.arches[0] in each.arch
    ]


def _solve_newer_versions(
    session: Session,
    compared: VersionSet,
    rows: Sequence[NewerVersion],
    known: tuple[Constraint, ...],
    context: Context,
) -> tuple[SolvedVersion, ...]:
    matrix, name = session.matrix, compared.name
    arch = compared.tags[0].arch
    required = {
        package: version
        for package, version in compared.versions.items()
        if package in compared.wanted
    }
    results = []
    for row in rows:
        if row.error or not row.required or row.package in compared.kept:
            continue
        if project_row(matrix, name) is None:
            attempts = solved_version.target_attempts(matrix, name, arch, row.package, row.newest)
        else:
            path = session.project.matrix
            edit = solved_version.edit_for_row(name, row.package, row.newest)
            edited = published.plan_matrix(path, boundary.read_regular_file(path), edit)
            attempts = [solved_version.SolveAttempt(matrix=edited, name=name, arch=arch)]
        with console.step(f"solving {name} with {row.package} {row.newest}"):
            results.append(
                solved_version.solve_first(
                    attempts, row.package, row.newest, required, known, context
                )
            )
    return tuple(results)


# -- requirements files


def _file_report(
    files: Sequence[Path], selection: SelectionOptions, python: str | None, *, solve: bool
) -> OutdatedReport:
    if solve:
        message = "--solve applies to targets and projects"
        raise InputError(
            message, hint="to resolve the requirements of a file, run: imgbuild resolve -r FILE"
        )
    arch = at_most_one_arch(
        selection.arches, "a requirements file can be checked for only one architecture"
    )
    arch = arch or Arch.parse(platform.machine())
    matrix = load_matrix(project_paths.catalogue_project().matrix)
    declared = declared_files.read_places([str(path) for path in files])
    for line in declared_files.unread_entries(declared):
        console.info(f"not read: {line}")
    tags = _wheel_tags(declared, python, arch, matrix)
    demanded = demands.package_demands(declared, tags.markers)
    context = Context.open(console)
    of_files = declared_files.find_indexes(declared.indexes, demanded, matrix, tags, context)
    name = matrix.default_index
    address = matrix.indexes[name].url or uv.default_index()
    places = {**of_files.addresses, name: IndexAddress(name=name, address=address, timed=False)}
    indexes = IndexLookup(places, of_files.packages, name, context.http)
    title = ", ".join(map(str, files))
    with console.progress(
        f"checking {format_count(len(demanded), 'package')} of {title} for newer versions",
        2 * len(demanded),
        unit="packages",
    ) as bar:
        listed = version_sets.version_set_of_demands(
            title, demanded, tags, indexes, context, bar.advance
        )
        names = [name for name in listed.packages.versions if name not in listed.failed]
        rows = newer.look_up_newer(listed.packages, sorted(names), indexes, context, bar.advance)
    failed = [
        NewerVersion(
            package=package,
            version=listed.packages.versions.get(package, ""),
            error=why,
            unreachable=package in listed.unreachable,
        )
        for package, why in listed.failed.items()
    ]
    by_address = [each.package for each in demanded if each.source]
    if by_address:
        console.info(f"packages specified by URL are not checked: {', '.join(by_address)}")
    every = sorted((*rows, *failed), key=lambda row: row.package)
    return OutdatedReport(
        name=title,
        arch=(arch,),
        python=tags.python,
        cuda="",
        looked_up=len(every),
        packages=tuple(row for row in every if row.is_outdated),
    )


def _wheel_tags(
    declared: Declarations, python: str | None, arch: Arch, matrix: Matrix
) -> WheelTags:
    request = resolve_request.ResolveRequest(
        requests=(),
        arches=(arch,),
        python=None if python is None else resolve_request.parse_python(python),
    )
    chosen = declared_requests.python_for_request(declared, request, matrix)
    request = msgspec.structs.replace(request, python=chosen)
    base = matrix.bases[resolve_request.requested_base(request, matrix)]
    if chosen in (None, base.python):
        return WheelTags(python=base.python, glibc=base.glibc, arch=arch)
    return WheelTags(python=chosen, glibc=ANY_GLIBC, arch=arch)


COMMAND = create_command(outdated)
