"""Tests short logs that quote an error or have no traceback."""

from __future__ import annotations

import io

from imgbuild.diagnose.diagnosis import diagnose_log
from imgbuild.diagnose.finding import LogFinding
from tests.support.rows import each_row

# sglang calls vllm.
CALL = """Traceback (most recent call last):
  File "/v/site-packages/sglang/fan.py", line 3, in fan
    pump()
  File "/v/site-packages/vllm/pump.py", line 7, in pump
"""


def first_finding(text: str) -> LogFinding:
    """The first finding of a log."""
    return diagnose_log(io.BytesIO(f"{text}\n".encode()), "log").findings[0]


@each_row(
    "text,cause,cure",
    [
        (
            "运行脚本直接报AttributeError: 'MatmulLtState' object has no attribute 'pump'",
            "MatmulLtState, a class of bitsandbytes, has no pump",
            "bitsandbytes",
        ),
        (
            "we use verl here and see: No module named 'vllm.pump_core'",
            "the installed vllm has no module vllm.pump_core",
            "pip install -U verl 'vllm==",
        ),
        (
            "serving fails: \"PumpImpl.__init__() got an unexpected keyword argument 'pump_rows'\"",
            "the attention backend that was selected (PumpImpl) does not support pump_rows",
            "--attention-backend",
        ),
        (
            "vllm版本为0.20.2 报错 ImportError: libcudart.so.13: cannot open shared object file",
            "vllm 0.20.2 is built for CUDA 13",
            "torch==2.11.0",
        ),
        (
            "需要 generation_batch_size=64, 但 trl 0.16.1 的 GRPOConfig 里没有",
            "trl 0.18.0 added the argument generation_batch_size of GRPOConfig",
            "trl>=0.18.0",
        ),
        (
            "importing sgl_kernel:\nundefined symbol:\nc10::MessageLogger::stream()\n2 of 2",
            "was compiled for a different torch",
            "reinstall it for the installed torch",
        ),
        (
            "Using VLLM_ATTENTION_BACKEND environment variable is deprecated and will be removed",
            "VLLM_ATTENTION_BACKEND has no effect",
            "attention_backend",
        ),
        (
            "trl vllm-serve: init_communicator always runs into a timeout",
            "could not form the process group that transfers the weights: init_communicator",
            "its port open",
        ),
        (
            "libcudnn_cnn.so.9: undefined symbol: _ZTIN5cudnn7backend4PumpE, version libcudnn.so",
            "libraries of two releases of cuDNN are mixed",
            "LD_LIBRARY_PATH",
        ),
        (
            "vllm serve: error: unrecognized arguments: --disable-log-requests",
            "removed the option --disable-log-requests",
            "remove --disable-log-requests",
        ),
        (
            "GRPOTrainer.__init__() got an unexpected keyword argument 'tokenizer'\n# trl 0.22.0",
            "has the argument tokenizer of GRPOTrainer",
            "use processing_class",
        ),
        (
            (
                "ERROR: Could not find a version that satisfies the requirement xformers==0.0.27"
                " (from versions: 0.0.35.dev1146, 0.0.35.dev1147)"
            ),
            "so this is arm64",
            "build xformers==0.0.27 from source",
        ),
        (
            "trl 0.19.0 does not accept importance_sampling_level",
            "trl 0.20.0 added the argument importance_sampling_level of GRPOConfig",
            "trl>=0.20.0",
        ),
        (
            (
                "ValueError: Some specified arguments are not used by the HfArgumentParser:"
                " ['--max_seq_length', '512']\n# trl 0.21.0"
            ),
            "trl 0.20.0 removed the option --max_seq_length",
            "use --max_length",
        ),
        (
            "trl: error: argument command: invalid choice: 'vllm-serve' (choose from dpo, sft)",
            "trl 0.16.0 added the command trl vllm-serve",
            "trl>=0.16.0",
        ),
        (
            (
                "WARNING [_custom_ops.py:20] Failed to import from vllm._C with ImportError("
                "'/v/site-packages/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEa')\n"
                "# vllm 0.9.2 torch 2.8.0"
            ),
            "vllm 0.9.2 was compiled for torch 2.7.0",
            "torch==2.7.0",
        ),
        (
            (
                "AttributeError: '_OpNamespace' '_C' object has no attribute 'pump'\n"
                "# vllm 0.9.2 torch 2.8.0"
            ),
            "its compiled operators were not loaded",
            "torch==2.7.0",
        ),
        (
            "environment:\n  - VLLM_USE_V1=0\nimage: vllm/vllm-openai:v0.13.0",
            "VLLM_USE_V1 has no effect",
            "remove it",
        ),
        (
            "After 90 steps the entropy collapses, no error is shown",
            "training runs without an error",
            "reward",
        ),
        (
            "[TP0] Load weight end. elapsed=1908.73 s, avail mem=19.31 GB",
            "weights are read slowly",
            "local disk",
        ),
        (
            "OSError: 资源暂时不可用",
            "too few threads",
            "ulimit -u",
        ),
        (
            "/usr/bin/ld: -lcuda kann nicht gefunden werden",
            "the linker finds no libcuda.so",
            "TRITON_LIBCUDA_PATH",
        ),
        (
            "/tmp/x/main.c:4:10: erreur fatale: Python.h : Aucun fichier ou dossier de ce type",
            "the header Python.h",
            "python3-dev",
        ),
        (
            'GRPOConfig(loss_type="dr_grpo") trl 0.15.2 里没有 loss_type',
            "trl 0.17.0 added the argument loss_type of GRPOConfig",
            "trl>=0.17.0",
        ),
        (
            (
                "which accelerate -> /usr/local/bin/accelerate\n"
                "which python -> /home/u/envs/rl/bin/python\n"
                "ModuleNotFoundError: No module named 'trl'"
            ),
            "the accelerate on PATH (/usr/local/bin) belongs to a different Python",
            "python -m accelerate.commands.launch",
        ),
        (
            (
                "# vllm 0.11.0, torch 2.9.0\nterminate called after throwing an instance of"
                " 'std::bad_alloc'\nAborted (core dumped)"
            ),
            "vllm 0.11.0 was compiled for torch 2.8.0; installed is 2.9.0",
            "torch==2.8.0",
        ),
        (
            (
                "ImportError: libc10_cuda.so: cannot open shared object file: No such file or"
                " directory\n# torch 2.6.0+cpu, flash-attn 2.7.4.post1"
            ),
            "torch 2.6.0+cpu is a CPU build",
            "CUDA build of torch",
        ),
        (
            (
                "ImportError: libcudart.so.12: cannot open shared object file\n"
                "# vllm 0.11.2, torch 2.11.0+cu130"
            ),
            "vllm 0.11.2 is built for CUDA 12",
            "torch==2.9.0",
        ),
        (
            (
                "ERROR: Could not find a version that satisfies the requirement vllm==0.15.0 (from"
                " versions: 0.10.2, 0.11.2, 0.22.0, 0.23.0)"
            ),
            "up to 0.11.2, and from 0.22.0 on only, so this is a glibc older than 2.31",
            "vllm>=0.22.0",
        ),
        (
            (
                "ERROR: Could not find a version that satisfies the requirement torch==2.14.0 (from"
                " vllm==0.33.0) (from versions: 2.12.0, 2.13.0)"
            ),
            "vllm==0.33.0 needs a newer one: the index or mirror is behind",
            "an older vllm",
        ),
        (
            "loss 从第 20 步起一直是 0.0, grad_norm 是 nan",
            "training diverges",
            "check the data",
        ),
        (
            (
                "$ deepspeed train.py\nModuleNotFoundError: No module named 'liger_kernel'\n"
                "$ python -c 'import liger_kernel as k; print(k.__file__)'\n"
                "/opt/envs/rl/lib/python3.11/site-packages/liger_kernel/__init__.py"
            ),
            "liger_kernel is installed in one Python",
            "python -m deepspeed.launcher.runner",
        ),
        (
            "Loading safetensors checkpoint shards: 5% Completed | 2/40 [03:11<1:00:29, 95.51s/it]",
            "weights are read slowly",
            "local disk",
        ),
    ],
)
def test_error_quoted_in_a_note_is_explained(text: str, cause: str, cure: str) -> None:
    finding = first_finding(text)
    assert cause in finding.cause
    assert cure in finding.cure


