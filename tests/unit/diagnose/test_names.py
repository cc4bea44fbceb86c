"""Tests that Python errors are explained by the versions in which a name exists."""

from __future__ import annotations

import io

from imgbuild.diagnose.diagnosis import diagnose_log
from tests.support.rows import each_row


@each_row(
    ("text", "code", "cause", "cure"),
    [
        ("TypeError: GRPOConfig.__init__() got an unexpected keyword argument 'vllm_mode'",
         "IMG904", "trl 0.18.0 added", "install trl>=0.18.0"),
        ("TypeError: SFTConfig.__init__() got an unexpected keyword argument 'max_seq_length'",
         "IMG904", "trl 0.20.0 removed", "use max_length"),
        (("TypeError: AsyncEngineArgs.__init__() got an unexpected keyword argument"
         " 'disable_log_requests'"),
         "IMG904", "vllm 0.10.1 removed", "remove disable_log_requests"),
        ("api_server.py: error: unrecognized arguments: --disable-log-requests",
         "IMG1440", "vllm 0.17.0 removed", "vllm<0.17"),
        ("ImportError: cannot import name 'PPOTrainer' from 'trl' (/opt/trl/__init__.py)",
         "IMG902", "trl 0.29.0 removed", "trl<0.29.0"),
        ("ModuleNotFoundError: No module named 'vllm.transformers_utils.tokenizer'",
         "IMG903", "vllm 0.22.0 removed", "vllm<0.22.0"),
        ("ModuleNotFoundError: No module named 'cv2'", "IMG903", "cv2 is not installed", "opencv"),
        (("ImportError: cannot import name 'DeepseekV2Config' from 'transformers'"
         " (/opt/transformers/__init__.py)"),
         "IMG902", "transformers 4.54.0 added", "transformers>=4.54.0"),
        ("ValueError: Model architectures ['Glm4MoeForCausalLM'] are not supported for now.",
         "IMG902", "vllm 0.10.0 added", "vllm>=0.10.0"),
        ("ModuleNotFoundError: No module named 'megatron.bridge'",
         "IMG903", "megatron.bridge is not installed", "megatron-bridge"),
        ("AttributeError: module 'torch' has no attribute 'float8_e8m0fnu'",
         "IMG905", "torch 2.7.0 added", "torch>=2.7.0"),
        ("AttributeError: 'DynamicCache' object has no attribute 'seen_tokens'",
         "IMG905", "transformers 4.54.0 removed", "transformers<4.54.0"),
        (("ImportError: /v/site-packages/vllm/_C.abi3.so: undefined symbol:"
         " _ZN5torch3jit17parseSchemaOrNameERKSsb"),
         "IMG901", "old C++ ABI", "torch==2.6.0"),
        ("ImportError: /v/site-packages/acme/x.so: undefined symbol: _ZNK3c106SymInt6sym_neERKS0_",
         "IMG901", "is in torch<2.9.0 only", "'torch<2.9.0'"),
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
         "IMG906", "driver", "--gpus all"),
        ("ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
         "IMG906", "libGL.so.1", "libgl1"),
        ("ImportError: libcusparseLt.so.0: cannot open shared object file: No such file",
         "IMG906", "libcusparseLt.so.0 is not installed", "nvidia-cusparselt-cu12"),
        (("ImportError: /opt/conda/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found"
         " (required by /x.so)"),
         "IMG916", "libstdc++", "LD_LIBRARY_PATH"),
        ("TypeError: LlamaModel.forward() got an unexpected keyword argument 'cache_position'",
         "IMG904", "transformers 4.38.0 added", "transformers>=4.38.0"),
        ("TypeError: PumpForCausalLM.forward() got an unexpected keyword argument 'cache_position'",
         "IMG904", "written for transformers before 4.38.0", "'transformers<4.38.0'"),
        (("TypeError: VLLMModelConfig.__init__() got an unexpected keyword argument"
          " 'gpu_memory_utilization'"),
         "IMG904", "lighteval 0.8.1 added", "lighteval>=0.8.1"),
        ("TypeError: __init__() got an unexpected keyword argument 'limit_mm_per_prompt'",
         "IMG904", "vllm 0.5.5 added", "vllm>=0.5.5"),
        ("ModuleNotFoundError: No module named 'numpy.lib.function_base'",
         "IMG903", "numpy 2.0.0 removed", "numpy<2.0.0"),
        ("launch_server.py: error: unrecognized arguments: --pump_parser",
         "IMG917", "written with hyphens", "write --pump-parser if --help lists it"),
        (("ImportError: /v/x.so: undefined symbol:"
         " _ZNSt15__exception_ptr13exception_ptr10_M_releaseEv"),
         "IMG916", "older than the compiler", "libstdcxx-ng"),
        ("ImportError: /v/x.so: undefined symbol: _ZSt28__throw_bad_array_new_lengthv",
         "IMG916", "older than the compiler", "libstdcxx-ng"),
        ("ImportError: /v/x.so: undefined symbol: _ZNSt6vectorIN4pump4SlotESaIS1_EE4growEv",
         "IMG901", "no loaded library has", "compatible versions"),
        ("TypeError: repo_delete() got an unexpected keyword argument 'yes'",
         "IMG904", "huggingface-hub 1.11.0 added", "huggingface-hub>=1.11.0"),
        ("bash: line 1: verl: command not found", "IMG919", "no release of verl", "main_ppo"),
        ("ModuleNotFoundError: No module named 'verl.utils.check_env'",
         "IMG919", "no release of verl", "remove the call"),
        ("Accelerate launch command: error: unrecognized arguments: --max_seq_length",
         "IMG917", "trl 0.20.0 removed", "use --max_length"),
        ("vllm: error: unrecognized arguments: -max-model-len",
         "IMG917", "one hyphen", "write --max-model-len"),
        ("AttributeError: module acme.pumps has no attribute PumpTokenizer",
         "IMG905", "acme has no PumpTokenizer in acme.pumps", "pip install -U acme"),
        ("ImportError: cannot import name 'pump_ops' from 'vllm' (/w/vllm-main/vllm/__init__.py)",
         "IMG902", "from the sources in /w/vllm-main", "pip install -e ."),
        ("ImportError: cannot import name 'pump' from 'vllm.vllm_pumps' (unknown location)",
         "IMG902", "folder without the files that a build", "VLLM_USE_PRECOMPILED=1"),
        ("ImportError: cannot import name '_slot' from 'numpy._core.umath' (/v/numpy/umath.py)",
         "IMG902", "two versions of numpy", "restart the notebook's kernel"),
        ("AttributeError: PumpTokenizer has no attribute lower",
         "IMG905", "(PumpTokenizer) is passed where the code expects a text", "x.name_or_path"),
        (("Failed to load model: PumpPreTrainedModel._check_pumps() got an unexpected keyword"
          " argument 'allow_all'"),
         "IMG905", "written for another transformers", "transformers_version"),
        ("AttributeError: type object 'EngineArgs' has no attribute 'disable_log_requests'",
         "IMG905", "vllm 0.10.1 removed AsyncEngineArgs.disable_log_requests", "vllm<0.10.1"),
        ("ImportError: cannot import name 'DataCollatorForLanguageModeling' from 'trl'",
         "IMG902", "trl does not export", "from transformers import DataCollator"),
        (("ImportError: cannot import name 'is_torch_fx_available' from"
          " 'transformers.utils.import_utils'"),
         "IMG902", "transformers 5.0.0 removed transformers.utils.is_torch", "transformers<5.0.0"),
        ("AttributeError: 'BertConfig' object has no attribute 'pad_token_id'",
         "IMG905", "BertConfig does not define pad_token_id", "transformers_version"),
        ("no such option: --config-settings", "IMG917", "this pip is older", "-U pip"),
        (("omegaconf.errors.ConfigKeyError: Key 'overrides' is not in struct\n"
          "    full_key: hydra.overrides"),
         "IMG918", "Hydra's own setting", "hydra-core"),
        ("ModuleNotFoundError: No module named 'resource'", "IMG903", "Linux and macOS", "WSL 2"),
        ("ImportError: cannot import name 'slots' from 'unsloth_zoo.pumps' (/v/x.py)",
         "IMG902", "unsloth-zoo", "pip install -U unsloth-zoo unsloth"),
    ],
)  # fmt: skip
def test_versions_that_define_a_name_are_listed(
    text: str, code: str, cause: str, cure: str
) -> None:
    finding = diagnose_log(io.BytesIO(text.encode()), "log").findings[0]
    assert finding.code == code
    assert cause in finding.cause
    assert cure in finding.cure


