"""Tests `imgbuild audit --code` and `list --runs` on a small project."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.lock import lock_file
from imgbuild.lock.resolution import Resolution
from imgbuild.pipeline import cached_code_audit
from imgbuild.pipeline.session import open_session
from imgbuild.values import Arch
from tests.support import extended, samples, wheels
from tests.support.audited_project import TARGET, Project
from tests.support.inprocess_project import Command

TRL = """\
class SFTTrainer:
    def __init__(self, model, processing_class=None):
        self.model = model
"""
GRPO = "class GRPOConfig:\n    def __init__(self, beta=0): ...\n"
PACKAGES = {
    "trl": {"trl/__init__.py": TRL, "trl/grpo.py": GRPO},
    "vllm": {"vllm/__init__.py": "class LLM: ...\n"},
}
BAD = "from trl import SFTTrainer\nSFTTrainer('m', tokenizer=1)\ndef later():\n    import wandb\n"
PASSES = "train.py:2:17: IMG102 passes tokenizer= to trl.SFTTrainer, which trl 1.0 does not accept"
IMPORTS = (
    "train.py:4:5: IMG101 warning: imports wandb, which no package in this package set provides"
)
# The schema of SARIF 2.1.0 for the objects that are written, without additional keys.
TEXT = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 1}},
    "required": ["text"],
    "additionalProperties": False,
}
PHYSICAL = {
    "type": "object",
    "properties": {
        "artifactLocation": {
            "type": "object",
            "properties": {"uri": {"type": "string", "pattern": "^[^ ]+$"}},
            "required": ["uri"],
            "additionalProperties": False,
        },
        "region": {
            "type": "object",
            "properties": {
                "startLine": {"type": "integer", "minimum": 1},
                "startColumn": {"type": "integer", "minimum": 1},
            },
            "required": ["startLine"],
            "additionalProperties": False,
        },
    },
    "required": ["artifactLocation", "region"],
    "additionalProperties": False,
}
RESULT = {
    "type": "object",
    "properties": {
        "ruleId": {"type": "string"},
        "level": {"enum": ["none", "note", "warning", "error"]},
        "message": TEXT,
        "locations": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"physicalLocation": PHYSICAL},
                "required": ["physicalLocation"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["message"],
    "additionalProperties": False,
}
RULE = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "shortDescription": TEXT,
        "fullDescription": TEXT,
        "help": TEXT,
    },
    "required": ["id", "shortDescription", "fullDescription", "help"],  # by GitHub
    "additionalProperties": False,
}
DRIVER = {
    "type": "object",
    "properties": {
        "name": {"const": "imgbuild"},
        "version": {"type": "string"},
        "rules": {"type": "array", "items": RULE, "uniqueItems": True},
    },
    "required": ["name"],
    "additionalProperties": False,
}
SARIF = {
    "type": "object",
    "properties": {
        "$schema": {"type": "string", "pattern": "sarif-2\\.1\\.0"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "tool": {
                        "type": "object",
                        "properties": {"driver": DRIVER},
                        "required": ["driver"],
                        "additionalProperties": False,
                    },
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "results": {"type": "array", "items": RESULT},
                },
                "required": ["tool"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["version", "runs"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for all tests, which keeps facts about published packages."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def imgbuild(
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """The command line in a project with an incorrect script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IMGBUILD_CACHE", str(cache))
    Project(tmp_path, PACKAGES)
    (tmp_path / "train.py").write_text(BAD)
    return Command(monkeypatch, capsys)