def test_error_quoted_in_an_info_message_is_not_a_failure() -> None:
    text = (
        "INFO 01-02 03:04:05 pump.py:7] falls back after ImportError: libpump.so.1: cannot open\n"
    )
    assert diagnose_log(io.BytesIO(text.encode()), "log").findings == ()


@each_row(
    "lines,cause,cure",
    [
        (("torch 2.9.0+cu128",), "although torch is for CUDA 12", "nvidia-cuda-nvrtc-cu12"),
        (("torch 2.11.0",), "torch 2.11.0 is for CUDA 13", "for the CUDA of torch"),
        (("nvidia-nccl-cu13==2.28.9", "torch 2.9.0"), "has packages for CUDA 13", "of torch"),
    ],
)
def test_cuda_release_of_a_missing_library_is_compared_with_torch(
    lines: tuple[str, ...], cause: str, cure: str
) -> None:
    error = "ImportError: libnvrtc.so.12: cannot open shared object file: No such file or directory"
    finding = first_finding("\n".join((*lines, error)))
    assert cause in finding.cause
    assert cure in finding.cure


def test_cause_names_the_package_that_loads_a_cuda_library() -> None:
    finding = first_finding(
        "Traceback (most recent call last):\n"
        '  File "/opt/venv/lib/python3.12/site-packages/pump_ep/__init__.py", line 3, in <module>\n'
        "    from . import pump_cpp\n"
        "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory"
    )
    assert finding.cause.startswith("pump-ep is built for CUDA 13")
    assert "pip uninstall pump-ep" in finding.cure


