"""Tests that exceptions are attributed to the component that raised them or misused another."""

from __future__ import annotations

import io

import pytest

from imgbuild.diagnose import parts, remedies
from imgbuild.diagnose.diagnosis import diagnose_log
from imgbuild.diagnose.finding import LogFinding
from tests.support.rows import each_row

SITE = "/opt/venv/lib/python3.12/site-packages/"


def first(*frames: str, exception: str) -> LogFinding:
    """The first finding of a traceback. A frame is FILE:FUNCTION:CODE below site-packages or /."""
    text = "Traceback (most recent call last):\n"
    for number, frame in enumerate(frames, 1):
        file, name, code = frame.split(":", 2)
        path = file if file.startswith("/") else SITE + file
        text += f'  File "{path}", line {number}, in {name}\n    {code}\n'
    return diagnose_log(io.BytesIO(f"{text}{exception}\n".encode()), "log").findings[0]


@each_row(
    ("frame", "part", "cure"),
    [
        ("vllm/lora/ops/pump.py:_pump:assert a.size(0) == b", "LoRA adapters", "merge_and_unload"),
        ("vllm/v1/spec_decode/pump.py:run:assert a == b", "speculative decoding", "draft model"),
        ("sglang/srt/layers/attention/pump.py:f:assert a", "attention backend", "triton"),
        ("deepspeed/runtime/zero/stage3.py:f:assert a == b", "ZeRO-3", "ZeRO-2"),
        ("verl/workers/reward_manager/pump.py:f:assert a == b", "reward function", "one sample"),
        ("transformers_modules/acme/modeling_pump.py:f:assert a == b", "code that comes", "pin"),
        ("/work/mcore/megatron/core/dist_checkpointing/pump.py:f:assert a", "checkpoints", "iter_"),
        ("megatron/core/transformer/moe/pump.py:f:assert a", "experts (MoE) of", "alltoall"),
        ("/work/pump/model_merger.py:f:assert a", "merging of sharded", "fsdp_config.json"),
        ("transformer_engine/pytorch/module/base.py:get_ub:assert a", "user buffers", "initialize"),
        ("transformer_engine/pytorch/attention.py:f:assert a", "attention of", "NVTE_DEBUG=1"),
        ("transformer_engine/pytorch/fp8.py:f:assert a", "FP8 of", "bf16"),
    ],
)
def test_cause_of_a_failed_assertion_names_the_package_component(
    frame: str, part: str, cure: str
) -> None:
    finding = first(frame, exception="AssertionError")
    assert finding.code == "IMG921"
    assert f"({part}" in finding.cause
    assert cure in finding.cure or "transformers_version" in finding.cure


@each_row(
    "exception",
    [
        "TypeError: float() argument must be a string or a real number, not 'dict'",
        "KeyError: 'a.b'",
    ],
)
def test_cure_of_a_checkpoint_is_used_for_messages_of_python(exception: str) -> None:
    finding = first(
        "/work/resume.py:main:set_optimizer_state_dict(model, pump, state)",
        "torch/distributed/checkpoint/state_dict.py:_split_pump:pump[name]",
        exception=exception,
    )
    assert "(state of the model and optimizer under FSDP)" in finding.cause
    assert "use the wrappers of the saving run" in finding.cure


def test_assertion_without_a_message_does_not_include_the_next_line() -> None:
    finding = first("vllm/v1/core/pump.py:f:assert a == b", exception="AssertionError\nstep 7 done")
    assert "a == b is false" in finding.cause
    assert "step 7" not in finding.cause


def test_torch_error_is_attributed_to_the_package_that_calls_torch() -> None:
    finding = first(
        "sglang/srt/layers/attention/pump.py:plan:self.module.plan(",
        "torch/_ops.py:__call__:return self._op(*args)",
        exception="RuntimeError: pump lengths decrease",
    )
    assert "raised by torch in a call of sglang (attention backend) in plan" in finding.cause
    assert "--attention-backend" in finding.cure


def test_torch_error_in_program_code_is_attributed_to_torch() -> None:
    finding = first(
        "/work/train.py:main:step(x)",
        "torch/nn/pump.py:forward:return f(x)",
        exception="RuntimeError: pump lengths decrease",
    )
    assert "raised by torch in forward" in finding.cause
    assert "called from /work/train.py:1" in finding.cause


