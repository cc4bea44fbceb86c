"""Tests `imgbuild why` and `imgbuild tree` in a project whose wheels depend on each other."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from imgbuild.cache.store import Store
from imgbuild.errors import InputError, NothingSelected
from imgbuild.matrix.load import load_matrix
from imgbuild.values import Arch
from tests.support import dependent_project, inprocess_project, samples
from tests.support.inprocess_project import TARGET, Command, unwrap_text

ROOT = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = inprocess_project.enter_folder(tmp_path, monkeypatch)
    dependent_project.write_project(folder)
    return folder


@pytest.mark.usefixtures("project")
def test_why_command_with_target_before_package_is_refused_with_a_hint(imgbuild: Command) -> None:
    done = imgbuild("why", TARGET, "torch")
    assert (done.status, done.stdout) == (2, "")
    assert f"hint: run imgbuild why torch {TARGET}\n" in done.stderr


@pytest.mark.usefixtures("project")
def test_why_command_lists_the_dependents_of_a_package(imgbuild: Command) -> None:
    done = imgbuild("why", "torch", TARGET, "--offline", status=0)
    *lines, layer, _ = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines == [
        f"torch 2.6.0 in {TARGET} (x86_64)",
        f"target {TARGET} ==2.6.0, a pin of the matrix",
        "trl 0.18.2 >=2.5",
        "vllm 0.8.5.post1 ==2.6.0",
        "as_of uploaded before 2025-06-20",
        "all bounds combined: >=2.5,==2.6.0",
        "newer in the matrix: 2.11.0 in cu130-vllm (not locked)",
    ]
    assert layer == "layer 5, group-3, with 1 other package: another version of torch changes only"
    (explanation,) = json.loads(imgbuild("why", "Torch", TARGET, "--json").stdout)
    assert [dependent["package"] for dependent in explanation["dependents"]] == ["trl", "vllm"]
    digests = json.loads(Path("images", TARGET, "digests.json").read_text())
    sizes = [each["size"] for each in digests["arch"]["x86_64"]["layers"]]
    assert (explanation["layer"]["name"], explanation["layer"]["size"]) == ("group-3", sizes[4])
    assert [dependent["requirement"] for dependent in explanation["dependents"]] == [
        "torch>=2.5",
        "torch==2.6.0",
    ]


@pytest.mark.usefixtures("project")
def test_why_command_explains_an_extra_required_by_another_package(imgbuild: Command) -> None:
    assert "trl[bar] 0.18.2" in imgbuild("why", "tqdm", TARGET).stdout


def test_why_command_shows_a_pin_with_its_bounds_and_requirements(
    imgbuild: Command, project: Path
) -> None:
    """Only the pin determines the version of vllm; other versions require a different torch."""
    entry = {"package": "vllm", "version": "0.9.2", "reasons": ["no"], "tried": "2026-11-28"}
    content = {"version": 1, "rows": {}, "refused": {TARGET: [entry]}}
    (project / "images" / "updates.json").write_text(json.dumps(content))
    matrix = project / "matrix.yaml"
    text = matrix.read_text()
    note = "    tested: vLLM is the newest for torch 2.6.\n"
    place = text.index("    summary:")
    matrix.write_text(text[:place] + note + text[place:])
    lines = [" ".join(line.split()) for line in imgbuild("why", "vllm", TARGET).stdout.splitlines()]
    assert "without the pin: any version" in lines
    assert "required exact versions: torch==2.6.0" in lines
    assert "note: vLLM is the newest for torch 2.6" in lines
    assert f"refused: vllm 0.9.2 in {TARGET}: no" in lines
    (reason,) = json.loads(imgbuild("why", "vllm", TARGET, "--json").stdout)
    assert reason["notes"] == ["vLLM is the newest for torch 2.6"]
    assert [need["needs"] for need in reason["exact"]] == ["torch"]


def test_why_command_shows_learned_constraints_with_evidence(
    imgbuild: Command, project: Path
) -> None:
    entry = '{package: vllm, versions: "<1", needs: "torch<2.7", file: vllm/a.py, line: 7}'
    path = project / "images" / "constraints.yaml"
    path.write_text(f"version: 1\nconstraints:\n  - {entry}\n")
    done = imgbuild("why", "torch", TARGET)
    assert "learned: vllm<1 needs torch<2.7 (vllm/a.py:7)" in done.stdout
    assert "<2.7" in done.stdout.partition("combined:")[2]


@pytest.mark.usefixtures("project")
def test_tree_command_prints_dependency_tree_and_inverted_tree(imgbuild: Command) -> None:
    done = imgbuild("tree", TARGET, "vllm")
    assert done.stdout.splitlines() == [
        "vllm 0.8.5.post1",
        "├── torch 2.6.0 [torch==2.6.0]",
        "└── trl 0.18.2 [trl[bar]]",
        "    ├── torch 2.6.0 [torch>=2.5]",
        "    └── tqdm 4.67",
    ]
    done = imgbuild("tree", TARGET, "torch", "--invert", "--depth", "1", "--json")
    assert set(json.loads(done.stdout)["packages"]) == {"torch", "trl", "vllm"}
    assert {"pip 25.0", "torch 2.6.0"} <= set(imgbuild("tree", TARGET).stdout.splitlines())


@pytest.mark.usefixtures("project")
def test_impossible_dependency_requests_are_refused(imgbuild: Command) -> None:
    done = imgbuild("tree", TARGET, "--invert")
    assert (done.status, "--invert requires PACKAGE" in done.stderr) == (InputError.exit_code, True)
    done = imgbuild("why", "toch", TARGET)
    assert (done.status, "did you mean torch?" in done.stderr) == (InputError.exit_code, True)
    done = imgbuild("why", "torch", "nothing")
    assert done.status == NothingSelected.exit_code
    for words in (("torch==2.6",), ("torch", "trl"), ("torch", "trl>=1")):
        done = imgbuild("why", *words)
        hint = f"imgbuild resolve {shlex.join(words)}"
        assert (done.status, hint in done.stderr) == (InputError.exit_code, True)
    for words in (("flash-attn",), ("flash-attn", TARGET)):
        assert "published only as source" in imgbuild("why", *words).stderr


def test_dependency_summary_of_all_targets_fits_80_columns(
    imgbuild: Command, project: Path
) -> None:
    matrix = load_matrix(project / "matrix.yaml")
    names = [TARGET, inprocess_project.UNLOCKED]
    store = Store.open()
    wheels = {}
    for package in ("torch", "pip"):
        path = samples.write_wheel(project, package, "2.11.0")
        wheels[package] = samples.add_to_store(store, path, package, "2.11.0")
    inprocess_project.lock_target(project, matrix, names[1], wheels, (Arch.X86_64, Arch.ARM64))
    store.release()
    lines = imgbuild("why", "torch").stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["target", "torch"], [names[0], "2.6.0"], [names[1], "2.11.0"]
    ]  # fmt: skip
    assert all(len(line) <= 80 for line in lines)
    assert "==2.6.0 (target, vllm)" in lines[1]
    assert imgbuild("why", "absent").status == NothingSelected.exit_code


def test_why_command_shows_requirements_that_exclude_a_missing_package(imgbuild: Command) -> None:
    """Requirements of versions in other targets are shown, newest versions first."""
    matrix = ("--matrix", str(ROOT / "matrix.yaml"), "--arch", "x86_64")
    done = imgbuild("why", "verl", "cu124-vllm0.8.5", *matrix)
    head, *lines = done.stdout.splitlines()
    assert (done.status, head) == (0, "verl is not in cu124-vllm0.8.5 (x86_64)")
    newest = "\n".join(lines).partition("verl 0.6.1")[0]
    assert "    needs transformers!=5.6.0,<5.11,>=5.5.3 (METADATA), not 4.51.3" in newest
    assert "also requires codetiming, hydra-core" in newest
    done = imgbuild("why", "verl", "cu130-vllm0.31.0", *matrix)
    assert "    needs trl<1.13.0 (code), not 1.16.0" in done.stdout
    assert "another Python" not in done.stdout


def test_why_command_shows_the_python_of_targets_with_another_version(imgbuild: Command) -> None:
    matrix = ("--matrix", str(ROOT / "matrix.yaml"), "--arch", "x86_64")
    newer = unwrap_text(imgbuild("why", "vllm", "cu124-vllm", *matrix, "--offline").stdout)
    assert (
        "newer in the matrix: 0.33.0 in cu130-vllm0.33.0 (Python 3.13), cu130-vllm0.33.0-py312"
        " (Python 3.12, not locked); another Python is another base (docs/howto/python-version.md)"
    ) in newer
    absent = imgbuild("why", "verl", "cu130-vllm0.33.0", *matrix, "--offline").stdout
    assert "    locked with Python 3.11, not 3.13\n" in absent
    assert absent.endswith("  another Python is another base (docs/howto/python-version.md)\n")
    refused = imgbuild("why", "python", "cu124-vllm", *matrix)
    assert (refused.status, "has Python 3.11" in refused.stderr) == (InputError.exit_code, True)
    assert "docs/howto/python-version.md" in refused.stderr
    refused = imgbuild("why", "vllm==0.33.0", "python==3.11", *matrix)
    assert "imgbuild resolve vllm==0.33.0 --python 3.11" in refused.stderr
    assert imgbuild("why", "no-such-package", "cu124-vllm", *matrix).status == 2
