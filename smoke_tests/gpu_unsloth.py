"""Trains an adapter of the tiny Qwen for one step with Unsloth, which patches transformers.

The step is an SFT step, or a GRPO step in which vLLM generates with the weights of the model
(`fast_inference=True`). The mode `notebook` follows Unsloth's first notebook: it trains a 4-bit
model on conversations with a loss only on answers, and then tests an answer, the saved adapter and
the merged model. The steps after training are separate results.
"""

from __future__ import annotations

import math
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import quick_checks
import quick_data
import smoke_gpu
import smoke_openai
import smoke_stack
import tiny_qwen
from cpu_grpo_step import PROMPTS, Reward, compared
from smoke_support import judge

RANK = 8


def load(folder: Path, **more: Any) -> tuple[Any, Any]:
    """Load the model with an adapter, and its tokenizer."""
    import unsloth

    options = {"max_seq_length": smoke_stack.LENGTH, "load_in_4bit": False} | more
    model, tokenizer = unsloth.FastLanguageModel.from_pretrained(model_name=str(folder), **options)
    adapted = unsloth.FastLanguageModel.get_peft_model(
        model, r=RANK, lora_alpha=2 * RANK, random_state=7
    )
    return adapted, tokenizer


def sft(folder: Path) -> tuple[Any, Any, list[str]]:
    """Create the model and the trainer of an SFT step. Returns both, and the problems so far."""
    import gpu_sft
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    model, tokenizer = load(folder)
    trainer = SFTTrainer(
        model=model,
        args=gpu_sft.settings(SFTConfig),
        train_dataset=Dataset.from_list([{"text": line} for line in tiny_qwen.LINES]),
        processing_class=tokenizer,
    )
    return model, trainer, []


def notebook(folder: Path) -> tuple[Any, Any, list[str]]:
    """Create the model and the trainer of the notebook. Returns both, and the problems so far."""
    import gpu_sft
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer
    from unsloth.chat_templates import train_on_responses_only

    model, tokenizer = load(folder, load_in_4bit=True)
    texts = [
        tokenizer.apply_chat_template(row["messages"], tokenize=False) for row in quick_data.chat()
    ]
    trainer = SFTTrainer(
        model=model,
        args=gpu_sft.settings(SFTConfig),
        train_dataset=Dataset.from_list([{"text": text} for text in texts * 4]),
        processing_class=tokenizer,
    )
    parts = {"instruction_part": "<|im_start|>user\n", "response_part": "<|im_start|>assistant\n"}
    trainer = train_on_responses_only(trainer, **parts)
    labels = [token for row in trainer.train_dataset for token in row["labels"]]
    trained = sum(token != -100 for token in labels)
    print(f"{trained} of {len(labels)} tokens are trained")
    wrong = not 0 < trained < len(labels)
    return model, trainer, [f"{trained} of {len(labels)} tokens are trained"] if wrong else []


def answer(model: Any, tokenizer: Any) -> list[str]:
    """Return the problems with an answer of the trained model."""
    import unsloth

    unsloth.FastLanguageModel.for_inference(model)
    inputs = tokenizer.apply_chat_template(
        smoke_openai.QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to("cuda")
    tokens = model.generate(**inputs, max_new_tokens=16, do_sample=True)
    text = tokenizer.decode(tokens[0][inputs["input_ids"].shape[1] :])
    print("answer:", repr(text))
    return [] if text else ["the answer is empty"]


def adapter(model: Any, tokenizer: Any) -> list[str]:
    """Return the problems with the saved adapter."""
    model.save_pretrained("lora")
    tokenizer.save_pretrained("lora")
    return quick_checks.adapter("", Path(), "lora")


def merged(model: Any, tokenizer: Any) -> list[str]:
    """Return the problems with the merged model, whose trained layers must have changed."""
    model.save_pretrained_merged("merged", tokenizer, save_method="merged_16bit")
    before, after = quick_checks.tensors(Path("model")), quick_checks.tensors(Path("merged"))
    name = "model.layers.0.self_attn.q_proj.weight"
    if name not in after:
        return [f"the merged model has no {name}, but {sorted(after)[:4]}"]
    same = after[name].float().equal(before[name].to(after[name].dtype).float())
    return [f"{name} did not change"] if same else []


def engine_answer(model: Any) -> list[str]:
    """Return the problems with a text that vLLM generates with the saved adapter."""
    from vllm import SamplingParams

    model.save_lora("grpo_lora")
    parameters = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=16)
    request = model.load_lora("grpo_lora")
    [output] = model.fast_generate([PROMPTS[0]], sampling_params=parameters, lora_request=request)
    print("answer:", repr(output.outputs[0].text))
    return [] if output.outputs[0].text else ["the text is empty"]


def grpo(folder: Path, reward: Reward) -> tuple[Any, Any, list[str]]:
    """Create the model and the trainer of a GRPO step. Returns both, and the problems so far."""
    import gpu_grpo
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = load(
        folder,
        fast_inference=True,
        max_lora_rank=RANK,
        gpu_memory_utilization=smoke_stack.share(),
    )
    engine = getattr(model, "vllm_engine", None)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[reward],
        # With Unsloth's default of 2 a step needs more prompts than exist, and none is run.
        args=gpu_grpo.settings(GRPOConfig, {"gradient_accumulation_steps": 1}),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS]),
        processing_class=tokenizer,
    )
    return model, trainer, [] if engine is not None else ["Unsloth started no vLLM engine"]


def main(way: str) -> None:
    """Run the mode `way`, which is sft, notebook or grpo.

    The second halves of the adapters start at zero, and each must change. Unsloth must be imported
    before transformers, so another process creates the model.
    """
    smoke_gpu.require()
    os.environ["HF_HOME"] = str(Path("hf").absolute())
    os.environ["UNSLOTH_COMPILE_LOCATION"] = str(Path("unsloth_compiled_cache").absolute())
    os.environ["UNSLOTH_DISABLE_STATISTICS"] = "1"  # it downloads models to count users
    folder = Path("model").absolute()
    smoke_gpu.follow([sys.executable, tiny_qwen.__file__, str(folder)])
    smoke_gpu.turn(alone=way == "grpo" and smoke_stack.measures_memory())
    import unsloth  # noqa: F401  # it patches what is imported after it

    reward = Reward()
    begin = {"sft": sft, "notebook": notebook}
    model, trainer, problems = begin[way](folder) if way in begin else grpo(folder, reward)
    halves = {name: tensor for name, tensor in model.named_parameters() if "lora_B" in name}
    before = {name: tensor.detach().clone() for name, tensor in halves.items()}
    result = trainer.train()
    problems += [] if halves else ["the model has no adapter"]
    problems += compared(before, halves)
    if way == "grpo":
        problems += reward.problems()
        print("rewarded:", reward.seen)
        print("logged:", trainer.state.log_history)
        problems += judge("grpo step, unsloth: adapter in vLLM", partial(engine_answer, model))
    if way == "notebook":
        for after in (answer, adapter, merged):
            name = f"unsloth notebook: {after.__name__}"
            problems += judge(name, partial(after, model, trainer.processing_class))
    if trainer.state.global_step != 1:
        problems.append(f"{trainer.state.global_step} steps were run")
    if not math.isfinite(result.training_loss):
        problems.append(f"the loss is {result.training_loss}")
    smoke_gpu.end(problems, f"{len(halves)} adapters changed, loss {result.training_loss:.3f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sft")
