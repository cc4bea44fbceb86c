"""Tests explanations of calls and attributes that the package lacks in this version."""

from __future__ import annotations

import io

from imgbuild.diagnose.diagnosis import diagnose_log
from imgbuild.diagnose.finding import LogFinding

SITE = "/opt/venv/lib/python3.11/site-packages"


def first(*frames: tuple[str, str], error: str, name: str = "f") -> LogFinding:
    """The first finding for a traceback with frames of files below site-packages."""
    lines = "".join(
        f'  File "{SITE}/{file}", line 7, in {name}\n    {code}\n' for file, code in frames
    )
    text = f"Traceback (most recent call last):\n{lines}{error}\n"
    return diagnose_log(io.BytesIO(text.encode()), "log").findings[0]


def test_function_that_rejects_an_argument_from_another_package_is_explained() -> None:
    finding = first(
        ("trl/trainer/sft_trainer.py", "model = get_peft_model(model, rows=4)"),
        error="TypeError: get_peft_model() got an unexpected keyword argument 'rows'",
    )
    assert finding.cause.startswith("get_peft_model of the installed peft does not accept")
    assert "which trl passes to it" in finding.cause


def test_method_of_another_package_that_rejects_an_argument_is_explained() -> None:
    finding = first(
        ("llamafactory/chat/vllm_engine.py", "result = self.model.generate("),
        error="TypeError: AsyncLLMEngine.generate() got an unexpected keyword argument 'slots'",
    )
    assert "AsyncLLMEngine.generate of the installed vllm does not accept" in finding.cause
    assert "which llamafactory passes" in finding.cause


def test_checker_of_a_version_is_the_caller_of_the_function_for_it() -> None:
    finding = first(
        ("llamafactory/train/trainer.py", "require_version('trl<=0.9.6')"),
        ("transformers/utils/versions.py", "raise ImportError("),
        error="ImportError: trl<=0.9.6 is required for a normal functioning of this module, but"
        " found trl==0.24.0.",
    )
    assert finding.cause.startswith("llamafactory needs trl<=0.9.6, and trl 0.24.0")


def test_attribute_of_a_trainer_that_unsloth_generated_is_explained() -> None:
    finding = first(
        ("unsloth/unsloth_compiled_cache/UnslothSFTTrainer.py", "rows = self._slots(model)"),
        error="AttributeError: 'UnslothSFTTrainer' object has no attribute '_slots'\n# trl==0.20.0",
    )
    assert "unsloth generated UnslothSFTTrainer from another trl" in finding.cause
    assert "(0.20.0)" in finding.cause


def test_exception_in_a_call_at_import_is_of_the_versions() -> None:
    finding = first(
        ("transformers/integrations/hub.py", '"cuda": LayerPump('),
        ("kernels/layer.py", "raise ValueError("),
        error="ValueError: Either a slot or a pump must be specified.",
        name="<module>",
    )
    assert "install the kernels that transformers requires" in finding.cure


def test_missing_method_called_by_another_package_is_explained() -> None:
    finding = first(
        ("openrlhf/trainer/ray/engine.py", "self.llm.collective_rpc('reload_rows')"),
        ("vllm/utils.py", "return func(*args, **kwargs)"),
        error="AttributeError: 'Worker' object has no attribute 'reload_rows'",
    )
    assert finding.cause.startswith("openrlhf calls the method reload_rows through vllm")
    assert "pip install -U openrlhf vllm" in finding.cure


def test_missing_attribute_of_an_imported_class_is_explained() -> None:
    finding = first(
        ("acme/core.py", "if kind == PumpKind.double_pump:"),
        error="AttributeError: type object 'PumpKind' has no attribute 'double_pump'",
    )
    assert "acme was written for another version of that package" in finding.cause
    assert finding.cure.startswith("pip install -U acme")


