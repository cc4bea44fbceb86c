"""Tests the table, exit status and accepted vulnerabilities of `imgbuild cves`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.errors import AuditFailed, FetchFailed, InputError, LockStale
from imgbuild.lock import lock_file
from imgbuild.matrix.load import load_matrix
from tests.support import advisories, inprocess_project, scanner_reports
from tests.support.advisories import OLD_VERSION, TARGET, TORCH, OsvSite
from tests.support.inprocess_project import Command

ACCEPTED = """\
    accept_cves:
      - {{id: CVE-2025-48956, reason: only we send requests, expires: {day}}}
      - {{id: {torch}, reason: we load no files of others, expires: {day}}}
      - {{id: CVE-2024-6119, reason: no client checks names, expires: {day}}}
"""


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = inprocess_project.enter_folder(tmp_path, monkeypatch)
    advisories.write_project(folder)
    return folder


@pytest.fixture(name="site")
def _site(monkeypatch: pytest.MonkeyPatch) -> Iterator[OsvSite]:
    with advisories.serve(advisories.advisory_site()) as site:
        monkeypatch.setenv("IMGBUILD_OSV", site.url)
        yield site


def _accept(folder: Path, day: str) -> None:
    advisories.write_project(folder, ACCEPTED.format(day=day, torch=TORCH))


@pytest.mark.usefixtures("folder")
def test_vulnerabilities_of_the_lock_are_listed(imgbuild: Command, site: OsvSite) -> None:
    done = imgbuild("cves", TARGET)
    assert done.status == AuditFailed.exit_code
    assert [line.split() for line in done.stdout.splitlines()] == [
        f"{TARGET} x86_64: 1 critical, 2 high, 1 medium, 0 low, 0 unknown (4 packages)".split(),
        ["critical", "CVE-2025-32434", "torch", "2.5.1", "fixed", "in", "2.6.0"],
        ["high", "CVE-2024-6119", "openssl", OLD_VERSION, "fixed", "in", "3.0.14-1~deb12u2"],
        ["high", "CVE-2025-48956", "vllm", "0.8.5.post1", "fixed", "in", "0.10.1.1"],
    ]
    assert f"severity high or higher in {TARGET} x86_64" in done.stderr
    # Source packages, without the mark of a build; versions without a local part.
    assert site.asked[0] == "/v1/querybatch"


@pytest.mark.usefixtures("folder")
def test_severity_option_sets_the_threshold_of_cves(imgbuild: Command, site: OsvSite) -> None:
    done = imgbuild("cves", TARGET, "--severity", "medium")
    assert "CVE-2025-48887" in done.stdout
    assert done.stdout.count("fixed in") == 4
    done = imgbuild("cves", TARGET, "--severity", "critical", "--osv", f"{site.url}/")
    assert (done.status, done.stdout.count("fixed in")) == (AuditFailed.exit_code, 1)
    queries = site.asked.count("/v1/querybatch")
    assert queries == 1  # the second result is from the cache


@pytest.mark.usefixtures("folder", "site")
def test_one_vulnerability_is_reported_at_any_severity(imgbuild: Command) -> None:
    done = imgbuild("cves", TARGET, "--id", "cve-2025-48887")
    assert done.status == AuditFailed.exit_code
    assert [" ".join(line.split()) for line in done.stdout.splitlines()] == [
        f"{TARGET} x86_64: affected by cve-2025-48887 (4 packages)",
        "medium CVE-2025-48887 vllm 0.8.5.post1 fixed in 0.9.0",
    ]
    assert f"cve-2025-48887 in {TARGET} x86_64" in done.stderr
    done = imgbuild("cves", TARGET, "--id", "CVE-1999-0001")
    assert (done.status, done.stdout) == (
        0,
        f"{TARGET} x86_64: no advisory has the ID CVE-1999-0001 (4 packages)\n",
    )
    done = imgbuild("cves", TARGET, "--id", "")
    assert (done.status, done.stdout) == (InputError.exit_code, "")
    assert "--id : not the ID of a vulnerability" in done.stderr


@pytest.mark.usefixtures("folder")
def test_json_output_of_cves_has_all_fields(imgbuild: Command, site: OsvSite) -> None:
    done = imgbuild("cves", TARGET, "--json")
    assert done.status == AuditFailed.exit_code
    (report,) = json.loads(done.stdout)
    assert report["counted"] == [
        "torch/CVE-2025-32434", "openssl/CVE-2024-6119", "vllm/CVE-2025-48956"
    ]  # fmt: skip
    (openssl,) = [
        vulnerability
        for vulnerability in report["vulnerabilities"]
        if vulnerability["package"] == "openssl"
    ]
    assert openssl == {
        "id": "CVE-2024-6119",
        "ids": ["DEBIAN-CVE-2024-6119", "CVE-2024-6119"],
        "ecosystem": "Debian:12",
        "package": "openssl",
        "version": OLD_VERSION,
        "files": ["libssl3"],
        "purls": [f"pkg:deb/debian/libssl3@{OLD_VERSION}"],
        "severity": "high",
        "score": 7.5,
        "fixed": "3.0.14-1~deb12u2",
        "summary": "Applications performing certificate name checks may attempt to read an"
        " invalid memory address.",
        "note": "fixed by DSA-5764-1",
        "sources": [site.url],
    }


def test_accepted_vulnerabilities_do_not_count(
    imgbuild: Command, folder: Path, site: OsvSite
) -> None:
    _accept(folder, "2999-12-31")
    done = imgbuild("cves", TARGET)
    assert (done.status, site.refusals) == (0, [])
    assert "0 critical, 0 high, 1 medium, 0 low, 0 unknown; 3 accepted" in done.stdout
    assert "accepted until 2999-12-31: we load no files of others" in done.stdout
    assert "warning" not in done.stdout


@pytest.mark.usefixtures("site")
def test_expired_acceptances_no_longer_apply_and_unused_acceptances_are_reported(
    imgbuild: Command, folder: Path
) -> None:
    _accept(folder, "2020-01-31")
    done = imgbuild("cves", TARGET)
    assert done.status == AuditFailed.exit_code
    assert "1 critical, 2 high" in done.stdout
    assert "warning: accept_cves: the entry for CVE-2025-48956 expired on 2020-01-31" in done.stdout
    advisories.write_project(folder, ACCEPTED.format(day="2999-12-31", torch="CVE-1999-0001"))
    done = imgbuild("cves", TARGET)
    assert done.status == AuditFailed.exit_code
    assert "warning: accept_cves: no package is affected by CVE-1999-0001" in done.stdout


@pytest.mark.usefixtures("site")
def test_vulnerabilities_can_be_accepted_for_the_whole_matrix(
    imgbuild: Command, folder: Path
) -> None:
    path = folder / "matrix.yaml"
    lock = lock_file.read_lock(folder / "images", TARGET)
    before = lock_file.matrix_differences(lock, load_matrix(path))
    path.write_text(
        path.read_text()
        + "accept_cves:\n"
        + "  - {id: CVE-2025-32434, reason: we load no files, expires: 2999-01-01}\n"
        + "  - {id: CVE-1999-0001, reason: of another target, expires: 2999-01-01}\n"
    )
    done = imgbuild("cves", TARGET)
    assert "0 critical, 2 high" in done.stdout
    assert "warning" not in done.stdout
    # No image depends on what is accepted.
    assert lock_file.matrix_differences(lock, load_matrix(path)) == before
    done = imgbuild("cves", "--all")
    assert "accept_cves: no package is affected by CVE-1999-0001" in done.stdout


def test_accepted_and_cached_vulnerabilities_are_listed_without_the_server(
    imgbuild: Command, folder: Path, site: OsvSite
) -> None:
    _accept(folder, "2999-12-31")
    words = ("cves", TARGET, "--offline", "--vex", "out.json")
    done = imgbuild(*words)
    assert (done.status, (folder / "out.json").exists()) == (FetchFailed.exit_code, False)
    text = " ".join(done.stdout.split())
    assert f"{TARGET} x86_64: not checked (4 packages)" in text
    assert "accepted until 2999-12-31, not checked: CVE-2025-48956: only we send requests" in text
    assert "critical" not in text
    assert "no package is affected" not in text
    assert "the result is incomplete, because no data is available for 4 packages" in done.stderr
    assert "--sbom cyclonedx > FILE.cdx.json; grype sbom:FILE.cdx.json" in done.stderr
    assert "--offline is set" in done.stderr
    [report] = json.loads(imgbuild(*words[:3], "--json").stdout)
    assert (len(report["unasked"]), len(report["unchecked"]), report["unused"]) == (4, 3, [])

    assert imgbuild("cves", TARGET).status == 0  # the cache keeps the responses
    advisories.write_project(folder, ACCEPTED.format(day="2999-12-31", torch=TORCH), vllm="0.8.4")
    site.refusals += [403]
    done = imgbuild("cves", TARGET)
    text = " ".join(done.stdout.split())
    assert done.status == FetchFailed.exit_code
    assert "2 accepted (3 of 4 packages)" in text
    assert "accepted until 2999-12-31: we load no files of others" in text
    assert "not queried: vllm" in text
    assert "not checked: CVE-2025-48956" in text
    assert f"advisories in the cache: {site.url}" in done.stderr


@pytest.mark.parametrize("scanner", scanner_reports.REPORTS)
def test_scanner_report_is_evaluated_without_a_server(
    imgbuild: Command, folder: Path, scanner: str
) -> None:
    (folder / "report.json").write_bytes(scanner_reports.REPORTS[scanner])
    done = imgbuild("cves", TARGET, "--report", "report.json", "--offline")
    assert done.status == AuditFailed.exit_code
    assert "1 critical, 1 high, 0 medium, 0 low, 1 unknown" in done.stdout
    assert "CVE-2025-32434  torch 2.5.1" in done.stdout
    assert f"not checked: report.json ({scanner}): 1 package not in the lock" in (
        " ".join(done.stdout.split())
    )


@pytest.mark.usefixtures("folder")
def test_vulnerabilities_without_fix_can_be_ignored(imgbuild: Command, folder: Path) -> None:
    (folder / "report.json").write_bytes(scanner_reports.REPORTS["trivy"])
    words = ("cves", TARGET, "--report", "report.json", "--severity", "unknown")
    assert "CVE-2025-27587" in imgbuild(*words).stdout
    done = imgbuild(*words, "--ignore-unfixed")
    assert "CVE-2025-27587" not in done.stdout
    assert "1 unknown" in done.stdout
    done = imgbuild(*words, "--ignore-unfixed", "--id", "CVE-2025-27587")
    assert (done.status, "no fix" in done.stdout) == (0, True)


@pytest.mark.usefixtures("site")
def test_cves_command_writes_an_openvex_document(imgbuild: Command, folder: Path) -> None:
    _accept(folder, "2999-12-31")
    path = folder / "matrix.yaml"
    original, two = "names, expires: 2999-12-31}", "names, expires: 2999-12-31, justification: "
    assert path.read_text().count(original) == 1
    path.write_text(path.read_text().replace(original, f"{two}inline_mitigations_already_exist}}"))
    done = imgbuild("cves", TARGET, "--vex", "out.json", "--author", "security@example.org")
    assert (done.status, "digests.json is missing" in done.stderr) == (LockStale.exit_code, True)
    digest = advisories.write_digests(folder)
    done = imgbuild(
        "cves", TARGET, "--vex", "out.json", "--author", "security@example.org", status=0
    )
    document = json.loads((folder / "out.json").read_text())
    assert document["@context"] == "https://openvex.dev/ns/v0.2.0"
    assert (document["author"], document["version"]) == ("security@example.org", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", document["timestamp"])
    statements = {
        statement["vulnerability"]["name"]: statement for statement in document["statements"]
    }
    assert {name: statement["status"] for name, statement in statements.items()} == {
        "CVE-2024-6119": "not_affected",
        "CVE-2025-32434": "affected",
        "CVE-2025-48887": "affected",
        "CVE-2025-48956": "affected",
    }
    assert statements["CVE-2024-6119"]["justification"] == "inline_mitigations_already_exist"
    assert statements["CVE-2024-6119"]["impact_statement"] == "no client checks names"
    accepted = "accepted until 2999-12-31: we load no files of others"
    assert statements["CVE-2025-32434"]["action_statement"] == accepted
    assert statements["CVE-2025-48887"]["action_statement"] == "update vllm to 0.9.0 or newer"
    assert statements["CVE-2025-32434"]["products"] == [
        {
            "@id": f"pkg:oci/{TARGET}@{digest}?arch=amd64",
            "subcomponents": [{"@id": "pkg:pypi/torch@2.5.1%2Bcu124"}],
        }
    ]
    imgbuild("cves", TARGET, "--vex", "again.json", "--author", "security@example.org", status=0)
    assert json.loads((folder / "again.json").read_text())["@id"] == document["@id"]


@pytest.mark.usefixtures("folder")
def test_conflicting_options_of_cves_are_refused(imgbuild: Command) -> None:
    done = imgbuild("cves", TARGET, "--report", "absent", "--osv", "https://osv.example.org")
    assert (done.status, "cannot be combined" in done.stderr) == (InputError.exit_code, True)
    done = imgbuild("cves", TARGET, "--report", "absent")
    assert (done.status, "absent" in done.stderr) == (InputError.exit_code, True)
    assert imgbuild("cves", TARGET, "--severity", "severe").status == InputError.exit_code


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{id: CVE-1, reason: too short to say}", "expires"),
        ("{id: CVE-1, reason: because, expires: 2999-01-01}", "reason"),
        ("{id: CVE-1, reason: long enough, expires: soon}", "not a date"),
        ("{id: CVE-1, reason: long enough, expires: 2999-01-01, until: x}", "unknown key"),
        (
            "{id: CVE-1, reason: long enough, expires: 2999-01-01, justification: unused}",
            "inline_mitigations_already_exist",
        ),
    ],
)
@pytest.mark.usefixtures("site")
def test_accepted_vulnerabilities_in_the_matrix_are_checked(
    imgbuild: Command, folder: Path, entry: str, message: str
) -> None:
    path = folder / "matrix.yaml"
    path.write_text(f"{path.read_text()}accept_cves: [{entry}]\n")
    done = imgbuild("cves", TARGET)
    assert (done.status, message in done.stderr) == (InputError.exit_code, True), done.stderr
