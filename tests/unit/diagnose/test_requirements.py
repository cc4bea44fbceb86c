"""Tests cures that name versions required by other packages."""

from __future__ import annotations

import io
import re

import pytest

from imgbuild.audit.names import releases
from imgbuild.diagnose import requirements, rules
from imgbuild.diagnose.diagnosis import diagnose_log
from imgbuild.diagnose.finding import LogFinding
from tests.support.rows import each_row

SITE = "/opt/venv/lib/python3.12/site-packages"


def first(text: str) -> LogFinding:
    return diagnose_log(io.BytesIO(text.encode()), "log").findings[0]


def failing_import(user: str, what: str, version: str = "") -> str:
    return f"""{user} {version}
Traceback (most recent call last):
  File "{SITE}/{user}/quantization/loader.py", line 9, in <module>
    import it
{what}
"""


def test_required_versions_are_looked_up_for_each_release() -> None:
    assert requirements.required_specifier("vllm", "outlines", "0.7.3") == "==0.1.11"
    assert requirements.required_specifier("torch", "triton", "2.6.0") == "==3.2.0"
    assert requirements.required_specifier("vllm", "outlines", "0.1") == ""
    assert requirements.newest_specifier("trl", "transformers").startswith(">=")


def test_cure_for_a_failed_import_is_the_required_version() -> None:
    error = "ModuleNotFoundError: No module named 'outlines.fsm'"
    finding = first(failing_import("vllm", error, "0.7.3"))
    assert finding.cure == "pip install 'outlines==0.1.11', which vllm 0.7.3 requires"


def test_unknown_installed_version_of_a_package_suggests_pip_check() -> None:
    error = (
        "ImportError: cannot import name 'Slots' from 'compressed_tensors.config'"
        f" ({SITE}/compressed_tensors/config/__init__.py)"
    )
    assert "pip check names for vllm" in first(failing_import("vllm", error)).cure


def test_cure_updates_both_packages_if_the_outdated_package_is_unknown() -> None:
    error = f"ImportError: cannot import name 'Slots' from 'acme' ({SITE}/acme/__init__.py)"
    assert "pip install -U vllm acme;" in first(failing_import("vllm", error)).cure


NUMPY = (
    "numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got"
    " 88 from PyObject"
)


def test_cure_for_a_package_compiled_for_numpy_1_keeps_numpy_1() -> None:
    text = failing_import("acme", f"ValueError: {NUMPY}")
    finding = first(text)
    assert finding.cause.startswith("acme was compiled for numpy 1")
    assert finding.cure.startswith("pip install 'numpy<2', or update acme")


@each_row(
    ("message", "spec"),
    [
        ("Acme needs Slots 2.2 or less. Got Slots 2.3.", "slots<2.3"),
        ("acme requires slots 1.4.1 or newer, found 1.3.0", "slots>=1.4.1"),
        (
            (
                "slots_py is installed with version 0.3.1, which is less than the minimum required"
                " version 0.4.1. Please update it"
            ),
            "slots-py>=0.4.1",
        ),
        ("slots version must be at least 2.6.0, but found 2.5.1", "slots>=2.6.0"),
        ("loading needs slots >= 1.1.0, but 0.9.0 is installed", "slots>=1.1.0"),
    ],
)
def test_requirement_in_a_message_becomes_a_pin_in_the_cure(message: str, spec: str) -> None:
    finding = first(
        f'Traceback (most recent call last):\n  File "a.py", line 1\nError: {message}\n'
    )
    assert finding.code == "IMG705"
    assert f"'{spec}'" in finding.cure


def test_python_version_in_a_message_is_not_a_package() -> None:
    assert requirements.requirement_reason("acme requires Python 3.10 or newer") is None


def test_required_torch_version_is_read_from_the_wheel_name() -> None:
    finding = first(
        "pip list: torch 2.6.0, the wheel is"
        " flash_attn-2.7.4+cu12torch2.7cxx11abiTRUE-cp310-cp310-linux_x86_64.whl\n"
        f"ImportError: {SITE}/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol:"
        " _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
    )
    assert finding.code == "IMG724"
    assert "was built for torch 2.7 (cxx11abiTRUE); installed is torch 2.6.0" in finding.cause
    assert "flash_attn-2.7.4+cu12torch2.6cxx11abiFALSE-cp310" in finding.cure


def test_versions_that_pip_ignores_for_a_different_python_are_explained() -> None:
    finding = first(
        "ERROR: Ignored the following versions that require a different python version: 1.4.0"
        " Requires-Python <3.13,>=3.9; 1.5.0 Requires-Python <3.13,>=3.9\n"
        "ERROR: Could not find a version that satisfies the requirement acme==1.5.0 (from versions:"
        " 1.0.0)\nERROR: No matching distribution found for acme==1.5.0\n"
    )
    assert finding.code == "IMG607"
    assert "acme 1.5.0 requires Python <3.13,>=3.9" in finding.cause


