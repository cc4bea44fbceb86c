"""Tests that verbs use the installed catalogue without a matrix.yaml, and never write to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imgbuild.matrix.project_paths import CATALOGUE
from tests.support.inprocess_project import Command

TARGET = "cu124-vllm"
OWN = "imgbuild init --extends TARGET"


@pytest.fixture
def imgbuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


def test_targets_of_the_catalogue_are_shown(imgbuild: Command, tmp_path: Path) -> None:
    target_digests = json.loads((CATALOGUE / f"images/{TARGET}/digests.json").read_bytes())
    assert target_digests["digest"] in imgbuild("digest", TARGET).stdout
    for words in (["list"], ["show"], ["show", "--sbom", "spdx"], ["render", "--format", "bake"]):
        assert TARGET in imgbuild(*words, TARGET).stdout
    assert list(tmp_path.iterdir()) == []
    assert imgbuild("render", TARGET, "--output", "context").status == 0
    assert (tmp_path / "context/Dockerfile").is_file()


def test_requirements_of_a_catalogue_target_are_read_without_network_and_cache(
    imgbuild: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    done = imgbuild("why", "torch", TARGET)
    assert (done.status, done.stderr) == (0, "")
    assert ["vllm", "0.8.5.post1", "==2.6.0"] in [line.split() for line in done.stdout.splitlines()]
    assert "numpy" in imgbuild("tree", TARGET, "vllm").stdout
    assert not (tmp_path / "cache").exists()


def test_list_refuses_a_matrix_file_that_does_not_exist(imgbuild: Command) -> None:
    done = imgbuild("list", "--matrix", "absent.yaml", status=2)
    assert "absent.yaml: no such file" in done.stderr


@pytest.mark.parametrize("verb", ["build", "run"])
def test_target_without_lock_suggests_a_locked_one(imgbuild: Command, verb: str) -> None:
    done = imgbuild(verb, "cu124-flashinfer", "--json", status=5)
    hint = json.loads(done.stdout)["hint"]
    assert "use the locked target with the most similar name, cu1" in hint
    assert "imgbuild lock" not in hint


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["lock", TARGET], OWN),
        (["smoke", TARGET, "--tier", "static", "--record"], OWN),
        (["smoke", "--import", "smoke.json"], OWN),
        (["ci", "report", "--record"], OWN),
        (["init", "--refresh"], OWN),
        (["render", TARGET], "--output FOLDER"),
        (["registry", "mirror", "use", "registry.example.org/rl/inputs"], "IMGBUILD_MIRROR"),
        (["registry", "gc", "registry.example.org/rl"], "--matrix FILE"),
    ],
)
def test_verb_that_would_modify_catalogue_is_refused(
    imgbuild: Command, tmp_path: Path, arguments: list[str], remedy: str
) -> None:
    done = imgbuild(*arguments, "--json", status=2)
    error = json.loads(done.stdout)
    assert f"no matrix.yaml in {tmp_path}" in error["message"]
    assert remedy in error["hint"]
    assert list(tmp_path.iterdir()) == []


def test_project_is_initialized_without_arguments(imgbuild: Command, tmp_path: Path) -> None:
    done = imgbuild("init", "--extends", "cu124-vlm", status=3)
    assert f"did you mean {TARGET}?" in " ".join(done.stderr.split())
    assert imgbuild("init").status == 0
    assert {path.name for path in tmp_path.iterdir()} == {"matrix.yaml", ".imgbuild"}
    (folder,) = (tmp_path / ".imgbuild/published").iterdir()
    listed = json.loads(imgbuild("list", "--json").stdout)
    assert [row["target"] for row in listed] == ["my-image"]
    assert imgbuild("lock", "--check").status == 5  # not locked yet
    same = imgbuild("init", "--refresh")
    assert same.stdout.startswith(f"{folder.name} sha256:")
    assert same.stdout.endswith(" (unchanged)\n")
    assert same.stderr == "nothing has changed\n"
    digests = folder / "digests.json"
    current = json.loads(digests.read_bytes())
    digests.write_text(json.dumps({**current, "digest": f"sha256:{'0' * 64}"}), encoding="utf-8")
    changed = imgbuild("init", "--refresh")
    assert f"sha256:{'0' * 64} -> {current['digest']}" in " ".join(changed.stdout.split())
    assert "next: imgbuild lock --all" in changed.stderr
    again = imgbuild("init", status=2)
    assert "imgbuild add PACKAGE" in again.stderr


CATALOGUE_VERBS = (
    ("show",),
    ("digest",),
    ("tree", "--depth", "0"),
    ("list",),
    ("render", "--format", "requirements"),
)


@pytest.mark.parametrize("words", CATALOGUE_VERBS, ids=lambda words: words[0])
def test_catalogue_target_can_be_used_in_a_project(
    imgbuild: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert imgbuild("init").status == 0
    inside = imgbuild(words[0], TARGET, *words[1:])
    outside = imgbuild(words[0], TARGET, *words[1:], "--matrix", str(CATALOGUE / "matrix.yaml"))
    assert inside.status == outside.status == 0, inside.stderr
    assert inside.stdout == outside.stdout != ""


def test_init_with_extends_writes_the_architecture_that_is_given(
    imgbuild: Command, tmp_path: Path
) -> None:
    assert imgbuild("init", "ours", "--extends", TARGET, "--arch", "arm64").status == 2
    assert imgbuild("init", "ours", "--extends", "cu130-vllm", "--arch", "arm64").status == 0
    assert "    arch: [arm64]\n" in (tmp_path / "matrix.yaml").read_text()


def test_catalogue_targets_can_be_compared_in_a_project(imgbuild: Command) -> None:
    assert imgbuild("init").status == 0
    done = imgbuild("diff", TARGET, "cu126-vllm", status=0)
    assert done.stdout.startswith(f"{TARGET} → cu126-vllm")


def test_catalogue_target_cannot_be_locked_in_a_project(imgbuild: Command, tmp_path: Path) -> None:
    assert imgbuild("init").status == 0
    matrix_path = tmp_path / "matrix.yaml"
    done = imgbuild("lock", TARGET, status=3)
    assert f"no target matches {TARGET} in {matrix_path}\n" in done.stderr
    assert f"imgbuild init --extends {TARGET}" in done.stderr
    done = imgbuild("show", "my-imag")
    assert (
        f"no target matches my-imag in {matrix_path}\nhint: did you mean my-image?" in done.stderr
    )


def test_unknown_packages_get_no_unrelated_suggestion(imgbuild: Command) -> None:
    done = imgbuild("list", "--with", "nosuch")
    assert (done.status, done.stderr.splitlines()[1]) == (3, "hint: omit a filter")
    assert "did you mean --with vllm?" in imgbuild("list", "--with", "vlm").stderr
    done = imgbuild("list", "--with", "trl==0.18", "--cuda", "12.4")
    assert f"nearest: the target {TARGET}" in done.stderr


@pytest.mark.parametrize(("name", "near"), [("A B", "a-b"), ("__", "my-image"), ("x:1", "x-1")])
def test_invalid_image_name_is_refused_with_a_valid_suggestion(
    imgbuild: Command, tmp_path: Path, name: str, near: str
) -> None:
    done = imgbuild("init", name, "--extends", TARGET, status=2)
    assert f"invalid name for an image: {name}" in done.stderr
    assert done.stderr.endswith(f"hint: imgbuild init {near}\n")
    assert list(tmp_path.iterdir()) == []
