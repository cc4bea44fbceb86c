"""Tests that test records are shown in the README, and that committed records are valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.smoke import records
from tests.support.inprocess_project import TARGET, UNLOCKED, Command, SampleProject
from tests.support.smoke_records import answer_file
from tests.support.source_code import ROOT, import_script

TABLE = import_script(ROOT / "tools/images_table.py")


def test_table_of_smoke_records_is_written_between_markers(
    sample: SampleProject, imgbuild: Command
) -> None:
    page = "# Head\n\n<!-- images -->\nold\n<!-- /images -->\n\ntail\n"
    answer_file(sample)
    assert imgbuild("smoke", "--import", "gpu.json").status == 0
    rows = TABLE.all_rows(sample.folder)
    text = TABLE.replace_table(page, rows)
    assert text.startswith("# Head\n\n<!-- images -->\n<!-- made from locks and test records by ")
    assert text.endswith("|\n\n<!-- /images -->\n\ntail\n")
    (row,) = (line for line in text.splitlines() if line.startswith(f"| `{TARGET}`"))
    assert "x86_64 0.0 GB" in row
    assert "gpu on NVIDIA H200, driver 580.159.04, 2026-11-21" in row
    assert UNLOCKED not in text
    assert TABLE.replace_table(text, rows) == text
    assert TABLE.replace_table("# Head\n", rows) is None


def test_committed_smoke_records_are_valid() -> None:
    targets = [path.parent.name for path in (ROOT / "images").glob("*/smoke.json")]
    assert "cu124-vllm" in targets
    for target in targets:
        smoke_records = records.read_records(ROOT / "images", target)
        path = records.records_path(ROOT / "images", target)
        assert codec.encode(smoke_records) == path.read_bytes()


def test_documents_show_current_images_and_smoke_records(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert TABLE.main(["--check"]) == 0, capsys.readouterr().err


def test_check_of_smoke_records_lists_stale_pages_without_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    for name in TABLE.PAGES:
        (tmp_path / name).write_text("<!-- images -->\n<!-- /images -->\n")
    for name in ("matrix.yaml", "images"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setattr(TABLE, "ROOT", tmp_path)
    assert TABLE.main(["--check"]) == 5
    assert "stale: README.md, docs/targets.md" in capsys.readouterr().err
    assert TABLE.main([]) == 0
    assert TABLE.main(["--check"]) == 0
    assert "| `cu124-vllm`" in (tmp_path / "README.md").read_text()
