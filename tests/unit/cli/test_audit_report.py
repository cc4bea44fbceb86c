"""Tests the text of audit reports."""

from __future__ import annotations

from imgbuild.cli._audit_findings import audit_lines
from imgbuild.report import ConflictRelation, Evidence, Finding, Report, Severity, UncheckedPart


def finding(severity: Severity, line: int, subject: str = "vllm:Gone") -> Finding:
    return Finding(
        check="imports",
        severity=severity,
        message=f"trl 1.0 imports {subject} from vllm, but vllm 1.0 does not define it",
        where=f"trl 1.0 trl/trainer/grpo_trainer.py:{line}",
        remedy="choose versions of trl and vllm released at about the same time",
        evidence=Evidence(
            relation=ConflictRelation.NAME,
            package="trl",
            version="1.0",
            other="vllm",
            other_version="1.0",
            subject=subject,
        ),
    )


REPORT = Report(
    target="pins",
    arch="x86_64",
    findings=(
        finding(Severity.ERROR, 3),
        finding(Severity.ERROR, 4),
        finding(Severity.ERROR, 5, "vllm:Other"),
        finding(Severity.NOTE, 6, "vllm:Corner"),
    ),
    unread=(
        UncheckedPart(
            what="odd==1.0", why="no wheel of the index fits this machine", required=True
        ),
        UncheckedPart(what="shared objects of torch", why="their wheels were not downloaded"),
    ),
)


def test_audit_report_begins_with_findings_and_ends_with_counts() -> None:
    output_lines = list(audit_lines([REPORT], notes=False))
    starts = [line.partition(":")[0] for line in output_lines if not line.startswith(" ")]
    assert starts == ["error", "error", "not read", "not checked", "pins x86_64"]
    assert output_lines[1].endswith("grpo_trainer.py:3 and 1 more place; to list them, add --json")
    assert output_lines[-1] == "pins x86_64: 3 errors, 0 warnings, 1 note"


def test_notes_of_an_audit_report_are_shown_on_request() -> None:
    assert "vllm:Corner" not in "\n".join(audit_lines([REPORT], notes=False))
    assert "note: trl 1.0 imports vllm:Corner" in "\n".join(audit_lines([REPORT], notes=True))


def test_each_audit_report_in_a_list_has_a_heading() -> None:
    output_lines = list(audit_lines([REPORT, REPORT], notes=False))
    assert (
        output_lines[0]
        == output_lines[len(output_lines) // 2]
        == "pins x86_64: 3 errors, 0 warnings, 1 note"
    )


def absent(number: int, relation: ConflictRelation) -> Finding:
    required = relation is ConflictRelation.REQUIREMENT
    subject = f"lib{number} (>=1)" if required else f"mod{number % 3}.part{number}"
    return Finding(
        check="metadata" if required else "imports",
        severity=Severity.ERROR,
        message=f"trl 1.0 needs {subject}, which is absent",
        where=f"trl 1.0 METADATA:{number}",
        evidence=Evidence(relation=relation, package="trl", version="1.0", subject=subject),
    )


def test_many_absent_packages_do_not_hide_conflicts() -> None:
    conflicting = finding(Severity.ERROR, 3)
    many = [absent(number, ConflictRelation.REQUIREMENT) for number in range(8)]
    many += [absent(number, ConflictRelation.PACKAGE) for number in range(6)]
    report = Report(target="r.txt", arch="x86_64", findings=(*many, conflicting))
    lines = list(audit_lines([report], notes=False))
    assert lines[0] == f"error: {conflicting.message} [imports]"
    assert lines[-3:] == [
        (
            "error: 8 packages are required, but not in this package set: lib0, lib1, lib2, lib3,"
            " lib4 and 3 more; to list them, add --json [metadata]"
        ),
        (
            "error: 3 modules are imported, but not provided by any package in this package set:"
            " mod0, mod1, mod2 [imports]"
        ),
        "r.txt x86_64: 15 errors, 0 warnings, 0 notes",
    ]
    few = Report(target="r.txt", arch="x86_64", findings=(*many[:10], conflicting))
    assert sum(line.startswith("error: ") for line in audit_lines([few], notes=False)) == 11
