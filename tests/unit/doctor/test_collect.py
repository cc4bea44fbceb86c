"""Tests that `doctor --collect` omits secrets and unrelated variables."""

from __future__ import annotations

from imgbuild.doctor.collect import run_variables


def test_collected_data_omits_secrets_and_unrelated_variables() -> None:
    assert run_variables(
        {
            "NCCL_DEBUG": "INFO",
            "HF_TOKEN": "hf_secret",
            "VLLM_API_KEY": "secret",
            "HF_ENDPOINT": "https://user:secret@mirror.example",
            "TOKENIZERS_PARALLELISM": "false",
            "DATABASE_URL": "secret",
        }
    ) == {
        "NCCL_DEBUG": "INFO",
        "HF_TOKEN": "set",
        "VLLM_API_KEY": "set",
        "HF_ENDPOINT": "https://mirror.example",
        "TOKENIZERS_PARALLELISM": "false",
    }