def test_rejected_argument_of_the_logged_version_means_another_copy_is_imported() -> None:
    finding = first_finding(
        "vllm==0.9.2\n"
        "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'num_scheduler_steps'"
    )
    assert "the log shows vllm 0.9.2, which has it: another vllm is imported" in finding.cause
    assert "pip show vllm" in finding.cure


def test_attribute_that_the_installed_release_removed_is_not_reported_as_new() -> None:
    finding = first_finding(
        "transformers 5.14.1\nAttributeError: 'PumpConfig' object has no attribute 'pad_token_id'"
    )
    assert "PumpConfig does not define pad_token_id" in finding.cause
    assert "'transformers<5'" in finding.cure


def test_override_that_lacks_a_new_argument_of_the_base_class_is_explained() -> None:
    finding = first_finding(
        "TypeError: PumpTrainer.compute_loss() got an unexpected keyword argument"
        " 'num_items_in_batch'"
    )
    assert "which the installed transformers passes to it" in finding.cause
    assert "transformers<4.46" in finding.cure


def test_argument_error_is_attributed_to_the_package_that_forwards_the_argument() -> None:
    finding = first_finding(
        "TypeError: SamplingParams.__init__() got an unexpected keyword argument 'pump_rows'\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/opt/venv/lib/python3.11/site-packages/pumpllm/main.py", line 7, in complete\n'
        "    response = await run()\n"
        "pumpllm.PumpError: SamplingParams failed"
    )
    assert finding.cause.startswith("pumpllm passes pump_rows to SamplingParams")
    assert "pip install -U pumpllm" in finding.cure


def test_missing_module_that_only_a_build_creates_is_explained() -> None:
    finding = first_finding("ModuleNotFoundError: No module named 'vllm._version'")
    assert "sources of vllm are imported that were not built" in finding.cause


