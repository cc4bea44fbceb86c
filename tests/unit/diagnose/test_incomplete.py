"""Tests of the diagnosis of texts without an exception."""

from __future__ import annotations

import io

from imgbuild.diagnose.diagnosis import diagnose_log
from tests.support.rows import each_row

SITE = "/opt/venv/lib/python3.11/site-packages"
DESCRIPTIONS = (
    ("IMG540", "两个节点, 网卡是 bond0 和 docker0, torchrun 一直连不上"),
    ("IMG544", "Training freezes on all 8 GPUs after the first rollout, nvidia-smi shows 100 %"),
    ("IMG521", "verl 更新 actor 时显存不够"),
    ("IMG531", "pids limit of the pod is 512, so starting the processes fails"),
    ("IMG551", "Workers do not register with ray inside the Slurm job, which has 12 cores"),
    ("IMG609", "conda 环境是 python=3.8, 装不上新版 trl"),
    ("IMG610", "trl 0.17.0 里没有 colocate 模式"),
    ("IMG624", "deepspeed needs nvcc, so install the CUDA toolkit first"),
    ("IMG634", "`which accelerate` prints /usr/bin/accelerate although the conda env is active"),
    ("IMG786", "Turing cards have no bfloat16, start the server with float16"),
    ("IMG861", "8 卡训练三天, loss 一直不动"),
    ("IMG794", "flash-attn 装不上, release 页面里没有这个 torch 的 whl"),
    ("IMG508", "pip install torch on the GH200 gives a CPU version"),
    ("IMG1386", "CentOS 7 上装不了 vllm, pip 找不到 wheel, 没有支持的版本"),
    ("IMG784", "模型放在共享存储上, 启动要等半个多小时"),
)
TRUNCATED = (
    (
        "IMG707",
        "vllm/transformers_utils/configs/ovis.py",
        'AutoConfig.register("aimv2", AIMv2Config)',
    ),
    ("IMG706", "vllm/transformers_utils/tokenizer.py", "tokenizer.all_special_tokens_extended)"),
    ("IMG704", "transformers/dependency_versions_check.py", "require_version_core(deps[pkg])"),
    ("IMG522", "vllm/device_allocator/cumem.py", "create_and_map(handle)"),
    ("IMG1531", "torch/cuda/__init__.py", "torch._C._cuda_init()"),
    ("IMG1532", "vllm/platforms/cuda.py", "import vllm._C"),
    (
        "IMG703",
        "trl/trainer/grpo_trainer.py",
        "from vllm.sampling_params import GuidedDecodingParams",
    ),
)


def first_finding(text: str) -> tuple[str, str]:
    findings = diagnose_log(io.BytesIO(text.encode()), "log").findings
    return (findings[0].code, findings[0].cause) if findings else ("", "")


@each_row(("code", "text"), DESCRIPTIONS, ids=lambda row: row[0])
def test_description_has_the_failure_that_its_words_name(code: str, text: str) -> None:
    assert first_finding(text)[0] == code


@each_row(("code", "file", "line"), TRUNCATED, ids=lambda row: row[0])
def test_truncated_traceback_has_the_failure_of_its_last_calls(
    code: str, file: str, line: str
) -> None:
    trace = f'  File "{SITE}/{file}", line 9, in wake_up\n    {line}\n'
    inner = f'  File "{SITE}/torch/utils/_device.py", line 1, in call\n    return inner(argument)\n'
    found, cause = first_finding(trace + inner)
    assert found == code
    assert "{" not in cause
    assert first_finding(f"{trace}ValueError: the size is negative")[0] != code


def test_truncated_raise_has_the_failure_of_its_function() -> None:
    trace = f'  File "{SITE}/vllm/platforms/cuda.py", line 9, in {{}}\n    raise ValueError(\n'
    assert first_finding(trace.format("check_if_supports_dtype"))[0] == "IMG509"
    assert first_finding(trace.format("check_slots"))[0] != "IMG509"


def test_truncated_import_has_the_version_that_removed_the_name() -> None:
    trace = '  File "/workspace/ppo.py", line 2, in <module>\n    from trl import {}\n'
    frozen = '  File "<frozen importlib._bootstrap>", line 1229, in _handle_fromlist\n'
    assert first_finding(trace.format("PPOTrainer") + frozen)[0] == "IMG902"
    assert first_finding(trace.format("SFTTrainer") + frozen)[0] == "IMG999"


def test_text_without_a_failure_is_no_description_of_one() -> None:
    for text in (
        "The loss decreases from 2.1 to 0.4 within an epoch on 8 GPUs.",
        "Loading the model from NFS, then training for 300 steps.",
        "Tesla T4\nDevice does not support bfloat16. Will change to float16.",
        "V100\nbf16 is off\n{'train_runtime': 310.2, 'train_loss': 1.01, 'epoch': 1.0}",
        "backend=nccl, ddp_timeout=1800, num_processes=8",
        "pip install vllm==0.11.0\nwhich python\n/opt/venv/bin/python",
        "装好 vllm 和 verl 之后直接运行 run_grpo.sh, 模型会自动下载到 ~/.cache",
    ):
        assert first_finding(text) == ("", "")
