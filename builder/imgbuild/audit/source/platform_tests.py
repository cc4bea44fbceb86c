"""Comparisons with the name of a platform: `sys.platform == "win32"`, `device.type != "npu"`.

Input: a comparison. Output: its guard, by the words that `guards` knows.
"""

from __future__ import annotations

import ast
import re

from imgbuild.audit.source.facts import Guard
from imgbuild.audit.source.text import dotted, string

# Accelerators that no image is for, and names that hold the kind of one.
_DEVICES = frozenset(("hip", "hpu", "mps", "musa", "npu", "tpu", "xpu"))
_DEVICE = re.compile(r"(?:.*[._])?(?:device|device_type|device\.type|accelerator)", re.IGNORECASE)


def of_platform(left: ast.expr, sign: str | None, right: ast.expr) -> Guard | None:
    """The guard of one comparison; None where it is with something else."""
    name = dotted(left.func if isinstance(left, ast.Call) else left)
    text = string(right)
    if text is None or sign not in ("==", "!="):
        return None
    spec = "" if sign == "==" else "!"
    if text in _DEVICES and _DEVICE.fullmatch(name):
        return Guard("platform", text, spec)
    subject = {"sys.platform": text, "platform.system": text.lower(), "os.name": text}.get(name)
    if subject is None:
        return None
    subject = {"windows": "win32", "nt": "win32", "posix": "linux"}.get(subject, subject)
    return Guard("platform", subject, spec)