@each_row(
    "system,cure",
    [
        ("Python ABI tag", "a different Python"),
        ("platform tag (e.g., win_amd64)", "Linux or WSL 2"),
        (
            "platform tag (e.g., `macosx_14_0_arm64`)",
            "use Linux: pump has no wheels for this macOS",
        ),
    ],
)
def test_cause_names_a_package_without_wheels_for_this_system(system: str, cure: str) -> None:
    finding = first_finding(
        "  x No solution finding when resolving dependencies:\n"
        "  ╰─▶ Because only the following versions of pump are available:\n"
        "          pump==0.1\n"
        f"      and pump==0.1 has no wheels with a matching {system}, we can conclude that\n"
        "      pump<0.2 cannot be used."
    )
    assert "has no wheels for this" in finding.cause
    assert cure in finding.cure


def test_message_wrapped_by_rich_is_joined() -> None:
    finding = first_finding(
        "AssertionError: Check batch related parameters. train_batch_size is not\n"
        "equal to micro_batch_per_gpu * gradient_acc_step * world_size 64 != 4 *\n"
        "8 * 1"
    )
    assert "(64 != 4 * 8 * 1)" in finding.cause


def test_ambiguous_class_is_attributed_to_a_package_that_the_caller_requires() -> None:
    finding = first_finding(
        "Traceback (most recent call last):\n"
        '  File "/opt/venv/lib/python3.10/site-packages/vllm/engine.py", line 8, in build\n'
        "    info = TokenizerInfo.from_pump(tokenizer)\n"
        "AttributeError: type object 'TokenizerInfo' has no attribute 'from_pump'"
    )
    assert "the installed xgrammar" in finding.cause
    assert "imgbuild resolve vllm xgrammar" in finding.cure


def test_cause_names_the_missing_package_of_an_optional_module() -> None:
    finding = first_finding(
        "Traceback (most recent call last):\n"
        '  File "/opt/venv/lib/python3.10/site-packages/swift/cli/infer.py", line 5, in <module>\n'
        "    from swift.llm.pump import start_vllm_pump\n"
        "ImportError: cannot import name 'start_vllm_pump' from 'swift.llm.pump'"
    )
    assert "because vllm is not installed" in finding.cause
    assert "import vllm" in finding.cure


def test_code_that_looks_up_the_old_name_of_a_package_is_explained() -> None:
    finding = first_finding(
        "Traceback (most recent call last):\n"
        '  File "/opt/venv/lib/python3.10/site-packages/sglang/check.py", line 5, in check\n'
        '    version("flashinfer")\n'
        "importlib.metadata.PackageNotFoundError: flashinfer"
    )
    assert "its name on the index is flashinfer-python" in finding.cause
    assert "pip install -U sglang" in finding.cure


def test_cause_of_a_missing_argument_names_the_package_of_the_method() -> None:
    finding = first_finding(
        "TypeError: LlamaRotaryEmbedding.forward() missing 1 required positional argument:"
        " 'pump_ids'"
    )
    assert "of the installed transformers requires 'pump_ids'" in finding.cause


def test_cause_names_the_package_whose_own_file_is_missing() -> None:
    folder = "/opt/venv/lib/python3.12/site-packages/verl"
    finding = first_finding(
        "Traceback (most recent call last):\n"
        f'  File "{folder}/pump.py", line 7, in <module>\n'
        "    with open(PARTS) as file:\n"
        f"FileNotFoundError: [Errno 2] No such file or directory: '{folder}/parts.json'"
    )
    assert "the installed verl lacks a file of its own, verl/parts.json" in finding.cause
    assert "a newer release or commit of verl" in finding.cure


def test_missing_package_metadata_is_explained_by_the_name_on_the_index() -> None:
    finding = first_finding("PackageNotFoundError: No package metadata was found for flashinfer")
    assert "its name on the index is flashinfer-python" in finding.cause


