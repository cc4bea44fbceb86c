"""Tests the history, vulnerability reports and size of the pages written by `imgbuild site`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support import git_repository, prepared_program

ROOT = Path(__file__).parents[2]
TARGET = "cu126-vllm"


def site(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return prepared_program.run_prepared(("site", *words), cwd=folder, env=os.environ)


def git(folder: Path, *words: str, date: str = "2026-01-01T00:00:00Z") -> None:
    dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    subprocess.run(["git", *words], cwd=folder, check=True, env={**git_repository.ENV, **dates})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A matrix with a locked target in three commits: older versions, damaged, and current."""
    folder = tmp_path / "mine"
    images = folder / "images" / TARGET
    shutil.copytree(ROOT / "images" / TARGET, images)
    matrix = yaml.safe_load((ROOT / "matrix.yaml").read_text())
    matrix["targets"] = {TARGET: matrix["targets"][TARGET]}
    matrix["layers"]["named"] = ["vllm", "trl"]
    matrix["registry"] = "registry.example/mine/images"
    (folder / "matrix.yaml").write_text(json.dumps(matrix, default=str))
    git(folder, "init", "-q")
    contents = {name: (images / name).read_bytes() for name in ("lock.json", "digests.json")}
    steps = (
        ("2026-01-01", "first <b>lock</b>", b'"version": "0.20.0"', b'"version": "0.19.0"'),
        ("2026-02-01", "damaged", b"{", b""),
        ("2026-03-01", "TRL 0.20", b"", b""),
    )
    for number, (day, subject, old, new) in enumerate(steps):
        lock, digests = contents["lock.json"], contents["digests.json"]
        (images / "lock.json").write_bytes(lock.replace(old, new) if old else lock)
        (images / "digests.json").write_bytes(
            re.sub(rb"sha256:[0-9a-f]{64}", b"sha256:" + b"%d" % number * 64, digests, count=1)
            if old
            else digests
        )
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", subject, date=f"{day}T00:00:00Z")
    return folder


