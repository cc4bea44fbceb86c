"""Versions in which names exist, looked up for Python's errors."""

from __future__ import annotations

import io

import pytest

from imgbuild.diagnose.diagnosis import diagnose


@pytest.mark.parametrize(
    ("text", "code", "cause", "cure"),
    [
        ("TypeError: GRPOConfig.__init__() got an unexpected keyword argument 'vllm_mode'",
         "IMG904", "trl 0.18.0 added", "install trl>=0.18.0"),
        ("TypeError: SFTConfig.__init__() got an unexpected keyword argument 'max_seq_length'",
         "IMG904", "trl 0.20.0 removed", "use max_length"),
        (("TypeError: AsyncEngineArgs.__init__() got an unexpected keyword argument"
         " 'disable_log_requests'"),
         "IMG904", "vllm 0.10.1 removed", "use enable_log_requests"),
        ("api_server.py: error: unrecognized arguments: --disable-log-requests",
         "IMG917", "vllm 0.10.1 removed", "vllm<0.10.1"),
        ("ImportError: cannot import name 'PPOTrainer' from 'trl' (/opt/trl/__init__.py)",
         "IMG902", "trl 0.29.0 removed", "trl<0.29.0"),
        ("ModuleNotFoundError: No module named 'vllm.transformers_utils.tokenizer'",
         "IMG903", "vllm 0.22.0 removed", "vllm<0.22.0"),
        ("ModuleNotFoundError: No module named 'cv2'", "IMG903", "cv2 is not installed", "opencv"),
        ("AttributeError: module 'torch' has no attribute 'float8_e8m0fnu'",
         "IMG905", "torch 2.7.0 added", "torch>=2.7.0"),
        ("AttributeError: 'DynamicCache' object has no attribute 'seen_tokens'",
         "IMG905", "transformers 4.54.0 removed", "transformers<4.54.0"),
        (("ImportError: /v/site-packages/vllm/_C.abi3.so: undefined symbol:"
         " _ZN5torch3jit17parseSchemaOrNameERKSsb"),
         "IMG901", "old C++ ABI", "torch==2.6.0"),
        ("ImportError: /v/site-packages/acme/x.so: undefined symbol: _ZNK3c106SymInt6sym_neERKS0_",
         "IMG901", "is in torch<2.9.0 only", "install a torch<2.9.0"),
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
         "IMG906", "driver", "--gpus all"),
        ("ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
         "IMG906", "libGL.so.1", "libgl1"),
        (("ImportError: /opt/conda/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found"
         " (required by /x.so)"),
         "IMG916", "libstdc++", "LD_LIBRARY_PATH"),
        ("bash: line 1: verl: command not found", "IMG919", "no release of verl", "main_ppo"),
        ("ModuleNotFoundError: No module named 'verl.utils.check_env'",
         "IMG919", "no release of verl", "remove the call"),
    ],
)  # fmt: skip
def test_the_versions_of_a_name(text: str, code: str, cause: str, cure: str) -> None:
    finding = diagnose(io.BytesIO(text.encode()), "log").findings[0]
    assert finding.code == code
    assert cause in finding.cause
    assert cure in finding.cure


def test_torch_version_required_by_logged_vllm() -> None:
    text = (
        "vllm==0.8.5.post1 torch==2.7.0\n"
        "ImportError: /v/site-packages/vllm/_C.abi3.so: undefined symbol:"
        " _ZN5torch3jit17parseSchemaOrNameERKSsb\n"
    )
    finding = diagnose(io.BytesIO(text.encode()), "log").findings[0]
    assert finding.cause.startswith(
        "vllm 0.8.5.post1 was compiled for torch 2.6.0; installed is 2.7.0"
    )
    assert finding.cure == "install torch==2.6.0 torchvision==0.21.0"


def test_unused_variables_of_script() -> None:
    text = "export VLLM_WORKER_USE_RAY=1\nexport VLLM_USE_TRITON_FLASH_ATTN=0\nexport VLLM_PORT=9\n"
    findings = diagnose(io.BytesIO(text.encode()), "log").findings
    assert {finding.code for finding in findings} == {"IMG920"}
    assert sorted(finding.cause.split()[0] for finding in findings) == [
        "VLLM_USE_TRITON_FLASH_ATTN", "VLLM_WORKER_USE_RAY",
    ]  # fmt: skip


def test_an_argument_of_all_releases_is_not_reported_as_absent_from_them() -> None:
    text = "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'max_model_len'"
    finding = diagnose(io.BytesIO(text.encode()), "log").findings[0]
    assert finding.code == "IMG904"
    assert "no vllm" not in finding.cause
