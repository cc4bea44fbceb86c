"""Compares the declarations of a small project with each type of file with a golden file."""

from __future__ import annotations

import json

import pytest

from tests.support.source_code import ROOT
from tests.support.user_projects import golden_text, read_declarations

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "my-trainer"
version = "0.3.0"
requires-python = ">=3.10,<3.13"
dependencies = [
    # the model
    "torch>=2.6",
    "transformers>=4.50,!=4.52.0",
    "peft",
]

[project.optional-dependencies]
vllm = ["vllm==0.8.5"]
quant = ["bitsandbytes; platform_machine == 'x86_64'"]
all = ["my-trainer[vllm,quant]", "my_trainer[vllm]"]

[project.scripts]
train = "my_trainer.cli:main"

[dependency-groups]
dev = ["pytest", {include-group = "lint"}]
lint = ["ruff"]
cluster = [{include-group = "base"}, "ray[default]"]
base = ["wandb"]

[tool.hatch.build.targets.wheel]
packages = ["src/my_trainer"]
"""

UV = """\
[project]
name = "app"
version = "1"
requires-python = "==3.12.*"
dependencies = [
    "torch>=2.10",
    "vllm>=0.19",
    "flash-attn>=2.8",
    "helpers[io]>=1",
    "member",
    "lost",
    "kernels-lib",
]

[project.optional-dependencies]
jax = ["jax"]
fsdp = ["torch"]

[dependency-groups]
cuda12 = ["torch"]
cuda13 = ["torch"]
dev = ["pytest"]

[tool.uv]
default-groups = ["dev", "cuda12"]
conflicts = [
    [{ group = "cuda12" }, { group = "cuda13" }],
    [{ extra = "jax" }, { extra = "fsdp" }],
]
override-dependencies = ["transformers>=5", "av; sys_platform == 'never'"]
constraint-dependencies = ["urllib3>=2"]
exclude-dependencies = ["nvidia-libs-base"]
exclude-newer = "2026-03-01T00:00:00Z"
no-build-isolation-package = ["flash-attn"]
dev-dependencies = ["ruff"]

[tool.uv.workspace]
members = ["packages/*"]

[tool.uv.sources]
torch = [
    { index = "pytorch-cu128", group = "cuda12" },
    { index = "pytorch-cu130", group = "cuda13" },
    { index = "pytorch-cpu", marker = "sys_platform == 'darwin'" },
]
vllm = [
    { url = "https://files.example/vllm-0.19.1+cu129-cp38-abi3-linux_x86_64.whl", marker = "platform_machine == 'x86_64'" },
]
flash-attn = { git = "https://git.example/flash.git", tag = "v2.8.3", subdirectory = "hopper" }
helpers = { path = "lib/helpers", editable = true }
member = { workspace = true }
lost = { path = "deps/lost" }

[[tool.uv.index]]
name = "pytorch-cu128"
url = "https://download.pytorch.org/whl/cu128"
explicit = true

[[tool.uv.index]]
name = "pytorch-cu130"
url = "https://download.pytorch.org/whl/cu130"
explicit = true

[[tool.uv.index]]
name = "pytorch-cpu"
url = "https://download.pytorch.org/whl/cpu"
explicit = true

[[tool.uv.index]]
name = "company"
url = "https://packages.example/simple"

[[tool.uv.dependency-metadata]]
name = "flash-attn"
version = "2.8.3"
requires-dist = ["torch", "einops"]
"""  # noqa: E501 - a source is a line

POETRY = """\
[tool.poetry]
name = "poet"
version = "2.1.0"
packages = [{ include = "poet", from = "lib" }]

[tool.poetry.dependencies]
python = "^3.10"
torch = { version = "~2.6", source = "pytorch" }
transformers = "^4.50"
accelerate = "*"
vllm = { version = "0.8.5", optional = true }
tools = { git = "https://git.example/tools.git", rev = "0a1b2c" }
pywin = { version = "1.0", markers = "sys_platform == 'win32'" }
inner = { path = "inner", develop = true }

[tool.poetry.extras]
serve = ["vllm"]

[tool.poetry.group.dev.dependencies]
pytest = "^8"

[tool.poetry.group.track.dependencies]
wandb = ">=0.19"

[tool.poetry.group.docs]
optional = true
[tool.poetry.group.docs.dependencies]
sphinx = "*"

[[tool.poetry.source]]
name = "pytorch"
url = "https://download.pytorch.org/whl/cu126"
priority = "explicit"

[tool.poetry.scripts]
poet = "poet.main:run"

[build-system]
requires = ["poetry-core"]
build-backend = "poetry.core.masonry.api"
"""

SETUP_CFG = """\
[metadata]
name = configured
version = attr: configured.__version__

[options]
package_dir =
    = src
python_requires = >=3.9
install_requires =
    torch>=2.4
    # a comment
    numpy<2 ; python_version < "3.12"

[options.extras_require]
train = deepspeed
    peft

