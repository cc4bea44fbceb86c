"""Tests the order of findings in reports of the audit, waivers and learned constraints."""

import msgspec
import pytest

from imgbuild.audit import judge
from imgbuild.audit.checks.findings import sort_findings
from imgbuild.audit.judge import AuditTerms
from imgbuild.errors import InputError
from imgbuild.matrix.accepted import Waiver
from imgbuild.matrix.constraints import Constraint
from imgbuild.report import ConflictRelation, Evidence, Finding, Severity
from tests.support import audited
from tests.support.rows import each_row

REQUIRES = {"a==1": "Requires-Dist: b<3\nRequires-Dist: c\n"}
PACKAGES: dict[str, audited.Files] = {"a==1": {}, "b==3": {}}


@pytest.fixture
def package_set(tmp_path):
    return audited.package_set(tmp_path, PACKAGES, metadata=REQUIRES)


def audit(package_set, terms=None, **more):
    return judge.audit_package_set(package_set, terms, checks=["metadata"], **more)


def waiver(subject, package="a", check="metadata"):
    return Waiver(check=check, package=package, subject=subject, reason="it was tried and works")


def finding(severity, check="imports", line=1, message="m"):
    evidence = Evidence(
        relation=ConflictRelation.NAME, package="a", version="1", file="a.py", line=line
    )
    return Finding(
        check=check, severity=severity, message=message, where=f"a.py:{line}", evidence=evidence
    )


def test_audit_report_has_target_and_architecture(package_set):
    report = audit(package_set, AuditTerms(target="small"))
    assert (report.target, report.arch, report.ok) == ("small", "x86_64", False)
    assert audited.finding_subjects(report.findings) == ["b<3", "c"]


def test_audit_findings_are_sorted_by_severity_without_duplicates():
    mixed = [
        finding(Severity.NOTE),
        finding(Severity.ERROR, line=2),
        finding(Severity.ERROR, line=1),
        finding(Severity.ERROR, check="elf", line=9),
        finding(Severity.WARNING),
        finding(Severity.ERROR, line=1),
    ]
    ordered_findings = sort_findings(mixed)
    assert [(entry.severity, entry.check, entry.where) for entry in ordered_findings] == [
        ("error", "elf", "a.py:9"),
        ("error", "imports", "a.py:1"),
        ("error", "imports", "a.py:2"),
        ("warning", "imports", "a.py:1"),
        ("note", "imports", "a.py:1"),
    ]
    assert sort_findings(reversed(mixed)) == ordered_findings


def test_finding_between_two_published_packages_is_a_warning(package_set):
    report = audit(package_set, published={"a", "b"})
    assert [(each.severity, each.evidence.subject) for each in report.findings] == [
        ("error", "c"),  # an absent package may be one that the addition needs
        ("warning", "b<3"),
    ]
    assert "both packages are unchanged from the published target" in report.findings[1].message
    assert len(audit(package_set, published={"a"}).findings) == 2
    assert not audit(package_set, published={"b"}).ok


def test_waived_finding_is_a_note_with_the_reason(package_set):
    report = audit(package_set, AuditTerms(waivers=(waiver("b*"), waiver("c"))))
    assert report.ok
    assert [finding.severity for finding in report.findings] == [Severity.NOTE, Severity.NOTE]
    assert all("accepted: it was tried" in finding.message for finding in report.findings)


@pytest.mark.parametrize("unused_waiver", [waiver("z*"), waiver("c", package="b")])
def test_unused_waiver_is_reported(package_set, unused_waiver):
    report = audit(package_set, AuditTerms(waivers=(unused_waiver,)))
    assert len([each for each in report.findings if each.severity is Severity.ERROR]) == 2
    (warning,) = [each for each in report.findings if each.severity is Severity.WARNING]
    assert "unused waiver" in warning.message


def test_unused_waiver_of_a_skipped_check_is_not_reported(package_set):
    report = audit(package_set, AuditTerms(waivers=(waiver("*", check="elf"),)))
    assert all(finding.severity is Severity.ERROR for finding in report.findings)


def test_unknown_check_is_rejected(package_set):
    with pytest.raises(InputError, match="no such check: nonsense"):
        judge.audit_package_set(package_set, checks=["metadata", "nonsense"])


LEARNED = Constraint(package="a", versions="==1", needs="b!=2")


@pytest.mark.parametrize(
    "other",
    [
        msgspec.structs.replace(LEARNED, package="x"),
        msgspec.structs.replace(LEARNED, versions="==2"),
        msgspec.structs.replace(LEARNED, needs="x<2"),
    ],
)
def test_learned_constraints_on_other_packages_are_ignored(package_set, other):
    versions = {"a": "1", "b": "3"}
    expected = AuditTerms(constraints=(LEARNED,))
    assert (
        judge.restrict_constraints(AuditTerms(constraints=(LEARNED, other)), versions) == expected
    )
    missing = msgspec.structs.replace(LEARNED, needs="x", missing=True)
    assert judge.restrict_constraints(AuditTerms(constraints=(missing,)), versions).constraints == (
        missing,
    )
    report = audit(package_set, AuditTerms(constraints=(LEARNED, missing)))
    assert audited.finding_subjects(report.findings) == ["x", "b<3", "c"]


@each_row(
    ("change", "severity"),
    [
        ({}, Severity.WARNING),
        ({"versions": "==2"}, Severity.ERROR),
        ({"name": "b:Other"}, Severity.ERROR),
        ({"file": "a/other.py"}, Severity.ERROR),
        ({"unused": False}, Severity.ERROR),
    ],
)
def test_error_in_code_that_a_constraint_marks_as_unused_is_a_warning(change, severity):
    evidence = Evidence(
        relation=ConflictRelation.NAME, package="a", version="1", file="a/use.py", other="b",
        subject="b:Never",
    )  # fmt: skip
    error = Finding(
        check="calls", severity=Severity.ERROR, message="uses b.Never", evidence=evidence
    )
    entry = Constraint(
        package="a", versions="==1", needs="b", unused=True, check="calls", file="a/use.py",
        name="b:Never",
    )  # fmt: skip
    found = judge.relax_learned_finding(error, [msgspec.structs.replace(entry, **change)])
    assert found.severity is severity
    assert ("no version of b is compatible" in found.message) == (severity is Severity.WARNING)


def test_audit_includes_findings_about_removed_attributes(package_set):
    read = Evidence(
        relation=ConflictRelation.ATTRIBUTE, package="a", version="1", subject="b.B.gone"
    )
    gone = Finding(check="calls", severity=Severity.ERROR, message="gone", where="a", evidence=read)
    waived = waiver("b.B.gone", check="calls")
    terms = AuditTerms(waivers=(waived,))

    def _audit(checks, past):
        return judge.audit_package_set(package_set, terms, checks=checks, past=past).findings

    (finding,) = _audit(["calls"], lambda path: [gone, gone])
    assert (finding.severity, finding.message) == (
        Severity.NOTE,
        "gone (accepted: it was tried and works)",
    )
    (unused,) = _audit(["calls"], lambda path: [])
    assert "unused waiver" in unused.message
    assert _audit(["imports"], lambda path: [gone]) == ()
