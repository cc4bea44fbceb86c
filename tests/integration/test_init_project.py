"""Tests `init` for projects against the real index, and for a git repository."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import prepared_program

pytestmark = pytest.mark.network

REQUIREMENTS = """\
torch==2.6.0+cu124
vllm==0.8.5.post1
transformers==4.51.3
trl>=0.17
wandb==0.19.8
hydra-core==1.3.2
deepspeed
flash-attn==2.7.4.post1
"""


def imgbuild(folder: Path, *words: str, status: int = 0) -> dict[str, Any]:
    """The JSON output of a verb in `folder`."""
    done = prepared_program.run_prepared((*words, "--json"), cwd=folder, env=os.environ)
    assert done.returncode == status, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def row(folder: Path) -> dict[str, Any]:
    (entry,) = yaml.safe_load((folder / "matrix.yaml").read_text())["targets"].values()
    return dict(entry)


def test_published_project_is_initialized(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(REQUIREMENTS)
    answer = imgbuild(tmp_path, "init")
    choice = answer["choice"]
    assert answer["target"] == "cu124-vllm0.8.5"
    changes = {each["package"]: each for each in choice["chosen"]["changed"]}
    assert changes["wandb"]["wanted"] == "==0.19.8"
    assert changes["antlr4-python3-runtime"]["by"] == "hydra-core 1.3.2"
    (advice,) = choice["advice"]
    assert advice["file"] == (
        "flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"
    )
    entry = row(tmp_path)
    assert entry["like"] == "cu124-vllm0.8.5"
    assert set(entry["exclude"]) == {"flash-attn"}
    assert entry["requirements"] == ["requirements.txt"]


def test_unsatisfiable_project_is_refused(tmp_path: Path) -> None:
    lines = ("torch==2.6.0", "vllm==0.8.99", "nosuch-package-of-anyone", "numpy==1.21.0")
    (tmp_path / "requirements.txt").write_text("\n".join(lines))
    answer = imgbuild(tmp_path, "init", status=8)
    places = [reason.partition(": ")[0] for reason in answer["reasons"]]
    assert sorted(places) == [f"requirements.txt:{number}" for number in (2, 3, 4)]
    assert [path.name for path in tmp_path.iterdir()] == ["requirements.txt"]


@pytest.mark.long
def test_python_without_a_wheel_for_a_pin_is_not_chosen(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("vllm==0.5.0\nwandb==0.15.3\nnltk\n")
    answer = imgbuild(tmp_path, "init")  # vLLM 0.5.0 has wheels for Python 3.11, not for 3.13
    assert answer["choice"]["chosen"]["python"].startswith("3.11")
    assert answer["choice"]["excluded"] == {}
    assert set(answer["choice"]["sdists"]) == {"pathtools"}  # of wandb, on every Python
    assert row(tmp_path)["cuda"] == "12.1"


def test_newer_added_package_sets_a_later_cutoff_date(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.6.0\nvllm\nmath-verify==0.8.0\n")
    imgbuild(tmp_path, "init")
    assert row(tmp_path)["extends"] == "cu124-vllm"
    assert row(tmp_path)["as_of"].isoformat() == "2025-07-03"


def test_project_is_read_from_git_revision(tmp_path: Path) -> None:
    repository, here = tmp_path / "repository", tmp_path / "here"
    (repository / "train").mkdir(parents=True)
    here.mkdir()
    git = ("git", "-C", str(repository), "-c", "user.name=n", "-c", "user.email=n@example.org")
    subprocess.run([*git, "init", "--quiet"], check=True)
    for number, version in enumerate(("4.51.3", "4.52.4")):
        text = f"torch==2.6.0\ntransformers=={version}\n-c bounds.txt\n"
        (repository / "train/requirements.txt").write_text(text)
        (repository / "train/bounds.txt").write_text("numpy<3\n")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "--message", version], check=True)
        subprocess.run([*git, "tag", f"v{number}"], check=True)
    imgbuild(here, "init", "--from", f"git+file://{repository}@v0#subdirectory=train")
    assert row(here)["extends"] == "cu124-vllm0.8.5"
    (name,) = row(here)["requirements"]
    assert "4.51.3" in (here / name).read_text()
    assert (here / name).with_name("bounds.txt").is_file()
    assert {path.name for path in here.iterdir()} == {"matrix.yaml", ".imgbuild"}
