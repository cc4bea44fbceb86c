"""Tests reading reports of osv-scanner, grype and trivy."""

from __future__ import annotations

from pathlib import Path

import pytest

from imgbuild.cves import scanner_report
from imgbuild.errors import InputError
from tests.support.advisories import OLD_VERSION, debian, pypi
from tests.support.rows import each_row
from tests.support.scanner_reports import FIXED, REPORTS

PACKAGES = (pypi("torch", "2.5.1"), pypi("vllm", "0.8.5.post1"), debian("openssl", OLD_VERSION))


def _report(folder: Path, data: bytes) -> Path:
    (folder / "report.json").write_bytes(data)
    return folder / "report.json"


@pytest.mark.parametrize("scanner", REPORTS)
def test_entries_of_a_scanner_report_match_packages_of_the_lock(
    tmp_path: Path, scanner: str
) -> None:
    path = _report(tmp_path, REPORTS[scanner])
    answer = scanner_report.find_advisories(path, PACKAGES)
    assert answer.of == f"{path} ({scanner})"
    by_cve = {
        next(name for name in advisory.ids if name.startswith("CVE-")): advisory
        for advisory in answer.advisories
    }
    assert {
        cve: (advisory.package.name, advisory.severity, advisory.fixed)
        for cve, advisory in by_cve.items()
    } == {
        "CVE-2025-32434": ("torch", "critical", "2.6.0"),
        "CVE-2024-6119": ("openssl", "high", FIXED),
        "CVE-2025-27587": ("openssl", "unknown", ""),
    }
    assert answer.unread == (f"{answer.of}: 1 package not in the lock: absent 1.0",)


def test_withdrawn_advisory_is_omitted(tmp_path: Path) -> None:
    text = REPORTS["osv-scanner"].replace(b'"id": "DEBIAN', b'"withdrawn": "2026", "id": "DEBIAN')
    answer = scanner_report.find_advisories(_report(tmp_path, text), PACKAGES)
    assert [advisory.package.name for advisory in answer.advisories] == ["torch"]


@pytest.mark.parametrize("scanner", REPORTS)
def test_empty_scanner_report_has_no_advisories(tmp_path: Path, scanner: str) -> None:
    empty = {
        "osv-scanner": b'{"results": []}',
        "grype": b'{"matches": []}',
        "trivy": b'{"SchemaVersion": 2, "ArtifactName": "x"}',
    }
    answer = scanner_report.find_advisories(_report(tmp_path, empty[scanner]), PACKAGES)
    assert (answer.advisories, answer.unread) == ((), ())


@each_row(
    ("data", "message"),
    [
        (b"{}", "is not a report of osv-scanner, grype or trivy"),
        (b"[]", "is not a valid scanner report"),
        (b"<html>", "is not a valid scanner report"),
        (b'{"matches": [{"artifact": {}}]}', "is not a valid scanner report"),
    ],
)
def test_file_that_is_no_scanner_report_is_refused_with_scanner_commands(
    tmp_path: Path, data: bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        scanner_report.find_advisories(_report(tmp_path, data), PACKAGES)
    assert "trivy --format json" in (caught.value.hint or "")
