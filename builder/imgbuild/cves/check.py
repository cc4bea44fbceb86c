"""Checks images for known vulnerabilities, and applies accepted entries of the matrix."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from imgbuild.attest.sbom.packages import Package
from imgbuild.cves import severity
from imgbuild.cves.installed import InstalledSource, installed_sources, unknown_parts, version_order
from imgbuild.cves.severity import Rating
from imgbuild.cves.source import Advisory, SourceAnswer
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.accepted import AcceptedCve
from imgbuild.values import Arch, Sha256


class Vulnerability(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A vulnerability of a package. `id` is the CVE ID, if any, and `ids` are all IDs.

    `files` are the wheel or debs of the package, and `purls` are their package URLs. `fixed` is the
    lowest version with the fix, or "" if unknown. `accepted` is the matrix entry that accepts the
    vulnerability.
    """

    id: str
    ids: tuple[str, ...]
    ecosystem: str
    package: str
    version: str
    files: tuple[str, ...]
    purls: tuple[str, ...]
    severity: Rating
    score: float | None = None
    fixed: str = ""
    summary: str = ""
    note: str = ""
    sources: tuple[str, ...] = ()
    accepted: AcceptedCve | None = None


class CveReport(msgspec.Struct, frozen=True, kw_only=True, rename={"unqueried": "unasked"}):
    """The vulnerabilities of an image, the most severe first.

    `threshold` is the lowest severity to fail at. `counted` lists vulnerabilities of at least this
    severity that are not accepted, as PACKAGE/ID. `expired` lists the expired matrix entries for
    these vulnerabilities, and `unused` lists entries without a match. `unread` lists parts that
    were not checked. If the source is unreachable, `unqueried` lists packages without data, and
    `unchecked` lists entries that may apply to these packages.
    """

    target: str
    arch: Arch
    date: datetime.date
    threshold: Rating
    packages: int
    sources: tuple[str, ...]
    vulnerabilities: tuple[Vulnerability, ...]
    counted: tuple[str, ...] = ()
    expired: tuple[AcceptedCve, ...] = ()
    unused: tuple[AcceptedCve, ...] = ()
    unread: tuple[str, ...] = ()
    unqueried: tuple[str, ...] = ()
    unchecked: tuple[AcceptedCve, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all vulnerabilities are accepted or below the threshold."""
        return not self.counted


class CveCase(msgspec.Struct, frozen=True, kw_only=True):
    """An image to check. `shared` are the accepted entries for all targets."""

    lock: Lock
    arch: Arch
    accepted: tuple[AcceptedCve, ...] = ()
    shared: tuple[AcceptedCve, ...] = ()


class CvePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The vulnerabilities to fail at: those with at least the severity `threshold`.

    With `fixable`, vulnerabilities without a fix are excluded.
    """

    threshold: Rating = Rating.HIGH
    fixable: bool = False
    today: datetime.date


def check_cves(
    cases: Sequence[CveCase],
    records: Mapping[Sha256, Package],
    find: Callable[[Sequence[InstalledSource]], SourceAnswer],
    policy: CvePolicy,
    *,
    whole: bool = False,
) -> list[CveReport]:
    """Return a report for each of `cases`. `find` is called once with all packages.

    `records` contains the records of debs with their source packages. If `cases` are all targets of
    the matrix, `whole` is set, and entries for all targets without a match are reported as unused.
    """
    installed_in = [installed_sources(case.lock, case.arch, records) for case in cases]
    answer = find(
        list({package.key: package for packages in installed_in for package in packages}.values())
    )
    reports = [
        _report(case, packages, answer, policy)
        for case, packages in zip(cases, installed_in, strict=True)
    ]
    return _add_unused_entries(cases, reports, whole=whole)


def keep_id(report: CveReport, name: str) -> CveReport:
    """Return the report with only the vulnerability that has the ID `name`."""
    kept = tuple(
        each
        for each in report.vulnerabilities
        if name.casefold() in {known.casefold() for known in (each.id, *each.ids)}
    )
    names = {f"{each.package}/{each.id}" for each in kept}
    counted = tuple(each for each in report.counted if each in names)
    return msgspec.structs.replace(
        report, vulnerabilities=kept, counted=counted, expired=(), unused=()
    )


def _add_unused_entries(
    cases: Sequence[CveCase], reports: Sequence[CveReport], *, whole: bool
) -> list[CveReport]:
    ids: dict[str, set[str]] = {}
    for report in reports:
        names = {name for vulnerability in report.vulnerabilities for name in vulnerability.ids}
        ids[report.target] = ids.get(report.target, set()) | names
    everywhere = set().union(*ids.values())
    return [
        msgspec.structs.replace(
            report,
            unused=(
                *(entry for entry in case.accepted if entry.id not in ids[report.target]),
                *(entry for entry in case.shared if whole and entry.id not in everywhere),
            ),
        )
        if not report.unqueried
        else msgspec.structs.replace(
            report,
            unchecked=tuple(
                entry
                for entry in (*case.accepted, *case.shared)
                if entry.id not in ids[report.target]
            ),
        )
        for case, report in zip(cases, reports, strict=True)
    ]


def _report(
    case: CveCase,
    packages: Sequence[InstalledSource],
    answer: SourceAnswer,
    policy: CvePolicy,
) -> CveReport:
    # The response also has packages of other targets, some with other debs of the same source.
    by_key = {package.key: package for package in packages}
    advisories = [
        msgspec.structs.replace(advisory, package=by_key[advisory.package.key])
        for advisory in answer.advisories
        if advisory.package.key in by_key
    ]
    accepted = (*case.accepted, *case.shared)
    vulnerabilities = sorted(
        (_join_advisories(group, accepted, policy.today) for group in group_advisories(advisories)),
        key=lambda vulnerability: (
            -vulnerability.severity.rank,
            vulnerability.package,
            vulnerability.id,
        ),
    )
    ids = {name for vulnerability in vulnerabilities for name in vulnerability.ids}
    return CveReport(
        target=case.lock.target,
        arch=case.arch,
        date=policy.today,
        threshold=policy.threshold,
        packages=len(packages),
        sources=(answer.of,),
        vulnerabilities=tuple(vulnerabilities),
        counted=tuple(
            f"{vulnerability.package}/{vulnerability.id}"
            for vulnerability in vulnerabilities
            if vulnerability.severity.rank >= policy.threshold.rank
            and vulnerability.accepted is None
            and (vulnerability.fixed or not policy.fixable)
        ),
        expired=tuple(
            entry for entry in accepted if entry.id in ids and is_expired(entry, policy.today)
        ),
        unread=(
            *unknown_parts(case.lock, case.arch),
            *answer.unread,
        ),
        unqueried=tuple(package.name for package in answer.unqueried if package.key in by_key),
    )


def group_advisories(advisories: Iterable[Advisory]) -> list[list[Advisory]]:
    """Group a package's advisories, so that all advisories with a common ID are in one group."""
    by_package: dict[tuple[str, str, str], list[list[Advisory]]] = {}
    for advisory in advisories:
        before = by_package.setdefault(advisory.package.key, [])
        same = [
            each for each in before if any(set(advisory.ids) & set(other.ids) for other in each)
        ]
        rest = [each for each in before if all(each is not other for other in same)]
        by_package[advisory.package.key] = [*rest, [*(a for each in same for a in each), advisory]]
    return [group for groups_of in by_package.values() for group in groups_of]


def _join_advisories(
    group: Sequence[Advisory], accepted: Sequence[AcceptedCve], today: datetime.date
) -> Vulnerability:
    """Merge advisories about the same vulnerability: highest severity, lowest fixed version."""
    package = group[0].package
    ids = tuple(dict.fromkeys(name for advisory in group for name in advisory.ids))
    cves = sorted(name for name in ids if name.startswith("CVE-"))
    order = version_order(package.ecosystem)
    return Vulnerability(
        id=cves[0] if cves else group[0].ids[0],
        ids=ids,
        ecosystem=package.ecosystem,
        package=package.name,
        version=package.version,
        files=package.files,
        purls=package.purls,
        severity=severity.highest_rating(advisory.severity for advisory in group),
        score=max(
            (advisory.score for advisory in group if advisory.score is not None), default=None
        ),
        fixed=min((advisory.fixed for advisory in group if advisory.fixed), key=order, default=""),
        summary=next((advisory.summary for advisory in group if advisory.summary), ""),
        note="; ".join(dict.fromkeys(advisory.note for advisory in group if advisory.note)),
        sources=tuple(dict.fromkeys(advisory.source for advisory in group)),
        accepted=accepting_entry(accepted, ids, today),
    )


def accepting_entry(
    accepted: Sequence[AcceptedCve], ids: Collection[str], today: datetime.date
) -> AcceptedCve | None:
    """Return the first unexpired entry for one of `ids`, or None."""
    return next(
        (entry for entry in accepted if entry.id in ids and not is_expired(entry, today)), None
    )


def is_expired(entry: AcceptedCve, today: datetime.date) -> bool:
    """Return whether the last day of `entry` is before `today`."""
    return entry.expires < today