def test_site_shows_the_history_of_a_checkout(project: Path, tmp_path: Path) -> None:
    done = site(project, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["targets"] == 1
    output = project / "build/site"
    history = json.loads((output / "history.json").read_text())
    newest, damaged, first = history["targets"][TARGET]
    assert first["subject"] == "first <b>lock</b>"
    assert damaged["known"] is newest["known"] is False
    assert newest["date"].startswith("2026-03-01")
    page = (output / f"targets/{TARGET}.html").read_text()
    assert "first &lt;b>lock&lt;/b>" in page
    assert "docker pull registry.example/mine/images@sha256:" in page
    # Without git, from the data file of the previous site.
    shutil.rmtree(project / ".git")
    saved = tmp_path / "history.json"
    saved.write_bytes((output / "history.json").read_bytes())
    assert site(project, "--history-file", str(saved)).returncode == 0
    assert json.loads((output / "history.json").read_text()) == history
    assert "first &lt;b>lock" in (output / f"targets/{TARGET}.html").read_text()
    assert site(project).returncode == 0
    assert json.loads((output / "history.json").read_text())["targets"] == {}


@pytest.mark.long
def test_site_omits_the_history_without_git(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert site(project).returncode == 0
    assert "No history is available" in (project / "build/site/changes.html").read_text()


def test_site_lists_changed_versions_of_an_image(project: Path) -> None:
    git(project, "reset", "-q", "--hard", "HEAD~2")
    images = project / "images" / TARGET
    for name in ("lock.json", "digests.json"):
        shutil.copy(ROOT / "images" / TARGET / name, images / name)
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "again", date="2026-04-01T00:00:00Z")
    assert site(project).returncode == 0
    newest, _ = json.loads((project / "build/site/history.json").read_text())["targets"][TARGET]
    assert {"package": "trl", "old": "0.19.0", "new": "0.20.0"} in newest["changes"]
    page = (project / f"build/site/targets/{TARGET}.html").read_text()
    assert "<li>trl 0.19.0 → 0.20.0<" in page


@pytest.mark.long
def test_site_lists_changed_debian_packages_and_settings(project: Path) -> None:
    images = project / "images" / TARGET
    lock = json.loads((ROOT / "images" / TARGET / "lock.json").read_text())
    [package] = [each for each in lock["arch"]["x86_64"]["debs"] if each["package"] == "tzdata"]
    new, package["version"] = package["version"], "2020a-0+deb12u1"
    lock["settings"]["env"]["MINE"] = "1"
    git(project, "reset", "-q", "--hard", "HEAD~2")
    (images / "lock.json").write_text(json.dumps(lock))
    digests = (images / "digests.json").read_text()
    (images / "digests.json").write_text(digests.replace("sha256:000", "sha256:777", 1))
    git(project, "commit", "-q", "-a", "-m", "older", date="2026-04-01T00:00:00Z")
    for name in ("lock.json", "digests.json"):
        shutil.copy(ROOT / "images" / TARGET / name, images / name)
    git(project, "commit", "-q", "-a", "-m", "newer", date="2026-04-02T00:00:00Z")
    assert site(project).returncode == 0
    newest, *_ = json.loads((project / "build/site/history.json").read_text())["targets"][TARGET]
    assert newest["debian"] == [{"package": "tzdata", "old": "2020a-0+deb12u1", "new": new}]
    assert newest["settings"] == ["variable removed: MINE"]
    page = (project / "build/site/changes.html").read_text()
    assert f"<li>tzdata 2020a-0+deb12u1 → {new}<" in page
    assert "<li>variable removed: MINE<" in page
    page = (project / f"build/site/targets/{TARGET}.html").read_text()
    assert "<dt>Locked<dd>2026-04-02<" in page


def test_hostile_vulnerability_reports_are_refused(project: Path) -> None:
    found = {
        "id": "CVE-2026-1", "ids": ["CVE-2026-1"], "ecosystem": "PyPI", "package": "vllm",
        "version": "0.9.2", "files": [], "purls": [], "severity": "high", "fixed": "0.10.0",
    }  # fmt: skip
    report = {
        "target": TARGET, "arch": "x86_64", "date": "2026-11-28", "threshold": "high",
        "packages": 5, "sources": ["OSV"], "vulnerabilities": [found],
    }  # fmt: skip
    (project / "cves.json").write_text(json.dumps([report]))
    assert site(project, "--cves", "cves.json").returncode == 0
    page = (project / f"build/site/targets/{TARGET}.html").read_text()
    assert "x86_64: 1 high" in page
    assert "CVE-2026-1" in page
    stored = json.loads((project / "build/site/advisories.json").read_text())
    assert [each["vulnerabilities"][0]["id"] for each in stored] == ["CVE-2026-1"]
    assert "1 high" in (project / "build/site/security.html").read_text()
    (project / "cves.json").write_text("[5]")
    done = site(project, "--cves", "cves.json")
    assert done.returncode == 2
    assert "cves.json" in done.stderr
    assert "imgbuild cves --all --json" in done.stderr


def test_published_site_is_within_its_budget(tmp_path: Path) -> None:
    """The site shows the whole matrix with history, registry and 40 vulnerabilities per image."""
    reports = []
    for path in sorted((ROOT / "images").glob("*/lock.json")):
        for number, arch in enumerate(json.loads(path.read_text())["arch"]):
            vulnerabilities = [
                {
                    "id": f"CVE-2026-{10000 + each}", "ids": [], "ecosystem": "PyPI",
                    "package": "nvidia-cutlass-dsl-libs-base", "version": "4.8.0.post1",
                    "files": [], "purls": [], "severity": "critical", "fixed": "4.9.0.post1",
                }
                for each in range(number, 40 + number)
            ]  # fmt: skip
            reports.append({
                "target": path.parent.name, "arch": arch, "date": "2026-11-28",
                "threshold": "high", "packages": 500, "sources": ["OSV (api.osv.example)"],
                "vulnerabilities": vulnerabilities,
            })  # fmt: skip
    (tmp_path / "cves.json").write_text(json.dumps(reports))
    name = "some-organisation/container-images"
    done = site(
        ROOT, "--output", str(tmp_path / "site"), "--cves", str(tmp_path / "cves.json"),
        "--registry", f"ghcr.io/{name}", "--source", f"https://github.com/{name}",
        "--documents", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["bytes"] < 1_000_000
    assert result["largest"] <= 100_000
    page = (tmp_path / "site/targets/cu130-verl0.9.html").read_text()
    assert "40 critical" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--source", "javascript:alert(1)"), "is not a web page URL"),
        (("--registry", "UPPER/case"), "--registry 'UPPER/case'"),
        (("--registry", "host.example/name:tag"), "a repository is expected"),
        (("--history-file", "absent.json"), "absent.json"),
        (("--output", "images"), "was not written by imgbuild"),
        (("--output", "matrix.yaml"), "not a folder"),
    ],
)
def test_site_command_refuses_invalid_arguments(
    project: Path, words: tuple[str, ...], message: str
) -> None:
    done = site(project, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert ("hint" in done.stderr) == ("absent" not in message)
    assert (project / "images" / TARGET / "lock.json").exists()
