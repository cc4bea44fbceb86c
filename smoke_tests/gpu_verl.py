"""One GRPO step with verl on Ray and vLLM: every tensor of its checkpoint changes.

It uses torch's attention (sdpa) and keeps padding, because verl's defaults need flash-attn, which
has no wheel in the indexes that targets are locked from.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import sys
from pathlib import Path

import smoke_gpu
import smoke_stack
import tiny_qwen
from smoke_support import finish

# Bytes of its engine's cache where cases share a GPU. The engine sleeps between steps, and vLLM
# fails unless more memory is free afterwards, whatever other cases allocate in the meantime.
CACHE = 8 << 30
GROUP = 4
PROMPTS = ["Count to three:", "Name a colour of the sky:"]
# verl's mean distance of the probabilities that the trainer and vLLM gave to the tokens.
AGREE = 0.02
REWARD = '''\
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    """The share of letters and blanks."""
    good = [one for one in solution_str if one == " " or (one.isascii() and one.isalpha())]
    return len(good) / max(1, len(solution_str))
'''


def settings(folder: Path, data: Path, reward: Path) -> list[str]:
    """Settings that differ from verl's defaults; `++` also sets keys that some versions lack."""
    rollout, actor = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
    model = "actor_rollout_ref.model"
    wanted = {
        "algorithm.adv_estimator": "grpo",
        "data.train_files": data,
        "data.val_files": data,
        "data.train_batch_size": len(PROMPTS),
        "data.max_prompt_length": 64,
        "data.max_response_length": 16,
        "data.dataloader_num_workers": 0,
        f"{model}.path": folder,
        f"{model}.use_remove_padding": False,
        f"{model}.enable_gradient_checkpointing": False,
        f"{model}.override_config.attn_implementation": "sdpa",
        f"{actor}.optim.lr": 1e-2,
        f"{actor}.ppo_mini_batch_size": len(PROMPTS),
        f"{actor}.ppo_micro_batch_size_per_gpu": len(PROMPTS) * GROUP,
        f"{actor}.use_kl_loss": False,
        f"{actor}.use_torch_compile": False,
        f"{actor}.fsdp_config.use_torch_compile": False,
        f"{actor}.checkpoint.save_contents": "[model,optimizer,extra,hf_model]",
        f"{rollout}.name": "vllm",
        f"{rollout}.n": GROUP,
        f"{rollout}.tensor_model_parallel_size": 1,
        f"{rollout}.gpu_memory_utilization": smoke_stack.share(),
        f"{rollout}.enforce_eager": True,
        f"{rollout}.load_format": "safetensors",
        f"{rollout}.max_num_batched_tokens": 512,
        f"{rollout}.max_num_seqs": 16,
        f"{rollout}.log_prob_micro_batch_size_per_gpu": len(PROMPTS) * GROUP,
        f"{rollout}.calculate_log_probs": True,
        f"{rollout}.agent.num_workers": 1,
        "reward.num_workers": 1,
        # verl 0.9 reads the first pair, older versions the second.
        "reward.custom_reward_function.path": reward,
        "reward.custom_reward_function.name": "compute_score",
        "custom_reward_function.path": reward,
        "custom_reward_function.name": "compute_score",
        "trainer.n_gpus_per_node": 1,
        "trainer.nnodes": 1,
        "trainer.total_training_steps": 1,
        "trainer.total_epochs": 1,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": 1,
        "trainer.default_local_dir": Path("checkpoint").absolute(),
        "trainer.logger": "[console]",
        "trainer.resume_mode": "disable",
        # The number of its workers, not of the machine's cores: they mostly wait for each other.
        "ray_kwargs.ray_init.num_cpus": 12,
        "ray_kwargs.ray_init.num_gpus": 1,
        "ray_kwargs.ray_init.include_dashboard": False,
    }
    if importlib.util.find_spec("transfer_queue") is None:  # for the newer trainer of verl 0.9
        wanted["trainer.use_v1"] = False
    return [f"++{key}={value}" for key, value in wanted.items()]