@each_row(
    "text,cause,cure",
    [
        # A message of one line, without a traceback or a level.
        ("[PUMP][FATAL] turbine.cu(7): row check FAILED", "turbine.cu(7)", "doctor --collect"),
        (
            "WARNING 01-02 03:04:05 pump.py:7] libcudart.so.13: cannot open shared object file",
            "built for CUDA 13",
            "for the CUDA of torch",
        ),
        ('{"success":false,"message":"LoRA is not enabled!"}', "without LoRA", "--enable-lora"),
        # Errors of CUDA, whose number torch does not print.
        ("RuntimeError: CUDA error: invalid resource handle", "error 400", "set_device"),
        ("RuntimeError: CUDA driver error: named symbol not found", "error 500", "driver update"),
        (
            "RuntimeError: CUDA driver initialization failed: CUDA driver is a stub library",
            "error 34",
            "LD_LIBRARY_PATH",
        ),
        # The packages that use the one with another version are known.
        (
            "ImportError: cannot import name 'Pump' from 'compressed_tensors' (/v/q.py)",
            "compressed-tensors",
            "pip install -U vllm 'compressed-tensors==",
        ),
        (
            "ImportError: cannot import name 'Pump' from 'typing_extensions' (/v/t.py)",
            "typing-extensions",
            "pip install -U typing-extensions",
        ),
        # Weights without a frame that loads them.
        ("KeyError: 'model.layers.0.pump.weight'", "the model's class does not have", "--quant"),
        # The condition of an assertion, and the package that called another one.
        (
            f"{CALL}    assert self.num_heads % tp_size == 0\nAssertionError",
            "not a multiple of the parallel size",
            "tensor_parallel_size",
        ),
        (
            f"{CALL}    rows = settings.pop('rows')\nKeyError: 'rows'",
            "which sglang calls",
            "sglang may be for another vllm",
        ),
    ],
)
def test_a_short_message_is_explained(text: str, cause: str, cure: str) -> None:
    finding = first_finding(text)
    assert cause in finding.cause
    assert cure in finding.cure


def test_launcher_of_another_environment_is_found_by_its_path() -> None:
    finding = first_finding(
        "$ which python torchrun\n/opt/env/bin/python\n/usr/local/bin/torchrun\n"
        "ModuleNotFoundError: No module named 'trl'"
    )
    assert "the torchrun on PATH (/usr/local/bin)" in finding.cause
    assert "python -m torch.distributed.run" in finding.cure


def test_scripts_of_the_system_python_belong_to_it() -> None:
    finding = first_finding(
        "/usr/bin/python3\n/usr/local/bin/torchrun\nModuleNotFoundError: No module named 'trl'"
    )
    assert finding.code == "IMG903"


def test_pip_of_another_python_is_found_by_its_version() -> None:
    finding = first_finding(
        "Python 3.12.1\npip 24.0 from /usr/lib/python3/dist-packages/pip (python 3.10)\n"
        "ModuleNotFoundError: No module named 'trl'"
    )
    assert "pip" in finding.cause
    assert "belongs to a different Python than the python (Python 3.12)" in finding.cause


def test_variable_that_vllm_reports_as_unknown_is_explained() -> None:
    finding = first_finding(
        "vllm 0.17.1\nWARNING 03-04 11:20:31 [envs.py:1710] Unknown vLLM environment variable"
        " detected: VLLM_USE_V1"
    )
    assert "VLLM_USE_V1 has no effect" in finding.cause


def test_no_cuda_runtime_in_a_build_is_not_a_cpu_build_of_torch() -> None:
    finding = first_finding(
        "W1130 06:06:28.151 torch/utils/cpp_extension.py:118] No CUDA runtime is found, using"
        " CUDA_HOME='/usr/local/cuda'\n"
        "RuntimeError: ('The detected CUDA version (%s) mismatches the version that was used to"
        " compilePyTorch (%s). Please make sure to use the same CUDA versions.', '13.0', '12.8')"
    )
    assert finding.code == "IMG625"