def test_failed_lookup_is_attributed_to_the_enclosing_function() -> None:
    finding = first(
        'axolotl/pump.py:parse:prompt["slot"],',
        "datasets/formatting/formatting.py:__getitem__:value = self.data[key]",
        exception="KeyError: 'slot'",
    )
    assert "the key slot is absent from prompt, read in parse (axolotl/pump.py:1)" in finding.cause


@each_row(
    ("message", "words"),
    [
        ("TypeError: list indices must be integers or slices, not str", "one more level"),
        ("AttributeError: 'str' object has no attribute 'slots'", "a string is passed"),
        (
            "TypeError: '<=' not supported between instances of 'float' and 'str'",
            "given as a string",
        ),
        ("ValueError: too many values to unpack (expected 2)", "a different number of values"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (7x9 and 1x460800)", "4-bit"),
        ("TypeError: Object of type Tensor is not JSON serializable", "has no such type"),
        ("RuntimeError: stack expects each tensor to be equal size", "different lengths"),
    ],
)
def test_messages_of_python_and_torch_are_explained(message: str, words: str) -> None:
    finding = first("/work/reward.py:score:return total(x)", exception=message)
    assert words in finding.cause
    assert "score (/work/reward.py:1)" in finding.cause


def test_backend_error_is_explained_as_torch_compile_error() -> None:
    text = "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"
    text += "NameError: name 's7' is not defined\n"
    finding = diagnose_log(io.BytesIO(text.encode()), "log").findings[0]
    assert finding.code == "IMG766"


def test_program_that_the_compiler_backend_lacks_is_the_cause() -> None:
    text = "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"
    text += "RuntimeError: Failed to find C compiler. Please specify via CC.\n"
    finding = diagnose_log(io.BytesIO(text.encode()), "log").findings[0]
    assert finding.code == "IMG626"


@pytest.mark.parametrize(
    ("program", "words"),
    [("pump.py", "pump.py has no option --task"), ("vllm", "the option --task")],
)
def test_rejected_option_is_attributed_to_the_program_that_rejects_it(
    program: str, words: str
) -> None:
    text = f"usage: {program} [-h]\n{program}: error: unrecognized arguments: --task score\n"
    finding = diagnose_log(io.BytesIO(text.encode()), "log").findings[0]
    assert finding.code == "IMG917"
    assert words in finding.cause


def test_cause_names_a_hydra_key_with_its_parents() -> None:
    text = "omegaconf.errors.ConfigAttributeError: Key 'slots' is not in struct\n"
    text += "    full_key: pump.fan.slots\n    object_type=dict\n"
    finding = diagnose_log(io.BytesIO(text.encode()), "log").findings[0]
    assert "no key pump.fan.slots" in finding.cause
    assert "verl" not in finding.cure


def test_every_component_has_a_cure_and_every_meaning_has_a_sentence() -> None:
    assert all(part.part and len(part.cure) > 40 for _, part in parts.load_parts())
    assert all(len(row.means) > 20 for row in remedies.load_remedies() if row.means)


def test_specific_remedy_replaces_the_general_remedy() -> None:
    found = first(
        "awq/modules/pump.py:forward:if pump_ext is None:",
        exception="NameError: name 'pump_ext' is not defined",
    )
    assert "an earlier import of the compiled module" in found.cause
    assert found.cure.startswith("python -c 'import pump_ext'")


def test_cause_names_the_package_that_passes_an_argument_to_torch() -> None:
    found = first(
        "awq/quantize/pump.py:quantize:self.model(samples)",
        "torch/nn/modules/module.py:_call_impl:return forward_call(*args, **kwargs)",
        exception="TypeError: PumpBlock.forward() got an unexpected keyword argument 'pump_values'",
    )
    assert "which the installed awq passes to it" in found.cause


def test_missing_module_with_a_leading_underscore_is_a_compiled_component() -> None:
    found = first(
        "/data/pump/pump/engine.py:<module>:import _pumpcore as _pc",
        exception="ModuleNotFoundError: No module named '_pumpcore'",
    )
    assert "compiled part" in found.cause
    assert "pip install _pumpcore" not in found.cure


def test_cause_names_a_program_whose_package_cannot_be_imported() -> None:
    line = (
        "/opt/bin/python: Error while finding module specification for 'pump.cli.train'"
        " (ModuleNotFoundError: No module named 'pump')\n"
    )
    found = diagnose_log(io.BytesIO(line.encode()), "log").findings[0]
    assert "cannot start pump.cli.train: pump is not importable" in found.cause