def inputs() -> tuple[Path, Path, Path]:
    """Model, prompts and reward as the files that verl reads."""
    from datasets import Dataset

    folder = tiny_qwen.save(Path("model").absolute(), half=True)
    rows = [
        {
            "data_source": "smoke",
            "prompt": [{"role": "user", "content": prompt}],
            "ability": "letters",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": number},
        }
        for number, prompt in enumerate(PROMPTS)
    ]
    data, reward = Path("data.parquet").absolute(), Path("reward.py").absolute()
    Dataset.from_list(rows).to_parquet(str(data))
    reward.write_text(REWARD)
    return folder, data, reward


def everything(said: str, scratch: Path) -> str:
    """The output, and the logs of Ray's workers, whose last lines may be missing in the output."""
    logs = sorted(scratch.glob("ray/session_latest/logs/worker-*.out"))
    return "\n".join([said, *(path.read_text("utf-8", "replace") for path in logs)])


def logged(log: str, key: str) -> float | None:
    """The value of `key` in the last line that verl's console logger wrote about a step."""
    found = re.findall(
        rf"\b{re.escape(key)}:(?:np\.float\d+\()?(-?[\d.]+(?:e[-+]?\d+)?|nan|inf)", log
    )
    return float(found[-1]) if found else None


def unchanged(folder: Path) -> tuple[list[str], int]:
    """Problems of the tensors in the checkpoint, and the number of compared tensors."""
    from safetensors.torch import load_file

    saved = sorted(Path("checkpoint").rglob("*.safetensors"))
    before = load_file(folder / "model.safetensors")
    after = {name: tensor for path in saved for name, tensor in load_file(path).items()}
    problems = [f"{name} is not in verl's checkpoint" for name in sorted(before.keys() - after)]
    for name in sorted(before.keys() & after):
        if not after[name].isfinite().all():
            problems.append(f"{name} is not finite after the step")
        elif before[name].float().equal(after[name].to(before[name].dtype).float()):
            problems.append(f"{name} did not change")
    return problems, len(before)


def main() -> None:
    """Run verl's own entry point, read its log and its checkpoint."""
    smoke_gpu.require()
    folder, data, reward = inputs()
    # Ray makes sockets below it, whose paths may have at most 107 characters.
    scratch = Path(os.environ.get("SMOKE_TURN") or Path("turn").absolute()).parent
    env = {
        **os.environ,
        "RAY_TMPDIR": str(scratch),
        "RAY_DEDUP_LOGS": "0",
        "HYDRA_FULL_ERROR": "1",
        # Other cases may run at the same time: their load and memory must not make it fail.
        "RAY_worker_register_timeout_seconds": "300",
        "RAY_memory_monitor_refresh_ms": "0",
    }
    if "SMOKE_CACHE" in env:
        env["SMOKE_CACHE"] = str(CACHE)
    smoke_gpu.turn(alone=smoke_stack.measures_memory())
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *settings(folder, data, reward)]
    print(json.dumps(command, indent=1))
    log = everything(smoke_gpu.follow(command, env), scratch)
    problems, count = unchanged(folder)
    said = {
        key: logged(log, key)
        for key in ("actor/pg_loss", "actor/grad_norm", "training/rollout_probs_diff_mean")
    }
    for key, value in said.items():
        if value is None or not math.isfinite(value):
            problems.append(f"{key} is {value}")
    if not (said["actor/grad_norm"] or 0) > 0:
        problems.append("the gradient is zero")
    if not (said["training/rollout_probs_diff_mean"] or 0) < AGREE:
        problems.append(f"vLLM's probabilities are {said} from the trainer's, bound {AGREE}")
    finish(problems, f"{count} of {count} tensors changed; {said}")


if __name__ == "__main__":
    main()
