"""Tests how exceptions without a rule are explained by their message, package and line."""

from __future__ import annotations

import io

import pytest

from imgbuild.diagnose import owners
from imgbuild.diagnose.diagnosis import diagnose_log
from imgbuild.diagnose.finding import LogFinding
from tests.support.rows import each_row

PACKAGE = "/opt/venv/lib/python3.11/site-packages/acme/engine/core.py"
TRACE = """\
Traceback (most recent call last):
  File "/workspace/job/train.py", line 9, in <module>
    engine.start(options)
  File "{file}", line 70, in start
    {code}
{exception}
"""


def first(text: str) -> LogFinding:
    return diagnose_log(io.BytesIO(text.encode()), "log").findings[0]


def traced(exception: str, file: str = PACKAGE, code: str = "check(value)") -> LogFinding:
    return first(TRACE.format(file=file, code=code, exception=exception))


def test_cause_names_the_package_that_raised_an_exception() -> None:
    finding = traced("AcmeFault: slots must be a power of two")
    assert finding.code == "IMG921"
    assert finding.cause == (
        "AcmeFault: slots must be a power of two, raised by acme in start (acme/engine/core.py:70),"
        " called from /workspace/job/train.py:9"
    )
    assert "/workspace/job/train.py:9" in finding.cure


def test_cause_names_the_version_of_the_package_if_the_log_has_the_version() -> None:
    file = "/opt/venv/lib/python3.11/site-packages/deepspeed/runtime/engine.py"
    text = "deepspeed==0.17.2\n" + TRACE.format(
        file=file, code="x", exception="AcmeFault: slots must be a power of two"
    )
    assert "raised by deepspeed 0.17.2 in start" in first(text).cause


def test_exception_raised_by_the_program_is_attributed_to_the_program() -> None:
    finding = traced("AcmeFault: rewards must not be empty", "/workspace/job/rewards.py")
    assert finding.code == "IMG922"
    assert "start (/workspace/job/rewards.py:70)" in finding.cause


def test_program_that_python_cannot_start_is_not_a_missing_input_file() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/v/site-packages/acme/run.py", line 3, in go\n'
        '    out = check_output(["/sbin/pumpd"])\n  File "/usr/lib/python3/subprocess.py", line 9,'
        " in _execute_child\n    raise child_exception_type(errno_num, err_msg, err_filename)\n"
        "FileNotFoundError: [Errno 2] No such file or directory: '/sbin/pumpd'"
    )
    finding = first(text)
    assert "not installed or not on PATH is started: /sbin/pumpd" in finding.cause


def test_an_assertion_without_a_message_shows_its_condition() -> None:
    finding = traced("AssertionError", code="assert labels.shape == (rows,)")
    assert "labels.shape == (rows is false" not in finding.cause
    assert finding.cause.startswith("AssertionError: labels.shape == (rows,) is false")


@each_row(
    ("exception", "words"),
    [
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/data/a.jsonl'",
            "/data/a.jsonl",
        ),
        (
            "NotADirectoryError: [Errno 20] Not a directory: 'out/run1'",
            "a part of the path out/run1 is a file",
        ),
        ("KeyError: 'solution'", "the key solution is absent"),
        ("AttributeError: 'NoneType' object has no attribute 'shape'", ".shape of None is used"),
        ("TypeError: 'NoneType' object is not iterable", "None is not iterable"),
    ],
)
def test_cause_names_the_missing_items(exception: str, words: str) -> None:
    finding = traced(exception)
    assert finding.code == "IMG923"
    assert words in finding.cause
    assert "start (acme/engine/core.py:70)" in finding.cause


def test_program_that_does_not_start_is_reported_with_its_log_line() -> None:
    file = "/workspace/job/tools.py"
    code = 'subprocess.check_output([home + "/bin/acmec", "-V"])'
    finding = traced("FileNotFoundError: [WinError 2] The system cannot find the file", file, code)
    assert finding.code == "IMG923"
    assert "acmec" in finding.cause


