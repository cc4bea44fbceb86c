"""Audits the requested packages before the whole package set is solved.

Only modules of the requested packages are read, with range requests to the wheels on the index.
Other modules count as unknown, so that a finding applies to every package set with these versions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from imgbuild.audit.judge import AuditTerms, audit_package_set, relax_learned_finding
from imgbuild.audit.packages.library import Library
from imgbuild.cache.context import Context
from imgbuild.errors import FetchFailed
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.remote_wheel import BlockCache
from imgbuild.learn.boundaries import PackageRelease, ReleaseCatalogue, lacks_item
from imgbuild.learn.learn import learn_constraint, package_range
from imgbuild.learn.uses import same_use
from imgbuild.matrix.constraints import Constraint
from imgbuild.report import ConflictRelation, Evidence, Finding, Severity

CHECKS: Final = ("imports", "calls", "support")
LESSONS: Final = 12  # more errors in a few packages would be repetitions
# The relation of an entry whose name does not imply it, and those that `f(x)` may have.
RELATION_BY_CHECK: Final = {"imports": ConflictRelation.MODULE, "calls": ConflictRelation.ATTRIBUTE}
CALL_RELATIONS: Final = (
    ConflictRelation.KEYWORD,
    ConflictRelation.ARGUMENT,
    ConflictRelation.REGISTERED,
)


class QuickAudit(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a quick audit.

    `learned` are the constraints that follow from errors, and `windows` the version windows outside
    of which packages only warn. `clashes` means that the audit has errors, even if no constraint
    follows from them. `read` contains the packages whose code was compared.
    """

    learned: tuple[Constraint, ...] = ()
    windows: tuple[Constraint, ...] = ()
    clashes: bool = False
    read: frozenset[str] = frozenset()


def audit_requested(
    catalogue: FileCatalogue,
    versions: Mapping[str, str],
    pinned: Collection[str],
    context: Context,
) -> QuickAudit:
    """Audit the packages of `versions` against each other. `pinned` packages cannot change.

    Nothing is read if fewer than two of the packages are available.
    """
    with Library(context.store, BlockCache(context.http)) as library:
        release_catalogue = ReleaseCatalogue(catalogue, library, context.store)
        releases = dict(_releases(release_catalogue, versions))
        if len(releases) < 2:
            return QuickAudit()
        report = audit_package_set(
            release_catalogue.create_package_set(releases), AuditTerms(), checks=CHECKS
        )
        errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
        learned = constraints_from_errors(errors, release_catalogue, pinned)
        for entry in learned:
            context.reporter.detail(f"learned: {entry}")
        errors = [error for error in errors if relax_learned_finding(error, learned) is error]
        return QuickAudit(
            learned=tuple(entry for entry in learned if not entry.unused),
            windows=window_constraints(report.findings),
            clashes=bool(errors),
            read=frozenset(releases),
        )


def _releases(
    release_catalogue: ReleaseCatalogue, versions: Mapping[str, str]
) -> Iterator[tuple[str, PackageRelease]]:
    for package, version in versions.items():
        with contextlib.suppress(FetchFailed):
            release = release_catalogue.release(package, version)
            if release is not None:
                yield package, release


def constraints_from_errors(
    errors: Iterable[Finding], release_catalogue: ReleaseCatalogue, pinned: Collection[str]
) -> tuple[Constraint, ...]:
    """Return a constraint for each error.

    The constraints are not merged, because a refusal shows all of them.
    """
    entries: dict[tuple[str, str, str], Constraint] = {}
    for error in errors:
        evidence = error.evidence
        if evidence is None:
            continue
        key = (evidence.package, evidence.other, evidence.subject)
        if key in entries or len(entries) >= LESSONS:
            continue
        entry = learn_constraint(error, release_catalogue, pinned)
        if entry is not None:
            entries[key] = entry
    return tuple(entries.values())


def window_constraints(findings: Iterable[Finding]) -> tuple[Constraint, ...]:
    """Return the version windows outside of which packages only warn."""
    return tuple(
        Constraint(
            package=evidence.package,
            versions=f"=={evidence.version}",
            needs=f"{evidence.other}{evidence.spec}",
            check=finding.check,
            file=evidence.file,
            line=evidence.line,
            read_in=evidence.version,
            against=evidence.other_version,
        )
        for finding in findings
        if finding.severity is Severity.WARNING
        and (evidence := finding.evidence) is not None
        and evidence.relation is ConflictRelation.WINDOW
        and evidence.spec
    )


def widen_constraints(
    entries: Iterable[Constraint],
    packages: Collection[str],
    catalogue: FileCatalogue,
    context: Context,
) -> tuple[Constraint, ...]:
    """Extend the constraints of `packages` to all versions to which they apply.

    A constraint on a pinned package is learned only for the pinned version. Other versions would
    seem compatible if the constraint were not extended.
    """
    originals = tuple(entries)
    if not any(entry.package in packages for entry in originals):
        return originals
    with Library(context.store, BlockCache(context.http)) as library:
        release_catalogue = ReleaseCatalogue(catalogue, library, context.store)
        return tuple(
            msgspec.structs.replace(entry, versions=package_range(evidence, release_catalogue, ()))
            if entry.package in packages
            and (evidence := find_evidence(entry, release_catalogue)) is not None
            else entry
            for entry in originals
        )


def find_evidence(entry: Constraint, release_catalogue: ReleaseCatalogue) -> Evidence | None:
    """Return the evidence from which a constraint was learned.

    Return None if the type of the evidence cannot be determined.
    """
    if entry.missing or not entry.read_in or entry.check not in RELATION_BY_CHECK:
        return None
    evidence = Evidence(
        relation=ConflictRelation.NAME if ":" in entry.name else RELATION_BY_CHECK[entry.check],
        package=entry.package,
        version=entry.read_in,
        file=entry.file,
        line=entry.line,
        other=entry.other,
        other_version=entry.against,
        subject=entry.name,
    )
    return _call_evidence(evidence, release_catalogue) if entry.name.endswith(")") else evidence


def _call_evidence(evidence: Evidence, release_catalogue: ReleaseCatalogue) -> Evidence | None:
    """Return the evidence of a call `f(x)`: whether x is rejected, missing or accepted."""
    release = release_catalogue.release(evidence.package, evidence.version)
    if release is None:
        return None
    if evidence.subject.partition("(")[2].removesuffix(")").isdecimal():
        return msgspec.structs.replace(evidence, relation=ConflictRelation.ARGUMENT)
    version = evidence.other_version
    other = release_catalogue.release(evidence.other, version) if version else None
    if other is None:
        return None
    for relation in CALL_RELATIONS:
        candidate = msgspec.structs.replace(evidence, relation=relation)
        if same_use(release_catalogue, candidate)(release) and lacks_item(
            release_catalogue, candidate, other
        ):
            return candidate
    return None