@pytest.fixture
def separate_cache(imgbuild: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache with the wheels of the project, of which no module has been read."""
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    Project(tmp_path, PACKAGES)


def test_errors_in_code_have_location_error_code_and_exit_status_4(imgbuild: Command) -> None:
    answer = imgbuild("audit", TARGET, "--code", "train.py")
    assert answer.status == 4
    assert answer.stdout.splitlines() == [
        f"{PASSES}: use processing_class, or install trl<0.16.0",
        f"{IMPORTS}: add the package that provides wandb",
        f"{TARGET} x86_64: 1 error, 1 warning, 0 notes in 1 file of code",
    ]
    assert "imgbuild explain" in answer.stderr


def test_corrected_code_is_audited_again_and_passes(imgbuild: Command, tmp_path: Path) -> None:
    assert imgbuild("audit", TARGET, "--code", "train.py").status == 4
    (tmp_path / "train.py").write_text(BAD.replace("tokenizer", "processing_class"))
    assert imgbuild("audit", TARGET, "--code", "train.py").status == 0


@pytest.mark.parametrize("words", [("--json",), ("--output-format", "json")])
def test_json_output_has_all_fields_of_a_finding_in_code(
    imgbuild: Command, words: tuple[str, ...]
) -> None:
    answer = imgbuild("audit", TARGET, "--code", "train.py", *words)
    report: dict[str, Any] = json.loads(answer.stdout)[0]
    finding = report["findings"][0]
    assert answer.status == 4
    assert (report["target"], report["files"]) == (TARGET, 1)
    assert {name: finding[name] for name in ("code", "file", "line", "column", "instead")} == {
        "code": "IMG102",
        "file": "train.py",
        "line": 2,
        "column": 17,
        "instead": "processing_class",
    }


NOTEBOOK = {"cells": [{"cell_type": "code", "source": ["import trl\n", "from trl import Gone\n"]}]}


def test_sarif_is_valid_2_1_0_with_rules_of_results(imgbuild: Command, tmp_path: Path) -> None:
    (tmp_path / "n.ipynb").write_text(json.dumps(NOTEBOOK))
    words = ("--code", "train.py", "--code", "n.ipynb", "--output-format", "sarif")
    answer = imgbuild("audit", TARGET, *words)
    import jsonschema  # loading it takes a second

    document = json.loads(answer.stdout)
    jsonschema.validate(document, SARIF)
    run = document["runs"][0]
    assert answer.status == 4
    assert [(each["ruleId"], each["level"]) for each in run["results"]] == [
        ("IMG101", "error"),
        ("IMG102", "error"),
        ("IMG101", "warning"),
    ]
    assert run["results"][0]["message"]["text"].startswith("cell 1:2:17: imports Gone from trl")
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["IMG101", "IMG102"]


def test_github_format_has_a_workflow_command_for_each_finding(
    imgbuild: Command, tmp_path: Path
) -> None:
    (tmp_path / "a,b.py").write_text("from trl import Gone\n")
    (tmp_path / "n.ipynb").write_text(json.dumps(NOTEBOOK))
    files = ("--code", "train.py", "--code", "a,b.py", "--code", "n.ipynb")
    words = (*files, "--output-format", "github")
    lines = imgbuild("audit", TARGET, *words).stdout.splitlines()
    assert [re.split("::? ?(?:imports|passes)", line)[0] for line in lines] == [
        "::error file=a%2Cb.py,line=1,col=17,title=IMG101",
        "::error file=n.ipynb,line=1,col=1,title=IMG101::cell 1:2:17",
        "::error file=train.py,line=2,col=17,title=IMG102",
        "::warning file=train.py,line=4,col=5,title=IMG101",
    ]


def test_folder_without_code_is_a_warning(imgbuild: Command, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    answer = imgbuild("audit", TARGET, "--code", "data")
    assert "warning: no code was found in data" in answer.stderr
    assert answer.status == 0


@pytest.mark.parametrize("form", ["text", "github"])
def test_control_characters_in_file_names_are_escaped(
    form: str, imgbuild: Command, tmp_path: Path
) -> None:
    (tmp_path / "red\x1b[31m\n::error::.py").write_text("from trl import Gone\n")
    lines = imgbuild("audit", TARGET, "--code", str(tmp_path), "--output-format", form)
    named = [line for line in lines.stdout.splitlines() if "red" in line]
    assert len(named) == 1
    assert "red\\x1b[31m\\x0a" in named[0]
    assert "\x1b" not in lines.stdout


def test_junit_has_a_failed_case_for_code(imgbuild: Command, tmp_path: Path) -> None:
    imgbuild("audit", TARGET, "--code", "train.py", "--junit", "report.xml")
    text = (tmp_path / "report.xml").read_text()
    assert 'name="code"' in text
    assert "passes tokenizer=" in text


def test_audit_of_a_file_as_target_suggests_the_code_option(imgbuild: Command) -> None:
    answer = imgbuild("audit", "train.py")
    assert answer.status == 2
    assert "imgbuild audit TARGET --code train.py" in answer.stderr


def test_missing_path_of_the_code_option_is_an_error(imgbuild: Command) -> None:
    answer = imgbuild("audit", TARGET, "--code", "gone.py")
    assert answer.status == 2
    assert "gone.py: no such file or folder" in answer.stderr


def test_file_whose_name_is_not_utf_8_is_audited(imgbuild: Command, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / os.fsdecode(b"\xff.py")).write_text(BAD)
    answer = imgbuild("audit", TARGET, "--code", str(folder))
    assert answer.status == 4
    assert r"/caf\xe9/\xff.py:2:17: IMG102 " in answer.stdout
    assert imgbuild("list", "--runs", str(folder), "--arch", "x86_64").status == 0


def test_fork_of_a_package_replaces_the_package_and_is_audited(
    imgbuild: Command, tmp_path: Path
) -> None:
    fork = tmp_path / "fork" / "trl" / "__init__.py"
    fork.parent.mkdir(parents=True)
    fork.write_text(TRL.replace("processing_class", "tokenizer") + "from vllm import Gone\n")
    answer = imgbuild("audit", TARGET, "--code", "train.py", "--replace", "trl=fork")
    assert [line.partition(" ")[0] for line in answer.stdout.splitlines()] == [
        "fork/trl/__init__.py:4:18:",
        "train.py:4:5:",
        TARGET,
    ]
    assert imgbuild("audit", TARGET, "--replace", "verl=fork").status == 2


def test_code_is_audited_against_an_environment(imgbuild: Command, tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    info = site / "trl-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "trl").mkdir()
    (site / "trl" / "__init__.py").write_text(TRL)
    (info / "METADATA").write_bytes(wheels.minimal_metadata("trl", "1.0"))
    (info / "RECORD").write_text("trl/__init__.py,,\ntrl-1.0.dist-info/METADATA,,\n")
    words = ("--environment", str(site), "--python", "3.11", "--code", "train.py", "--offline")
    answer = imgbuild("audit", *words)
    assert answer.status == 4
    assert answer.stdout.startswith("train.py:2:17: IMG102 ")
    fork = tmp_path / "fork" / "trl" / "__init__.py"
    fork.parent.mkdir(parents=True)
    fork.write_text(TRL.replace("processing_class", "tokenizer") + "from vllm import Gone\n")
    replaced = imgbuild("audit", *words, "--replace", "trl=fork")
    places = [line.partition(" ")[0] for line in replaced.stdout.splitlines()]
    assert places[:2] == ["fork/trl/__init__.py:4:1:", "train.py:4:5:"]
    assert imgbuild("audit", *words, "--replace", "gone=fork").status == 2


@pytest.mark.usefixtures("separate_cache")
def test_list_command_shows_which_targets_run_the_code(imgbuild: Command, tmp_path: Path) -> None:
    by_releases = imgbuild("list", "--runs", "train.py", "--arch", "x86_64")
    place = "train.py:4:5: IMG101"
    warning = f"    {place} warning: imports wandb, which no package in this package set provides"
    assert by_releases.stdout.splitlines() == [
        f"{TARGET}  fails: 1 error, 1 warning (by releases: trl)",
        f"    {PASSES}".replace(":2:17:", ":2:1:"),
        warning,
    ]
    assert "add --fetch (parts of wheels with 1.2 kB in all)" in by_releases.stderr
    imgbuild("list", "--runs", "train.py", "--arch", "x86_64", "--fetch")
    assert imgbuild("list", "--runs", "train.py", "--arch", "x86_64").stdout.splitlines() == [
        f"{TARGET}  fails: 1 error, 1 warning",
        f"    {PASSES}",
        warning,
    ]
    (tmp_path / "good.py").write_text("from trl import SFTTrainer\nSFTTrainer('m')\n")
    runs = imgbuild("list", "--runs", "good.py", "--arch", "x86_64", "--json")
    assert [(each["target"], each["state"]) for each in json.loads(runs.stdout)] == [
        (TARGET, "runs")
    ]


def test_list_command_names_the_targets_that_it_cannot_check(
    imgbuild: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = tmp_path / "matrix.yaml"
    row = matrix.read_text().partition(f"  {TARGET}:\n")[2]
    arm = row.replace("[x86_64]", "[arm64]").replace("{arm64: no", "{x86_64: no")
    rows = {"planned": row, "grace": arm}
    matrix.write_text(
        matrix.read_text() + "".join(f"  {name}:\n{text}" for name, text in rows.items())
    )
    text = (tmp_path / f"images/{TARGET}/lock.json").read_text()
    lock = json.loads(text.replace(TARGET, "grace"))
    lock["arch"] = {"arm64": lock["arch"]["x86_64"]}
    (tmp_path / "images/grace").mkdir()
    (tmp_path / "images/grace/lock.json").write_text(json.dumps(lock))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    words = ("list", "--runs", "train.py")
    assert imgbuild(*words).stdout.splitlines()[3:] == [
        "not checked, only for arm64: grace; to check them, add --arch arm64",
        "not checked, not locked: planned; to lock one, run: imgbuild lock TARGET",
    ]
    fits = json.loads(imgbuild(*words, "--json").stdout)
    assert [(each["target"], each["state"]) for each in fits[1:]] == [
        ("grace", "other architecture"),
        ("planned", "not locked"),
    ]
    none = imgbuild("list", "--runs", "train.py", "grace")
    assert none.status == 3
    assert "no selected target is locked for x86_64" in none.stderr
    assert "pass --arch arm64" in none.stderr


@pytest.mark.usefixtures("separate_cache")
def test_result_for_code_that_imports_an_unread_module_is_unknown(
    imgbuild: Command, tmp_path: Path
) -> None:
    """The member list of the wheel is cached, but not the imported module."""
    (tmp_path / "other.py").write_text("import trl\n")
    (tmp_path / "grpo.py").write_text("from trl.grpo import GRPOConfig\nGRPOConfig(wrong=1)\n")
    words = ("list", "--runs", "grpo.py", "--arch", "x86_64")
    imgbuild("audit", TARGET, "--code", "other.py")
    unknown = imgbuild(*words)
    assert unknown.stdout == f"{TARGET}  unknown (not read: trl)\n"
    assert "add --fetch" in unknown.stderr
    [fit] = json.loads(imgbuild(*words, "--json").stdout)
    assert (fit["state"], fit["unread"]) == ("unknown", ["trl"])
    assert fit["command"] == f"imgbuild audit {TARGET} --arch x86_64 --code grpo.py"
    imgbuild(*words, "--fetch")
    assert imgbuild(*words).stdout.startswith(f"{TARGET}  fails: 1 error\n")


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command line in a project with one locked target and an incorrect script."""
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    store = Store.open()
    sources = {name: text.encode() for name, text in PACKAGES["trl"].items()}
    wheel = samples.add_to_store(store, samples.write_wheel(tmp_path, "trl", "1.0", sources), "trl")
    store.release()
    folder = tmp_path / "project"
    folder.mkdir()
    matrix = extended.read_extended(
        extended.create_repository(folder, extended.ROW, samples.lock(wheel))
    )
    lock = lock_file.make_lock(matrix, "ours", {Arch.X86_64: Resolution(wheels=(wheel,))})
    codec.write_document(lock_file.lock_path(folder / "images", "ours"), lock)
    (folder / "train.py").write_text(BAD)
    monkeypatch.chdir(folder)
    return Command(monkeypatch, capsys)


def test_audit_without_paths_reads_the_code_of_the_project(project: Command) -> None:
    answer = project("audit", "--select", "imports", "--json")
    packages, code = json.loads(answer.stdout)
    assert answer.status == 4
    assert packages["findings"] == []
    assert [(each["file"].rpartition("/")[2], each["code"]) for each in code["findings"]] == [
        ("train.py", "IMG102"),
        ("train.py", "IMG101"),
    ]


def test_lock_warns_of_errors_in_project_code(
    project: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    session = open_session(None)
    cached_code_audit.warn_of_code_errors(session, "ours", Arch.X86_64, 200)
    assert "warning" not in capsys.readouterr().err
    project("audit", "--select", "imports")
    Path("worker.py").write_text(f"{BAD}# {'x' * 1_000_000}\n")
    cached_code_audit.warn_of_code_errors(session, "ours", Arch.X86_64, 200)
    warned = capsys.readouterr().err
    assert f"{PASSES}: use processing_class" in warned
    assert "(and in 1 other place)" in warned
    assert warned.count(PASSES) == 1
    cached_code_audit.warn_of_code_errors(session, "ours", Arch.X86_64, 0)
    assert PASSES not in capsys.readouterr().err  # a lock that is up to date ends within a second
    cached_code_audit.warn_of_command_errors(session, "ours", Arch.X86_64)
    assert capsys.readouterr().err == ""  # `run` starts without reading that much


def test_run_checks_command_and_variables_before_the_start(
    project: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    project("audit", "--select", "imports")
    session = open_session(None)
    words = ["llamafactory-cli", "train"]
    cached_code_audit.warn_of_command_errors(
        session, "ours", Arch.X86_64, words, {"NCCL_DEBUG": "INFO"}
    )
    err = capsys.readouterr().err
    message = "runs llamafactory-cli of llamafactory, which is not in the package set"
    assert f"command line:1:17: IMG305 {message}" in err
