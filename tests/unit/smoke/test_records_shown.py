"""Test records are shown in the README, and those that are committed are valid."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from imgbuild import codec, project
from imgbuild.cache.store import Store
from imgbuild.lock import lock as locks
from imgbuild.plan import seal as seals
from imgbuild.smoke import recording, records, reports
from imgbuild.values import Arch
from tests.support import inprocess_project
from tests.support.inprocess_project import TARGET, UNLOCKED, Command, Sample
from tests.support.smoke_records import left
from tests.support.source_code import ROOT


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sample:
    monkeypatch.chdir(tmp_path)
    return inprocess_project.make(tmp_path)


@pytest.fixture
def imgbuild(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capfd)


def test_the_table_is_written_between_its_marks(sample: Sample, imgbuild: Command) -> None:
    page = sample.folder / "README.md"
    page.write_text("# Head\n\n<!-- images -->\nold\n<!-- /images -->\n\ntail\n")
    left(sample)
    assert imgbuild("smoke", "--import", "docs/out").status == 0
    assert "wrote README.md" in imgbuild("list", "--into", "README.md").stderr
    text = page.read_text()
    assert text.startswith("# Head\n\n<!-- images -->\n<!-- made from locks and test records by: ")
    assert text.endswith("|\n\n<!-- /images -->\n\ntail\n")
    (row,) = (line for line in text.splitlines() if line.startswith(f"| `{TARGET}`"))
    assert "x86_64 0.0 GB" in row
    assert "gpu on NVIDIA H200, driver 580.159.04, 2026-11-21" in row
    assert UNLOCKED not in text
    assert "README.md is up to date" in imgbuild("list", "--into", "README.md").stderr
    page.write_text("# Head\n")
    done = imgbuild("list", "--into", "README.md")
    assert (done.status, page.read_text()) == (2, "# Head\n")
    assert "<!-- images -->" in done.stderr


KEPT = sorted(path.parent for path in (ROOT / "docs/test-records").glob("*/machine.json"))


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_the_reports_that_are_kept_give_the_runs_that_are_committed(
    folder: Path, tmp_path: Path
) -> None:
    said = json.loads((folder / "machine.json").read_bytes())
    target = said["target"]
    committed = records.read_records(ROOT / "images", target)
    assert said["config"] in committed.images
    own = project.Project(matrix=tmp_path / "matrix.yaml")
    sealed = seals.read_seal(ROOT / "images", locks.read_lock(ROOT / "images", target))
    if sealed.arch[Arch(said["arch"])].config != said["config"]:
        return  # it was of an image of the past, whose lock stands in the history
    for name in ("lock.json", "digests.json"):
        (own.images / target).mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "images" / target / name, own.images / target)
    shutil.copytree(folder, tmp_path / "docs/test-records" / folder.name)
    recording.record(
        own, reports.image_runs(tmp_path / "docs/test-records" / folder.name, own), Store.open()
    )
    (run,) = records.read_records(own.images, target).runs
    assert run in committed.runs


def test_committed_records_are_sound_and_name_reports_that_are_there() -> None:
    found = [path.parent.name for path in (ROOT / "images").glob("*/smoke.json")]
    assert "cu124-vllm" in found
    for target in found:
        known = records.read_records(ROOT / "images", target)
        path = records.records_path(ROOT / "images", target)
        assert codec.encode(known) == path.read_bytes()
        for run in known.runs:
            assert not run.report or (ROOT / run.report).exists(), run


@pytest.mark.parametrize("name", ["README.md", "docs/targets.md"])
def test_documents_show_the_images_and_test_records_of_now(
    tmp_path: Path, imgbuild: Command, name: str
) -> None:
    page = tmp_path / "page.md"
    shutil.copy(ROOT / name, page)
    done = imgbuild("list", "--into", str(page), "--matrix", str(ROOT / "matrix.yaml"))
    assert done.status == 0, done.stderr
    assert page.read_text() == (ROOT / name).read_text(), f"imgbuild list --into {name}"
