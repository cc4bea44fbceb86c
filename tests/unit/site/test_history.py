"""Tests reading and merging the data file of the history, and which files are refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.matrix.project_paths import Project
from imgbuild.site import history
from imgbuild.site.history import SiteHistory
from tests.support.rows import each_row
from tests.support.site_history import CHANGE, HISTORY


def test_history_file_is_read_back_unchanged(tmp_path: Path) -> None:
    place = tmp_path / "history.json"
    place.write_bytes(codec.encode(HISTORY))
    assert history.read_history(place) == HISTORY


@each_row(
    ("old", "new", "match"),
    [
        ('"format": 1', '"format": 2', "unsupported format 2"),
        ("0.8.4", "<b>", r"changes\[0\]\.old"),
        ("2026-11-27T10", "yesterday", "date"),
        ("newer vLLM", "newer \\u001b[31m", "subject"),
        ("cu124-vllm", "../etc", "targets"),
        ('"format"', "{", "JSON"),
    ],
)
def test_invalid_history_file_is_refused(tmp_path: Path, old: str, new: str, match: str) -> None:
    place = tmp_path / "history.json"
    place.write_text(codec.encode(HISTORY).decode().replace(old, new, 1))
    with pytest.raises(InputError) as error:
        history.read_history(place)
    assert "history.json" in str(error.value.message)
    told = str(error.value.message) + str(error.value.problems)
    assert match.replace("\\", "") in told or "valid" in told


def test_longer_history_of_a_target_is_kept() -> None:
    other = msgspec.structs.replace(CHANGE, commit="b" * 40)
    shallow = SiteHistory(targets={"cu124-vllm": (CHANGE,), "new": (CHANGE,)})
    whole = SiteHistory(targets={"cu124-vllm": (CHANGE, other)})
    merged = history.merge_histories(shallow, whole)
    assert merged == history.merge_histories(whole, shallow)
    assert merged.targets == {"cu124-vllm": (CHANGE, other), "new": (CHANGE,)}


def test_packaged_catalogue_has_no_history() -> None:
    from imgbuild.matrix import project_paths

    assert history.collect_history(project_paths.catalogue_project()) == SiteHistory()


def test_catalogue_in_a_checkout_is_treated_as_a_project(tmp_path: Path) -> None:
    installed = Project(matrix=tmp_path / "matrix.yaml", writable=False)
    assert history.checkout_project(installed) == installed
    (tmp_path / ".git").mkdir()
    assert history.checkout_project(installed) == Project(matrix=installed.matrix)