def test_error_message_without_a_traceback_is_the_cause() -> None:
    finding = first("AcmeFault: slots must be a power of two\nLauncherError\n")
    assert finding.code == "IMG999"  # AcmeFault is no exception without a traceback
    finding = first("ValueError: slots must be a power of two\n")
    assert (finding.code, finding.confidence) == ("IMG924", "medium")


def test_cause_contains_the_inner_message_of_a_validation_error() -> None:
    text = "pydantic_core.ValidationError: 1 validation error for AcmeConfig\n"
    text += "  Value error, slots of acme must be positive [type=value_error, input_value=0]\n"
    assert "slots of acme must be positive" in first(text).cause
    assert "input_value" not in first(text).cause


def test_incomplete_traceback_is_reported_as_incomplete() -> None:
    text = TRACE.format(file=PACKAGE, code="raise error", exception="").rstrip()
    finding = first(text)
    assert (finding.code, finding.confidence) == ("IMG999", "low")
    assert "start (acme/engine/core.py:70): raise error" in finding.cause


def test_exception_is_reported_instead_of_its_consequences() -> None:
    later = (
        "[rank3]:[E1120 18:12:33.1 ProcessGroupNCCL.cpp:616] ncclRemoteError: remote process exited"
    )
    text = TRACE.format(file=PACKAGE, code="x", exception="AcmeFault: slots must be even")
    assert first(f"{text}\n{later}\nSignal 11 (SIGSEGV) received by PID 4").code == "IMG921"


NOTEBOOK = """\
AcmeFault                                 Traceback (most recent call last)
Cell In[6], line 14
     12 trainer = Trainer(
---> 14 trainer.train()

File ~/env/lib/python3.11/site-packages/acme/trainer.py:2245, in Trainer.train(self, resume)
   2243         enable()
   2244 else:
-> 2245     return loop(
   2246         args=args,

AcmeFault: slots must be a power of two
"""


def test_traceback_of_a_notebook_is_read_with_its_frames() -> None:
    finding = first(NOTEBOOK)
    assert finding.cause == (
        "AcmeFault: slots must be a power of two, raised by acme in Trainer.train"
        " (acme/trainer.py:2245), called from Cell In[6]:14"
    )


@each_row(
    ("file", "package"),
    [
        ("/opt/venv/lib/python3.11/site-packages/trl/trainer/sft.py", "trl"),
        (r"C:\envs\a\lib\site-packages\trl\trainer\sft.py", "trl"),
        ("/work/verl/verl/trainer/main_ppo.py", "verl"),
        ("/content/src/axolotl/src/axolotl/cli/train.py", "axolotl"),
        ("deepspeed/runtime/engine.py", "deepspeed"),
        ("python/ray/_raylet.pyx", "ray"),
        ("/mnt/ms-swift/swift/cli/sft.py", "swift"),
        ("/opt/mcore/megatron/core/dist_checkpointing/validation.py", "megatron"),
        ("./zero_to_fp32.py", "deepspeed"),
        ("/work/pump/scripts/model_merger.py", "verl"),
        ("/work/pump/tools/checkpoint/loader_mcore.py", "megatron"),
        ("/work/verl/my/train.py", ""),
        ("/home/vllm/train.py", ""),
        ("train.py", ""),
    ],
)
def test_package_of_a_file_is_found_from_its_path(file: str, package: str) -> None:
    assert owners.package_of_file(file) == package


@each_row(
    ("file", "standard"),
    [
        ("/usr/lib/python3.12/concurrent/futures/_base.py", True),
        (r"C:\Python310\lib\subprocess.py", True),
        ("<frozen runpy>", True),
        ("pyarrow/error.pxi", True),
        ("<ipython-input-6-d0ff32815be4>", False),
        ("/usr/lib/python3.12/site-packages/a.py", False),
        ("/home/u/lib/train.py", False),
    ],
)
def test_files_of_the_standard_library_are_distinguished_from_packages(
    file: str, standard: bool
) -> None:
    assert owners.is_standard(file) is standard


def test_generated_code_is_not_attributed_to_the_program() -> None:
    text = TRACE.format(file="<string>", code="x", exception="AcmeFault: slots must be even")
    finding = first(text)
    assert finding.code == "IMG924"
    assert "generated code (start), called from /workspace/job/train.py:9" in finding.cause


