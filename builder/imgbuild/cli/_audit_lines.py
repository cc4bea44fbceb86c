"""Reports of an audit as text for people, and as test cases for JUnit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from imgbuild.cli._output import count
from imgbuild.report import Case, Finding, Report, Severity, Unread

INDENT = "    "
READ = "packages"  # the test case that fails if a package was not read


def lines(reports: Sequence[Report], *, notes: bool) -> Iterator[str]:
    """Reports as text: errors and warnings first, with `notes` the notes, then what was not read.

    Findings with one subject are shown once, at the first of their places.

    The counts come last; of several reports, each has them as its heading.
    """
    for report in reports:
        if len(reports) > 1:
            yield _counts(report)
        groups: dict[tuple[str, ...], list[Finding]] = {}
        for finding in report.findings:
            if notes or finding.severity is not Severity.NOTE:
                groups.setdefault(_subject(finding), []).append(finding)
        for group in groups.values():
            yield from _words(group)
        for one in report.unread:
            yield _unread(one)
        if len(reports) == 1:
            yield _counts(report)


def _counts(report: Report) -> str:
    counts = ", ".join(
        count(sum(one.severity is severity for one in report.findings), severity)
        for severity in Severity
    )
    return f"{report.target} {report.arch}: {counts}"


def _subject(finding: Finding) -> tuple[str, ...]:
    """What a finding is about; several places may have the same."""
    own = finding.evidence
    if own is None or not own.subject:
        return (finding.severity, finding.check, finding.message, finding.where)
    return (finding.severity, finding.check, own.relation, own.package, own.other, own.subject)


def _words(group: Sequence[Finding]) -> Iterator[str]:
    """The first finding of a group, and how many more places have the same."""
    finding, *more = group
    yield f"{finding.severity}: {finding.message} [{finding.check}]"
    if finding.where:
        also = f" and {count(len(more), 'more place')}; --json lists them" if more else ""
        yield f"{INDENT}at {finding.where}{also}"
    if finding.remedy:
        yield f"{INDENT}{finding.remedy}"


def _unread(one: Unread) -> str:
    return f"{'not read' if one.required else 'not looked at'}: {one.what}: {one.why}"


def with_cases(report: Report, checks: Sequence[str]) -> Report:
    """The report with a case for each check: failed, with the errors' words, if it found one.

    One more fails if a package that had to be read was not.
    """
    cases = []
    for check in checks:
        errors = [
            f"{one.message} ({one.where})"
            for one in report.findings
            if one.check == check and one.severity is Severity.ERROR
        ]
        cases.append(_case(check, errors))
    missing = [f"{one.what}: {one.why}" for one in report.unread if one.required]
    cases += [_case(READ, missing)] if missing else []
    return msgspec.structs.replace(report, tier="audit", cases=tuple(cases))


def _case(name: str, errors: Sequence[str]) -> Case:
    outcome = "failed" if errors else "passed"
    return Case(name=name, outcome=outcome, seconds=0.0, message="\n".join(errors))
