"""Tests which files of a project are read by default, and their precedence."""

import json

import pytest

from imgbuild.errors import InputError
from imgbuild.lock.project_requirements import image_roots
from imgbuild.project import uv_lock
from tests.support.user_projects import read_declarations, requirement_texts, unread_reasons

RANGES = """\
[project]
name = "app"
version = "1"
dependencies = ["torch>=2.6", "click==8.2.1", "numpy<2"]
"""


def test_consistent_metadata_and_requirements_are_both_read(tmp_path):
    result = read_declarations(
        tmp_path, {"pyproject.toml": RANGES, "requirements.txt": "torch==2.6.0\nwandb\n"}
    )
    assert requirement_texts(result) == [
        "torch>=2.6",
        "click==8.2.1",
        "numpy<2",
        "torch==2.6.0",
        "wandb",
    ]
    assert not any(each.locked for each in result.requirements)


def test_pinned_requirements_file_within_the_ranges_is_used_as_lock(tmp_path):
    pins = "torch==2.6.0\nclick==8.2.1\nnumpy==1.26.4\nsympy==1.13.1\n"
    result = read_declarations(tmp_path, {"pyproject.toml": RANGES, "requirements.txt": pins})
    assert [each.text for each in result.requirements if each.locked] == pins.split()
    assert result.not_read == ()


def test_contradicting_requirements_file_is_excluded_with_locations(tmp_path):
    pins = "torch==2.5.1\nclick==8.1.8\nnumpy==2.2.5\npeft\n"
    result = read_declarations(tmp_path, {"pyproject.toml": RANGES, "requirements.txt": pins})
    assert requirement_texts(result) == ["torch>=2.6", "click==8.2.1", "numpy<2"]
    reason = unread_reasons(result)["requirements.txt"]
    assert "torch==2.5.1 (requirements.txt:1) against torch>=2.6 (pyproject.toml:4)" in reason
    assert "click==8.1.8 (requirements.txt:2)" in reason
    assert "numpy==2.2.5 (requirements.txt:3)" in reason
    assert result.files == ("pyproject.toml",)


def test_development_and_alternative_requirements_files_are_listed(tmp_path):
    files = {
        "requirements.txt": "torch\n",
        "requirements-dev.txt": "ruff\n",
        "requirements_npu.txt": "torch-npu\n",
        "requirements-sglang.txt": "sglang\n",
        "requirements/vllm.txt": "vllm\n",
        "requirements/docs.txt": "sphinx\n",
        "constraints.txt": "numpy<2\n",
    }
    result = read_declarations(tmp_path, files)
    assert requirement_texts(result) == ["torch"]
    assert requirement_texts(result, "constraint") == ["numpy<2"]
    assert {text: reason.partition(";")[0] for text, reason in unread_reasons(result).items()} == {
        "requirements-dev.txt": "packages for development",
        "requirements_npu.txt": "packages for other hardware",
        "requirements-sglang.txt": "may be an alternative or an addition",
        "requirements/docs.txt": "packages for development",
        "requirements/vllm.txt": "may be an alternative or an addition",
    }


def test_only_project_files_named_by_the_user_are_read(tmp_path):
    files = {
        "pyproject.toml": RANGES,
        "requirements/vllm.txt": "vllm\n-r base.txt\n",
        "requirements/base.txt": "peft\n",
        "requirements.txt": "wandb\n",
    }
    result = read_declarations(tmp_path, files, "requirements/vllm.txt")
    assert requirement_texts(result) == ["vllm", "peft"]
    assert result.files == ("requirements/vllm.txt", "requirements/base.txt")
    assert result.packages == ()


def test_dockerfile_with_project_metadata_adds_only_debian_packages(tmp_path):
    docker = (
        "FROM nvidia/cuda:12.4.1-devel-ubuntu22.04\n"
        "RUN apt-get install -y git-lfs\n"
        "RUN pip install torch flash-attn==2.7.4.post1 -e .[train]\n"
    )
    result = read_declarations(tmp_path, {"pyproject.toml": RANGES, "docker/Dockerfile": docker})
    assert [each.name for each in result.debian] == ["git-lfs"]
    assert [each.name for each in result.cuda] == ["12.4"]
    assert "torch" not in unread_reasons(result)
    assert "only the Dockerfile installs it" in unread_reasons(result)["flash-attn==2.7.4.post1"]
    assert "--extra" in unread_reasons(result)[".[train]"]
    assert requirement_texts(result) == ["torch>=2.6", "click==8.2.1", "numpy<2"]


def test_requirements_file_used_only_by_a_dockerfile_is_reported_once(tmp_path):
    files = {
        "pyproject.toml": RANGES,
        "Dockerfile": "FROM ubuntu\nCOPY . /app\nRUN pip install -r /app/requirements/serve.txt\n",
        "requirements/serve.txt": "fastapi\nuvicorn\nray\nvllm\n",
    }
    note = unread_reasons(read_declarations(tmp_path, files))["-r requirements/serve.txt"]
    assert "Dockerfile; no other file requires fastapi, uvicorn, ray and 1 more" in note