def test_missing_attribute_of_an_engine_layer_is_explained() -> None:
    finding = first(
        ("vllm/model_executor/layers/fp8.py", "scale=layer.pump_scale,"),
        error="AttributeError: 'RowParallelLinear' object has no attribute 'pump_scale'",
    )
    assert "does not support the model, its quantization or an option" in finding.cause


def test_model_method_that_rejects_an_argument_of_transformers_is_explained() -> None:
    finding = first(
        ("transformers/modeling_utils.py", "self.tie_weights(rows=False)"),
        error="TypeError: AcmeForCausalLM.tie_weights() got an unexpected keyword argument 'rows'",
    )
    assert "was written for another transformers" in finding.cause


def test_method_that_rejects_an_argument_from_its_own_package_is_explained() -> None:
    finding = first(
        ("acme/core.py", "return self.to_rows(width=4)"),
        error="TypeError: PumpStack.to_rows() got an unexpected keyword argument 'width'",
    )
    assert "a fault of this release if PumpStack is a class of acme" in finding.cause


def test_cure_for_an_undefined_name_is_the_release_that_added_the_name() -> None:
    finding = first(
        ("transformers/training_args.py", 'field: "ParallelismConfig" = None'),
        error="NameError: name 'ParallelismConfig' is not defined. Did you mean: 'parallelism_rows'"
        "?",
    )
    assert finding.cure == "pip install 'accelerate>=1.10.0'"


def test_undefined_name_in_generated_code_is_explained() -> None:
    text = (
        "Traceback (most recent call last):\n"
        f'  File "{SITE}/unsloth/models/_utils.py", line 460, in <module>\n'
        "    exec(config, globals())\n"
        '  File "<string>", line 3, in <module>\n'
        "NameError: name 'PreTrainedConfig' is not defined. Did you mean: 'PretrainedConfig'?\n"
    )
    finding = diagnose_log(io.BytesIO(text.encode()), "log").findings[0]
    assert finding.cause.startswith("the code of unsloth uses PreTrainedConfig of transformers")


def test_missing_driver_function_is_explained() -> None:
    finding = first(
        ("acme/core.py", "import acme._C"),
        error=f"ImportError: {SITE}/acme/_C.so: undefined symbol: cuPumpCreateRows",
    )
    assert "acme uses cuPumpCreateRows, a function of the NVIDIA driver" in finding.cause
    assert "nvidia-smi" in finding.cure


def test_missing_attribute_of_a_custom_trainer_is_explained() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/work/job/trainer.py", line 4, in step\n    if self._last_rows != step:\n'
        "AttributeError: 'PumpGRPOTrainer' object has no attribute '_last_rows'\n"
    )
    finding = diagnose_log(io.BytesIO(text.encode()), "log").findings[0]
    assert "the Trainer of trl or transformers from which PumpGRPOTrainer" in finding.cause


def test_setting_of_a_file_that_a_newer_package_wrote_is_explained() -> None:
    finding = first(
        ("accelerate/commands/config/config_args.py", "return cls(**config_dict)"),
        error="TypeError: __init__() got an unexpected keyword argument 'pump_ids'",
    )
    assert "the file that accelerate reads has the setting pump_ids" in finding.cause
    assert finding.cure.startswith("pip install -U accelerate")


def test_class_that_a_package_defines_with_an_optional_package_is_explained() -> None:
    finding = first(
        ("megatron/core/models/gpt/gpt_layer_specs.py", "linear_qkv=TEPumpLinear,"),
        error="NameError: name 'TEPumpLinear' is not defined",
    )
    assert finding.cause.startswith("megatron-core defines TEPumpLinear only if transformer-engine")
    assert "--transformer-impl local" in finding.cure


def test_package_that_is_on_no_index_is_not_updated_from_one() -> None:
    finding = first(
        ("transformers/trainer.py", "from apex import amp"),
        error=f"ImportError: cannot import name 'amp' from 'apex' ({SITE}/apex/__init__.py)",
    )
    assert "pip install" not in finding.cure
    assert "built from its git repository" in finding.cure
