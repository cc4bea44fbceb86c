"""`mirror` and `gc` on the command line: settings, answers, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild import project
from imgbuild.assemble import mirror
from imgbuild.publish import gc_roots
from imgbuild.registry.client import Client
from imgbuild.show import revisions
from imgbuild.show.revisions import ImageHistory, RevisionRange
from tests.support import inprocess_project, memory_registry
from tests.support.inprocess_project import TARGET, Command, Sample, json_of
from tests.support.memory_registry import Registry
from tests.support.memory_registry_values import Fault

PLACE = "registry.example/team/inputs"


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sample:
    memory_registry.alone(monkeypatch, tmp_path)
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(mirror.VARIABLE, raising=False)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return inprocess_project.make(tmp_path / "project")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with memory_registry.serve(Registry()) as found:
        yield found


@pytest.fixture
def past(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history without revisions: no process is started in unit tests."""
    monkeypatch.setattr(revisions, "past", lambda *_: RevisionRange(commits=(), shallow=False))
    monkeypatch.setattr(revisions, "named", lambda *_: set())
    monkeypatch.setattr(revisions, "locks_of", lambda *_: iter(()))
    monkeypatch.setattr(
        revisions, "image_history", lambda *_: ImageHistory(images={}, targets=frozenset())
    )


def test_use_writes_the_setting_of_the_project_or_of_the_user(sample, command):
    answer = command("registry", "mirror", "use", PLACE)
    assert answer.status == 0
    assert answer.stdout.strip() == str(sample.folder / "mirror.json")
    assert (sample.folder / "mirror.json").read_text() == f'{{"mirror": "{PLACE}"}}\n'
    command(
        "registry",
        "mirror",
        "use",
        PLACE,
        "--mirror-only",
        "--plain-http",
        "registry.example",
        "--global",
    )
    assert json.loads(mirror.user_file().read_text()) == {
        "mirror": PLACE, "only": True, "plain_http": True
    }  # fmt: skip
    nowhere = command("registry", "mirror", "use", "nonsense")
    assert nowhere.status == 2
    assert "'nonsense' has no registry host" in " ".join(nowhere.stderr.split())
    assert "no mirror is set" in command("registry", "mirror", "use", "--off").stderr
    assert not (sample.folder / "mirror.json").exists()
    assert mirror.user_file().exists()
    assert command("registry", "mirror", "use", "--off").status == 0  # there is none any more


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["use"], "a repository or --off is needed"),
        (["use", PLACE, "--off"], "a repository or --off is needed"),
        (["use", "team/inputs:tag"], "team/inputs:tag"),
        (["push", TARGET], "no mirror is named, and none is set"),
        (["status", TARGET, "a.example/b", "b.example/c"], "one repository is expected"),
    ],
)
def test_a_wrong_command_line_is_refused(sample, command, words, said):
    answer = command("registry", "mirror", *words)
    assert answer.status == 2
    assert said in answer.stderr


def test_the_setting_is_the_place_when_none_is_named(sample, command, registry):
    place = f"{registry.host}/team/inputs"
    command("registry", "mirror", "use", place)
    answer = command("registry", "mirror", "status", TARGET, "--json")
    assert answer.status == 1
    (held,) = json.loads(answer.stdout)
    assert held["files"] == len(held["lacking"]) == 7
    assert f"imgbuild registry mirror push {TARGET} {place}" in answer.stderr
    filled = json_of(command("registry", "mirror", "push", TARGET, "--dry-run", "--json"))
    assert (filled["mirror"], filled["sent"], filled["fetched"]) == (place, 7, 2)  # both debs


def test_a_build_says_which_inputs_the_mirror_lacks(sample, command, registry, tmp_path):
    place = f"{registry.host}/team/inputs"
    store = tmp_path / "other"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMGBUILD_CACHE", str(store))
        answer = command("build", TARGET, "--mirror", place, "--mirror-only")
    assert answer.status == 7
    assert f"the mirror {place} lacks 7 inputs of {TARGET}" in answer.stderr
    assert "pip-25.0-py3-none-any.whl, " in answer.stderr


def test_only_without_a_mirror_is_refused(sample, command):
    answer = command("build", TARGET, "--mirror-only")
    assert answer.status == 2
    assert "--mirror-only needs a mirror" in answer.stderr


def test_gc_of_a_host_lists_its_repositories_or_says_what_to_name(sample, command, registry, past):
    client = Client()
    document = {"schemaVersion": 2, "manifests": []}
    data = json.dumps({"mediaType": memory_registry.INDEX, **document}).encode()
    for name in ("b/x", "a/y"):
        client.put_manifest(registry.repository(name), data, memory_registry.INDEX, tag="theirs")
    found = json_of(command("registry", "gc", registry.host, "--json"))
    assert [sweep["repository"] for sweep in found] == [
        f"{registry.host}/a/y", f"{registry.host}/b/x"
    ]  # fmt: skip
    assert {reason for sweep in found for reason in sweep["kept"]} == {"not this project's"}
    registry.faults.append(Fault("GET /v2/_catalog", status=404))
    answer = command("registry", "gc", registry.host)
    assert answer.status == 7
    assert f"{registry.host} does not list its repositories" in answer.stderr
    assert f"imgbuild registry gc {registry.host}/REPOSITORY" in answer.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["registry.example", "--delete"], "--delete needs one repository"),
        ([PLACE, "--ref", "--all"], "--ref needs a git revision"),
        ([PLACE, "--older-than", "soon"], "is not a time span"),
        ([PLACE, "--revisions", "0"], "revisions"),
    ],
)
def test_gc_refuses_what_it_does_not_understand(sample, command, past, words, said):
    answer = command("registry", "gc", *words)
    assert answer.status == 2
    assert said in answer.stderr


def test_the_working_tree_names_what_is_not_committed_yet(sample, past):
    found = gc_roots.named(project.find(sample.folder), 1, ["HEAD"], strict=True)
    image = sample.seal.arch[next(iter(sample.seal.arch))]
    assert {sample.seal.digest, image.config, image.layers[0].digest} <= found.digests
    assert found.targets == {TARGET}
    assert {TARGET, f"{TARGET}-x86_64", f"{TARGET}-x86_64-inputs", f"{TARGET}-base"} <= found.tags
