"""Tests `imgbuild update` against a local index with the JSON API."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ci_repository, images, sample_project
from tests.support.local_index import LocalIndex
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

NOW = datetime.datetime.now(datetime.UTC)
RECENT = (NOW - datetime.timedelta(days=2)).isoformat()
NEW = "small-thewheel2.0"
REFUSED = "requires nowhere"
HELD = "packages/thewheel-2.0-py3-none-any.whl"
SECONDS = 300  # limit for a hanging process; the machine may be busy


def published() -> LocalIndex:
    """Publish wheels: 2.0 is valid, 3.0 requires a missing package, 4.0 is two days old.

    Version 4.0 requires a newer helper.
    """
    index = sample_project.sample_index()
    index.wheel("helper", "0.6", files={"helper.py": b"VALUE = 42\n"})
    index.wheel("thewheel", "3.0", ["helper", "nowhere>=1"])
    index.wheel("thewheel", "4.0", ["helper>=0.6"], uploaded=RECENT)
    return index


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FileSite]:
    images.python_base(tmp_path)
    with serve_site(FileSite(files=published().json_files())) as opened:
        yield opened


@pytest.fixture
def unlocked(site: FileSite, tmp_path: Path) -> Project:
    """A project with an unlocked row; no server has advisories."""
    base = sample_project.registry_base(sample_project.serve_image(site, tmp_path / "base", "base"))
    project = Project(tmp_path / "project", site.url("simple"), cache=tmp_path / "cache")
    project.env = {"IMGBUILD_OSV": site.url("no-advisories")}
    project.write(base)
    return project


@pytest.fixture
def project(unlocked: Project) -> Project:
    """The project, locked with thewheel 1.0."""
    unlocked.run("lock", TARGET)
    return unlocked


def matrix(project: Project) -> str:
    return (project.folder / "matrix.yaml").read_text()


def test_update_adds_a_row_and_reports_a_refusal_and_its_changed_cause(project, site, tmp_path):
    before, files = matrix(project), project.files()
    dry = json.loads(project.run("update", TARGET, "--dry-run", "--json").stdout)
    assert dry == [{"source": TARGET, "trials": {"thewheel": ["3.0", "2.0"]},
                    "waiting": {"thewheel": ["4.0"]}}]  # fmt: skip
    assert (matrix(project), project.files()) == (before, files)

    summary = tmp_path / "update.md"
    done = project.run("update", TARGET, "--json", "--pull-request", str(summary))
    (item,) = json.loads(done.stdout)
    assert (item["source"], item["row"]) == (TARGET, NEW)
    assert item["moves"] == [{"package": "thewheel", "before": "1.0", "after": "2.0", "fixes": []}]
    (refusal,) = item["refused"]
    assert refusal["version"] == "3.0"
    assert "nowhere" in " ".join(refusal["reasons"])
    after = matrix(project)
    assert after.startswith(before.rstrip("\n"))
    assert {name: data for name, data in project.files().items() if name.startswith("small/")} == {
        name: data for name, data in files.items() if name.startswith("small/")
    }
    project.run("lock", "--check", "--all")
    assert project.read(f"{NEW}/lock.json")["requirements"]["thewheel"] == "==2.0"
    assert f"## `{NEW}`" in summary.read_text()
    assert "| `another` |  | `0.1` |" in summary.read_text()
    assert "`thewheel 3.0`" in summary.read_text()

    state, wheels = project.files(), len(site.received_requests(HELD))
    again = project.run("update", TARGET)
    assert again.stdout == (
        f"{NEW}: no newer versions to try\n{NEW}: already rejected for the same reasons: thewheel"
        f" 3.0\n{NEW}: thewheel 4.0 skipped, because the cool-down period has not ended\n"
    )
    assert (matrix(project), project.files()) == (after, state)
    assert len(site.received_requests(HELD)) == wheels

    index = published()
    index.wheel("nowhere", "1.0")
    site.files.update(index.json_files())
    (item,) = json.loads(project.run("update", TARGET, "--json").stdout)
    assert (item["source"], item["row"]) == (NEW, "small-thewheel3.0")
    assert item["kept"] == item["refused"] == []
    project.run("lock", "--check", "--all")


@pytest.mark.long
def test_update_without_cool_down_uses_the_newest_version(unlocked):
    path = unlocked.folder / "matrix.yaml"
    path.write_text(path.read_text().replace("pins: {", 'pins: {helper: "0.5", '))
    words = ("--no-cool-down", "--axis", "thewheel", "--json")
    (item,) = json.loads(unlocked.run("update", TARGET, *words).stdout)
    assert item["row"] == "small-helper0.6"
    assert [(move["package"], move["after"]) for move in item["moves"]] == [
        ("helper", "0.6"), ("thewheel", "4.0")
    ]  # fmt: skip
    assert not item["waiting"]
    assert item["diff"]["before"] == ""  # the row had no lock
    assert unlocked.read("small-helper0.6/lock.json")["as_of"] > RECENT[:10]
    unlocked.run("lock", "--check", "small-helper0.6")


def test_index_without_upload_times_requires_the_no_cool_down_option(unlocked, site):
    site.files.update(published().site_files(api=False))
    before = matrix(unlocked)
    done = unlocked.run("update", TARGET, status=2)
    assert "upload times are unknown" in " ".join(done.stderr.split())
    assert "--no-cool-down" in done.stderr
    assert (matrix(unlocked), (unlocked.folder / "images").exists()) == (before, False)


def test_update_fails_if_the_index_fails(unlocked, site):
    before = matrix(unlocked)
    for name in (HELD, HELD.replace("2.0", "3.0")):
        del site.files[name]
    done = unlocked.run("update", TARGET, status=7)
    assert "thewheel" in done.stderr
    assert not (unlocked.images / "updates.json").exists()
    assert matrix(unlocked) == before


def test_update_options_that_select_no_row_are_refused(unlocked):
    done = unlocked.run("update", TARGET, "--axis", "vllm", status=2)
    assert "no selected row pins vllm" in done.stderr
    unlocked.run("update", status=3)  # no recommended target
    unlocked.run("update", "absent", status=3)


@pytest.mark.parametrize(
    "number",
    [pytest.param(each, marks=pytest.mark.long) for each in (signal.SIGINT, signal.SIGTERM)],
)
def test_interrupted_update_does_not_change_the_matrix(project, site, number):
    before, files = matrix(project), project.files()
    process: list[subprocess.Popen[str]] = []

    def interrupt(path: str) -> None:
        if path == f"/{HELD}" and process:
            os.killpg(process[0].pid, number)
            process[0].wait(SECONDS)

    site.before = interrupt
    process.append(
        subprocess.Popen(
            project.command("update", TARGET),
            cwd=project.folder,
            env=project.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    )
    with process[0]:
        output, _ = process[0].communicate(timeout=SECONDS)
    assert "Traceback" not in output
    assert process[0].returncode in (128 + number, -number)
    kept = {name: data for name, data in project.files().items() if name != "updates.json"}
    assert (matrix(project), kept) == (before, files)
    site.before = lambda path: None
    (item,) = json.loads(project.run("update", TARGET, "--json").stdout)
    assert item["row"] == NEW
    project.run("lock", "--check", "--all")


@pytest.mark.long
def test_workflow_commits_changes_and_opens_pull_request(project, tmp_path):
    folder, path = project.folder, project.folder / "matrix.yaml"
    path.write_text(path.read_text().replace("    base:", "    recommended: trl\n    base:", 1))
    (folder / ".gitignore").write_text("/build/\n/.venv\n")
    (folder / ".venv").symlink_to(sys.prefix)
    ci_repository.git(folder, "init", "--quiet", "--initial-branch=main")
    ci_repository.commit_all(folder, "one target")
    ci_repository.git(tmp_path, "clone", "--quiet", "--bare", str(folder), "origin.git")
    ci_repository.git(tmp_path, "clone", "--quiet", "origin.git", "checkout")

    env = {"STATUS": "0", "REGISTRY": "registry.example/me/rl"}
    done = ci_repository.run_job(project, "update", "update", env, tmp_path / "update")
    assert done.status == 0, done.said
    assert done.outputs == {"status": 0, "changed": True}

    program = tmp_path / "gh"
    program.write_text('#!/bin/sh\necho "$@" >> "$0.log"\n[ "$2" != list ] || cat "$0.number"\n')
    program.chmod(0o755)
    (tmp_path / "gh.number").write_text("")
    other = Project(tmp_path / "checkout", project.index_url, cache=project.cache)
    shutil.copytree(folder / "build", other.folder / "build")
    env = {
        "PATH": ci_repository.path_with_programs(tmp_path),
        "GH_TOKEN": "none",
        "GH_REPO": "me/rl",
        "BASE": "main",
    }
    done = ci_repository.run_job(other, "update", "propose", env, tmp_path / "propose")
    assert done.status == 0, done.said
    pushed = ci_repository.git(tmp_path / "origin.git", "show", "imgbuild-update:matrix.yaml")
    assert f"  {NEW}:" in pushed
    names = ci_repository.git(tmp_path / "origin.git", "diff", "--name-only", "main",
                              "imgbuild-update").split()  # fmt: skip
    assert {"matrix.yaml", "images/updates.json", f"images/{NEW}/lock.json"} <= set(names)
    assert not [name for name in names if name.startswith(("build", ".venv"))]
    log = (tmp_path / "gh.log").read_text()
    assert "pr create --base main --head imgbuild-update --title Newer versions:" in log
    other.run("lock", "--check", "--all")

    (tmp_path / "gh.number").write_text("7\n")
    ci_repository.git(other.folder, "checkout", "--quiet", "main")
    done = ci_repository.run_job(other, "update", "propose", env, tmp_path / "again")
    assert done.status == 0, done.said
    assert "pr edit 7 --title Newer versions:" in (tmp_path / "gh.log").read_text()


@pytest.mark.network
@pytest.mark.long
def test_updated_base_uses_the_current_snapshot(site, tmp_path):
    project = Project(tmp_path / "project", site.url("simple"), cache=tmp_path / "cache")
    project.env = {"IMGBUILD_OSV": site.url("no-advisories")}
    packages = ["python3", "usr-is-merged", "openssl"]
    base = {"kind": "debian", "suite": "bookworm", "python": "3.11", "glibc": "2.36"}
    project.write({**base, "packages": packages})
    project.run("lock", TARGET)
    old = ["http://archive.example/debian-security/20260715T000000Z"]
    project.write({**base, "packages": packages, "security": old})
    # Rows are edited by lines; a base in braces is on a single line.
    text = matrix(project)
    block = "".join(
        f"    {key}: {json.dumps(value)}\n"
        for key, value in {**base, "packages": packages, "security": old}.items()
    )
    head, _, tail = text.partition("  below: {")
    text = f"{head}  below:\n{block}{tail.partition('}')[2].lstrip()}"
    (project.folder / "matrix.yaml").write_text(text.replace("]}\nimage", "]\nimage"))
    (item,) = json.loads(project.run("update", TARGET, "--axis", "base", "--json").stdout)
    day = NOW.strftime("%Y%m%d")
    assert item["moves"] == [{"package": "base", "before": "20260715", "after": day, "fixes": []}]
    assert item["row"] == f"small-{day}"
    after = matrix(project)
    assert f"  below-{day}:" in after
    assert f"debian-security/{day}T000000Z" in after
    assert "debian-security/20260715T000000Z" in after
    changes = {change["package"] for change in item["diff"]["arch"]["x86_64"]["changes"]}
    assert "openssl" in changes
    project.run("lock", "--check", f"small-{day}")