[options.entry_points]
console_scripts =
    run-it = configured.cli:main
"""

ENVIRONMENT = """\
name: research
channels: [pytorch, nvidia, conda-forge]
dependencies:
  - python=3.11
  - pip
  - pytorch==2.6.0
  - pytorch::torchvision
  - pytorch-cuda=12.4
  - cudatoolkit
  - numpy=1.26
  - scipy>=1.10,<2
  - ffmpeg
  - git-lfs=3.5
  - faiss-gpu=1.8.0
  - openssl=3.0.13=h7f8727e_0
  - libstdcxx-ng
  - "pandas=1.5|2.0"
  - pip:
      - --extra-index-url https://download.pytorch.org/whl/cu124
      - -r extra.txt
      - trl==0.18.0
      - "git+https://git.example/rewards.git#egg=rewards"
variables:
  HF_HOME: /data
"""

DOCKERFILE = """\
# syntax=docker/dockerfile:1
ARG CUDA=12.4.1
ARG BASE=nvidia/cuda:${CUDA}-devel-ubuntu22.04
FROM python:3.9 AS tools
RUN pip install build
FROM ${BASE} AS base
ENV PIP_OPTIONS="--no-cache-dir" TORCH=2.6.0
RUN apt-get update && apt-get install -y --no-install-recommends \\
    # version control
    git=1:2.34.1-1 \\
    libgl1 \\
    && rm -rf /var/lib/apt/lists/*
FROM base
ARG EXTRA
ARG VLLM=0.8.5
RUN --mount=type=cache,target=/root/.cache pip3 install ${PIP_OPTIONS} "torch==$TORCH" \\
      --index-url https://download.pytorch.org/whl/cu124 && \\
    python -m pip install --no-deps trl==0.18.0
RUN uv pip install --system vllm==${VLLM} "ray[default]>=2.40"
RUN MAX_JOBS=4 pip install flash-attn==2.7.4.post1 --no-build-isolation || pip install xformers
RUN pip install $EXTRA_PACKAGES $EXTRA
RUN if [ "$VLLM" = "1" ]; then pip install sglang; fi
RUN <<EOF
set -e
pip install peft \\
  accelerate
apt install -y tmux
EOF
RUN ["pip", "install", "wandb"]
RUN git clone https://git.example/apex.git && cd apex && pip install .
WORKDIR /work
COPY requirements/extra.txt /tmp/extra.txt
RUN pip install -r requirements/extra.txt
"""

SETUP_PY = """\
import os
from pathlib import Path
from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = "0.9"


def read_lines(name, folder="requirements"):
    with open(os.path.join(HERE, folder, name)) as file:
        return [line.strip() for line in file if line.strip() and not line.startswith("#")]


CORE = ["torch>=2.4", "numpy"]
EXTRAS = {"train": read_lines("train.txt"), "eval": ["evaluate"]}
EXTRAS["all"] = EXTRAS["train"] + EXTRAS["eval"]
if os.environ.get("GPU"):
    CORE.append("cupy")

setup(
    name="scripted",
    version=VERSION,
    packages=find_packages(where="src"),
    package_dir={"": "src"},
    python_requires=">=3.9",
    install_requires=CORE + ["tqdm"],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["scripted=scripted.main:run"]},
)
"""


def _notebook(*cells: str) -> str:
    listed = [{"cell_type": "markdown", "source": ["!pip install never\n"]}]
    listed += [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"nbformat": 4, "cells": listed}, indent=1)


NOTEBOOK = _notebook(
    "%%capture\n"
    "import os\n"
    'if "COLAB_" not in "".join(os.environ.keys()):\n'
    "    !pip install unsloth vllm==0.15.1\n"
    "else:\n"
    "    !pip install --no-deps bitsandbytes\n"
    "!pip install transformers==4.56.2\n"
    "!pip install --no-deps trl==0.22.2 {extra} \\\n"
    "    datasets\n"
    "%pip -q install wandb  # for the curves\n"
    "!uv pip install -qqq 'torchao>=0.16'\n",
    "!apt-get install -y libaio-dev\nprint('!pip install not-this')\n!nvidia-smi\n",
    "%%bash\npip install hf_transfer\n",
)

LOCK = """\
lock-version = "1.0"
created-by = "a tool"
requires-python = ">=3.11"
extras = ["serve"]

[[packages]]
name = "torch"
version = "2.6.0+cu124"
index = "https://download.pytorch.org/whl/cu124"
[[packages.wheels]]
url = "https://files.example/torch-2.6.0+cu124-cp311-cp311-linux_x86_64.whl"
upload-time = 2025-01-29T10:00:00Z
hashes = {sha256 = "1111111111111111111111111111111111111111111111111111111111111111"}

[[packages]]
name = "numpy"
version = "2.2.6"
index = "https://packages.example/simple"
[packages.sdist]
url = "https://files.example/numpy-2.2.6.tar.gz"
upload-time = 2025-05-17T23:00:00Z
hashes = {sha256 = "2222222222222222222222222222222222222222222222222222222222222222"}

[[packages]]
name = "colorama"
version = "0.4.6"
marker = "sys_platform == 'win32'"
index = "https://packages.example/simple"
[packages.sdist]
url = "https://files.example/colorama-0.4.6.tar.gz"
hashes = {sha256 = "3333333333333333333333333333333333333333333333333333333333333333"}

[[packages]]
name = "fastapi"
version = "0.115.0"
marker = "'serve' in extras"
index = "https://packages.example/simple"
[packages.sdist]
url = "https://files.example/fastapi-0.115.0.tar.gz"
hashes = {sha256 = "4444444444444444444444444444444444444444444444444444444444444444"}

[[packages]]
name = "tools"
version = "1"
[packages.vcs]
type = "git"
url = "https://git.example/tools.git"
commit-id = "0123456789012345678901234567890123456789"
"""

POETRY_LOCK = """\
[[package]]
name = "transformers"
version = "4.52.3"
optional = false
files = [{file = "a.whl", hash = "sha256:5555555555555555555555555555555555555555555555555555555555555555"}]
[package.dependencies]
tokenizers = ">=0.21"
colorama = {version = "*", markers = "sys_platform == 'win32'"}
torch = {version = ">=2", optional = true, markers = "extra == 'torch'"}
[package.extras]
torch = ["torch (>=2)"]

[[package]]
name = "tokenizers"
version = "0.21.1"
optional = false
files = []

[[package]]
name = "colorama"
version = "0.4.6"
optional = false
files = []

[[package]]
name = "accelerate"
version = "1.7.0"
optional = false
files = []

[[package]]
name = "torch"
version = "2.6.0+cu126"
optional = false
files = []
[package.source]
type = "legacy"
url = "https://download.pytorch.org/whl/cu126"
reference = "pytorch"

[[package]]
name = "tools"
version = "1.0"
optional = false
files = []
[package.source]
type = "git"
url = "https://git.example/tools.git"
reference = "0a1b2c"
resolved_reference = "0a1b2c0000000000000000000000000000000000"

[[package]]
name = "wandb"
version = "0.19.11"
optional = false
files = []

[[package]]
name = "pytest"
version = "8.3.0"
optional = false
files = []

[[package]]
name = "vllm"
version = "0.8.5"
optional = true
files = []

[extras]
serve = ["vllm"]

[metadata]
lock-version = "2.1"
"""  # noqa: E501 - a file is a line

INNER = '[tool.poetry]\nname = "inner"\nversion = "1"\n[tool.poetry.dependencies]\nrich = "*"\n'
HELPERS = '[project]\nname = "helpers"\nversion = "1"\ndependencies = ["lost>=2", "rich"]\n'
HELPERS += '[project.optional-dependencies]\nio = ["pyarrow"]\n'
MEMBER = '[project]\nname = "member"\nversion = "1"\ndependencies = ["tqdm"]\n'
TABLE = {"lib/helpers/pyproject.toml": HELPERS, "packages/one/pyproject.toml": MEMBER}

PROJECTS = {
    "pyproject": ({"pyproject.toml": PYPROJECT}, (), ()),
    "pyproject-extras": ({"pyproject.toml": PYPROJECT}, ("all",), ("cluster",)),
    "uv": ({"pyproject.toml": UV, **TABLE}, (), ()),
    "uv-group": ({"pyproject.toml": UV, **TABLE}, ("fsdp",), ("cuda13",)),
    "poetry": ({"pyproject.toml": POETRY, "inner/pyproject.toml": INNER}, ("serve",), ()),
    "poetry-lock": (
        {"pyproject.toml": POETRY, "inner/pyproject.toml": INNER, "poetry.lock": POETRY_LOCK},
        (),
        (),
    ),
    "pylock": ({"pylock.toml": LOCK}, (), ()),
    "setup-cfg": (
        {"setup.cfg": SETUP_CFG, "setup.py": "import setuptools\nsetuptools.setup()\n"},
        ("train",),
        (),
    ),
    "setup-py": (
        {"setup.py": SETUP_PY, "requirements/train.txt": "peft\n# no\ntrl>=0.18\n"},
        ("all",),
        (),
    ),
    "conda": ({"environment.yml": ENVIRONMENT, "extra.txt": "peft\n"}, (), ()),
    "dockerfile": ({"Dockerfile": DOCKERFILE, "requirements/extra.txt": "einops\n"}, (), ()),
    "notebook": (
        {"train.ipynb": NOTEBOOK, ".python-version": "3.11.9\n", "apt.txt": "git\nvim\n"},
        (),
        (),
    ),
}


@pytest.mark.parametrize("name", PROJECTS)
def test_declarations_of_each_kind_of_project_are_read(tmp_path, golden, name):
    files, extras, groups = PROJECTS[name]
    result = read_declarations(tmp_path, files, extras=extras, groups=groups)
    golden(ROOT / f"tests/data/project/{name}.json", golden_text(result))
