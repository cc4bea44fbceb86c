"""Tests `imgbuild lock` on a small project with a separate index and base."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.cache.store import Store
from imgbuild.values import sha256
from tests.support import images, sample_project
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

HELD = "packages/thewheel-2.0-py3-none-any.whl"
OTHER = "packages/another-0.1-py3-none-any.whl"
SECONDS = 300  # limit for a hanging process; the machine may be busy
HELPERS = ("helper-0.5-py3-none-any.whl", "another-0.1-py3-none-any.whl", HELD.partition("/")[2])
OWN = ("lock.json", "digests.json", "requirements-x86_64.txt")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FileSite]:
    """An index, and a registry with a base that has accounts and a stub of Python."""
    images.python_base(tmp_path)
    with serve_site(FileSite(files=sample_project.sample_index().site_files())) as opened:
        yield opened


@pytest.fixture
def base(site: FileSite, tmp_path: Path) -> dict[str, object]:
    return sample_project.registry_base(sample_project.serve_image(site, tmp_path / "base", "base"))


@pytest.fixture
def project(site: FileSite, base: dict[str, object], tmp_path: Path) -> Project:
    """A project that is locked with thewheel 1.0."""
    project = Project(tmp_path / "project", site.url("simple"), cache=tmp_path / "cache")
    project.write(base)
    project.run("lock", TARGET)
    return project


def whole(site: FileSite, path: str) -> int:
    """The number of requests for a complete file."""
    return sum(
        command == "GET" and name == f"/{path}" and "Range" not in headers
        for command, name, headers in site.requests
    )


def test_lock_is_deterministic_across_machines(site, project, base, tmp_path):
    first = project.files()
    assert set(first) == {"layers.json", "packages.json", *(f"{TARGET}/{name}" for name in OWN)}
    project.run("lock", TARGET)
    assert project.files() == first
    other = Project(tmp_path / "elsewhere", site.url("simple"), cache=tmp_path / "empty")
    other.env = {"TZ": "Asia/Shanghai", "LC_ALL": "C", "PYTHONHASHSEED": "7"}
    other.write(base)
    other.run("lock", TARGET, "--jobs", "2")
    assert other.files() == first


def test_lock_check_passes_until_a_pin_changes(project, base, site):
    digest = project.read(f"{TARGET}/digests.json")["digest"]
    before, request_count = project.files(), len(site.requests)
    assert project.run("lock", TARGET, "--check").stdout.strip() == f"{TARGET} {digest}"
    project.write(base, thewheel="2.0")
    done = project.run("lock", TARGET, "--check", status=5)
    assert "thewheel 1.0 is locked, but thewheel==2.0 is required" in " ".join(done.stderr.split())
    assert f"imgbuild lock {TARGET}" in " ".join(done.stderr.split())
    project.run("build", TARGET, status=5)
    assert project.files() == before
    assert len(site.requests) == request_count  # nothing was solved or fetched
    project.write(base)
    project.run("lock", TARGET, "--check")


def test_lock_check_detects_edited_and_missing_files(project):
    for name, before, after in (
        ("lock.json", '"version": "0.5"', '"version": "0.6"'),
        ("digests.json", '"digest": "sha256:', '"digest": "sha256:0'),
        ("requirements-x86_64.txt", "helper==0.5", "helper==0.6"),
    ):
        path = project.folder / "images" / TARGET / name
        text = path.read_text()
        assert before in text
        edited = text.replace(before, after, 1)
        if name == "digests.json":  # still a digest, but another one
            start = edited.index(after) + len(after)
            edited = edited[: start + 62] + edited[start + 63 :]
        path.write_text(edited)
        done = project.run("lock", TARGET, "--check", status=5)
        # A lock's own files are distinguished by their digests.
        result = OWN[2] if name == "lock.json" else name
        assert result in done.stderr.replace("\n", "")
        path.unlink()
        project.run("lock", TARGET, "--check", status=5)
        path.write_text(text)
    project.run("lock", TARGET, "--check")


def git(project: Project, *arguments: str) -> None:
    name = ("-c", "user.name=me", "-c", "user.email=me@localhost", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *name, *arguments], cwd=project.folder, check=True, capture_output=True)


def test_diff_reports_changes_and_sizes_of_two_locks(project, base):
    git(project, "init", "--quiet")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "--message", "thewheel 1.0")
    assert project.run("lock", TARGET, "--diff", "HEAD").stdout.strip() == (
        f"{TARGET} x86_64: no change"
    )
    old = project.read(f"{TARGET}/digests.json")["arch"]["x86_64"]
    project.write(base, thewheel="2.0")
    project.run("lock", TARGET, "--diff", "HEAD", status=5)  # the lock is of the old pin
    project.run("lock", TARGET)
    new = project.read(f"{TARGET}/digests.json")["arch"]["x86_64"]
    old_digests = {layer["digest"] for layer in old["layers"]}
    fresh = [layer for layer in new["layers"] if layer["digest"] not in old_digests]
    assert 1 <= len(fresh) < len(new["layers"])
    (comparison,) = json.loads(project.run("lock", TARGET, "--diff", "HEAD", "--json").stdout)
    result = comparison["arch"]["x86_64"]
    assert result["pull"] == sum(layer["size"] for layer in fresh)
    assert result["total"] == new["size"]
    assert result["layers"] == [layer["name"] for layer in fresh]
    head, *rows = project.run("lock", TARGET, "--diff", "HEAD").stdout.splitlines()
    assert head.startswith(f"{TARGET} x86_64: 2 packages changed; ")
    assert ", ".join(result["layers"]) in head
    unpacked, *packages = [row.strip() for row in rows]
    assert unpacked.startswith("unpacked: ")
    assert packages == ["another (new) → 0.1", "thewheel 1.0 → 2.0"]
    done = project.run("lock", TARGET, "--diff", "no-such-branch", status=2)
    assert "no-such-branch is not a revision" in " ".join(done.stderr.split())


@pytest.mark.long
def test_diff_lists_a_new_target(project):
    git(project, "init", "--quiet")
    git(project, "commit", "--quiet", "--allow-empty", "--message", "nothing")
    (comparison,) = json.loads(project.run("lock", TARGET, "--diff", "HEAD", "--json").stdout)
    result = comparison["arch"]["x86_64"]
    layers = project.read(f"{TARGET}/digests.json")["arch"]["x86_64"]["layers"]
    assert result["pull"] == sum(layer["size"] for layer in layers)
    assert {change["before"] for change in result["changes"]} == {""}


def test_lock_with_drop_option_removes_wheels_from_the_cache(site, base, tmp_path):
    project = Project(tmp_path / "project", site.url("simple"), cache=tmp_path / "cache")
    project.write(base)
    project.run("lock", TARGET, "--drop")
    store = Store.open(tmp_path / "cache")
    wheels = project.read(f"{TARGET}/lock.json")["arch"]["x86_64"]["wheels"]
    assert {wheel["package"] for wheel in wheels} >= {"thewheel", "helper", "torch"}
    assert [wheel["file"] for wheel in wheels if store.file(wheel["sha256"])] == []
    project.run("build", TARGET, "--output", str(tmp_path / "image"))  # fetched again
    target_digests = project.read(f"{TARGET}/digests.json")["digest"]
    assert images.verify_layout(tmp_path / "image").digest == target_digests
    assert [wheel["file"] for wheel in wheels if not store.file(wheel["sha256"])] == []


class Gate:
    """Delays one file of a site when the complete file is requested."""

    def __init__(self, site: FileSite, path: str) -> None:
        self.site, self.path = site, path
        self.reached, self.opened = threading.Event(), threading.Event()
        site.before = self

    def __call__(self, path: str) -> None:
        if path == f"/{self.path}" and whole(self.site, self.path):
            self.reached.set()
            self.opened.wait(SECONDS)


def stop(
    project: Project, gate: Gate, store: Store, file_hash: str, number: int
) -> tuple[int, str]:
    """Start `lock`, and send a signal once `file_hash` is cached and the gate is reached."""
    process = subprocess.Popen(
        project.command("lock", TARGET),
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert gate.reached.wait(SECONDS)
        end = time.monotonic() + SECONDS
        while store.file(file_hash) is None:
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, number)
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        gate.opened.set()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        with process:  # waits, and closes its pipe, which the next test would be blamed for
            pass
    return process.returncode, output


@pytest.mark.long  # test_ending.py and test_store_processes.py end processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_lock_command_keeps_old_lock_and_resumes(site, project, base, tmp_path, number):
    before = project.files()
    project.write(base, thewheel="2.0")
    another = next(
        item for item in sample_project.sample_index().published if item.package == "another"
    )
    file_hash = sha256(another.data)
    gate = Gate(site, HELD)
    status, output = stop(project, gate, Store.open(tmp_path / "cache"), file_hash, number)
    assert "Traceback" not in output
    if number == signal.SIGINT:
        assert status == 130, output
        assert "run the same command again to continue" in " ".join(output.split())
    else:
        assert status in (-number, 128 + number)
    assert project.files() == before
    assert list((project.folder / "images").rglob("*.tmp*")) == []

    request_count = whole(site, OTHER)
    project.run("lock", TARGET)
    assert whole(site, OTHER) == request_count == 1  # what was there is not fetched again
    # The interruption has no effect on the bytes.
    fresh = Project(tmp_path / "fresh", site.url("simple"), cache=tmp_path / "cache-2")
    shutil.copytree(project.folder / "images", fresh.folder / "images")
    for name, data in before.items():
        (fresh.folder / "images" / name).write_bytes(data)
    fresh.write(base, thewheel="2.0")
    fresh.run("lock", TARGET)
    assert fresh.files() == project.files()


def downloads(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if "download" in line or "fetching" in line]


@pytest.mark.long
@pytest.mark.parametrize("keep", ["--keep", "--drop"])
def test_downloads_of_all_targets_are_announced_once(site, base, tmp_path, keep):
    project = Project(tmp_path / "project", site.url("simple"), cache=tmp_path / "cache")
    project.write(base)
    text = (project.folder / "matrix.yaml").read_text()
    row = text.partition("  small:\n")[2].replace('thewheel: "1.0"', 'thewheel: "2.0"')
    (project.folder / "matrix.yaml").write_text(f"{text}  other:\n{row}")
    done = project.run("lock", "--all", keep)
    # The solver reads accounts and Python of the base, which is one of the seven files; the others
    # are torch, cublas, helper, another and two versions of thewheel.
    assert [re.sub(r", \d.*", "", line) for line in downloads(done)] == [
        "layers of base: 1 file",
        "6 of 7 files to download",
        "downloaded 6 of 6 files",
    ]
    wheels = [whole(site, f"packages/{name}") for name in HELPERS]
    assert wheels == [1, 1, 1]  # also if both targets read it for separate layers
    left = list((tmp_path / "cache/files").rglob("?" * 64))
    assert len(left) == (6 if keep == "--keep" else 0)
    before, _, after = done.stderr.partition("6 of 7 files to download")
    assert "auditing (pass 1): done" in before
    assert "computing the digests" not in before
    refused = "the Dockerfile was not written: the Dockerfile requires uv to install packages"
    assert after.count(refused) == 2
    assert (
        after.count("computing the digests of small …")
        == after.count("computing the digests of other …")
        == 1
    )
    # Another machine with the same digests of layers in its checkout reads all files again.
    shutil.rmtree(tmp_path / "cache")
    project.write(base, thewheel="2.0")
    assert [re.sub(r", \d.*", "", line) for line in downloads(project.run("lock", TARGET))] == [
        "layers of base: 1 file",
        "5 of 6 files to download",
        "downloaded 5 of 5 files",
    ]
    assert downloads(project.run("lock", TARGET)) == ["0 of 6 files to download"]