def test_lock_of_a_workspace_without_a_project_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setattr(uv_lock, "_export_pylock", lambda *_: None)
    files = {
        "pyproject.toml": '[tool.uv.workspace]\nmembers = ["a"]\n',
        "uv.lock": "version = 1\npackage = []\n",
    }
    assert "no entry" in unread_reasons(read_declarations(tmp_path, files))["uv.lock"]


def test_dockerfile_with_the_usual_name_is_read_among_several(tmp_path):
    files = {
        "requirements.txt": "torch\n",
        "Dockerfile": "FROM ubuntu:22.04\nRUN apt-get install -y git\n",
        "Dockerfile.rocm": "FROM ubuntu:22.04\nRUN apt-get install -y rocm\n",
        "docker/Dockerfile": "FROM ubuntu:22.04\nRUN apt-get install -y vim\n",
    }
    result = read_declarations(tmp_path, files)
    assert [each.name for each in result.debian] == ["git"]
    assert {"Dockerfile.rocm", "docker/Dockerfile"} <= set(unread_reasons(result))


def test_notebook_is_read_only_if_no_other_project_files_exist(tmp_path):
    notebook = json.dumps({"cells": [{"cell_type": "code", "source": "!pip install trl\n"}]})
    assert requirement_texts(read_declarations(tmp_path / "a", {"train.ipynb": notebook})) == [
        "trl"
    ]
    both = read_declarations(
        tmp_path / "b", {"train.ipynb": notebook, "requirements.txt": "torch\n"}
    )
    assert requirement_texts(both) == ["torch"]
    assert "installs trl, which no other file requires" in unread_reasons(both)["train.ipynb"]
    met = {"train.ipynb": notebook, "requirements.txt": "torch\ntrl\n", "bad.ipynb": "{"}
    assert read_declarations(tmp_path / "d", met).not_read == ()
    several = read_declarations(tmp_path / "c", {"a.ipynb": notebook, "b.ipynb": notebook})
    assert requirement_texts(several) == []
    assert set(unread_reasons(several)) == {"a.ipynb", "b.ipynb"}


def test_projects_in_subfolders_are_ignored(tmp_path):
    files = {
        "requirements.txt": "torch\n",
        "agent/pyproject.toml": '[project]\nname = "agent"\ndependencies = ["vllm==0.8.5"]\n',
        "tools/requirements.txt": "openai==0.28\n",
    }
    result = read_declarations(tmp_path, files)
    assert requirement_texts(result) == ["torch"]
    assert set(unread_reasons(result)) == {"agent/pyproject.toml", "tools/requirements.txt"}


def test_single_conda_environment_in_a_subfolder_is_read(tmp_path):
    environment = "dependencies:\n  - numpy\n  - pip:\n      - trl==0.18.2\n"
    one = {"gym/conda_env.yml": environment, "docs/environment.yml": environment}
    assert requirement_texts(read_declarations(tmp_path / "one", one)) == ["numpy", "trl==0.18.2"]
    several = read_declarations(tmp_path / "several", one | {"atari/environment.yaml": environment})
    assert requirement_texts(several) == []
    assert set(unread_reasons(several)) == {"gym/conda_env.yml", "atari/environment.yaml"}


def test_unfetched_submodules_and_files_of_unsupported_tools_are_reported(tmp_path):
    files = {
        "requirements.txt": "torch\n",
        ".gitmodules": '[submodule "verl"]\n\tpath = verl\n\turl = https://git.example/verl\n',
        "Pipfile": "[packages]\n",
        "install.sh": "pip install vllm\n",
    }
    result = read_declarations(tmp_path, files)
    assert set(unread_reasons(result)) == {"verl", "Pipfile", "install.sh"}
    assert requirement_texts(read_declarations(tmp_path, {}, "install.sh")) == ["vllm"]


def test_contradicting_conda_environment_is_excluded(tmp_path):
    conda = "dependencies: [python=3.9, numpy=2.1]\n"
    result = read_declarations(tmp_path, {"pyproject.toml": RANGES, "environment.yml": conda})
    assert "numpy==2.1.*" in unread_reasons(result)["environment.yml"]
    assert result.python == ()
    pins = {"requirements.txt": "peft==0.4.0\n"}
    conda = "dependencies: [pip: [peft==0.4.0.dev0]]\n"
    result = read_declarations(tmp_path / "development", {**pins, "environment.yml": conda})
    assert "peft==0.4.0.dev0" in unread_reasons(result)["environment.yml"]


def test_modules_of_packages_in_subfolders_are_found_in_these_subfolders(tmp_path):
    script = "from setuptools import setup\nsetup(name='x', package_dir={'': 'src'})\n"
    files = {
        "lib/setup.py": script,
        "lib/src/x/__init__.py": "",
        "install.sh": "cd lib\npip install -e .\n",
        "flat/pyproject.toml": '[project]\nname = "y"\nversion = "1"\n',
        "flat/y/__init__.py": "",
        "requirements.txt": "-e ./flat\n",
    }
    files["flat/pyproject.toml"] += '[tool.setuptools.packages.find]\nwhere = ["."]\n'
    for name, root in (("install.sh", "lib/src"), ("requirements.txt", "flat")):
        (package,) = read_declarations(tmp_path, files, name).packages
        assert package.backend
        assert image_roots(package, "/workspace") == (f"/workspace/{root}",)


