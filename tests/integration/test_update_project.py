"""Tests moving a project to another published target: changes, conflicts and interruptions.

Two small published targets on real Debian packages differ in the version of a wheel.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.test_extend import DEBIAN
from tests.support import sample_project
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

pytestmark = [pytest.mark.network]
ROW = "trainer"
LARGE = """\
  large:
    summary: a larger image
    base: below
    cuda: "12.4"
    arch: [x86_64]
    as_of: 2025-09-20
    pins: {torch: "2.6.0", thewheel: "2.0"}
    flashinfer: {mode: "off", reason: there is no wheel}
"""
MATRIX = """\
# Requirements of a training team.
version: 1
published:
  small:  # the first one
    lock: .imgbuild/published/small
    from: PLACE
targets:
  trainer:
    extends: small  # nothing else changes
    summary: our project
    requirements: [requirements.txt]
"""
TRAIN = "from thewheel import VERSION, first_only\n\nprint(VERSION, first_only())\n"
# Ends the process before the Nth file of the change is renamed.
KILLED = """\
import os, signal, sys
from imgbuild.system.folder import OpenFolder
from imgbuild.update import transaction

before, left = OpenFolder.rename, [int(sys.argv.pop(1))]

def rename(self, name, other):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    before(self, name, other)

commit = transaction._apply_journal

def apply(*words):
    OpenFolder.rename = rename
    commit(*words)

transaction._apply_journal = apply
from imgbuild.cli import main
main()
"""


@dataclass
class Publisher:
    """An index, and a project that publishes two targets."""

    site: FileSite
    folder: Path

    def user(self, folder: Path, requirements: str = "gadget\n") -> Project:
        """A project on the small target."""
        images = self.folder / "images"
        copy = folder / ".imgbuild/published/small"
        copy.mkdir(parents=True)
        for name in ("lock.json", "digests.json"):
            (copy / name).write_bytes((images / TARGET / name).read_bytes())
        (folder / "matrix.yaml").write_text(MATRIX.replace("PLACE", str(images)))
        (folder / "requirements.txt").write_text(requirements)
        (folder / "train.py").write_text(TRAIN)
        return Project(folder, self.site.url("simple"), cache=None)


@pytest.fixture(name="publisher", scope="module")
def _publisher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publisher]:
    index = sample_project.sample_index()
    index.published = [item for item in index.published if item.package != "thewheel"]
    code = "VERSION = '{}'\n\n\ndef {}_only():\n    return 1\n"
    for version, name in (("1.0", "first"), ("2.0", "second")):
        files = {"thewheel.py": code.format(version, name).encode()}
        index.wheel("thewheel", version, ["helper"], files=files)
    index.wheel("gadget", "1.0", ["helper"], files={"gadget.py": b"from helper import VALUE\n"})
    index.wheel("gadget", "2.0", ["thewheel>=2"], files={"gadget.py": b"import thewheel\n"})
    index.wheel("strict", "1.0", ["thewheel<2"])
    folder = tmp_path_factory.mktemp("published") / "project"
    with serve_site(FileSite(files=index.site_files())) as site:
        project = Project(folder, site.url("simple"), cache=None)
        project.write(DEBIAN)
        with (folder / "matrix.yaml").open("a") as matrix:
            matrix.write(LARGE)
        project.run("lock", "--all", "--keep")
        yield Publisher(site, folder)


@pytest.fixture(name="locked", scope="module")
def _locked(publisher: Publisher, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a lock, which no test modifies."""
    project = publisher.user(tmp_path_factory.mktemp("locked") / "project")
    project.run("lock")
    return project


def content(project: Project) -> dict[str, bytes]:
    """The files of a project."""
    return {
        path.relative_to(project.folder).as_posix(): path.read_bytes()
        for path in sorted(project.folder.rglob("*"))
        if path.is_file()
    }


def copy(project: Project, folder: Path) -> Project:
    """A copy of a project."""
    for name, data in content(project).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return Project(folder, project.index_url, project.cache)


@pytest.mark.long
def test_project_without_a_lock_is_compared_with_its_published_target(
    publisher: Publisher, tmp_path: Path
) -> None:
    project = publisher.user(tmp_path / "project")
    (row,) = json.loads(project.run("update", "--to", "large", "--json").stdout)["rows"]
    changes = {each["package"]: each["before"] for each in row["diff"]["arch"]["x86_64"]["changes"]}
    assert changes["thewheel"] == "1.0"
    assert [finding["line"] for finding in row["findings"]] == [1]


def test_project_update_keeps_comments_and_renews_the_lock(locked: Project, tmp_path: Path) -> None:
    project = copy(locked, tmp_path / "project")
    before = content(project)
    nothing = project.run("update")
    assert nothing.stdout == "trainer: small has no newer lock\n"
    planned = json.loads(project.run("update", "--to", "large", "--dry-run", "--json").stdout)
    assert content(project) == before
    (row,) = planned["rows"]
    assert planned["published"]["arch"].keys() == {"x86_64"}
    assert (row["before"], row["after"], planned["wrote"]) == ("small", "large", [])
    changes = {each["package"]: each for each in row["diff"]["arch"]["x86_64"]["changes"]}
    assert (changes["thewheel"]["before"], changes["thewheel"]["after"]) == ("1.0", "2.0")
    (finding,) = row["findings"]
    assert (finding["file"], finding["line"]) == ("train.py", 1)
    assert "first_only" in finding["message"]

    done = project.run("update", "--to", "large")
    published, _, own = done.stdout.partition("trainer: small → large\n")
    assert published.startswith("small → large: base and settings\n")
    assert "small → large x86_64: 1 package changed; " in published
    assert "  thewheel 1.0 → 2.0\n" in published
    assert "to pull; 1 package changed, added or removed besides those of the" in own
    assert "  gadget 1.0 → 2.0\n" in own
    assert "thewheel 1.0" not in own
    assert "train.py:1:" in done.stdout
    expected = before["matrix.yaml"].decode()
    for old, new in (
        ("published/small", "published/large"),
        ("small:  #", "large:  #"),
        ("extends: small", "extends: large"),
    ):
        expected = expected.replace(old, new)
    assert (project.folder / "matrix.yaml").read_text() == expected
    names = set(content(project))
    assert {name for name in names if "published" in name} == {
        ".imgbuild/published/large/lock.json",
        ".imgbuild/published/large/digests.json",
    }
    assert project.run("lock", "--check").stdout == f"trainer {row['digest']}\n"
    assert project.run("update").stdout == "trainer: large has no newer lock\n"