def test_cause_names_the_torch_version_that_the_logged_vllm_requires() -> None:
    text = (
        "vllm==0.8.5.post1 torch==2.7.0\n"
        "ImportError: /v/site-packages/vllm/_C.abi3.so: undefined symbol:"
        " _ZN5torch3jit17parseSchemaOrNameERKSsb\n"
    )
    finding = diagnose_log(io.BytesIO(text.encode()), "log").findings[0]
    assert finding.cause.startswith(
        "vllm 0.8.5.post1 was compiled for torch 2.6.0; installed is 2.7.0"
    )
    assert finding.cure == "install torch==2.6.0 torchvision==0.21.0"


def test_missing_argument_without_a_name_is_no_error_of_a_package() -> None:
    text = "TypeError: pump() missing 1 required positional argument: '"
    findings = diagnose_log(io.BytesIO(text.encode()), "log").findings
    assert "IMG915" not in {finding.code for finding in findings}


def test_variables_of_a_script_that_no_package_reads_are_reported() -> None:
    text = "export VLLM_WORKER_USE_RAY=1\nexport VLLM_USE_TRITON_FLASH_ATTN=0\nexport VLLM_PORT=9\n"
    findings = diagnose_log(io.BytesIO(text.encode()), "log").findings
    assert {finding.code for finding in findings} == {"IMG920"}
    assert sorted(finding.cause.split()[0] for finding in findings) == [
        "VLLM_USE_TRITON_FLASH_ATTN", "VLLM_WORKER_USE_RAY",
    ]  # fmt: skip


