"""Tests that `add` and `remove` look up packages before the matrix changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from imgbuild.pipeline import session
from tests.support import extended, folder_index
from tests.support.inprocess_project import Command
from tests.support.local_index import LocalIndex


@pytest.fixture
def imgbuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command line in a project with an index of peft 0.15.0 and ray 2.50."""
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    index = LocalIndex()
    index.wheel("peft", "0.15.0")
    index.wheel("ray", "2.50.0")
    text = extended.MATRIX.replace(
        "targets:\n",
        f"indexes:\n  pypi: {{url: '{folder_index.write_index(index, tmp_path / 'index')}',"
        " upload_times: none}\ntargets:\n",
        1,
    )
    monkeypatch.chdir(extended.create_repository(tmp_path / "ours", text).parent)
    return Command(monkeypatch, capsys)


def test_add_command_writes_and_removes_additions(imgbuild: Command) -> None:
    before = Path("matrix.yaml").read_text()
    done = imgbuild("add", "peft>=0.15", "ray[default]", status=0)
    assert done.stdout.splitlines() == ["peft>=0.15 added to ours", "ray[default] added to ours"]
    assert "next: imgbuild lock ours" in done.stderr
    (row,) = session.open_session(None).matrix.targets
    assert row == "ours"
    assert imgbuild("remove", "peft", "ray").status == 0
    assert Path("matrix.yaml").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["add"], 2, "no package to add is specified"),
        (["remove"], 2, "no package to remove is specified"),
        (["add", "peft=1"], 2, "invalid requirement: 'peft=1'"),
        (["add", "nosuch", "peft==9"], 8, "peft==9: the index has no such version"),
        (["add", "nosuch", "peft==9"], 8, "nosuch: the index has no such package"),
        (["add", "torch==9"], 8, "torch==9: small has torch 2.6.0, which cannot be changed"),
        (["add", "peft", "--target", "other"], 3, "no target matches other"),
        (["add", "peft", "-t", "a", "-t", "b"], 2, "only one target can be specified, not a and b"),
        (["remove", "peft"], 2, "peft is not an addition of targets.ours"),
    ],
)
def test_impossible_additions_do_not_change_the_matrix(
    imgbuild: Command, arguments: list[str], status: int, message: str
) -> None:
    before = Path("matrix.yaml").read_bytes()
    assert message in " ".join(imgbuild(*arguments, status=status).stderr.split())
    assert Path("matrix.yaml").read_bytes() == before


def test_add_command_does_not_change_the_catalogue(
    imgbuild: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "read-only" in imgbuild("add", "peft", status=2).stderr
