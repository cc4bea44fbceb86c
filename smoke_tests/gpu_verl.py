"""Runs one step with verl on Ray and vLLM or SGLang, which must change every tensor.

One case is GRPO with the default rollout of verl (synchronous until 0.6, asynchronous in 0.9). It
saves the model in Hugging Face's format, resumes from the checkpoint, and runs a second step and a
validation. The other case is PPO with a critic and asynchronous rollout. verl's model merger
converts its checkpoint. With verl 0.9 and newer, both cases use the default trainer with
TransferQueue.

The cases use torch's attention (sdpa), because the indexes of the targets have no wheel of
flash-attn, which is verl's default. Before 0.9.1, padding is kept for the same reason. The critic
has no setting for its attention, so a module named by VERL_USE_EXTERNAL_MODULES replaces the
function that loads it.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import smoke_gpu
import smoke_stack
import tiny_qwen
from smoke_support import finish, judge

# Bytes of its engine's cache if cases share a GPU. The engine sleeps between steps, and vLLM
# fails unless more memory is free afterwards, whatever other cases allocate in the meantime.
CACHE = 8 << 30
GROUP = 4
PROMPTS = ["Count to three:", "Name a colour of the sky:"]
# verl's mean difference between the token probabilities of trainer and rollout.
AGREE = 0.02
# Lines of each worker's log that are printed if verl fails.
LAST = 60
REWARD = '''\
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    """The share of letters and blanks."""
    good = [one for one in solution_str if one == " " or (one.isascii() and one.isalpha())]
    return len(good) / max(1, len(solution_str))
'''

CRITIC = '''\
import verl.utils.model
from transformers import AutoModelForTokenClassification

def load(local_path, torch_dtype, model_config, trust_remote_code):
    """Load a critic as verl does, but without flash_attention_2."""
    return AutoModelForTokenClassification.from_pretrained(
        local_path, torch_dtype=torch_dtype, config=model_config, attn_implementation="sdpa",
        trust_remote_code=trust_remote_code,
    )

verl.utils.model.load_valuehead_model = load
'''
QUEUE = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
# Settings below these have no defaults, or are read by some versions only.
OPEN = (
    "actor_rollout_ref.model.override_config.",
    "actor_rollout_ref.rollout.engine_kwargs.",
    "critic.model.override_config.",
    "ray_kwargs.ray_init.",
)
VERSIONED = {
    "reward.custom_reward_function.name",
    "reward.custom_reward_function.path",
    "reward.num_workers",
    "trainer.use_v1",
    QUEUE,
}


def settings(folder: Path, data: Path, reward: Path, engine: str) -> dict[str, object]:
    """Return the settings that differ from verl's defaults. Some versions lack some of them.

    `engine` is the engine that generates: vllm or sglang.
    """
    rollout, actor = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
    model = "actor_rollout_ref.model"
    options = {
        "algorithm.adv_estimator": "grpo",
        "data.train_files": data,
        "data.val_files": data,
        "data.train_batch_size": len(PROMPTS),
        "data.max_prompt_length": 64,
        "data.max_response_length": 16,
        "data.dataloader_num_workers": 0,
        f"{model}.path": folder,
        f"{model}.use_remove_padding": packs(),
        f"{model}.enable_gradient_checkpointing": False,
        f"{model}.override_config.attn_implementation": "sdpa",
        f"{actor}.optim.lr": 1e-2,
        f"{actor}.ppo_mini_batch_size": len(PROMPTS),
        f"{actor}.ppo_micro_batch_size_per_gpu": len(PROMPTS) * GROUP,
        f"{actor}.use_kl_loss": False,
        f"{actor}.use_torch_compile": False,
        f"{actor}.fsdp_config.use_torch_compile": False,
        f"{actor}.checkpoint.save_contents": "[model,optimizer,extra,hf_model]",
        f"{rollout}.name": engine,
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
        "ray_kwargs.ray_init.num_cpus": 16,
        QUEUE: 2,  # actors with a processor each; verl's default is 8
        "ray_kwargs.ray_init.num_gpus": 1,
        "ray_kwargs.ray_init.include_dashboard": False,
    }
    if engine == "sglang":
        options |= for_sglang(rollout)
        if importlib.util.find_spec("transfer_queue") is None:  # for the newer trainer of verl 0.9
            options["trainer.use_v1"] = False
    return options


def packs() -> bool:
    """Return whether verl removes padding without flash-attn, as it does since 0.9.1."""
    return "_fallback_unpad_input" in smoke_stack.source("verl", "utils/attention_utils.py")


def for_sglang(rollout: str) -> dict[str, object]:
    """Return the settings of verl's rollout that only apply to SGLang."""
    prefix = f"{rollout}.engine_kwargs.sglang"
    return {
        # Without a bound the tiny model's cache has millions of tokens, and tables for them.
        f"{prefix}.max_total_tokens": 16 * tiny_qwen.POSITIONS,
        # verl sets the log level to errors: too little to find out why a server does not start.
        f"{prefix}.log_level": "info",
    }