def test_program_method_that_lacks_a_passed_argument_is_explained() -> None:
    finding = traced("TypeError: MyTrainer.step() got an unexpected keyword argument 'slots'")
    assert finding.cause == (
        "MyTrainer.step does not accept the argument slots, which the installed acme passes to it"
    )
    assert finding.cure.startswith("add slots=None")


def test_log_that_ends_in_a_traceback_is_a_failure() -> None:
    text = TRACE.format(file=PACKAGE, code="x", exception="AcmeFault: slots must be even")
    cut = TRACE.partition("{file}")[0] + PACKAGE + '", line 70, in start\n'
    assert first(text + "step\n" * 500 + cut).code == "IMG921"


def test_name_that_is_not_imported_is_explained_without_versions() -> None:
    finding = traced("NameError: name 'LLM' is not defined", "/workspace/job/serve.py", "LLM(path)")
    assert (finding.code, "LLM (of vllm) is not imported" in finding.cause) == ("IMG902", True)


@pytest.mark.parametrize(
    ("code", "how", "value"),
    [
        ("sizes = self.scaling['parts']", "subscriptable", "self.scaling"),
        ("result = self.hook(values)", "callable", "self.hook"),
        ("for part in iter(parts_of):", "iterable", "parts_of"),
    ],
)
def test_cause_names_the_value_that_is_none(code: str, how: str, value: str) -> None:
    finding = traced(f"TypeError: 'NoneType' object is not {how}", code=code)
    assert finding.code == "IMG923"
    assert f"{value} is not set" in finding.cause


def test_cause_names_the_attribute_access_on_none() -> None:
    finding = traced(
        "AttributeError: 'NoneType' object has no attribute 'slots'", code="n = plan.grid.slots"
    )
    assert "plan.grid is not set" in finding.cause


def test_cause_names_the_mapping_without_the_key() -> None:
    finding = traced("KeyError: 'tier'", "/workspace/job/plan.py", "tier = plan['tier']")
    assert "the key tier is absent from plan" in finding.cause


def test_cause_names_the_column_that_rows_of_data_lack() -> None:
    finding = traced("KeyError: 'ask'", "/workspace/job/rl_dataset.py", "x = row[self.ask_key]")
    assert finding.cause.startswith("the data has no field ask: row[self.ask_key] reads it")
    assert finding.cure.endswith("or set ask_key to a column that exists")


@each_row(
    ("code", "key", "cure"),
    [
        ("fan.load(state_dict['optimizer'])", "optimizer", "resume from the weights alone"),
        ("w = torch.load(path)['fan']", "fan", "passed to load_state_dict as a whole"),
    ],
)
def test_cause_is_a_checkpoint_without_the_key(code: str, key: str, cure: str) -> None:
    finding = traced(f"KeyError: '{key}'", "/workspace/job/train.py", code)
    assert finding.cause.startswith(f"the loaded checkpoint has no {key}")
    assert cure in finding.cure


def test_setting_without_a_value_is_explained_by_the_failed_lookup() -> None:
    finding = traced("KeyError: None", code="kind = KINDS[options.kind]")
    assert "a setting has no value (None)" in finding.cause


@pytest.mark.parametrize(
    "message",
    [
        '"slot >= 0" INTERNAL ASSERT FAILED at "/src/pool.cpp":70',
        "this should never happen, please file a bug",
    ],
)
def test_cure_for_a_failed_check_of_a_package_is_another_release(message: str) -> None:
    finding = traced(
        f"RuntimeError: {message}", "/opt/venv/lib/python3.11/site-packages/vllm/pool.py"
    )
    assert finding.cure.startswith("update vllm with transformers, torch")
    assert "its own check failed" in finding.cure


def test_output_of_the_multiprocessing_resource_tracker_is_not_a_failure() -> None:
    tracker = "/usr/lib/python3.11/multiprocessing/resource_tracker.py"
    text = TRACE.format(file=tracker, code="cache[kind].remove(name)", exception="KeyError: '/p'")
    assert not diagnose_log(io.BytesIO(text.encode()), "log").findings