def test_missing_fallback_package_takes_precedence_over_the_handled_error() -> None:
    """The package expects the exception that the fallback handles."""
    finding = first(f"""\
Traceback (most recent call last):
  File "{SITE}/acme/reader.py", line 3, in read
    parse(file)
{SITE}/acme: first
pyarrow.lib.ArrowInvalid: JSON parse error: Column() changed from object to array in row 0

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "{SITE}/acme/reader.py", line 9, in read
    slots.read(file, backend="x")
TypeError: read() got an unexpected keyword argument 'backend'
""")
    assert "backend" in finding.cause


def test_exception_that_is_only_raised_again_is_not_the_cause() -> None:
    finding = first(f"""\
Traceback (most recent call last):
  File "{SITE}/triton/runtime/build.py", line 48, in _build
    ret = subprocess.check_call(cc_cmd)
  File "/usr/lib/python3.12/subprocess.py", line 373, in check_call
    raise CalledProcessError(retcode, cmd)

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "{SITE}/vllm/worker/model_runner_base.py", line 152, in _wrapper
    raise type(err)(
TypeError: __init__() missing 1 required positional argument: 'cmd'
""")
    assert "CalledProcessError" in " ".join(line.text for line in finding.lines) + finding.cause


def test_symptom_described_in_words_is_the_cause_only_without_a_traceback() -> None:
    sentence = "训练了 200 步 reward 一直是 0\n"
    assert first(sentence).code == "IMG861"
    log = sentence + 'Traceback (most recent call last):\n  File "a.py", line 1\nOddity: slots\n'
    assert first(log).code != "IMG861"


def test_environment_variables_in_cures_are_read_by_vllm() -> None:
    names = {
        name
        for rule in rules.load_rules()
        for name in re.findall(r"\bVLLM_[A-Z0-9_]*[A-Z0-9]", rule.cure + rule.cause)
    }
    known = " ".join(releases.load_package_names()["vllm"].environment.values()).split()
    assert names <= set(known), names - set(known)


def test_cure_for_outdated_unsloth_code_is_to_generate_the_code_again() -> None:
    finding = first(f"""\
Traceback (most recent call last):
  File "/workspace/unsloth_compiled_cache/UnslothSlotTrainer.py", line 14, in _prepare
    batch = self.generate(rows)
  File "{SITE}/vllm/prefix.py", line 70, in get_prefix
    raise Oddity("slots do not fit")
Oddity: slots do not fit
""")
    assert "delete unsloth_compiled_cache" in finding.cure


def test_vllm_model_is_not_a_transformers_class() -> None:
    """transformers has a class of the same name with other attributes."""
    finding = first(f"""\
Traceback (most recent call last):
  File "{SITE}/sglang/srt/models/transformers.py", line 88, in forward
    if self.tp_size > 1:
AttributeError: 'TransformersForCausalLM' object has no attribute 'tp_size'
""")
    assert "another release of sglang" in finding.cure


def test_torchaudio_must_have_the_version_of_torch() -> None:
    finding = first(
        f"torch==2.8.0\nOSError: {SITE}/torchaudio/lib/libtorchaudio.so: undefined symbol:"
        " _ZNK5torch8autograd4Node4nameB5cxx11Ev"
    )
    assert "torchaudio==2.8.0" in finding.cure


def test_cause_of_an_argument_error_names_the_package_of_the_function() -> None:
    finding = first(f"""\
Traceback (most recent call last):
  File "{SITE}/vllm/sampler.py", line 14, in sample
    rows = flashinfer.sampling.slots_from_rows(rows, fair=True)
TypeError: slots_from_rows() got an unexpected keyword argument 'fair'
""")
    assert "of the installed flashinfer-python does not accept the argument fair" in finding.cause
    assert "which vllm passes to it" in finding.cause


def test_rule_matches_the_condition_of_an_assertion_without_a_message() -> None:
    finding = first(f"""\
Traceback (most recent call last):
  File "{SITE}/vllm/config.py", line 1764, in _get_and_verify_max_len
    assert "factor" in rope_scaling
AssertionError
""")
    assert finding.code == "IMG775"


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        ("AttributeError: Pump does not support slots yet", "supports it"),
        ("RuntimeError: Slots are not set. Call `init_slots` first.", "Call `init_slots` first"),
    ],
)
def test_cure_is_read_from_the_message_of_a_package(message: str, cure: str) -> None:
    frame = f'  File "{SITE}/acme/pump.py", line 3, in start\n    self.start()\n'
    assert cure in first(f"Traceback (most recent call last):\n{frame}{message}\n").cure
