"""Tests the static case "nvcc" with NVIDIA wheels of equal and different CUDA releases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import damaged, needs

pytestmark = [pytest.mark.network, pytest.mark.timeout(900)]
SCRIPTS = Path(__file__).parents[2] / "smoke_tests"
COMPILER = {
    "nvidia-cuda-nvcc": "13.0.88",
    "nvidia-cuda-crt": "13.0.88",
    "nvidia-nvvm": "13.0.88",
    "nvidia-cuda-cccl": "13.0.85",
}
SOUND, OTHER = "13.0.96", "13.1.80"  # of nvidia-cuda-runtime, which holds the headers


@pytest.fixture(scope="module", name="wheels")
def _wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    needs.require_network()
    needs.require_tool("gcc")
    folder = tmp_path_factory.mktemp("wheels")
    compiler = [f"{name}=={version}" for name, version in COMPILER.items()]
    paths = damaged.download_wheels(folder, [*compiler, f"nvidia-cuda-runtime=={SOUND}"])
    paths += damaged.download_wheels(folder / "other", [f"nvidia-cuda-runtime=={OTHER}"])
    return {path.name.split("-")[0] + "-" + path.name.split("-")[1]: path for path in paths}


def environment(folder: Path, wheels: dict[str, Path], runtime: str) -> Path:
    """Unpack the compiler and the headers of one CUDA runtime; returns their folder."""
    for name, path in wheels.items():
        if name.startswith("nvidia_cuda_runtime") and not name.endswith(runtime):
            continue
        with zipfile.ZipFile(path) as archive:
            for item in archive.infolist():
                extracted_path = Path(archive.extract(item, folder))
                if item.external_attr >> 16 & 0o100 and extracted_path.is_file():
                    extracted_path.chmod(0o755)
    return folder / "nvidia/cu13"


def case(folder: Path, home: Path, packages: dict[str, str]) -> tuple[str, str, str]:
    """The outcome, message and log that the runner reports for the case."""
    expect = {
        "packages": packages, "debian": [], "prefix": "/", "cache": str(folder),
        "workdir": str(folder), "flashinfer": "jit",
    }  # fmt: skip
    (folder / "expect.json").write_text(json.dumps(expect))
    words = ["--json", "--tier=static", "--case=nvcc", f"--expect={folder}/expect.json"]
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "run.py"), *words],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "CUDA_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    [case_result] = json.loads(done.stdout)["cases"]
    return case_result["outcome"], case_result["message"], case_result["log"]


@pytest.mark.long  # downloads nvcc
def test_nvcc_of_matching_cuda_compiles(wheels, tmp_path):
    home = environment(tmp_path / "site", wheels, SOUND)
    outcome, message, log = case(tmp_path, home, {**COMPILER, "nvidia-cuda-runtime": SOUND})
    assert (outcome, message) == ("passed", "nvcc of CUDA 13.0 compiled a kernel for sm_90"), log


@pytest.mark.long  # downloads two releases of nvcc
def test_nvcc_or_headers_of_a_different_cuda_release_are_reported(wheels, tmp_path):
    home = environment(tmp_path / "site", wheels, OTHER)
    outcome, message, _ = case(tmp_path, home, {**COMPILER, "nvidia-cuda-runtime": OTHER})
    assert (outcome, message.split(":")[:2]) == (
        "failed",
        ["error", " nvcc is from CUDA 13.0, nvidia-cuda-runtime from 13.1"],
    )
    # The lock has the runtime of this nvcc, but the headers are of another.
    outcome, message, _ = case(tmp_path, home, {**COMPILER, "nvidia-cuda-runtime": SOUND})
    assert outcome == "failed"
    assert "cuda_runtime.h is of another CUDA than nvcc" in message


def test_missing_nvcc_is_reported(tmp_path):
    outcome, message, _ = case(tmp_path, tmp_path / "none", dict(COMPILER))
    assert (outcome, message[:25]) == ("failed", "error: the lock has nvcc,")


def test_nvcc_case_is_skipped_without_nvcc_in_lock(tmp_path):
    outcome, message, _ = case(tmp_path, tmp_path, {"torch": "2.6.0"})
    assert (outcome, message) == ("skipped", "the lock has no nvcc")
