"""Lists the first commands in the documentation of frameworks as cases for quick_start.py.

Each row contains the commands of a documentation page with smaller sizes, and checks. Programs,
scripts and configurations come from packages of the image. quick_data.py writes the model, data and
rewards when the case runs.

Names in braces are replaced: {bin}, {python} and {trl} are folders and programs of the image,
{model} a tiny Qwen3 in float32, {data} a folder or file of the format `data`, {out} an empty
folder, {share} an engine's share of the GPU, {port} a free port.

A case fails if the image has the packages in `needs`, but not another package that the command
imports.
"""

from __future__ import annotations

from typing import NamedTuple

# Arguments of every command of TRL: the sizes of a test.
SIZES = (
    "--model_name_or_path {model} --dataset_name {data} --output_dir {out} --max_steps 2"
    " --logging_steps 1 --learning_rate 1e-2 --lr_scheduler_type constant --save_strategy no"
    " --per_device_train_batch_size 4 --gradient_accumulation_steps 1 --report_to none"
)
# Arguments of the commands that generate.
ONLINE = (
    "--num_generations 4 --max_completion_length 16"
    " --reward_funcs think_format_reward quick_reward.letters"
)
ROLLOUT = "actor_rollout_ref.rollout"
LOSS = r"loss:(?:np\.float\d+\()?-?\d"  # as verl prints it
TRAINED = r"'?train_loss'?: '?-?\d"  # printed at the end by the Trainer of transformers
WEIGHTS = ("weights", "{out}")


class Quick(NamedTuple):
    """A documented first command.

    The case is skipped if a package in `needs` is missing, or if the first, the framework, is older
    than `since`, which added the command. `commands` are lines that run one after another. `data`
    is a key of quick_data.KINDS. `checks` contains names in quick_checks.CHECKS with their
    arguments. `limit` and `usual` are in seconds. `engine` is true if vLLM runs in the case.
    """

    name: str
    documented: str
    needs: tuple[str, ...]
    commands: str
    checks: tuple[tuple[str, ...], ...]
    data: str = ""
    tier: str = "gpu"
    since: str = ""
    limit: float = 400
    usual: float = 25
    gpus: int = 1
    engine: bool = False


def sharded(configuration: str, gpus: int) -> str:
    """Return the command for fine-tuning with TRL and one of its accelerate configurations."""
    launched = f"--accelerate_config {configuration} --num_processes {gpus}"
    return f"{{bin}}/trl sft {SIZES} {launched} --main_process_port {{port}}"


def by_deepspeed(configuration: str) -> str:
    """Return the command that runs TRL's fine-tuning script with the launcher of DeepSpeed."""
    launched = "{bin}/deepspeed --num_gpus 1 --master_port {port} {trl}/scripts/sft.py"
    return f"{launched} {SIZES} --deepspeed {configuration}"


