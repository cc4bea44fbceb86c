"""Tests that the site reads pasted Dockerfiles and Conda environments as `imgbuild init` does."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from imgbuild.pipeline import declared_files
from tests.support.browser import Browser
from tests.support.site_window import open_form, site, window

__all__ = ["site", "window"]  # fixtures
DOCKERFILE = """\
ARG CUDA=12.8.1
FROM nvidia/cuda:${CUDA}-devel-ubuntu22.04 AS base
RUN apt-get install -y git \\
    && pip install "torch==2.8.0" --index-url https://host.example/cu128 \\
    'peft>=0.17; python_version >= "3.10"'
FROM python:3.11-slim AS tools
RUN pip install black
FROM base
ENV VLLM=0.10.2
RUN --mount=type=cache,target=/root uv pip install vllm==$VLLM; python -m pip install -U trl
RUN ["pip", "install", "ray[default]==2.50.1"]
RUN <<EOF
pip3 install datasets
EOF
ENTRYPOINT ["python", "train.py"]
"""
ENVIRONMENT = """\
dependencies:
  - python=3.11.9
  - conda-forge::pytorch=2.6.0=py3.11_cuda12.4
  - pytorch-cuda=12.4
  - numpy=2.2  # of the channel
  - git
  - pip:
    - "vllm==0.8.5.post1"
  - pandas>=2.0,<3
variables: {A: b}
"""
TARGET_IMAGE = f"""\
FROM host.example/x:cu128-verl0.6@sha256:{"0" * 64}
RUN conda install -c a pandas
"""


@pytest.mark.parametrize(
    ("name", "text", "first", "words"),
    [
        ("Dockerfile", DOCKERFILE, "cu128-unsloth", "has all"),
        ("Dockerfile", TARGET_IMAGE, "cu128-verl0.6", "has all"),
        ("environment.yml", ENVIRONMENT, "cu124-vllm0.8.5", "has all"),
    ],
)
def test_requirements_form_reads_files_as_the_init_command_does(
    site: Path, window: Browser, tmp_path: Path, name: str, text: str, first: str, words: str
) -> None:
    open_form(window, site, "requirements.html", requirements=text)
    assert window.texts(".answer h3")[0] == first
    assert window.texts(".answer .chip")[0] == words
    lines = window.run(
        "return imgbuildElements.unpacked(arguments[0]).then(data =>"
        " imgbuildDeclared(arguments[1], data.forms).text.split('\\n'))",
        (site / "data.js").read_text().split('"')[1],
        text,
    )
    (tmp_path / name).write_text(text)
    declared = declared_files.read_places([str(tmp_path / name)])
    expected = {each.text for each in declared.requirements}
    expected |= {f"cuda=={each.name}" for each in declared.cuda}
    expected |= {f"python{each.spec}" for each in declared.python}
    assert {_canonical(line) for line in lines} == {_canonical(line) for line in expected}


def _canonical(line: str) -> str:
    return str(Requirement(line))
