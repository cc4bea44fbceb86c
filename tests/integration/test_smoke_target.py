"""Tests that a second real image, cu130-trl, passes its smoke tests in a container.

The image has DeepSpeed, which is built from its sdist, and no vLLM. test_main_job tests
cu124-vllm.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.lock import lock_file
from tests.support import damaged, needs

ROOT = Path(__file__).parents[2]
TARGET = "cu130-trl"
SITE = "/opt/venv/lib/python3.11/site-packages"
OTHER = "13.1.80"  # of nvcc; the locked one is of CUDA 13.0

pytestmark = [
    pytest.mark.long, pytest.mark.engine, pytest.mark.network, pytest.mark.disk(16),
    pytest.mark.timeout(2400),
]  # fmt: skip


def imgbuild(*words: str) -> str:
    """The output of the command line about the target on x86_64."""
    done = subprocess.run(
        [sys.executable, "-m", "imgbuild", *words],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module", name="built")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The `docker` command after loading the image, and the layout of the image."""
    docker = needs.require_docker()
    mine = subprocess.run([docker, "image", "inspect", TARGET], capture_output=True, check=False)
    built = tmp_path_factory.mktemp("built") / TARGET
    imgbuild("build", TARGET, "--arch", "x86_64", "--output", str(built))
    try:
        imgbuild("load", TARGET, "--layout", str(built))
        yield docker, built
    finally:
        shutil.rmtree(built)
    if mine.returncode != 0:  # images that the user loaded are kept
        subprocess.run([docker, "image", "rm", "--force", TARGET], check=False)


def test_image_without_vllm_passes_smoke_tests(built):
    words = ("--layout", str(built[1]), "--through", "docker", "--json", "--timeout-factor", "4")
    reports = json.loads(imgbuild("smoke", TARGET, *words))
    assert [report["tier"] for report in reports] == ["static", "cpu"]
    static, cpu = (
        {case["name"]: case["outcome"] for case in report["cases"]} for report in reports
    )
    assert "failed" not in static.values()
    assert {static[name] for name in ("nvcc", "compiler", "import deepspeed")} == {"passed"}
    assert cpu["grpo step"] == "passed"
    assert set(cpu.values()) <= {"passed", "skipped"}


def test_nvcc_case_fails_with_a_different_cuda_release(built, tmp_path):
    """The environment equals the result of `pip install -U nvidia-cuda-nvcc`.

    The case tests the nvcc that DeepSpeed, or FlashInfer in other images, calls.
    """
    wheels = damaged.download_wheels(
        tmp_path / "wheels", [f"{name}=={OTHER}" for name in ("nvidia-cuda-nvcc", "nvidia-nvvm")]
    )
    site = tmp_path / "site"
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for item in archive.infolist():
                extracted_path = Path(archive.extract(item, site))
                if extracted_path.is_file():
                    extracted_path.chmod(item.external_attr >> 16 & 0o777 | 0o644)
    with damaged.run_container(built[0], TARGET) as container:
        container.put(site, SITE)
        container.damage(f"chmod -R a+rX {SITE}/nvidia")
        locked = lock_file.read_lock(ROOT / "images", TARGET)
        cases = container.cases(locked, "static", "nvcc|compiler", tmp_path)
    assert cases["compiler"][0] == "passed"  # gcc is unchanged
    outcome, message = cases["nvcc"]
    assert (outcome, message.split(":")[:2]) == (
        "failed",
        ["error", " nvcc is from CUDA 13.1, nvidia-cuda-runtime from 13.0"],
    )