TABLE: tuple[Quick, ...] = (
    Quick(
        "trl help",
        "the command line lists its methods",
        ("trl",),
        "{bin}/trl --help",
        (("says", "sft"), ("says", "grpo")),
        tier="cpu",
        usual=2,
    ),
    Quick(
        "trl env",
        "the environment for a bug report",
        ("trl",),
        "{bin}/trl env",
        (("says", r"TRL version: \d"), ("says", r"Transformers version: \d")),
        tier="cpu",
        usual=10,
    ),
    Quick(
        "vllm help",
        "the command line lists its verbs",
        ("vllm",),
        "{bin}/vllm --help",
        (("says", "serve"), ("says", "bench")),
        usual=15,
    ),
    Quick(
        "trl sft",
        "supervised fine-tuning of a chat data set by the command",
        ("trl",),
        f"{{bin}}/trl sft {SIZES}",
        (("says", TRAINED), WEIGHTS),
        data="chat",
    ),
    Quick(
        "trl sft, 4 bit",
        "the script of the package under accelerate launch, with an adapter on a 4-bit model",
        ("trl", "peft", "bitsandbytes"),
        f"""
{{bin}}/accelerate launch --num_processes 1 --num_machines 1 --mixed_precision bf16 \
    --dynamo_backend no {{trl}}/scripts/sft.py {SIZES} \
    --use_peft --lora_r 8 --lora_alpha 16 --lora_target_modules q_proj v_proj --load_in_4bit
""",
        (("says", TRAINED), ("adapter", "{out}")),
        data="chat",
    ),
    Quick(
        "trl dpo",
        "preference optimization by the command",
        ("trl",),
        f"{{bin}}/trl dpo {SIZES}",
        (("says", TRAINED), WEIGHTS),
        data="preference",
    ),
    Quick(
        "trl kto",
        "optimization from single judgements by the command",
        ("trl",),
        f"{{bin}}/trl kto {SIZES}",
        (("says", TRAINED), WEIGHTS),
        data="unpaired",
    ),
    Quick(
        "trl reward",
        "a reward model from preferences by the command",
        ("trl",),
        f"{{bin}}/trl reward {SIZES}",
        (("says", TRAINED), WEIGHTS, ("tensor", "{out}", "score.weight")),
        data="preference",
        since="0.24",
    ),
    Quick(
        "trl rloo",
        "leave-one-out policy gradients by the command, generation by transformers",
        ("trl",),
        f"{{bin}}/trl rloo {SIZES} {ONLINE}",
        (("says", TRAINED), WEIGHTS),
        data="prompt",
        since="0.22",
    ),
    Quick(
        "trl grpo",
        "group relative optimization by the command, vLLM in the trainer's process",
        ("trl", "vllm"),
        f"""
{{bin}}/trl grpo {SIZES} {ONLINE} --use_vllm True --vllm_mode colocate \
    --vllm_gpu_memory_utilization {{share}}
""",
        (("says", TRAINED), WEIGHTS),
        data="prompt",
        since="0.19",  # before, it reads torchrun's variables without setting them
        limit=600,
        usual=70,
        engine=True,
    ),
    Quick(
        "trl sft, fsdp2",
        "the package's configuration of FSDP 2",
        ("trl",),
        sharded("fsdp2", 1),
        (("says", TRAINED), WEIGHTS),
        data="chat",
    ),
    Quick(
        "trl sft, zero3",
        "the package's configuration of ZeRO 3",
        ("trl", "deepspeed"),
        sharded("zero3", 1),
        (("says", TRAINED), WEIGHTS),
        data="chat",
        usual=35,
    ),
    Quick(
        "deepspeed report",
        "which operators DeepSpeed can compile, and the environment for a bug report",
        ("deepspeed",),
        "{bin}/ds_report",
        (("says", r"deepspeed info \.+ \d"), ("says", r"torch version \.+ \d")),
        tier="cpu",
        usual=20,
    ),
    Quick(
        "deepspeed launcher",
        "DeepSpeed's launcher with its own configuration and optimizer: ZeRO 2 and FusedAdam",
        ("trl", "deepspeed"),
        by_deepspeed("zero2.json"),
        (("says", TRAINED), WEIGHTS),
        data="chat",
        limit=600,
        usual=90,
    ),
    Quick(
        "deepspeed launcher, offload",
        "DeepSpeed's launcher with ZeRO 3 and an optimizer in the memory of the host",
        ("trl", "deepspeed"),
        by_deepspeed("offload.json"),
        (("says", TRAINED), WEIGHTS),
        data="chat",
        limit=600,
        usual=90,
    ),
    Quick(
        "trl sft, fsdp2 on two GPUs",
        "the package's configuration of FSDP 2, each GPU with half of the model",
        ("trl",),
        sharded("fsdp2", 2),
        (("says", TRAINED), WEIGHTS),
        data="chat",
        tier="multi-gpu",
        gpus=2,
    ),
    Quick(
        "trl sft, zero3 on two GPUs",
        "the package's configuration of ZeRO 3, each GPU with half of the model",
        ("trl", "deepspeed"),
        sharded("zero3", 2),
        (("says", TRAINED), WEIGHTS),
        data="chat",
        tier="multi-gpu",
        gpus=2,
    ),
    Quick(
        "verl sft",
        "fine-tuning on conversations of several turns, then the checkpoint merger",
        ("verl",),
        """
{bin}/torchrun --standalone --nnodes=1 --nproc_per_node=1 -m verl.trainer.sft_trainer \
    data.train_files={data} data.val_files={data} data.train_batch_size=4 \
    data.micro_batch_size_per_gpu=2 data.max_length=256 data.num_workers=0 model.path={model} \
    +model.override_config.attn_implementation=sdpa optim.lr=1e-2 engine.use_torch_compile=False \
    trainer.total_epochs=1 trainer.test_freq=1 trainer.default_local_dir={out} \
    trainer.logger=[console]
{python} -m verl.model_merger merge --backend fsdp --local_dir {out}/global_step_2 \
    --target_dir {out}/merged
""",
        (("says", f"train/{LOSS}"), ("says", f"val/{LOSS}"), ("weights", "{out}/merged")),
        data="verl chat",
        since="0.9",
        usual=35,
    ),
    Quick(
        "verl generation",
        "responses for the prompts of a file, by the rollout's own server",
        ("verl", "vllm"),
        f"""
{{python}} -m verl.trainer.main_generation_server trainer.nnodes=1 trainer.n_gpus_per_node=1 \
    actor_rollout_ref.model.path={{model}} {ROLLOUT}.name=vllm {ROLLOUT}.n=2 \
    {ROLLOUT}.temperature=1.0 {ROLLOUT}.prompt_length=64 {ROLLOUT}.response_length=16 \
    {ROLLOUT}.tensor_model_parallel_size=1 {ROLLOUT}.gpu_memory_utilization={{share}} \
    {ROLLOUT}.enforce_eager=True {ROLLOUT}.load_format=auto data.train_files={{data}} \
    data.prompt_key=prompt +data.output_path={{out}}/generated.parquet
""",
        (("texts", "{out}/generated.parquet", "responses", "2"),),
        data="verl prompt",
        since="0.9",
        limit=600,
        usual=70,
        engine=True,
    ),
)


def of_tier(tier: str) -> tuple[Quick, ...]:
    """Return the rows of `tier`."""
    return tuple(row for row in TABLE if row.tier == tier)
