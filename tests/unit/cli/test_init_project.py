"""Tests `init` in a project folder: files read and written, chosen target, output and errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from imgbuild.cache.store import Store
from imgbuild.cli import _project_report
from imgbuild.cli import init as verb
from imgbuild.errors import LockStale
from imgbuild.learn.loop import add_constraints
from imgbuild.lock import published
from imgbuild.matrix import project_paths
from imgbuild.matrix.constraints import Constraint
from imgbuild.resolve.choose import TargetCandidate
from tests.support import folder_index
from tests.support.inprocess_project import Command, enter_folder, unwrap_text
from tests.support.local_index import LocalIndex, sdist_bytes

MET = "torch==2.6.0+cu124\nvllm>=0.8\ntransformers==4.51.3  # as tested\ntrl==0.18.2\n"
TARGET = "cu124-vllm0.8.5"


@pytest.fixture
def imgbuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    enter_folder(tmp_path, monkeypatch)
    return Command(monkeypatch, capsys)


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalIndex:
    """The index that `init` uses, with the packages that a test publishes."""
    files = LocalIndex()
    folder_index.keep_facts(monkeypatch)
    monkeypatch.setattr(
        verb, "load_matrix", lambda _: folder_index.catalogue_with(files, tmp_path / "index")
    )
    return files


def require(text: str, name: str = "requirements.txt") -> None:
    Path(name).write_text(text, encoding="utf-8")


def row() -> dict[str, object]:
    (found,) = yaml.safe_load(Path("matrix.yaml").read_text())["targets"].values()
    return dict(found)


def test_target_that_meets_all_requirements_is_extended(imgbuild: Command) -> None:
    require(MET)
    done = imgbuild("init", status=0)
    assert row() == {
        "extends": TARGET,
        "summary": "the image of project",
        "requirements": ["requirements.txt"],
        "arch": ["x86_64"],
    }
    assert "read requirements.txt: 4 requirements, CUDA 12.4" in done.stderr
    assert "next: imgbuild lock && imgbuild run -- python SCRIPT" in done.stderr
    assert done.stdout.splitlines()[1].split()[:2] == [TARGET, "0"]
    assert f"extends {TARGET}: 4 requirements met" in done.stdout
    assert published.load_matrix(Path("matrix.yaml")).targets["project"].cuda == "12.4"


def test_init_suggests_a_command_that_runs_the_only_script(imgbuild: Command) -> None:
    require(MET)
    require("", "train job.py")
    assert imgbuild("init").stderr.endswith("imgbuild run -- python 'train job.py'\n")
    Path("matrix.yaml").unlink()
    require("", "main.py")
    assert imgbuild("init").stderr.endswith("imgbuild run -- python SCRIPT\n")
    done = imgbuild("audit", "--code", "main.py")
    assert done.status == LockStale.exit_code
    text = " ".join(done.stderr.split())
    assert "run imgbuild lock project; to audit" in text
    assert f"imgbuild audit {TARGET} --code PATH" in text


def checkout(folder: Path) -> Path:
    """A checkout of imgbuild in which only TARGET is locked."""
    (folder / "images").mkdir(parents=True)
    catalogue = project_paths.catalogue_project()
    shutil.copy(catalogue.matrix, folder)
    shutil.copytree(catalogue.images / TARGET, folder / "images" / TARGET)
    return folder


def test_init_can_use_a_target_of_a_checkout(imgbuild: Command, tmp_path: Path) -> None:
    require(MET)
    clone = checkout(tmp_path / "clone")
    done = imgbuild("init", "--lock", str(clone), status=0)
    assert row()["requirements"] == ["requirements.txt"]
    assert yaml.safe_load(Path("matrix.yaml").read_text())["published"] == {
        TARGET: {"lock": f".imgbuild/published/{TARGET}", "from": str(clone)}
    }
    assert done.stdout.count("cu124-") == 3  # its line of the table, the heading, the row


@pytest.mark.parametrize("select", ["--target", "--extends"])
def test_init_refuses_a_target_without_a_lock(
    imgbuild: Command, tmp_path: Path, select: str
) -> None:
    clone = str(checkout(tmp_path / "clone"))
    if select == "--target":
        require(MET)
    refused = imgbuild("init", "ours", "--lock", clone, select, "cu124-vllm", status=3)
    assert unwrap_text(refused.stderr).endswith(
        "error: cu124-vllm is not locked hint: in a clone of imgbuild, run: imgbuild lock"
        " cu124-vllm, then in this folder: imgbuild init --lock CLONE"
    )
    absent = imgbuild("init", "ours", "--lock", clone, "--extends", "absent")
    assert "no locked target absent" in unwrap_text(absent.stderr)
    assert not Path("matrix.yaml").exists()


def test_init_does_not_change_existing_files(imgbuild: Command) -> None:
    require(MET)
    before = {name: f"{name} of the project\n" for name in ("README.md", ".gitignore", "Makefile")}
    for name, text in before.items():
        Path(name).write_text(text)
    assert imgbuild("init").status == 0
    assert {name: Path(name).read_text() for name in before} == before
    new = {path.name for path in Path().iterdir()} - before.keys()
    assert new == {"requirements.txt", "matrix.yaml", ".imgbuild"}
    assert Path(".imgbuild/.gitignore").read_text().splitlines()[-1] == "build/"
    matrix = Path("matrix.yaml").read_bytes()
    again = imgbuild("init", status=2)
    assert "matrix.yaml already exists" in again.stderr
    assert "imgbuild add PACKAGE" in again.stderr
    assert Path("matrix.yaml").read_bytes() == matrix


def test_requirement_for_a_different_version_creates_a_row_with_like(
    imgbuild: Command, index: LocalIndex
) -> None:
    index.wheel("transformers", "4.52.3")
    require(MET.replace("4.51.3", "4.52.3"))
    done = imgbuild("init", "my-image", status=0)
    assert "changed: transformers 4.5" in done.stdout
    keep = "rm matrix.yaml && imgbuild init --relax transformers"
    assert f"to keep the versions of {row()['like']}, run: {keep}" in done.stdout
    assert "(requirements.txt:3)" in done.stdout
    assert row()["like"].startswith("cu124-")  # type: ignore[attr-defined]
    assert "as_of" in row()


def test_requested_gpu_is_required_by_a_row_with_like(imgbuild: Command, index: LocalIndex) -> None:
    index.wheel("transformers", "4.52.3")
    require(MET.replace("4.51.3", "4.52.3"))
    assert imgbuild("init", "--gpu", "H100").status == 0
    assert "like" in row()
    assert row()["gpu"] == ["9.0"]


def test_table_of_init_fits_80_columns(imgbuild: Command, index: LocalIndex) -> None:
    index.wheel("transformers", "4.52.3")
    require("transformers==4.52.3\nvllm\nverl\n")
    lines = imgbuild("init").stdout.splitlines()
    assert lines[0].split() == [*_project_report.HEAD]
    assert len(lines[1:4]) == 3
    assert max(map(len, lines[:4])) <= 80
    widest = TargetCandidate(
        target="cu128-unsloth2026.10", form="like", met=(), added=("a",) * 120, changed=(),
        python="3.11.2", python_accepted=False, cuda="12.8", as_of="2026-01-01",
        driver="580.65.06", gpu=("7.5", "12.1"), size=5_300_000_000, tested="multi-gpu",
    )  # fmt: skip
    assert max(map(len, _project_report.candidate_table([widest]))) <= 80


def test_init_lists_all_impossible_requirements(imgbuild: Command, index: LocalIndex) -> None:
    index.wheel("peft", "0.15.0")
    index.wheel("old", "1.0", tag=folder_index.OLD_PYTHON)
    index.add("nat", "nat-1.0.tar.gz", sdist_bytes("nat", "1.0", {"setup.py": b"ext_modules"}))
    require(f"{MET}peft==0.99\nnosuch\nold==1.0\ntranzformers\nnat\n")
    message = unwrap_text(imgbuild("init", status=8).stderr)
    assert "5 requirements of the project cannot be satisfied with Python 3.11" in message
    assert "requirements.txt:5: peft==0.99: the index has no such version" in message
    assert "requirements.txt:6: nosuch: the index has no such package" in message
    assert "requirements.txt:7: old==1.0: no wheel for Python 3.11" in message
    assert "tranzformers: the index has no such package; nearest: transformers" in message
    assert "requirements.txt:9: nat: only an sdist that requires a compiler exists" in message
    assert "--exclude PACKAGE" in message
    assert {path.name for path in Path().iterdir()} == {"requirements.txt"}


def test_init_names_the_contradicting_pins_in_its_error(
    imgbuild: Command, index: LocalIndex
) -> None:
    requires = ["transformers<4.50", 'peft>=0.15; extra == "lora"', "numpy"]
    index.wheel("trainer", "1.0", requires)
    index.wheel("transformers", "4.51.3")
    index.wheel("peft", "0.14.0", ["transformers"])
    require("transformers==4.51.3\ntrainer[lora]==1.0\npeft==0.14.0\n")
    message = unwrap_text(imgbuild("init", status=8).stderr)
    assert (
        "requirements.txt:2: trainer[lora]==1.0: requires transformers<4.50, but"
        " transformers==4.51.3 is required (requirements.txt:1)"
    ) in message
    assert "requires peft>=0.15, but peft==0.14.0 is required (requirements.txt:3)" in message
    assert not Path("matrix.yaml").exists()


def test_override_can_contradict_a_requirement(imgbuild: Command, index: LocalIndex) -> None:
    index.wheel("trainer", "1.0", ["transformers<4.50"])
    require(
        '[project]\nname = "x"\nversion = "1"\ndependencies = ["trainer==1.0"]\n'
        '[tool.uv]\noverride-dependencies = ["transformers==4.51.3"]\n',
        "pyproject.toml",
    )
    assert imgbuild("init").status == 0


def test_init_reports_that_a_required_version_is_a_nightly_build(
    imgbuild: Command, index: LocalIndex
) -> None:
    index.wheel("vllm", "0.8.5")
    require("torch\nvllm==0.8.6.dev31+g1234567\n")
    done = imgbuild("init", status=8)
    assert "it is a nightly build; require the wheel by URL" in unwrap_text(done.stderr)


def test_init_accepts_a_pure_python_package_without_a_wheel(
    imgbuild: Command, index: LocalIndex
) -> None:
    index.add("scorer", "scorer-1.0.tar.gz", sdist_bytes("scorer", "1.0", {"scorer.py": b""}))
    require(f"{MET}scorer\n")
    imgbuild("init", status=0)
    reason = yaml.safe_load(Path("matrix.yaml").read_text())["sdists"]["scorer"]["reason"]
    assert reason == "scorer 1.0 is published only as an sdist of Python code"


def test_pure_python_sdist_of_a_dependency_is_built(imgbuild: Command, index: LocalIndex) -> None:
    def source(name: str, files: dict[str, bytes]) -> None:
        index.add(name, f"{name}-1.0.tar.gz", sdist_bytes(name, "1.0", files))

    extras = (f'{name} ; extra == "plots"' for name in ("paint", "fast"))
    index.wheel("evaluator", "1.0", ["scorer", *extras])
    source("scorer", {"setup.py": b"", "PKG-INFO": b"Name: scorer\nRequires-Dist: counter>=1\n\n"})
    lines = b"words\n\n[:sys_platform == 'win32']\nwindows\n\n[extra]\npaint\n"
    source("counter", {"setup.py": b"", "counter.egg-info/requires.txt": lines})
    source("words", {"words.py": b""})
    source("fast", {"setup.py": b"ext_modules"})
    for name in ("paint", "windows"):
        source(name, {"setup.py": b""})
    require(f"{MET}evaluator\n")
    imgbuild("init", status=0)
    sdists = yaml.safe_load(Path("matrix.yaml").read_text())["sdists"]
    assert set(sdists) == {"scorer", "counter", "words"}


def test_target_without_a_compatible_version_of_an_addition_is_not_extended(
    imgbuild: Command, index: LocalIndex
) -> None:
    index.wheel("painter", "1.0")
    index.wheel("painter", "2.0", ["transformers>=4.60"])
    index.wheel("painter", "2.1", ["transformers>=5"])
    require(f"{MET.replace('==4.51.3', '')}painter>=2\n")
    done = imgbuild("init", status=0)
    assert "like" in row()
    assert "-> >=5 (painter 2.1)" in done.stdout


def test_constraint_learned_by_an_earlier_lock_is_considered(
    imgbuild: Command, index: LocalIndex, tmp_path: Path
) -> None:
    index.wheel("extra", "1.0")
    require(f"{MET}extra==1.0\n")
    assert imgbuild("init").status == 0
    assert row()["extends"] == TARGET
    Path("matrix.yaml").unlink()
    learned = Constraint(
        package="extra", versions="==1.0", needs="transformers>=4.52", check="imports"
    )
    add_constraints(Path(".imgbuild/images"), [learned], Store.open(tmp_path / "cache"))
    done = imgbuild("init")
    assert row()["like"] == TARGET
    assert "changed: transformers 4.51.3 -> >=4.52 (extra 1.0)" in done.stdout


def test_target_compatible_with_an_older_addition_is_extended(
    imgbuild: Command, index: LocalIndex
) -> None:
    index.wheel("painter", "2.0", ["transformers>=4.40"])
    index.wheel("painter", "2.1", ["transformers>=5"])
    require(f"{MET}painter>=2\n")
    imgbuild("init", status=0)
    assert row()["extends"] == TARGET


def test_init_changes_a_pin_only_on_request(imgbuild: Command, index: LocalIndex) -> None:
    require(MET.replace("4.51.3", "4.51.9"))
    assert "transformers==4.51.9" in imgbuild("init", status=8).stderr
    imgbuild("init", "--relax", "Transformers", status=0)
    relaxed = row()["relax"]["transformers"]  # type: ignore[index]
    assert relaxed["spec"] == "==4.51.3"
    assert row()["extends"] == TARGET
    assert index.published == []


def test_target_requested_by_option_is_extended(imgbuild: Command) -> None:
    require("torch\n")
    assert imgbuild("init", "--target", "cu126-vllm").status == 0
    assert row()["extends"] == "cu126-vllm"


def test_options_select_the_target_of_a_folder_without_requirements(
    imgbuild: Command, index: LocalIndex
) -> None:
    index.wheel("transformers", "4.52.3")
    words = ("--target", TARGET, "--add", "transformers==4.52.3")
    done = imgbuild("init", "own", *words, status=0)
    found = row()
    assert found["like"] == TARGET
    assert {"torch", "trl", "vllm", "transformers==4.52.3"} <= {*found["add"]}  # type: ignore[misc]
    assert "transformers" not in found["add"]  # type: ignore[operator]
    assert f"like {TARGET}\n" in done.stdout
    lock = json.loads(Path(f".imgbuild/published/{TARGET}/lock.json").read_text())
    assert str(found["as_of"]) >= lock["as_of"]
    Path("matrix.yaml").unlink()
    imgbuild("init", "own", "--cuda", "12.6", status=0)
    assert row()["extends"] == "cu126-vllm"
    Path("matrix.yaml").unlink()
    done = imgbuild("init", "own", "--extends", TARGET, "--add", "torch==2.5.1", status=2)
    assert "imgbuild init --target" in unwrap_text(done.stderr)


def test_requested_target_is_extended_regardless_of_python(imgbuild: Command) -> None:
    require("torch\n")
    require("3.12\n", ".python-version")
    assert imgbuild("init", "--extends", "cu126-vllm").status == 0
    assert row()["extends"] == "cu126-vllm"
    assert "as_of" not in row()


def test_extras_option_applies_only_to_its_file(imgbuild: Command, index: LocalIndex) -> None:
    index.wheel("first", "1.0")
    index.wheel("second", "1.0")
    require(
        '[project]\nname = "x"\nversion = "1"\ndependencies = ["torch"]\n'
        '[project.optional-dependencies]\nmore = ["second"]\n',
        "pyproject.toml",
    )
    require("first\n-c bounds.txt\n")
    require("torch<3\n", "bounds.txt")
    done = imgbuild(
        "init",
        "--from",
        "pyproject.toml",
        "--from",
        "requirements.txt",
        "--extra",
        "more",
        status=0,
    )
    assert row()["extras"] == ["more"]
    assert row()["requirements"] == ["pyproject.toml", "requirements.txt"]
    assert "added: first, second\n" in done.stdout


def test_requirement_that_changes_the_extended_target_is_refused(
    imgbuild: Command, index: LocalIndex
) -> None:
    index.wheel("transformers", "4.52.3")
    require("transformers==4.52.3\n")
    done = imgbuild("init", "--extends", "cu126-vllm", status=8)
    assert "transformers 4.53.3 -> ==4.52.3 (requirements.txt:1)" in unwrap_text(done.stderr)
    assert "imgbuild init --target cu126-vllm" in done.stderr


@pytest.mark.parametrize(
    ("options", "cuda"),
    [
        (["--driver", "535"], "12"),
        (["--gpu", "B200"], "1"),
        (["--cuda", "12.6"], "12.6"),
        (["--driver", "580", "--gpu", "sm_121"], "1"),
    ],
)
def test_init_considers_only_targets_for_the_described_machine(
    imgbuild: Command, options: list[str], cuda: str
) -> None:
    require("torch\n")
    choice = json.loads(imgbuild("init", *options, "--json", status=0).stdout)["choice"]
    assert all(item["cuda"].startswith(cuda) for item in choice["candidates"])
    assert all(item.get("unfit", []) == [] for item in choice["candidates"])


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--driver", "new"], 2, "--driver new: expected a version"),
        (["--gpu", "RTX"], 2, "--gpu RTX: unknown GPU"),
        (["--cuda", "11.0"], 3, "no locked target for x86_64 has CUDA 11.0"),
        (["--driver", "450"], 3, "no target can run on this machine: CUDA"),
        (["--target", "nosuch"], 3, "no locked target nosuch for x86_64"),
        (["--target", "a", "--extends", "b"], 2, "cannot be combined"),
        (["--from", "absent"], 2, "--from absent: no such file or folder"),
        (["--add", "=="], 2, "invalid requirement: '=='"),
        (["Name"], 2, "invalid name for an image: Name"),
    ],
)
def test_invalid_init_options_are_refused(
    imgbuild: Command, options: list[str], status: int, message: str
) -> None:
    require("torch\n")
    assert message in unwrap_text(imgbuild("init", *options, status=status).stderr)
    assert not Path("matrix.yaml").exists()


def test_result_of_init_is_printed_as_json(imgbuild: Command) -> None:
    require(f"{MET}-e ./elsewhere\n")
    Path("elsewhere").mkdir()
    document = json.loads(imgbuild("init", "--json").stdout)
    assert document["form"] == "extends"
    assert document["target"] == TARGET
    assert document["choice"]["candidates"][0]["met"] == ["torch", "transformers", "trl", "vllm"]
    assert document["read"]["files"] == ["requirements.txt"]


def test_init_reports_an_incompatible_python_immediately(
    imgbuild: Command, index: LocalIndex
) -> None:
    index.wheel("gadget", "0.15.0")
    require(
        '[project]\nname = "x"\nversion = "1"\nrequires-python = "==3.12.*"\n'
        'dependencies = ["gadget", "transformers==4.51.99"]\n',
        "pyproject.toml",
    )
    index.wheel("transformers", "4.51.99")
    refused = imgbuild("init", status=8)
    assert "pyproject.toml:4 requires Python ==3.12.*; --relax python uses" in refused.stderr
    assert "of the nearest target:\n    like cu" in refused.stderr
    assert "\n    added: gadget\n    changed: transformers 4." in refused.stderr
    assert "-> ==4.51.99 (pyproject.toml:5)" in refused.stderr
    assert not Path("matrix.yaml").exists()
    done = imgbuild("init", "--relax", "python", status=0)
    message = (
        "the project requires Python ==3.12.* (pyproject.toml:4); images have Python 3.11 or 3.13"
    )
    assert message in unwrap_text(done.stderr)
    unlocked = (
        "cu130-vllm0.33.0-py312 has Python 3.12, and is not locked; in a clone of imgbuild, run:"
        " imgbuild lock cu130-vllm0.33.0-py312 (docs/howto/python-version.md)"
    )
    assert unlocked in unwrap_text(done.stderr)
    assert " (!) " in done.stdout
    assert "like" in row()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--driver", "٥٣٥", "expected a version"),
        ("--gpu", "٩.0", "unknown GPU"),
        ("--cuda", "١٢.٤", "expected a CUDA release with two numbers"),
        ("--from", "~nouser/requirements.txt", "no such file or folder"),
    ],
)
def test_invalid_value_of_an_init_option_is_refused(
    imgbuild: Command, option: str, value: str, message: str
) -> None:
    assert f"{option} {value}: {message}" in imgbuild("init", option, value, status=2).stderr


def test_extras_and_groups_that_are_not_selected_are_listed(imgbuild: Command) -> None:
    require(
        '[project]\nname = "x"\nversion = "1"\n[project.optional-dependencies]\nfast = ["vllm"]\n'
        'Slow_Too = ["trl"]\n[dependency-groups]\ntrain = ["trl"]\n',
        "pyproject.toml",
    )
    shown = imgbuild("init").stderr
    assert "--extra accepts fast, slow-too\n" in shown
    assert "--group accepts train\n" in shown
    Path("matrix.yaml").unlink()
    shown = imgbuild("init", "--extra", "Slow_Too", "--group", "train").stderr
    assert "--extra also accepts fast\n" in shown
    assert "--group accepts" not in shown


def test_packages_in_a_wheel_folder_are_assigned_to_that_folder(imgbuild: Command) -> None:
    wheels = LocalIndex()
    wheels.wheel("team-rewards", "1.4", ["team-base"])
    wheels.wheel("team-base", "2.0")
    Path("wheels").mkdir()
    for item in wheels.published:
        Path("wheels", item.file).write_bytes(item.data)
    require(f"--find-links wheels\n{MET}team-rewards>=1\n")
    done = imgbuild("init", status=0)
    matrix = yaml.safe_load(Path("matrix.yaml").read_text())
    assert matrix["indexes"] == {
        "wheels": {"url": "file:wheels", "upload_times": "none", "flat": True}
    }
    assert row()["indexes"] == {"team-base": "wheels", "team-rewards": "wheels"}
    assert "from the index file:wheels (requirements.txt:1)" in unwrap_text(done.stderr)
    assert (
        published.load_matrix(Path("matrix.yaml")).targets["project"].indexes["team-rewards"]
        == "wheels"
    )


def test_outputs_are_written_to_the_imgbuild_folder(imgbuild: Command) -> None:
    require(MET)
    assert imgbuild("init").status == 0
    done = imgbuild("run", "--", "python", "train.py", status=5)
    assert ".imgbuild/images/project/lock.json" in done.stderr
    assert "imgbuild lock project" in done.stderr


def test_commands_for_one_target_list_targets_if_none_is_given(imgbuild: Command) -> None:
    require(MET)
    assert imgbuild("init").status == 0
    text = Path("matrix.yaml").read_text()
    second = f"  second:\n    extends: {TARGET}\n    summary: another\n"
    Path("matrix.yaml").write_text(text.rstrip() + "\n" + second)
    for words_given in (["run", "--", "true"], ["shell"], ["digest"], ["lock"], ["build"]):
        assert "project, second" in imgbuild(*words_given, status=3).stderr