def test_library_of_an_older_torch_is_reported() -> None:
    library = "libtorch_cuda_cu.so: cannot open shared object file: No such file or directory"
    assert "built for torch 1.10 to 1.13" in traced(f"ImportError: {library}").cause


def test_import_of_a_missing_name_within_a_package_is_explained() -> None:
    file = "/opt/venv/lib/python3.11/site-packages/acme/engine/core.py"
    finding = traced("ImportError: cannot import name 'Pump' from 'acme.parts'", file)
    assert finding.code == "IMG902"
    assert "acme cannot import Pump of its module acme.parts" in finding.cause
    assert "pip install --force-reinstall --no-deps acme" in finding.cure


def test_use_of_a_missing_attribute_within_a_class_is_explained() -> None:
    finding = traced(
        "AttributeError: 'AcmePump' object has no attribute 'slots'", code="if self.slots:"
    )
    assert "which the code of acme reads from `self`" in finding.cause
    assert "another release of acme" in finding.cure


def test_name_of_a_different_transformers_release_is_explained() -> None:
    finding = traced(
        "NameError: name 'TrainingArguments' is not defined. Did you mean: 'TrainArguments'?"
    )
    assert "acme does not support the installed transformers" in finding.cause
    assert "imgbuild resolve acme transformers" in finding.cure


def test_cause_names_the_package_that_fails_on_import() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/workspace/job/train.py", line 9, in <module>\n    import acme\n'
        f'  File "{PACKAGE}", line 3, in <module>\n    patch()\n'
        f'  File "{PACKAGE}", line 70, in patch\n    line = lines[-2]\n'
        "IndexError: list index out of range\n"
    )
    finding = first(text)
    assert "raised by acme in patch" in finding.cause
    assert finding.cure.startswith("acme fails while it is imported")


def test_frames_that_a_notebook_hides_may_be_those_of_an_import() -> None:
    finding = first(
        "---------------------------------------------------------------------------\n"
        "IndexError                                Traceback (most recent call last)\n"
        "[/tmp/ipython-input-39.py](https://localhost:8080/#) in <cell line: 0>()\n"
        "----> 1 from acme import Pump\n\n6 frames\n"
        f"[{PACKAGE}](https://localhost:8080/#) in patch(source)\n"
        "--> 854     line = lines[-2]\n\nIndexError: list index out of range\n"
    )
    assert "called from /tmp/ipython-input-39.py:1" in finding.cause
    assert finding.cure.startswith("acme fails while it is imported")


def test_missing_distribution_of_a_requirement_is_explained() -> None:
    text = "importlib.metadata.PackageNotFoundError: No package metadata was found for"
    finding = first(f"{text} The 'slots>=0.4' distribution was not found and is required\n")
    assert finding.cause.startswith("slots is not installed")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("model type `qwen3_moe` but Transformers does not know it", "transformers 4.51.0 added"),
        ("Model architectures ['Qwen3MoeForCausalLM'] are not supported for now", "vllm 0.8.4"),
        ("model type `acme9` but Transformers does not know it", "does not have the model type"),
    ],
)
def test_cure_names_the_release_that_added_a_model_architecture(text: str, cause: str) -> None:
    assert cause in traced(f"ValueError: {text}").cause


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Unexpected error from cudaGetDeviceCount(). Error 999: unknown error", "ErrorUnknown"),
        ("Unexpected error from cudaGetDeviceCount(). Error 500: named symbol", "SymbolNotFound"),
        ("CUDA error: OS call failed or operation not supported on this OS", "OperatingSystem"),
        ("CUDA error: invalid device function", "InvalidDeviceFunction"),
        ("CUDA driver initialization failed, you might not have a CUDA gpu", "Initialization"),
    ],
)
def test_cuda_error_number_is_explained(text: str, name: str) -> None:
    warning = f"/opt/torch/cuda/__init__.py:115: UserWarning: CUDA initialization: {text}\n"
    finding = first(warning)
    assert (finding.code, name in finding.cause) == ("IMG907", True)


