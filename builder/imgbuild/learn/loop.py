"""Resolves, audits and learns constraints, until an audit has no errors.

No wheel is downloaded completely: the audit reads Python code and METADATA with range requests.
Each constraint is written to constraints.yaml immediately, so that an interrupted run can be
resumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.audit.checks.cuda import check_assemblers, unsupported_gpus
from imgbuild.audit.checks.findings import sort_findings
from imgbuild.audit.judge import (
    AuditTerms,
    apply_waivers,
    audit_package_set,
    exempt_finding,
    relax_learned_finding,
    requested_extras,
    terms_for_additions,
)
from imgbuild.audit.main_path.additions import main_path_of_additions
from imgbuild.audit.main_path.closure import MainPath
from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.package_set import PackageSet, open_package_set
from imgbuild.cache.context import Context
from imgbuild.cache.fact_values import read_fact, write_fact
from imgbuild.cache.store import Store
from imgbuild.errors import AuditFailed, NoSolution
from imgbuild.index.remote_wheel import LOCKED_PREFIX, BlockCache, ResolvedAddresses
from imgbuild.learn import removed_attributes
from imgbuild.learn.boundaries import ReleaseCatalogue
from imgbuild.learn.learn import join_constraint, learn_constraint
from imgbuild.lock.model import EditablePackage, LockedProject
from imgbuild.lock.resolution import Resolution, Wheel, installed_wheels
from imgbuild.matrix import constraints
from imgbuild.matrix.constraints import (
    Constraint,
    constraints_path,
    encode_constraints,
    merge_constraints,
    read_constraints,
)
from imgbuild.matrix.model import Matrix
from imgbuild.report import ConflictRelation, Finding, Report, Severity
from imgbuild.solve import kept_releases, solve, uv
from imgbuild.solve.direct import NO_DIRECT, Direct, locked_project
from imgbuild.solve.extension import wheel_address
from imgbuild.solve.problem import SolveProblem
from imgbuild.solve.solve import PreparedTarget
from imgbuild.system.amounts import format_count
from imgbuild.system.code_digest import code_digest
from imgbuild.values import Arch, Sha256, sha256

KeepConstraints = Callable[[Iterable[Constraint]], tuple[Constraint, ...]]
# The checks that need only files on a server.
READABLE_CHECKS = ("metadata", "imports", "calls", "support", "rules")
CLEAN_FACT = "audit-settled"
JUDGING_MODULES = (
    "imgbuild.audit.judge",
    "imgbuild.audit.main_path.additions",
    "imgbuild.learn.removed_attributes",
)  # the inputs of a report
ERRORS_PER_ROUND = 4  # limit of findings between the same two packages per round
SHOWN_ERRORS = 8


class AuditedResolution(msgspec.Struct, frozen=True, kw_only=True):
    """The resolution and the audit of each architecture, and the learned constraints.

    `rounds` is the number of resolutions. `sources` are the locked sources of packages that are not
    from an index.
    """

    resolutions: Mapping[Arch, Resolution]
    reports: Mapping[Arch, Report]
    learned: tuple[Constraint, ...]
    rounds: int
    sources: LockedProject = LockedProject()


class AuditedArch(msgspec.Struct, frozen=True, kw_only=True):
    """The result on one architecture. `known` are all constraints that are known afterwards."""

    resolution: Resolution
    report: Report
    known: tuple[Constraint, ...]
    rounds: int
    direct: Direct = NO_DIRECT
    packages: Mapping[str, EditablePackage] = {}


def resolve_audited(
    matrix: Matrix,
    name: str,
    arches: Sequence[Arch],
    context: Context,
    recorded: Sequence[Constraint],
    keep: KeepConstraints,
) -> AuditedResolution:
    """Resolve the target `name` to packages whose audit has no errors.

    `keep` stores learned constraints, and returns all known constraints. Raises NoSolution, with
    the conflict and its evidence, if there is no solution.
    """
    before, done = tuple(recorded), dict[Arch, AuditedArch]()
    recorded, rounds = before, 0
    while pending := [
        arch for arch in arches if arch not in done or _violates_learned(done[arch], recorded)
    ]:
        problem = SolveProblem(matrix, name, pending[0], context)
        with solve.open_target(problem) as prepared:
            done[pending[0]] = resolve_audited_arch(prepared, recorded, keep)
        recorded = done[pending[0]].known
        rounds += done[pending[0]].rounds
    sources = locked_project({arch: done[arch].direct for arch in arches})
    packages = dict(done[arches[0]].packages)
    return AuditedResolution(
        resolutions={arch: done[arch].resolution for arch in arches},
        reports={arch: done[arch].report for arch in arches},
        learned=tuple(entry for entry in recorded if entry not in before),
        rounds=rounds,
        sources=msgspec.structs.replace(sources, packages=packages),
    )


def _violates_learned(audited: AuditedArch, recorded: Sequence[Constraint]) -> bool:
    return bool(constraints.violated_constraints(recorded, audited.resolution.versions))


def resolve_audited_arch(
    prepared: PreparedTarget, recorded: Sequence[Constraint], keep: KeepConstraints
) -> AuditedArch:
    """Resolve and audit one architecture. See `resolve_audited`."""
    problem = prepared.problem
    name, arch, context = problem.name, problem.arch, problem.context
    recorded, rounds = tuple(recorded), 0
    while True:
        rounds += 1
        excluded: list[str] = []  # reported for the last pass alone
        with context.reporter.step(f"resolving {name} for {arch} (pass {rounds})"):
            chosen = solve.choose_packages(prepared, recorded, excluded.append)
            resolution = solve.lock_answer(prepared, chosen)
        terms = audit_terms(prepared, resolution, recorded)
        if (report := _clean_report(prepared, resolution, terms)) is not None:
            _report_choices(prepared, chosen, resolution, excluded)
            return _audited_arch(prepared, resolution, report, recorded, rounds)
        # One library for each round: its data is then kept only on disk.
        with Library(
            context.store, BlockCache(_published_sources(prepared, resolution))
        ) as library:
            release_catalogue = ReleaseCatalogue(prepared.catalogue, library, context.store)
            with (
                context.reporter.step(f"auditing (pass {rounds})"),
                library.progress("auditing", len(resolution.versions), context.reporter),
            ):
                report = audit_resolution(
                    resolution,
                    release_catalogue,
                    terms,
                    published=_published_packages(prepared),
                )
            errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
            _refuse_unsupported_gpus(name, arch, errors)
            if not errors:
                write_fact(context.store, CLEAN_FACT, _key(prepared, resolution, terms), report)
                _report_choices(prepared, chosen, resolution, excluded)
                return _audited_arch(prepared, resolution, report, recorded, rounds)
            number = format_count(len(errors), "error")
            with context.reporter.step(f"learning from {number} (pass {rounds})"):
                learned = learn_all(errors, release_catalogue, problem.target.pins.keys(), recorded)
                for entry in learned:
                    context.reporter.info(f"learned: {entry}")
                now = keep(learned)
            report = _relax_unused(report, now)
            if not any(finding.severity is Severity.ERROR for finding in report.findings):
                terms = audit_terms(prepared, resolution, now)
                write_fact(context.store, CLEAN_FACT, _key(prepared, resolution, terms), report)
                _report_choices(prepared, chosen, resolution, excluded)
                return _audited_arch(prepared, resolution, report, now, rounds)
        if now == recorded:
            kept = kept_releases.keep_releases_command(prepared, resolution.versions)
            raise nothing_learned_error(name, arch, errors, kept)
        recorded = now


def _relax_unused(report: Report, learned: Iterable[Constraint]) -> Report:
    """Convert errors in code that has never run to warnings."""
    entries = tuple(learned)
    findings = sort_findings(relax_learned_finding(finding, entries) for finding in report.findings)
    return msgspec.structs.replace(report, findings=tuple(findings))


def _report_choices(
    prepared: PreparedTarget,
    chosen: Sequence[uv.ChosenPackage],
    resolution: Resolution,
    excluded: Iterable[str],
) -> None:
    for warning in excluded:
        prepared.problem.context.reporter.warn(warning)
    solve.report_age(prepared, tuple(chosen))
    problem = prepared.problem
    moved = kept_releases.later_releases(problem, resolution.versions)
    row = problem.row
    if row is None or not moved:
        return
    shown = ", ".join(map(str, moved))
    line = f"{problem.name} was resolved to later releases than {row.row.like}: {shown}"
    kept = kept_releases.keep_releases_command(prepared, resolution.versions)
    problem.context.reporter.warn(f"{line}; {kept}" if kept else line)


def _audited_arch(
    prepared: PreparedTarget,
    resolution: Resolution,
    report: Report,
    known: tuple[Constraint, ...],
    rounds: int,
) -> AuditedArch:
    return AuditedArch(
        resolution=resolution,
        report=report,
        known=known,
        rounds=rounds,
        direct=prepared.direct,
        packages=prepared.backend.packages,
    )


def _clean_report(
    prepared: PreparedTarget, resolution: Resolution, terms: AuditTerms
) -> Report | None:
    """Return the report of an earlier audit of the same packages, or None if it had errors."""
    key = _key(prepared, resolution, terms)
    return read_fact(prepared.problem.context.store, CLEAN_FACT, key, Report)


def _key(prepared: PreparedTarget, resolution: Resolution, terms: AuditTerms) -> str:
    code = code_digest(*JUDGING_MODULES, alone=__name__)
    tags, published = prepared.catalogue.rules.tags, sorted(_published_packages(prepared))
    wheels = installed_wheels(resolution)
    return sha256(
        codec.encode_compact([code, tags.python, tags.arch, tags.glibc, wheels, terms, published])
    )


def learn_from_errors(problem: SolveProblem, errors: Sequence[Finding]) -> tuple[Constraint, ...]:
    """Return the constraints from errors in files that had to be downloaded completely."""
    store, http = problem.context.store, problem.context.http
    with solve.open_target(problem) as prepared, Library(store, http) as library:
        release_catalogue = ReleaseCatalogue(prepared.catalogue, library, store)
        learned = learn_all(errors, release_catalogue, problem.target.pins.keys(), problem.known)
    for entry in learned:
        problem.context.reporter.info(f"learned: {entry}")
    return learned


def audit_terms(
    prepared: PreparedTarget, resolution: Resolution, recorded: Iterable[Constraint] = ()
) -> AuditTerms:
    """Return the parameters of a target's audit, in addition to its packages.

    They contain only constraints on unused code, because the resolution satisfies all others.
    """
    target, row = prepared.problem.target, prepared.problem.row
    required = prepared.problem.requirements
    direct = required.direct_packages.union(item.package for item in prepared.backend.requirements)
    named = {*target.pins, *direct & resolution.versions.keys()}
    terms = AuditTerms(
        target=prepared.problem.name,
        cuda=target.cuda,
        gpu=target.gpu,
        all_gpus=row is None or not row.prefers_gpus,
        constraints=tuple(entry for entry in recorded if entry.unused),
        waivers=target.waive,
        named=tuple(sorted(named)),
        extras=requested_extras(prepared.requirements, prepared.catalogue.rules.tags.markers),
        exempt=required.exempt,
        alone=required.no_deps,
    )
    if prepared.published is None:
        return terms
    requested = {solve.requirement_package(line) for line in prepared.requirements}
    return terms_for_additions(
        terms, requested, resolution.versions.keys() - _published_packages(prepared)
    )


def _published_packages(prepared: PreparedTarget) -> set[str]:
    return set(prepared.published.versions) if prepared.published is not None else set()


def audit_resolution(
    resolution: Resolution,
    release_catalogue: ReleaseCatalogue,
    terms: AuditTerms,
    *,
    published: Collection[str] = (),
) -> Report:
    """Audit code on the main path, METADATA and older releases of the packages.

    `published` are packages whose locked versions were audited together. If the other packages
    cannot affect that audit, only the code that they run is audited. The report then contains no
    warnings and notes about the published packages.
    """
    package_set = resolution_package_set(resolution, release_catalogue)
    unassembled: list[Finding] = []
    if terms.gpu and not published:
        found = check_assemblers(package_set, terms.gpu)
        relaxed = [exempt_finding(finding, terms) for finding in found]
        unassembled = apply_waivers(relaxed, terms.waivers, ())
    if any(finding.severity is Severity.ERROR for finding in unassembled):
        return Report(target=terms.target, arch=package_set.arch, findings=tuple(unassembled))

    def _removed_attributes(path: MainPath) -> list[Finding]:
        return removed_attributes.check_removed_attributes(
            package_set, path, lambda: release_catalogue, published=published
        )

    known = release_catalogue.library.published
    path = main_path_of_additions(package_set, terms.named, terms.added, published, known)
    report = audit_package_set(
        package_set,
        terms,
        checks=READABLE_CHECKS,
        path=path,
        past=_removed_attributes,
        published=published,
    )
    findings = tuple(sort_findings((*report.findings, *unassembled)))
    return msgspec.structs.replace(report, findings=findings)


def _published_sources(prepared: PreparedTarget, resolution: Resolution) -> ResolvedAddresses:
    wheels = {wheel.sha256: wheel for wheel in installed_wheels(resolution)}
    built = {item.wheel.sha256 for item in resolution.built}

    def _address(sha256: Sha256) -> str:
        if sha256 in built and prepared.published_wheels is not None:
            return prepared.published_wheels.path(wheels[sha256].package).as_uri()
        return wheel_address(prepared.catalogue.indexes, wheels, sha256)

    return ResolvedAddresses(prepared.problem.context.http, _address)


def resolution_package_set(
    resolution: Resolution, release_catalogue: ReleaseCatalogue
) -> PackageSet:
    """Return the package set of a resolution.

    Files that are not in the store are read from the index.
    """
    catalogue = release_catalogue.catalogue
    rules = catalogue.rules

    def _locate_wheel(wheel: Wheel) -> Path | str:
        path = release_catalogue.store.file(wheel.sha256)
        if path is not None:
            return path
        if wheel.package in catalogue.locked:
            return f"{LOCKED_PREFIX}{wheel.sha256}"
        files = catalogue.indexes.files(wheel.package)
        return next(file.url for file in files if file.name == wheel.file)

    return open_package_set(
        installed_wheels(resolution),
        release_catalogue.library,
        python=rules.tags.python,
        arch=rules.tags.arch,
        glibc=rules.tags.glibc,
        locate=_locate_wheel,
    )


def learn_all(
    errors: Iterable[Finding],
    release_catalogue: ReleaseCatalogue,
    pinned: Collection[str],
    recorded: Sequence[Constraint] = (),
) -> tuple[Constraint, ...]:
    """Return the constraints that follow from errors, at most a few for each pair of packages."""
    seen: set[tuple[str, ...]] = set()
    pairs: Counter[tuple[str, str]] = Counter()
    learned: list[Constraint] = []
    for finding in errors:
        evidence = finding.evidence
        if evidence is None:
            continue
        key = (evidence.relation, evidence.package, evidence.other, evidence.subject)
        pair = (evidence.package, evidence.other)
        if key in seen or pairs[pair] >= ERRORS_PER_ROUND:
            continue
        seen.add(key)
        entry = learn_constraint(finding, release_catalogue, pinned)
        if entry is not None:
            pairs[pair] += 1
            entry = join_constraint(entry, (*recorded, *learned), release_catalogue)
            learned.append(entry)
    return constraints.merge_constraints((), learned)


def _refuse_unsupported_gpus(name: str, arch: Arch, errors: Iterable[Finding]) -> None:
    unsupported = [error for error in errors if unsupported_gpus(error)]
    if unsupported:
        lines = "\n  ".join(f"{error.message} ({error.where})" for error in unsupported)
        remedies = dict.fromkeys(error.remedy for error in unsupported)
        message = f"{name} on {arch}: {lines}"
        raise AuditFailed(message, hint="; ".join(remedies))


def nothing_learned_error(
    name: str, arch: Arch, errors: Sequence[Finding], suggestion: str = ""
) -> NoSolution:
    """Return the error for a package set whose errors do not result in a new constraint."""
    shown = [f"{error.message} ({error.where})" for error in errors[:SHOWN_ERRORS]]
    if len(errors) > SHOWN_ERRORS:
        shown.append(f"and {len(errors) - SHOWN_ERRORS} more; run imgbuild audit to show all")
    message = f"{name} on {arch}: the packages are incompatible, and no other package set was found"
    hint = "change a pin, or, if the finding is wrong, waive it in matrix.yaml with a reason"
    missing = [
        error.evidence.subject.partition(".")[0]
        for error in errors
        if error.evidence is not None and error.evidence.relation is ConflictRelation.PACKAGE
    ]
    if missing:
        modules = ", ".join(dict.fromkeys(missing))
        hint = f"add the package that provides {modules} (in a project: imgbuild add), or {hint}"
    nearest = (suggestion,) if suggestion else ()
    return NoSolution(message, reasons=tuple(shown), nearest=nearest, hint=hint)


def add_constraints(
    images: Path, learned: Iterable[Constraint], store: Store
) -> tuple[Constraint, ...]:
    """Write `learned` to constraints.yaml, and return all constraints in the file.

    Concurrent processes can call this function safely.
    """
    with store.hold_lock(f"constraints-{sha256(str(images).encode())}"):
        entries = merge_constraints(read_constraints(images), learned)
        codec.write_bytes(
            constraints_path(images), encode_constraints(entries), below=images.parent
        )
    return entries
