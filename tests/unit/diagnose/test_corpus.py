"""Tests that the correct cause is first for collected logs of real failures."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from imgbuild.diagnose.diagnosis import diagnose_log
from imgbuild.system import yaml_data
from tests.support.rows import each_row

PLACES = (Path(__file__).parents[4] / "shared", Path("/work/shared"))
FILE = next((place / "facts/failures_train.yaml" for place in PLACES if place.is_dir()), None)
# The codes of each class of failure.
CODES = {
    "bf16-unsupported": "IMG509 IMG786",
    "cpu-only-torch": "IMG508 IMG906",
    "cuda-illegal-access": "IMG505",
    "cudnn-mismatch": "IMG514 IMG1382",
    "deepspeed-cuda-home": "IMG624",
    "driver-too-old": "IMG501 IMG502",
    "fastapi-instrumentator": "IMG763",
    "flash-attn-build-isolation": "IMG622 IMG623",
    "flash-attn-no-nvcc": "IMG624",
    "flashinfer-cubin-mismatch": "IMG720",
    "flashinfer-index": "IMG604",
    "flashinfer-torch-abi": "IMG901",
    "fp16-overflow": "IMG730",
    "glibc-too-old": "IMG605 IMG916 IMG1386",
    "hf-hub-transformers4": "IMG704",
    "index-lag": "IMG910",
    "libcudart-missing": "IMG906 IMG770",
    "nccl-hang": "IMG544 IMG908",
    "no-aarch64-wheel": "IMG602 IMG603",
    "no-gpu-visible": "IMG507 IMG787",
    "no-kernel-image": "IMG504",
    "numpy2-abi": "IMG717",
    "oom-colocate": "IMG520 IMG521 IMG522",
    "path-shadowing": "IMG634",
    "ptx-toolchain": "IMG503",
    "python-too-old": "IMG607 IMG608 IMG609",
    "ray-worker-register": "IMG551",
    "sgl-kernel-cuda-mismatch": "IMG722",
    "sgl-kernel-torch-abi": "IMG789 IMG901",
    "shm-too-small": "IMG530",
    "slow-load": "IMG784",
    "tensordict-arm64": "IMG600 IMG601",
    "thread-limit": "IMG531",
    "training-symptom": "IMG731",
    "transformers-vllm-aimv2": "IMG707",
    "transformers5-old-vllm": "IMG706",
    "triton-build": "IMG782",
    "triton-libcuda-link": "IMG780",
    "triton-no-gcc": "IMG626",
    "trl-eos-token-placeholder": "IMG700",
    "trl-feature-missing": "IMG610 IMG904",
    "trl-kwarg-removed": "IMG904",
    "trl-kwarg-renamed": "IMG904",
    "trl-symbol-removed": "IMG902",
    "trl-vllm-guided-decoding": "IMG703",
    "trl-vllm-too-new": "IMG903 IMG1383",
    "trl-vllm-v1": "IMG714",
    "verl-not-installed": "IMG750",
    "vllm-arg-removed": "IMG904",
    "vllm-arg-renamed": "IMG904 IMG905",
    "vllm-attention-backend": "IMG783",
    "vllm-demo-server": "IMG785",
    "vllm-env-removed": "IMG920",
    "vllm-torch-abi": "IMG901",
    "xformers-torch-mismatch": "IMG725 IMG1431",
}
# The log of this entry ends with OK, and none of its lines names the failure.
SILENT = frozenset(("pyarrow-numpy1-trl",))


def failures() -> list[dict[str, Any]]:
    return [] if FILE is None else yaml_data.parse_yaml(FILE.read_bytes())["failures"]


@pytest.mark.skipif(FILE is None, reason="the collected logs are not in this repository")
@each_row("failure", failures(), ids=lambda failure: failure["id"])
def test_diagnosis_of_each_example_log_begins_with_the_correct_cause(
    failure: dict[str, Any],
) -> None:
    findings = diagnose_log(io.BytesIO(failure["log"].encode()), failure["id"]).findings
    if failure["id"] in SILENT:
        assert findings == ()
        return
    assert findings[0].code in CODES[failure["class"]].split()
    assert findings[0].cure
    assert findings[0].lines