def test_call_of_a_missing_function_within_a_package_is_explained() -> None:
    library = "/opt/venv/lib/python3.11/site-packages/acme/_C.so"
    finding = traced(f"ImportError: {library}: undefined symbol: _Z9acme_pumpRKN2at6TensorE")
    assert (
        "acme was not built completely: none of its libraries contains its own function acme_pump"
        in finding.cause
    )


def test_library_compiled_at_run_time_is_explained() -> None:
    library = "/root/.cache/flashinfer/90/cached_ops/pump/pump.so"
    finding = traced(f"OSError: {library}: undefined symbol: _ZTIN4acme4pump5FaultE")
    assert "a library that flashinfer compiled at run time lacks acme" in finding.cause
    assert "delete /root/.cache/flashinfer/90/cached_ops/pump" in finding.cure


@pytest.mark.parametrize(
    "text",
    [
        "ImportError: cannot import name 'LLM' from 'vllm' (unknown location)",
        "AttributeError: module 'vllm' has no attribute '__version__'",
    ],
)
def test_cause_names_the_folder_that_hides_a_package(text: str) -> None:
    finding = traced(text)
    assert "a folder named vllm is imported instead of the package" in finding.cause
    assert "vllm.__path__" in finding.cure


def test_cause_names_the_file_that_hides_a_package() -> None:
    finding = first(
        'Traceback (most recent call last):\n  File "/src/job/train.py", line 1, in <module>\n'
        "    from datasets import load_dataset\n"
        "ImportError: cannot import name 'load_dataset' from 'datasets' (/src/job/datasets.py)"
    )
    assert finding.code == "IMG633"
    assert "/src/job/datasets.py" in finding.cause


def test_error_from_configuration_of_another_transformers_release_is_explained() -> None:
    package = "/opt/venv/lib/python3.11/site-packages/vllm/models/pump.py"
    finding = traced("AttributeError: 'PumpConfig' object has no attribute 'slots'", package)
    assert "vllm reads PumpConfig.slots" in finding.cause
    assert "imgbuild resolve vllm transformers" in finding.cure


def test_unsupported_operand_types_are_explained_by_package_versions() -> None:
    finding = diagnose_log(io.BytesIO(
        b"Traceback (most recent call last):\n"
        b'  File "/opt/v/lib/python3.12/site-packages/pumps/keys.py", line 5, in merge\n'
        b"    return keys | {'valve'}\n"
        b"TypeError: unsupported operand type(s) for |: 'list' and 'set'\n"
    ), "log").findings[0]  # fmt: skip
    assert "the code expects both values to have one type (list and set)" in finding.cause
    assert "install compatible versions" in finding.cure


def test_unknown_argument_of_a_transformers_model_is_explained() -> None:
    finding = diagnose_log(io.BytesIO(
        b"TypeError: PumpModel.forward() got an unexpected keyword argument 'valve_position'\n"
    ), "log").findings[0]  # fmt: skip
    assert finding.cause.endswith("in the installed transformers")
    assert finding.cure.startswith("install the version of transformers that")


def test_missing_module_in_a_windows_notebook_is_explained() -> None:
    finding = diagnose_log(io.BytesIO(
        b"File c:\\work\\venv\\lib\\site-packages\\pumps\\loader.py:15\n"
        b"---> 15 open_valves()\n"
        b"ValueError: a pump has no valve 9\n"
    ), "log").findings[0]  # fmt: skip
    assert "raised by pumps in" in finding.cause


def test_cure_for_a_removed_name_is_a_release_that_has_the_name() -> None:
    finding = traced(
        "ImportError: cannot import name 'HybridCache' from 'transformers' (/o/transformers/x.py)"
    )
    assert finding.cure.startswith("install transformers>=4.44.0,<5.0.0, or use a newer acme")


def test_missing_member_of_an_enumeration_is_explained() -> None:
    text = TRACE.format(
        file=PACKAGE,
        code="if state == PumpState.HALF_OPEN:",
        exception='  File "/usr/lib/python3.11/enum.py", line 786, in __getattr__\n'
        "    raise AttributeError(name) from None\nAttributeError: HALF_OPEN",
    )
    assert "the enumeration PumpState has no member HALF_OPEN" in first(text).cause


