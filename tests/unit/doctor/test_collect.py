"""Tests that `doctor --collect` omits secrets and unrelated variables."""

from __future__ import annotations

from imgbuild.doctor.collect import run_variables
from tests.support.rows import each_row


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


@each_row(
    ("value", "shown"),
    [
        ("https://mirror.example/simple?token=abc", "https://mirror.example/simple"),
        ("ray://user:secret@head:10001", "ray://head:10001"),
        ("Bearer abc", "set"),
        ('{"auth": "abc"}', "set"),
        ("hf_abcdefghijklmnop0123456789", "set"),
        ("GPU-5a2f3c1b-0000-4000-8000-0123456789ab,1", None),
        ("/nix/store/0123456789abcdef0123456789-python/bin:/bin", None),
        ("expandable_segments:True,max_split_size_mb:128", None),
        ("eth0,mlx5_0:1,mlx5_1:1", None),
        ("ray-cluster-01-worker", "set"),
    ],
)
def test_values_of_variables_contain_no_secrets(value: str, shown: str | None) -> None:
    assert run_variables({"VLLM_X": value}) == {"VLLM_X": value if shown is None else shown}