def test_setup_py_is_read_if_pyproject_toml_has_no_project_table(tmp_path):
    files = {
        "pyproject.toml": "[tool.black]\nline-length = 100\n",
        "setup.py": "from setuptools import setup\nsetup(name='x', install_requires=['torch'])\n",
    }
    result = read_declarations(tmp_path, files)
    assert requirement_texts(result) == ["torch"]
    assert [each.name for each in result.packages] == ["x"]


def test_dynamic_dependencies_are_read_from_their_file_or_script(tmp_path):
    head = '[project]\nname = "x"\ndynamic = ["version", "dependencies"]\n'
    by_file = head + '[tool.setuptools.dynamic]\ndependencies = {file = ["reqs.txt"]}\n'
    result = read_declarations(tmp_path / "a", {"pyproject.toml": by_file, "reqs.txt": "torch\n"})
    assert [(each.text, str(each.place)) for each in result.requirements] == [
        ("torch", "reqs.txt:1")
    ]
    script = "from setuptools import setup\nsetup(install_requires=['peft'])\n"
    result = read_declarations(tmp_path / "b", {"pyproject.toml": head, "setup.py": script})
    assert requirement_texts(result) == ["peft"]
    result = read_declarations(tmp_path / "c", {"pyproject.toml": head})
    assert "build backend" in unread_reasons(result)["dependencies"]


def test_empty_project_declares_no_requirements(tmp_path):
    result = read_declarations(tmp_path, {"train.py": "import torch\n"})
    assert result.requirements == ()
    assert result.files == ()


def test_engine_of_the_base_image_is_required_if_no_other_file_requires_an_engine(tmp_path):
    files = {
        "requirements.txt": "transformers\n",
        "dockerfile/Dockerfile": "FROM lmsysorg/sglang:latest\nRUN pip install einops\n",
    }
    result = read_declarations(tmp_path, files)
    assert requirement_texts(result) == ["transformers", "sglang"]
    assert "einops" in unread_reasons(result)
    files["dockerfile/Dockerfile"] = "FROM vllm/vllm-openai:v0.8.5\n"
    assert requirement_texts(read_declarations(tmp_path / "pinned", files)) == [
        "transformers",
        "vllm==0.8.5",
    ]
    files["requirements.txt"] = "vllm>=0.9\n"
    assert requirement_texts(read_declarations(tmp_path / "named", files)) == ["vllm>=0.9"]


def test_repository_installed_only_by_a_dockerfile_is_reported_in_a_note(tmp_path):
    files = {
        "requirements.txt": "torch\n",
        "Dockerfile": "FROM ubuntu\nRUN pip install git+https://git.example/kernels.git\n",
    }
    result = read_declarations(tmp_path, files)
    assert result.unnamed == ()
    assert (
        "only the Dockerfile installs it"
        in unread_reasons(result)["git+https://git.example/kernels.git"]
    )


def test_error_for_a_missing_submodule_has_the_git_command(tmp_path):
    files = {
        "requirements.txt": "torch\n-r external/shop/requirements.txt\n",
        ".gitmodules": '[submodule "shop"]\n\tpath = external/shop\n',
    }
    with pytest.raises(InputError) as error:
        read_declarations(tmp_path, files)
    (problem,) = error.value.problems
    assert (problem.file, problem.line) == ("requirements.txt", 2)
    assert "git submodule update --init external/shop" in str(problem)


def test_single_project_in_a_subfolder_is_read_with_its_files(tmp_path):
    files = {"training/setup.py": "from setuptools import setup\nsetup(name='x', version='1')\n",
             "training/requirements.txt": "torch\n"}  # fmt: skip
    result = read_declarations(tmp_path, files)
    assert requirement_texts(result) == ["torch"]
    assert [each.folder for each in result.packages] == ["training"]


def test_debian_packages_of_the_interpreter_are_omitted(tmp_path):
    dockerfile = """\
FROM nvidia/cuda:12.4.1-devel-ubuntu22.04
RUN apt-get update && apt-get install -y python3.10 python3-pip python3.10-venv python3-dev git
RUN pip install ".[train,eval]"
"""
    metadata = "[project]\nname = 'app'\nversion = '1'\ndependencies = ['click']\n"
    result = read_declarations(tmp_path, {"pyproject.toml": metadata, "Dockerfile": dockerfile})
    assert [item.name for item in result.debian] == ["python3-dev", "git"]
    notes = unread_reasons(result)
    for package in ("python3.10", "python3-pip", "python3.10-venv"):
        assert "the image already contains Python" in notes[package]
    assert notes[".[train,eval]"] == "extras are chosen with --extra train --extra eval"
