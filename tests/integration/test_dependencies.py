"""Tests `imgbuild why` with requirements that must be read from the index."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed
from imgbuild.lock.lock_file import read_lock
from imgbuild.values import Arch
from tests.support import dependent_project, inprocess_project, servers, terminal
from tests.support.inprocess_project import TARGET, Command
from tests.support.local_index import LocalIndex

TORCH = "https://example.org/whl/{cuda_tag}/torch{torch}"  # the matrix has torch from there


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalIndex:
    """An index with the wheels of the project; the cache is empty."""
    folder = inprocess_project.enter_folder(tmp_path, monkeypatch)
    dependent_project.write_project(folder)
    index, store = LocalIndex(), Store.open()
    for wheel in read_lock(folder / "images", TARGET).arch[Arch.X86_64].wheels:
        path = store.file(wheel.sha256)
        assert path is not None
        index.add(wheel.package, wheel.file, path.read_bytes())
    store.release()
    shutil.rmtree(tmp_path / "cache")
    return index


@pytest.mark.usefixtures("index")
def test_metadata_that_is_not_cached_is_refused_in_offline_mode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = Command(monkeypatch, capsys)("why", "torch", TARGET, "--offline")
    assert done.status == FetchFailed.exit_code
    assert f"of {TARGET} is not in " in done.stderr
    assert "run once without --offline" in done.stderr


def test_metadata_is_read_from_index_with_progress_bar(
    index: LocalIndex, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with servers.serve_site(servers.FileSite(files=index.site_files())) as site:
        matrix = Path("matrix.yaml")
        text = matrix.read_text().replace("main: {}", f"main: {{url: '{site.url('simple')}'}}")
        matrix.write_text(text.replace(TORCH, site.url("simple")))
        with terminal.terminal_stderr(monkeypatch) as drawn:
            done = Command(monkeypatch, capsys)("why", "torch", TARGET)
    assert done.status == 0, drawn.lines[-3:]
    assert ["trl", "0.18.2", ">=2.5"] in [line.split() for line in done.stdout.splitlines()]
    assert f"reading the requirements of 6 packages of {TARGET}" in "".join(drawn.lines)
    # It is cached now.
    assert Command(monkeypatch, capsys)("why", "torch", TARGET, "--offline").status == 0
