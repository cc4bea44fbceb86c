"""Imports the smoke tests' scripts as modules, and provides logs that several tests read."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "smoke_tests"

ENGINE = """\
(EngineCore_0 pid=88) ERROR 09-27 10:00:00 [core.py:700] EngineCore failed to start.
(EngineCore_0 pid=88) ERROR 09-27 10:00:00 [core.py:700] Traceback (most recent call last):
(EngineCore_0 pid=88) ERROR 09-27 10:00:00 [core.py:700]   File "/x/site-packages/vllm/a.py", line 9
(EngineCore_0 pid=88) ERROR 09-27 10:00:00 [core.py:700]     raise ValueError("no blocks")
(EngineCore_0 pid=88) ERROR 09-27 10:00:00 [core.py:700] ValueError: No memory for the cache blocks.
Traceback (most recent call last):
  File "/x/site-packages/vllm/v1/utils.py", line 5, in wait
    raise RuntimeError("Engine core initialization failed.")
RuntimeError: Engine core initialization failed. See root cause above.
"""
LINKER = """\
/usr/bin/ld: cannot find -lcuda: No such file or directory
collect2: error: ld returned 1 exit status
Traceback (most recent call last):
  File "/x/site-packages/triton/runtime/build.py", line 50, in _build
    ret = subprocess.check_call(cc_cmd)
subprocess.CalledProcessError: Command '['/usr/bin/gcc', 'main.c']' returned non-zero exit status 1.
"""
CRASH = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "<string>", line 1 in <module>
"""


def smoke_module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the smoke tests, imported from its own folder."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module(name)
