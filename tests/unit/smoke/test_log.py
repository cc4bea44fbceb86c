"""Tests finding the first error in shortened real logs."""

from __future__ import annotations

import pytest

from tests.support.rows import each_row
from tests.support.smoke_scripts import CRASH, ENGINE, LINKER, smoke_module

IMPORT_CHAIN = """\
INFO 06-20 10:00:00 [__init__.py:239] Automatically detected platform cuda.
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/trl/import_utils.py", line 144, in _get_module
    return importlib.import_module("." + module_name, self.__name__)
  File "<frozen importlib._bootstrap>", line 241, in _call_with_frames_removed
  File "/opt/venv/lib/python3.11/site-packages/trl/trainer/grpo_trainer.py", line 75, in <module>
    from vllm.sampling_params import GuidedDecodingParams
ImportError: cannot import name 'GuidedDecodingParams' from 'vllm.sampling_params'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "<string>", line 1, in <module>
RuntimeError: Failed to import trl.trainer.grpo_trainer because of the following error:
cannot import name 'GuidedDecodingParams' from 'vllm.sampling_params'
"""
HEADERS = """\
main.c:2:10: fatal error: Python.h: No such file or directory
    2 | #include <Python.h>
compilation terminated.
subprocess.CalledProcessError: Command '['/usr/bin/gcc']' returned non-zero exit status 1.
"""
SURVIVED = """\
WARNING 06-20 10:00:00 [x.py:1] Could not collect usage:
Traceback (most recent call last):
  File "/x/usage.py", line 1, in <module>
OSError: no home
Traceback (most recent call last):
  File "/x/site-packages/torch/a.py", line 3, in <module>
KeyError: 'getpwuid(): uid not found: 12345'
"""
# A worker's own error follows a line of information; its parent's is less specific.
INFORMED = """\
[2026-06-20 10:00:00] [INFO] [comm.py:658:init_distributed] cdb=None
Traceback (most recent call last):
  File "/x/train.py", line 3, in <module>
TypeError: SFTTrainer.__init__() got an unexpected keyword argument 'tokenizer'
Traceback (most recent call last):
  File "/x/site-packages/torch/distributed/launcher/api.py", line 277, in launch_agent
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
WENT_ON = """\
WARNING 06-20 10:00:00 [x.py:1] Could not collect usage:
Traceback (most recent call last):
  File "/x/usage.py", line 1, in <module>
OSError: no home
INFO 06-20 10:00:01 [x.py:9] going on
error: prompt 0, token 3: vLLM 7, due 9, by 2.0
"""
WARNED = """\
WARNING 06-20 10:00:00 [x.py:1] this is deprecated
Traceback (most recent call last):
  File "/x/train.py", line 1, in <module>
ValueError: no blocks
"""
VALIDATION = """\
Traceback (most recent call last):
  File "/x/site-packages/vllm/config/model.py", line 9, in create
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, User-specified max_model_len (256) is greater than 128 [type=value_error]
    For further information visit https://errors.pydantic.dev
"""
FIELD = """\
Traceback (most recent call last):
  File "/x/site-packages/vllm/config/model.py", line 9, in create
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
max_model_len
  Input should be a valid integer [type=int_type]
    For further information visit https://errors.pydantic.dev
"""
EMPTY = """\
Traceback (most recent call last):
  File "/x/site-packages/torch/a.py", line 1, in run
RuntimeError:
the operator is not there
Traceback (most recent call last):
  File "/x/main.py", line 2, in <module>
ValueError: it failed
"""
CHILD = """\
WARNING 06-20 10:00:00 [x.py:1] this is deprecated
Traceback (most recent call last):
  File "/x/train.py", line 1, in <module>
RuntimeError: CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call.

Traceback (most recent call last):
  File "/x/site-packages/torch/distributed/launcher/api.py", line 277, in launch_agent
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
/x/train.py FAILED
"""
ALONE = """\
  + Exception Group Traceback (most recent call last):
  |   File "/x/site-packages/anyio/a.py", line 7, in __aexit__
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | KeyError: 'weights'
    +------------------------------------
"""
STATE = """\
Traceback (most recent call last):
  File "/x/site-packages/torch/nn/modules/module.py", line 2, in load_state_dict
RuntimeError: Error(s) in loading state_dict for Qwen3:
\tsize mismatch for lm_head.weight
"""
TOGETHER = """\
  + Exception Group Traceback (most recent call last):
  |   File "/x/site-packages/anyio/a.py", line 7, in __aexit__
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/x/site-packages/trl/serve.py", line 4, in run
    | KeyError: 'weights'
    +------------------------------------
