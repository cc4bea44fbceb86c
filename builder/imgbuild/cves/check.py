"""The vulnerabilities of an image: what a source of advisories has, and what is accepted."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from imgbuild.attest.sbom.packages import Package
from imgbuild.cves import severity
from imgbuild.cves.accepted import accepting, expired
from imgbuild.cves.installed import InstalledSource, installed, order_of, unknown_parts
from imgbuild.cves.severity import Rating
from imgbuild.cves.source import Advisory, SourceAnswer
from imgbuild.lock.lock import Lock
from imgbuild.matrix.accepted import AcceptedCve
from imgbuild.values import Arch, Sha256


class Vulnerability(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One vulnerability of one package. `id` is its CVE where it has one, `ids` are all.

    `files` are the wheel or debs of the package, `purls` their package URLs; `fixed` is the lowest
    version that has the fix, "" if none is known. `accepted` is the entry of the matrix that
    accepts it.
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


class CveReport(msgspec.Struct, frozen=True, kw_only=True):
    """The vulnerabilities of one image, the most severe first.

    `threshold` is the lowest severity that counts; `counted` are those that count and are not
    accepted, as PACKAGE/ID. `expired` are entries of the matrix that accepted one of them until
    a day in the past, `unused` those that match none. `unread` is what was not looked at.
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

    @property
    def ok(self) -> bool:
        """Whether no vulnerability counts."""
        return not self.counted


class CveCase(msgspec.Struct, frozen=True, kw_only=True):
    """An image to check; what is accepted for its target, and for all targets (`shared`)."""

    lock: Lock
    arch: Arch
    accepted: tuple[AcceptedCve, ...] = ()
    shared: tuple[AcceptedCve, ...] = ()


class CvePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What counts: severities from `threshold` on, and with `fixable` only what has a fix."""

    threshold: Rating = Rating.HIGH
    fixable: bool = False
    today: datetime.date


def check(
    cases: Sequence[CveCase],
    known: Mapping[Sha256, Package],
    find: Callable[[Sequence[InstalledSource]], SourceAnswer],
    policy: CvePolicy,
    *,
    whole: bool = False,
) -> list[CveReport]:
    """A report for each of `cases`; `find` is called once, with all of their packages.

    `known` has the records of debs, which name their source packages. With `whole`, `cases` are all
    targets of the matrix: an entry for all targets that matches none of them is then unused.
    """
    installed_in = [installed(case.lock, case.arch, known) for case in cases]
    answer = find(
        list({package.key: package for packages in installed_in for package in packages}.values())
    )
    reports = [
        _report(case, packages, answer, policy)
        for case, packages in zip(cases, installed_in, strict=True)
    ]
    return _with_unused(cases, reports, whole=whole)


def _with_unused(
    cases: Sequence[CveCase], reports: Sequence[CveReport], *, whole: bool
) -> list[CveReport]:
    """`reports`, each with the accepted entries that its target has on no architecture."""
    ids: dict[str, set[str]] = {}
    for report in reports:
        found = {name for one in report.vulnerabilities for name in one.ids}
        ids[report.target] = ids.get(report.target, set()) | found
    everywhere = set().union(*ids.values())
    return [
        msgspec.structs.replace(
            report,
            unused=(
                *(one for one in case.accepted if one.id not in ids[report.target]),
                *(one for one in case.shared if whole and one.id not in everywhere),
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
    # The packages of other targets are in the answer as well, some with other debs of one source.
    own = {one.key: one for one in packages}
    advisories = [
        msgspec.structs.replace(one, package=own[one.package.key])
        for one in answer.advisories
        if one.package.key in own
    ]
    accepted = (*case.accepted, *case.shared)
    found = sorted(
        (_joined(group, accepted, policy.today) for group in groups(advisories)),
        key=lambda one: (-one.severity.rank, one.package, one.id),
    )
    ids = {name for one in found for name in one.ids}
    return CveReport(
        target=case.lock.target,
        arch=case.arch,
        date=policy.today,
        threshold=policy.threshold,
        packages=len(packages),
        sources=(answer.of,),
        vulnerabilities=tuple(found),
        counted=tuple(
            f"{one.package}/{one.id}"
            for one in found
            if one.severity.rank >= policy.threshold.rank
            and one.accepted is None
            and (one.fixed or not policy.fixable)
        ),
        expired=tuple(one for one in accepted if one.id in ids and expired(one, policy.today)),
        unread=(
            *unknown_parts(case.lock, case.arch),
            *answer.unread,
        ),
    )


def groups(advisories: Iterable[Advisory]) -> list[list[Advisory]]:
    """`advisories` of one package that share an id, directly or through others, together."""
    found: dict[tuple[str, str, str], list[list[Advisory]]] = {}
    for one in advisories:
        before = found.setdefault(one.package.key, [])
        same = [each for each in before if any(set(one.ids) & set(other.ids) for other in each)]
        rest = [each for each in before if all(each is not other for other in same)]
        found[one.package.key] = [*rest, [*(a for each in same for a in each), one]]
    return [group for groups_of in found.values() for group in groups_of]


def _joined(
    group: Sequence[Advisory], accepted: Sequence[AcceptedCve], today: datetime.date
) -> Vulnerability:
    """What several advisories say of one vulnerability: the highest severity, the lowest fix."""
    package = group[0].package
    ids = tuple(dict.fromkeys(name for one in group for name in one.ids))
    cves = sorted(name for name in ids if name.startswith("CVE-"))
    order = order_of(package.ecosystem)
    return Vulnerability(
        id=cves[0] if cves else group[0].ids[0],
        ids=ids,
        ecosystem=package.ecosystem,
        package=package.name,
        version=package.version,
        files=package.files,
        purls=package.purls,
        severity=severity.highest(one.severity for one in group),
        score=max((one.score for one in group if one.score is not None), default=None),
        fixed=min((one.fixed for one in group if one.fixed), key=order, default=""),
        summary=next((one.summary for one in group if one.summary), ""),
        note="; ".join(dict.fromkeys(one.note for one in group if one.note)),
        sources=tuple(dict.fromkeys(one.source for one in group)),
        accepted=accepting(accepted, ids, today),
    )