def with_critic(folder: Path) -> dict[str, object]:
    """Return the settings of PPO that replace the settings of GRPO."""
    return {
        "algorithm.adv_estimator": "gae",
        "data.return_raw_chat": True,  # read by the asynchronous rollout of verl 0.6
        "actor_rollout_ref.rollout.mode": "async",
        "actor_rollout_ref.actor.checkpoint.save_contents": "[model,optimizer,extra]",
        "critic.model.path": folder,
        "critic.model.use_remove_padding": packs(),
        "critic.model.enable_gradient_checkpointing": False,
        "critic.model.override_config.attn_implementation": "sdpa",
        "critic.optim.lr": 1e-2,
        "critic.ppo_micro_batch_size_per_gpu": len(PROMPTS) * GROUP,
    }


def resumed() -> dict[str, object]:
    """Return the settings of a second run that resumes from the first checkpoint and validates."""
    return {
        "trainer.resume_mode": "auto",
        "trainer.total_training_steps": 2,
        "trainer.total_epochs": 2,
        "trainer.test_freq": 1,
    }


def lacking(names: Iterable[str], configuration: dict[str, Any]) -> list[str]:
    """Return those of `names` that verl's configuration lacks, because verl would ignore them."""
    missing = []
    for key in names:
        inner: Any = configuration
        for word in key.split("."):
            if not isinstance(inner, dict) or word not in inner:
                missing.append(key)
                break
            inner = inner[word]
    return [key for key in missing if not key.startswith(OPEN)]


def defaults(folder: str | None = None) -> dict[str, Any]:
    """Return the default configuration in verl's package."""
    import hydra
    from omegaconf import OmegaConf

    place = folder or f"{smoke_stack.folder('verl')}/trainer/config"
    with hydra.initialize_config_dir(place, version_base=None):
        composed = OmegaConf.to_container(hydra.compose("ppo_trainer"), resolve=False)
    assert isinstance(composed, dict)
    return {str(key): value for key, value in composed.items()}


def inputs() -> tuple[Path, Path, Path]:
    """Write the model, the prompts and the reward as files for verl."""
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


def worker_logs(scratch: Path, ends: str) -> dict[str, str]:
    """Return the logs of Ray's workers whose names end in `ends`, by file name."""
    logs = sorted(scratch.glob(f"ray/session_latest/logs/worker-*{ends}"))
    return {path.name: path.read_text("utf-8", "replace") for path in logs}


def everything(output: str, scratch: Path) -> str:
    """Return the output and the logs of Ray's workers. The output can lack their last lines."""
    return "\n".join([output, *worker_logs(scratch, ".out").values()])


def trained(command: list[str], env: dict[str, str], scratch: Path) -> str:
    """Run verl and return its output. On failure, print the ends of its workers' logs.

    If a worker is killed by a signal, its last lines may be missing from Ray's output.
    """
    try:
        return everything(smoke_gpu.follow(command, env), scratch)
    except SystemExit:
        for name, text in worker_logs(scratch, "").items():
            if rows := text.splitlines()[-LAST:]:
                print(f"--- the end of {name}", *rows, f"--- end of {name}", sep="\n")
        raise


def logged(log: str, key: str) -> float | None:
    """Return the value of `key` in the last step that verl's console logger printed."""
    values = re.findall(
        rf"\b{re.escape(key)}:(?:np\.float\d+\()?(-?[\d.]+(?:e[-+]?\d+)?|nan|inf)", log
    )
    return float(values[-1]) if values else None


def merged() -> Path:
    """Return the actor's checkpoint in Hugging Face's format, converted by verl's model merger."""
    target = Path("merged").absolute()
    actor = Path("checkpoint/global_step_1/actor").absolute()
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp",
               "--local_dir", str(actor), "--target_dir", str(target)]  # fmt: skip
    smoke_gpu.follow(command)
    return target


def unchanged(folder: Path, checkpoint: Path) -> tuple[list[str], int]:
    """Return the problems with the checkpoint's tensors, and the number of compared tensors."""
    from safetensors.torch import load_file

    saved = sorted(checkpoint.rglob("*.safetensors"))
    before = load_file(folder / "model.safetensors")
    after = {name: tensor for path in saved for name, tensor in load_file(path).items()}
    problems = [f"{name} is not in verl's checkpoint" for name in sorted(before.keys() - after)]
    for name in sorted(before.keys() & after):
        if not after[name].isfinite().all():
            problems.append(f"{name} is not finite after the step")
        elif before[name].float().equal(after[name].to(before[name].dtype).float()):
            problems.append(f"{name} did not change")
    return problems, len(before)