def test_project_update_with_conflicts_lists_all_of_them_and_writes_nothing(
    publisher: Publisher, tmp_path: Path
) -> None:
    text = "thewheel<2\nstrict==1.0\nnosuch\ngadget\n"
    project = publisher.user(tmp_path / "project", text)
    before = content(project)
    done = project.run("update", "--to", "large", status=8)
    assert "small → large x86_64: 1 package changed; " in done.stdout
    refused = done.stderr
    for line in (
        "requirements.txt:1: requires thewheel<2, but large has 2.0",
        "requirements.txt:2: strict 1.0 requires thewheel<2, but large has 2.0",
        "requirements.txt:3: nosuch: the index has no such package",
    ):
        assert line in refused
    assert (
        "3 requirements of the project cannot be satisfied by large; nothing was written" in refused
    )
    assert content(project) == before


def test_project_update_copies_a_newer_lock_of_the_same_target(
    locked: Project, tmp_path: Path
) -> None:
    project = copy(locked, tmp_path / "project")
    published = project.folder / ".imgbuild/published/small/lock.json"
    published.write_bytes(published.read_bytes() + b"\n")
    assert "the lock extends small" in project.run("lock", "--check", status=5).stderr
    assert "trainer: small, newest lock" in project.run("update").stdout
    assert content(project) == content(locked)


@pytest.mark.long  # locks a complete target again
def test_project_update_updates_a_row_with_like(publisher: Publisher, tmp_path: Path) -> None:
    project = publisher.user(tmp_path / "project", "torch==2.6.0\nthewheel\n")
    matrix = project.folder / "matrix.yaml"
    text = matrix.read_text().replace("extends: small", "like: small")
    matrix.write_text(text.replace("    summary:", "    as_of: 2025-08-01\n    summary:"))
    project.run("lock")
    done = project.run("update", "--to", "large")
    assert "thewheel 1.0 → 2.0" in done.stdout
    assert "as_of" not in matrix.read_text()
    assert "like: large" in matrix.read_text()
    project.run("lock", "--check")


@pytest.mark.long  # unit/update/test_transaction.py stops at each step
def test_next_run_completes_a_killed_update(locked: Project, tmp_path: Path) -> None:
    project = copy(locked, tmp_path / "project")
    command = [sys.executable, "-c", KILLED, "3", "update", "--to", "large"]
    killed = subprocess.run(
        command, cwd=project.folder, env=project.environment(), capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (project.folder / ".imgbuild/.imgbuild-update/journal.json").is_file()
    done = project.run("update")
    assert "completed an interrupted update: trainer on large" in done.stderr
    assert done.stdout == "trainer: large has no newer lock\n"
    assert not (project.folder / ".imgbuild/.imgbuild-update").exists()
    assert not (project.folder / ".imgbuild/published/small/lock.json").exists()
    project.run("lock", "--check")


def test_outdated_command_lists_packages_base_and_vulnerabilities(
    publisher: Publisher, locked: Project
) -> None:
    target = Project(publisher.folder, locked.index_url, locked.cache)
    (report,) = json.loads(target.run("outdated", TARGET, "--json").stdout)
    rows = {row["package"]: row for row in report["packages"]}
    assert rows["thewheel"]["takes"] == "2.0"
    assert report["base"]["error"] == ""
    assert report["base"]["packages"] > 10
    assert report["vulnerabilities"]["report"] or report["vulnerabilities"]["error"]
    (report,) = json.loads(locked.run("outdated", "--json", "--packages").stdout)
    rows = {row["package"]: row for row in report["packages"]}
    assert rows["thewheel"]["reasons"] == ["extends: small keeps 1.0"]
    assert rows["gadget"]["takes"] == ""
    assert rows["gadget"]["reasons"] == ["2.0 requires thewheel>=2, not 1.0"]


@pytest.mark.long
def test_outdated_command_with_solve_option_resolves_each_newer_version(
    publisher: Publisher, locked: Project
) -> None:
    target = Project(publisher.folder, locked.index_url, locked.cache)
    (report,) = json.loads(target.run("outdated", TARGET, "--solve", "--json").stdout)
    (solved,) = report["solved"]
    assert (solved["package"], solved["version"], solved["reasons"]) == ("thewheel", "2.0", [])
    assert solved["audit"] == "no error"
    (report,) = json.loads(locked.run("outdated", "--solve", "--json").stdout)
    (solved,) = report["solved"]
    assert (solved["package"], solved["version"]) == ("gadget", "2.0")
    assert [row["package"] for row in report["packages"]] == ["gadget"]  # not what `extends` keeps
    assert any("thewheel" in reason for reason in solved["reasons"])
