"""Tests that the committed facts cover every wheel and package of the targets."""

from __future__ import annotations

import pytest

import facts
from imgbuild.audit.packages.published import published_facts
from imgbuild.cache.facts_file import FactsFile, facts_path, write_facts
from imgbuild.lock.lock_file import Lock


@pytest.fixture(scope="module")
def locks() -> list[Lock]:
    return facts.chosen_locks([])


def test_committed_facts_cover_every_wheel(locks: list[Lock]) -> None:
    assert facts.find_missing(facts_path(), locks) == []
    assert facts_path().stat().st_size <= facts.LIMIT


def test_committed_facts_cover_every_debian_package(locks: list[Lock]) -> None:
    published = published_facts()
    lacking = {
        deb.file
        for lock in locks
        for resolution in lock.arch.values()
        for deb in resolution.debs
        if published.deb_libraries(deb.sha256) is None
    }
    assert not lacking


def test_facts_file_that_lacks_wheels_of_a_target_is_stale(tmp_path, monkeypatch, capsys):
    path = tmp_path / "published.zip"
    write_facts(path, {})
    assert len(FactsFile.open(path)) == 0
    monkeypatch.setattr("sys.argv", ["facts.py", "cu124-vllm", "--check", "--output", str(path)])
    assert facts.main() == 4
    assert f"{path} lacks cu124-vllm: torch-2.6.0" in capsys.readouterr().err
