"""Audits the requested packages quickly, before the whole package set is solved.

Only their own modules are read, from ranges of the wheels on the index. Everything else counts as
unknown, so a finding applies to every package set with these versions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from imgbuild.audit.judge import Terms, audit, unused
from imgbuild.audit.packages.library import Library
from imgbuild.cache.context import Context
from imgbuild.errors import FetchFailed
from imgbuild.index.catalogue import Catalogue
from imgbuild.index.remote_wheel import Blocks
from imgbuild.learn.boundaries import PackageRelease, ReleaseCatalogue, lacks
from imgbuild.learn.learn import learn, package_range
from imgbuild.learn.uses import same_use
from imgbuild.matrix.constraints import Constraint
from imgbuild.report import Evidence, Finding, Relation, Severity

CHECKS: Final = ("imports", "calls", "support")
LESSONS: Final = 12  # more errors of a few packages would be repetitions
# The relation of an entry whose name does not imply it, and those that `f(x)` may have.
PLAIN: Final = {"imports": Relation.MODULE, "calls": Relation.ATTRIBUTE}
OF_CALLS: Final = (Relation.KEYWORD, Relation.ARGUMENT, Relation.REGISTERED)


class QuickAudit(msgspec.Struct, frozen=True, kw_only=True):
    """The constraints from errors, and the version windows outside of which packages only warn.

    `clashes`: there are errors, with or without a constraint. `read` are the packages whose code
    was compared.
    """

    learned: tuple[Constraint, ...] = ()
    windows: tuple[Constraint, ...] = ()
    clashes: bool = False
    read: frozenset[str] = frozenset()


def audit_requested(
    catalogue: Catalogue,
    versions: Mapping[str, str],
    pinned: Collection[str],
    context: Context,
) -> QuickAudit:
    """Audit the packages of `versions` against each other; `pinned` ones cannot change.

    If fewer than two can be read, none is read.
    """
    with Library(context.store, Blocks(context.http)) as library:
        release_catalogue = ReleaseCatalogue(catalogue, library, context.store)
        releases = dict(_releases(release_catalogue, versions))
        if len(releases) < 2:
            return QuickAudit()
        report = audit(release_catalogue.package_set(releases), Terms(), checks=CHECKS)
        errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
        learned = learned_from(errors, release_catalogue, pinned)
        for entry in learned:
            context.reporter.detail(f"learned: {entry}")
        errors = [error for error in errors if unused(error, learned) is error]
        return QuickAudit(
            learned=tuple(entry for entry in learned if not entry.unused),
            windows=windows(report.findings),
            clashes=bool(errors),
            read=frozenset(releases),
        )


def _releases(
    release_catalogue: ReleaseCatalogue, versions: Mapping[str, str]
) -> Iterator[tuple[str, PackageRelease]]:
    """The wheels of `versions`, without those whose index does not respond or lacks a wheel."""
    for package, version in versions.items():
        with contextlib.suppress(FetchFailed):
            release = release_catalogue.release(package, version)
            if release is not None:
                yield package, release


def learned_from(
    errors: Iterable[Finding], release_catalogue: ReleaseCatalogue, pinned: Collection[str]
) -> tuple[Constraint, ...]:
    """A constraint from each error. They are not merged, because a refusal shows all of them."""
    entries: dict[tuple[str, str, str], Constraint] = {}
    for error in errors:
        evidence = error.evidence
        if evidence is None:
            continue
        key = (evidence.package, evidence.other, evidence.subject)
        if key in entries or len(entries) >= LESSONS:
            continue
        entry = learn(error, release_catalogue, pinned)
        if entry is not None:
            entries[key] = entry
    return tuple(entries.values())


def windows(findings: Iterable[Finding]) -> tuple[Constraint, ...]:
    """The version windows outside of which packages only warn, as entries for one version each."""
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
        and evidence.relation is Relation.WINDOW
        and evidence.spec
    )


def widened(
    entries: Iterable[Constraint],
    packages: Collection[str],
    catalogue: Catalogue,
    context: Context,
) -> tuple[Constraint, ...]:
    """`entries`, in which those of `packages` cover all versions to which they apply.

    An entry of a pinned package is learned only for the pinned version. Without this step, other
    versions would seem compatible.
    """
    originals = tuple(entries)
    if not any(entry.package in packages for entry in originals):
        return originals
    with Library(context.store, Blocks(context.http)) as library:
        release_catalogue = ReleaseCatalogue(catalogue, library, context.store)
        return tuple(
            msgspec.structs.replace(entry, versions=package_range(evidence, release_catalogue, ()))
            if entry.package in packages
            and (evidence := evidence_of(entry, release_catalogue)) is not None
            else entry
            for entry in originals
        )


def evidence_of(entry: Constraint, release_catalogue: ReleaseCatalogue) -> Evidence | None:
    """The evidence from which an entry was learned; None if its kind cannot be determined."""
    if entry.missing or not entry.read_in or entry.check not in PLAIN:
        return None
    evidence = Evidence(
        relation=Relation.NAME if ":" in entry.name else PLAIN[entry.check],
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
    """The evidence of a call `f(x)`: whether x is rejected, missing or accepted."""
    release = release_catalogue.release(evidence.package, evidence.version)
    if release is None:
        return None
    if evidence.subject.partition("(")[2].removesuffix(")").isdecimal():
        return msgspec.structs.replace(evidence, relation=Relation.ARGUMENT)
    version = evidence.other_version
    other = release_catalogue.release(evidence.other, version) if version else None
    if other is None:
        return None
    for relation in OF_CALLS:
        candidate = msgspec.structs.replace(evidence, relation=relation)
        if same_use(release_catalogue, candidate)(release) and lacks(
            release_catalogue, candidate, other
        ):
            return candidate
    return None