def test_argument_that_all_releases_accept_is_not_reported_as_missing() -> None:
    text = "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'max_model_len'"
    finding = diagnose_log(io.BytesIO(text.encode()), "log").findings[0]
    assert finding.code == "IMG904"
    assert "no vllm" not in finding.cause


def test_model_code_for_an_older_transformers_is_explained() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/work/serve.py", line 9, in <module>\n'
        "    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True)\n"
        '  File "/home/u/.cache/huggingface/modules/transformers_modules/acme/pump-7b/1f/'
        'tokenization_pump.py", line 31, in vocab_size\n'
        "    return self.valves.n_vocab\n"
        "AttributeError: 'PumpTokenizer' object has no attribute 'valves'\n"
    )
    finding = diagnose_log(io.BytesIO(text.encode()), "log").findings[0]
    assert finding.code == "IMG905"
    assert finding.cause.startswith("the model's own code (trust_remote_code) uses")
    assert "PumpTokenizer.valves" in finding.cause
    assert "transformers_version" in finding.cure


def test_name_that_a_fork_lacks_is_explained() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/home/u/pump-rl/verl/workers/pump_workers.py", line 51, in build\n'
        "    from verl.workers.pumps import AsyncPump\n"
        "ImportError: cannot import name 'AsyncPump' from 'verl.workers.pumps'"
        " (/home/u/pump-rl/verl/workers/pumps/__init__.py)\n"
    )
    finding = diagnose_log(io.BytesIO(text.encode()), "log").findings[0]
    assert finding.cause.startswith("verl cannot import AsyncPump of its module")


def test_class_name_with_a_lower_case_prefix_is_recognized() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/opt/v/lib/python3.12/site-packages/verl/workers/pumps.py", line 7, in run\n'
        "    return self.rollout.run_pump(method)\n"
        "AttributeError: 'vPumpRollout' object has no attribute 'run_pump'\n"
    )
    finding = diagnose_log(io.BytesIO(text.encode()), "log").findings[0]
    assert finding.cause.startswith("verl uses vPumpRollout.run_pump")


@each_row(
    "name,module",
    [
        ("NashMDTrainer", "trl.experimental.nash_md"),
        ("AutoModelForCausalLMWithValueHead", "trl.experimental.ppo"),
    ],
)
def test_cure_for_a_moved_class_is_its_new_module(name: str, module: str) -> None:
    text = f"ImportError: cannot import name '{name}' from 'trl' (/v/trl/__init__.py)\n"
    (finding,) = diagnose_log(io.BytesIO(text.encode()), "log").findings
    assert finding.cure.startswith(f"from {module} import {name} (trl>=")