def test_missing_attribute_of_the_transformers_trainer_is_explained() -> None:
    finding = traced(
        "AttributeError: 'PumpTrainer' object has no attribute 'slots'", code="n = self.slots"
    )
    assert "neither its own class nor the Trainer of the installed transformers" in finding.cause


def test_missing_argument_in_a_call_of_another_package_is_explained() -> None:
    finding = traced(
        "TypeError: Accelerator.unwrap_model() got an unexpected keyword argument 'slots'"
    )
    assert "unwrap_model of the installed accelerate does not accept" in finding.cause


def test_message_repeated_by_a_wrapper_is_not_the_cause() -> None:
    text = (
        "RuntimeError: Failed to import acme.pump because of the following error (look up to see"
        " its traceback):\n'AcmePump' object has no attribute 'slots'\n"
    )
    assert "AcmePump has no attribute slots" in first(text).cause


def test_missing_configuration_key_is_explained() -> None:
    file = "/opt/venv/lib/python3.11/site-packages/omegaconf/dictconfig.py"
    text = TRACE.format(
        file=PACKAGE,
        code="options.slots = 4",
        exception=f'  File "{file}", line 310, in __setattr__\n    raise\n'
        "omegaconf.errors.ConfigAttributeError: Key 'slots' is not in struct",
    )
    assert first(text).cause.startswith("the code of acme uses the key slots")


def test_exception_of_a_program_that_an_import_started_is_not_an_import_failure() -> None:
    text = (
        "Traceback (most recent call last):\n"
        f'  File "{PACKAGE}", line 3, in <module>\n    main()\n'
        f'  File "{PACKAGE}", line 70, in main\n    raise ValueError(text)\n'
        "ValueError: slots of acme are odd\n"
    )
    assert "while it is imported" not in first(text).cure


def test_older_vllm_log_prefix_is_removed() -> None:
    text = (
        'ERROR 02-07 11:38:50 engine.py:389]   File "/o/site-packages/acme/core.py", line 4, in f\n'
        "ERROR 02-07 11:38:50 engine.py:389]     raise AcmeFault(text)\n"
        "ERROR 02-07 11:38:50 engine.py:389] AcmeFault: slots must be a power of two\n"
    )
    assert "raised by acme in f (acme/core.py:4)" in first(text).cause


def test_rejected_argument_that_a_function_forwards_is_explained() -> None:
    finding = traced(
        "TypeError: Pump.reload() got an unexpected keyword argument 'slots'",
        code="return func(*args, **kwargs)",
    )
    assert "which the program or package that calls it through acme passes" in finding.cause


def test_cause_names_the_calling_package_before_the_called_package() -> None:
    file = "/opt/venv/lib/python3.11/site-packages/pumps/valve.py"
    text = (
        "Traceback (most recent call last):\n"
        f'  File "{PACKAGE}", line 3, in start\n    pumps.open(4)\n'
        f'  File "{file}", line 70, in open\n    kind = value.lower()\n'
        "AttributeError: 'int' object has no attribute 'lower'\n"
    )
    finding = first(text)
    assert "raised by pumps, which acme calls, in open" in finding.cause
    assert "acme may be for another pumps" in finding.cure


def test_library_that_torch_cannot_load_is_explained() -> None:
    path = "/opt/venv/lib/python3.11/site-packages/torchaudio/lib/libtorchaudio.so"
    finding = traced(f"OSError: Could not load this library: {path}")
    assert finding.cause.startswith("torchaudio was compiled for a different torch")


def test_extension_that_was_not_built_is_explained() -> None:
    path = "/root/.cache/torch_extensions/py311/pumps/pumps.so"
    finding = traced(f"ImportError: {path}: cannot open shared object file: No such file")
    assert "the extension pumps, which is compiled at run time, was not built" in finding.cause


def test_lookup_that_failed_before_an_exit_is_explained() -> None:
    failed = TRACE.format(
        file="/workspace/job/load.py", code="step = state['step']", exception="KeyError: 'step'"
    )
    exited = TRACE.format(file="/workspace/job/load.py", code="sys.exit()", exception="SystemExit")
    context = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert "the key step is absent" in first(failed + context + exited).cause
