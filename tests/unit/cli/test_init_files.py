"""Tests which files of a project `imgbuild init` reads, copies and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.inprocess_project import Command, unwrap_text
from tests.unit.cli.test_init_project import MET, TARGET, imgbuild, index, require, row

__all__ = ("imgbuild", "index")


def test_project_files_in_another_folder_are_copied(imgbuild: Command, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/requirements.txt").write_text(f"{MET}-c bounds.txt\n")
    (tmp_path / "other/bounds.txt").write_text("numpy<3\n")
    assert imgbuild("init", "--from", "../other").status == 0
    assert row()["requirements"] == [".imgbuild/read/other/requirements.txt"]
    assert Path(".imgbuild/read/other/bounds.txt").read_text() == "numpy<3\n"


def test_included_requirements_file_is_listed_once(imgbuild: Command) -> None:
    require(f"{MET}-c bounds.txt\n-r more.txt\n")
    require("numpy<3\n", "bounds.txt")
    require("einops\n", "more.txt")
    assert imgbuild("init").status == 0
    assert row()["requirements"] == ["requirements.txt"]


def test_requirements_file_extended_by_a_dockerfile_is_reported(imgbuild: Command) -> None:
    require(MET)
    require(
        "FROM verlai/verl:app-verl0.4-vllm0.8.5-mcore0.12.1\nCOPY requirements.txt .\n"
        "RUN pip install -r requirements.txt && pip install numpy==1.26.4\n",
        "Dockerfile",
    )
    done = imgbuild("init", status=0)
    assert row()["extends"] == TARGET
    assert row()["requirements"] == ["requirements.txt", "Dockerfile"]
    (left_out,) = (line for line in done.stderr.splitlines() if "omitted Dockerfile:1" in line)
    assert "megatron-core==0.12.1" in left_out


def test_dockerfile_based_on_a_target_shows_how_to_compare_targets(imgbuild: Command) -> None:
    require(MET)
    require("FROM registry.example:5000/rl/images:cu130-vllm0.26.0\n", "Dockerfile")
    done = imgbuild("init", "--target", TARGET, status=0)
    assert "Dockerfile:1 is based on cu130-vllm0.26.0; to show how" in done.stderr
    assert f"imgbuild diff cu130-vllm0.26.0 {TARGET}" in done.stderr


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (["training/requirements.txt", "serving/requirements.txt"], "a separate project"),
        (["requirements_torch26.txt", "requirements_torch28.txt"], "may be an alternative"),
        (["install_verl.sh", "scripts/setup.sh"], "one of several scripts"),
    ],
)
def test_init_refuses_a_project_with_alternative_files(
    imgbuild: Command, files: list[str], reason: str
) -> None:
    for file in files:
        Path(file).parent.mkdir(exist_ok=True)
        require("pip install wandb\n" if file.endswith(".sh") else MET, file)
    refused = imgbuild("init", status=2)
    for file in files:
        assert f"{file}: {reason}" in unwrap_text(refused.stderr)
    assert not Path("matrix.yaml").exists()
    assert imgbuild("init", "--extends", TARGET).status == 0


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("training/requirements.txt", MET),
        ("scripts/setup_env.sh", "pip install -q \\\n  torch==2.6.0\n"),
        ("Makefile", "VENV = .venv\nsetup:\n\t@pip install torch==2.6.0\n"),
    ],
)
def test_usual_install_file_in_a_subfolder_is_read(imgbuild: Command, file: str, text: str) -> None:
    Path(file).parent.mkdir(exist_ok=True)
    require(text, file)
    imgbuild("init", status=0)
    assert row()["requirements"] == [file]


def test_conda_package_missing_from_index_is_excluded(imgbuild: Command) -> None:
    require(
        "dependencies:\n  - pytorch=2.6.0\n  - some-tool=1.2\n  - pip:\n    - trl\n",
        "environment.yml",
    )
    imgbuild("init", status=0)
    assert row()["exclude"] == {"some-tool": "a Conda package that is missing from the index"}
    require("dependencies:\n  - pytorch=2.6.0\n  - pip:\n    - some-tool\n", "environment.yml")
    Path("matrix.yaml").unlink()
    assert "some-tool: the index has no such package" in imgbuild("init").stderr


def test_pipenv_files_are_reported_and_nothing_is_written(imgbuild: Command) -> None:
    require('[packages]\ntorch = "~=2.6.0"\n', "Pipfile")
    refused = imgbuild("init", status=2)
    assert "Pipfile: pipenv files are not supported" in unwrap_text(refused.stderr)
