"""Test records are shown in the README, and those that are committed are valid."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.smoke import records
from tests.support import inprocess_project
from tests.support.inprocess_project import TARGET, UNLOCKED, Command, Sample
from tests.support.smoke_records import answer_file
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
    answer_file(sample)
    assert imgbuild("smoke", "--import", "gpu.json").status == 0
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


def test_committed_records_are_sound() -> None:
    found = [path.parent.name for path in (ROOT / "images").glob("*/smoke.json")]
    assert "cu124-vllm" in found
    for target in found:
        known = records.read_records(ROOT / "images", target)
        path = records.records_path(ROOT / "images", target)
        assert codec.encode(known) == path.read_bytes()


@pytest.mark.parametrize("name", ["README.md", "docs/targets.md"])
def test_documents_show_the_images_and_test_records_of_now(
    tmp_path: Path, imgbuild: Command, name: str
) -> None:
    page = tmp_path / "page.md"
    shutil.copy(ROOT / name, page)
    done = imgbuild("list", "--into", str(page), "--matrix", str(ROOT / "matrix.yaml"))
    assert done.status == 0, done.stderr
    assert page.read_text() == (ROOT / name).read_text(), f"imgbuild list --into {name}"
