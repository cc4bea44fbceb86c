"""`imgbuild why` where METADATA of the locked wheels is not in the cache."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from imgbuild.errors import FetchFailed
from tests.support import dependent_project
from tests.support.inprocess_project import TARGET, Command


def test_offline_without_the_wheels_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    dependent_project.make(folder)
    shutil.rmtree(tmp_path / "cache")
    done = Command(monkeypatch, capsys)("why", "torch", TARGET, "--offline")
    assert done.status == FetchFailed.exit_code
    assert f"of {TARGET} is not in " in done.stderr
    assert "run once without --offline" in done.stderr