"""
PROSE = """\
threshold: relative error 0.1 is allowed
Traceback (most recent call last):
  File "/x/train.py", line 1, in <module>
ValueError: no blocks
"""


@each_row(
    ("log", "cause"),
    [
        (
            IMPORT_CHAIN,
            "ImportError: cannot import name 'GuidedDecodingParams' from 'vllm.sampling_params' (trl/trainer/grpo_trainer.py:75)",  # noqa: E501
        ),
        (ENGINE, "ValueError: No memory for the cache blocks. (vllm/a.py:9)"),
        (LINKER, "/usr/bin/ld: cannot find -lcuda: No such file or directory"),
        (HEADERS, "main.c:2:10: fatal error: Python.h: No such file or directory"),
        (SURVIVED, "KeyError: 'getpwuid(): uid not found: 12345' (torch/a.py:3)"),
        (INFORMED, "TypeError: SFTTrainer.__init__() got an unexpected keyword argument 'tokenizer' (/x/train.py:3)"),  # noqa: E501
        (WENT_ON, "error: prompt 0, token 3: vLLM 7, due 9, by 2.0"),
        (WARNED, "ValueError: no blocks (/x/train.py:1)"),
        (VALIDATION, "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig Value error, User-specified max_model_len (256) is greater than 128 [type=value_error] (vllm/config/model.py:9)"),  # noqa: E501
        (STATE, "RuntimeError: Error(s) in loading state_dict for Qwen3: size mismatch for lm_head.weight (torch/nn/modules/module.py:2)"),  # noqa: E501
        (TOGETHER, "KeyError: 'weights' (trl/serve.py:4)"),
        (FIELD, "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig max_model_len Input should be a valid integer [type=int_type] (vllm/config/model.py:9)"),  # noqa: E501
        (EMPTY, "RuntimeError: the operator is not there (torch/a.py:1)"),
        (CHILD, "RuntimeError: CUDA error: an illegal memory access was encountered (/x/train.py:1)"),  # noqa: E501
        (ALONE, "KeyError: 'weights'"),
        (PROSE, "ValueError: no blocks (/x/train.py:1)"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_121'\nstatus 1\n",
         "nvcc fatal   : Unsupported gpu architecture 'compute_121'"),
        ("/usr/bin/x86_64-linux-gnu-ld: cannot find -lcuda: No such file\nstatus 1\n",
         "/usr/bin/x86_64-linux-gnu-ld: cannot find -lcuda: No such file"),
        (CRASH, "Fatal Python error: Segmentation fault"),
        ("\x1b[31merror: numpy 2.0 is locked, 1.26 is installed\x1b[0m\nmore\n",
         "error: numpy 2.0 is locked, 1.26 is installed"),
        ("all is well\n\n", "all is well"),
        ("", ""),
    ],
)  # fmt: skip
def test_first_error_in_a_case_log_is_the_cause(log, cause, monkeypatch):
    assert smoke_module("smoke_log", monkeypatch).first_error(log) == cause


def test_unfinished_traceback_in_a_case_log_is_handled(monkeypatch):
    first_error = smoke_module("smoke_log", monkeypatch).first_error
    assert "frame" in first_error(
        'Traceback (most recent call last):\n  File "a.py", line 1\n frame'
    )
    assert first_error("Traceback (most recent call last):") == "Traceback (most recent call last):"


def test_log_lines_about_missing_features_are_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    log = """\
Skipping import of cpp extensions due to incompatible torch version 2.8.0 for torchao 0.14.0
(EngineCore pid=7) INFO 11-22 11:44:33 [warmup.py:101] Skipping warmup because it is not there
(EngineCore pid=8) INFO 11-22 11:44:35 [warmup.py:101] Skipping warmup because it is not there
2026-11-22 10:00:00,123 \x1b[33mNot found. Falling back to default tactics.\x1b[0m
INFO 11-22 11:44:36 [core.py:1] skipped 3 of 4
"""
    notes = smoke_module("smoke_log", monkeypatch).notes(log)
    assert notes == [
        (
            "Skipping import of cpp extensions due to incompatible torch version 2.8.0 for torchao"
            " 0.14.0"
        ),
        "[warmup.py:101] Skipping warmup because it is not there",
        "Not found. Falling back to default tactics.",
    ]
