"""Writes smoke test reports as JUnit XML, which CI services read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from imgbuild.report import Report, count_cases

# Characters that XML 1.0 does not allow, escaped or not.
UNPRINTABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_document(reports: Sequence[Report]) -> bytes:
    """Return the reports as a document with a suite for each target, architecture and tier."""
    top = ElementTree.Element("testsuites")
    for report in reports:
        name = _printable_text(f"{report.target} {report.arch} {report.tier}")
        suite = ElementTree.SubElement(top, "testsuite", {
            "name": name,
            "tests": str(len(report.cases)),
            "failures": str(count_cases(report.cases, "failed")),
            "skipped": str(count_cases(report.cases, "skipped")),
            "time": f"{sum(case.seconds for case in report.cases):.3f}",
        })  # fmt: skip
        for case in report.cases:
            fields = {
                "classname": name,
                "name": _printable_text(case.name),
                "time": f"{case.seconds:.3f}",
            }
            element = ElementTree.SubElement(suite, "testcase", fields)
            if case.outcome != "passed":
                tag = "skipped" if case.outcome == "skipped" else "failure"
                ElementTree.SubElement(element, tag, {"message": _printable_text(case.message)})
            if case.log:
                ElementTree.SubElement(element, "system-out").text = _printable_text(case.log)
    ElementTree.indent(top)
    text: bytes = ElementTree.tostring(top, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _printable_text(text: str) -> str:
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