def environment(scratch: Path, patches: Path) -> dict[str, str]:
    """Return the environment of verl's processes, which import `CRITIC` from `patches`."""
    paths = [str(patches), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "RAY_TMPDIR": str(scratch),
        "RAY_DEDUP_LOGS": "0",
        "HYDRA_FULL_ERROR": "1",
        # Other cases may run at the same time: their load and memory must not make it fail.
        "RAY_worker_register_timeout_seconds": "300",
        "RAY_memory_monitor_refresh_ms": "0",
    }
    if "SMOKE_CACHE" in variables:
        variables["SMOKE_CACHE"] = str(CACHE)
    return variables


def judged(way: str, engine: str, log: str) -> tuple[list[str], dict[str, float | None]]:
    """Return the problems with the values that verl logged for a step of `way`, and the values."""
    keys = ["actor/pg_loss", "actor/grad_norm", "training/rollout_probs_diff_mean"]
    norms = ["actor/grad_norm"]
    if way == "ppo":
        keys += ["critic/vf_loss", "critic/grad_norm"]
        norms += ["critic/grad_norm"]
    values = {key: logged(log, key) for key in keys}
    problems = [
        f"{key} is {value}"
        for key, value in values.items()
        if value is None or not math.isfinite(value)
    ]
    problems += [f"{key} is zero" for key in norms if not (values[key] or 0) > 0]
    if not (values["training/rollout_probs_diff_mean"] or 0) < AGREE:
        problems.append(f"{engine}'s probabilities are {values} from the trainer's, bound {AGREE}")
    return problems, values


def second(command: list[str], env: dict[str, str], scratch: Path) -> list[str]:
    """Return the problems of a second run, which resumes from the checkpoint of the first."""
    words = [*command, *(f"++{key}={value}" for key, value in resumed().items())]
    problems, values = judged("grpo", "the engine", trained(words, env, scratch))
    print("the second step:", values)
    number = Path("checkpoint/latest_checkpointed_iteration.txt").read_text("ascii").strip()
    if number != "2":
        problems.append(f"the last checkpoint is of step {number}, not of step 2")
    first = Path("checkpoint/global_step_1/actor/huggingface")
    changed, _ = unchanged(first, Path("checkpoint/global_step_2"))
    scores = re.findall(r"val-core/smoke/\S+?:(?:np\.float\d+\()?[\d.]", everything("", scratch))
    return [*problems, *changed, *([] if scores else ["there is no score of a validation"])]


def main(way: str, engine: str) -> None:
    """Run verl's entry point, and check its log and its checkpoint.

    `way` is grpo or ppo, and `engine` is vllm or sglang.
    """
    smoke_gpu.require()
    folder, data, reward = inputs()
    options = settings(folder, data, reward, engine) | (with_critic(folder) if way == "ppo" else {})
    absent = lacking(options | resumed(), defaults())
    print("not in this verl:", ", ".join(absent) or "nothing")
    if set(absent) - VERSIONED:
        sys.exit(f"error: verl has no setting {', '.join(sorted(set(absent) - VERSIONED))}")
    # Ray makes sockets below it, whose paths may have at most 107 characters.
    scratch = (
        Path(os.environ.get("SMOKE_TURN") or Path("turn").absolute()).parent / f"{way}-{engine}"
    )
    scratch.mkdir(exist_ok=True)
    patches = Path("patches").absolute()
    patches.mkdir()
    env = environment(scratch, patches)
    if way == "ppo":
        (patches / "smoke_critic.py").write_text(CRITIC)
        env["VERL_USE_EXTERNAL_MODULES"] = "smoke_critic"
    smoke_gpu.turn(alone=smoke_stack.measures_memory())
    command = [sys.executable, "-m", "verl.trainer.main_ppo"]
    command += [f"++{key}={value}" for key, value in options.items()]
    print(json.dumps(command, indent=1))
    log = trained(command, env, scratch)
    problems, count = unchanged(folder, merged() if way == "ppo" else Path("checkpoint"))
    more, values = judged(way, engine, log)
    problems += more
    if (way, engine) == ("grpo", "vllm"):
        again = functools.partial(second, command, env, scratch)
        problems += judge("grpo step, verl: resumed", again)
    finish(problems, f"{engine}: {count} of {count} tensors changed; {values}")


if __name__ == "__main__":
    main(*sys.argv[1:])
