"""A second real image passes its smoke tests in a container: cu130-trl, the smallest one.

It has DeepSpeed, built here from its sdist, and no vLLM; cu124-vllm is test_main_job's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

ROOT = Path(__file__).parents[2]
TARGET = "cu130-trl"

pytestmark = [
    pytest.mark.engine, pytest.mark.network, pytest.mark.disk(16), pytest.mark.timeout(2400),
]  # fmt: skip


def imgbuild(*words: str) -> str:
    """What the command line answers about the target on x86_64."""
    done = subprocess.run(
        [sys.executable, "-m", "imgbuild", *words],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_an_image_without_vllm_passes_its_smoke_tests(tmp_path):
    docker = needs.docker()
    mine = subprocess.run([docker, "image", "inspect", TARGET], capture_output=True, check=False)
    built = tmp_path / TARGET
    imgbuild("build", TARGET, "--arch", "x86_64", "--output", str(built))
    words = ("--layout", str(built), "--through", "docker", "--json", "--patience", "4")
    try:
        reports = json.loads(imgbuild("smoke", TARGET, *words))
    finally:
        shutil.rmtree(built)
        if mine.returncode != 0:  # what a user has loaded stays
            subprocess.run([docker, "image", "rm", "--force", TARGET], check=False)
    assert [report["tier"] for report in reports] == ["static", "cpu"]
    static, cpu = (
        {case["name"]: case["outcome"] for case in report["cases"]} for report in reports
    )
    assert "failed" not in static.values()
    assert {static[name] for name in ("nvcc", "compiler", "import deepspeed")} == {"passed"}
    assert cpu["grpo step"] == "passed"
    assert set(cpu.values()) <= {"passed", "skipped"}
