"""Tests the settings, output and errors of `mirror` on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.assemble import mirror
from tests.support import inprocess_project, memory_registry
from tests.support.inprocess_project import TARGET, SampleProject, read_json
from tests.support.memory_registry import Registry

PLACE = "registry.example/team/inputs"


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SampleProject:
    memory_registry.isolate_logins(monkeypatch, tmp_path)
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(mirror.VARIABLE, raising=False)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return inprocess_project.write_project(tmp_path / "project")


@pytest.fixture
def registry() -> Iterator[Registry]:
    with memory_registry.serve(Registry()) as server:
        yield server


def test_mirror_use_command_writes_the_project_setting(sample, imgbuild):
    answer = imgbuild("registry", "mirror", "use", PLACE, status=0)
    assert answer.stdout.strip() == str(sample.folder / "mirror.json")
    assert (sample.folder / "mirror.json").read_text() == f'{{"mirror": "{PLACE}"}}\n'
    more = ("--mirror-only", "--plain-http", "registry.example")
    assert imgbuild("registry", "mirror", "use", PLACE, *more).status == 0
    assert json.loads((sample.folder / "mirror.json").read_text()) == {
        "mirror": PLACE, "only": True, "plain_http": True
    }  # fmt: skip
    nowhere = imgbuild("registry", "mirror", "use", "nonsense", status=2)
    assert "'nonsense' does not contain a registry host" in " ".join(nowhere.stderr.split())
    assert "no mirror is set" in imgbuild("registry", "mirror", "use", "--off").stderr
    assert not (sample.folder / "mirror.json").exists()
    assert imgbuild("registry", "mirror", "use", "--off").status == 0  # it was removed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["use"], "a repository or --off is required"),
        (["use", PLACE, "--off"], "a repository or --off is required"),
        (["use", "team/inputs:tag"], "team/inputs:tag"),
        (["push", TARGET], "no mirror is configured"),
        (["status", TARGET, "a.example/b", "b.example/c"], "only one repository can be specified"),
    ],
)
def test_an_invalid_command_line_is_refused(sample, imgbuild, words, message):
    assert message in imgbuild("registry", "mirror", *words, status=2).stderr


def test_mirror_setting_is_the_default_of_the_mirror_commands(sample, imgbuild, registry):
    place = f"{registry.host}/team/inputs"
    imgbuild("registry", "mirror", "use", place)
    answer = imgbuild("registry", "mirror", "status", TARGET, "--json", status=1)
    (mirror_status,) = json.loads(answer.stdout)
    assert mirror_status["files"] == len(mirror_status["lacking"]) == 7
    assert f"imgbuild registry mirror push {TARGET} {place}" in answer.stderr
    filled = read_json(imgbuild("registry", "mirror", "push", TARGET, "--dry-run", "--json"))
    assert (filled["mirror"], filled["sent"], filled["fetched"]) == (place, 7, 2)  # both debs


def test_a_build_reports_the_inputs_missing_in_the_mirror(sample, imgbuild, registry, tmp_path):
    place = f"{registry.host}/team/inputs"
    store = tmp_path / "other"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMGBUILD_CACHE", str(store))
        answer = imgbuild("build", TARGET, "--mirror", place, "--mirror-only")
    assert answer.status == 7
    assert f"the mirror {place} lacks 7 inputs of {TARGET}" in answer.stderr
    assert "pip-25.0-py3-none-any.whl, " in answer.stderr


def test_mirror_only_option_requires_a_mirror(sample, imgbuild):
    answer = imgbuild("build", TARGET, "--mirror-only", status=2)
    assert "--mirror-only requires a mirror" in answer.stderr
