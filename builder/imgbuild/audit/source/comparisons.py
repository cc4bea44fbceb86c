"""Comparisons: operators and their opposites; comparisons with the Python version and a platform.

`main_path.guards` evaluates the guards as CPython would evaluate the comparison.
"""

from __future__ import annotations

import ast
import re

from imgbuild.audit.source.facts import Guard
from imgbuild.audit.source.text import dotted, string

OPPOSITE = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
_SPEC = re.compile(r"(<=|>=|==|!=|<|>)(.+)")
_NAMES = frozenset(("sys.version_info", "version_info"))
_FIELDS = {"major": "[0]", "minor": "[1]", "micro": "[2]"}
MIRROR = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}
# Accelerators that no image is for, and names that hold the kind of one.
_DEVICES = frozenset(("hip", "hpu", "mps", "musa", "npu", "tpu", "xpu"))
_DEVICE = re.compile(r"(?:.*[._])?(?:device|device_type|device\.type|accelerator)", re.IGNORECASE)


def opposite(guards: tuple[Guard, ...], text: str) -> tuple[Guard, ...]:
    """The guards of the branch that runs where these do not all hold."""
    if not guards:
        return ()
    if len(guards) == 1:
        return (_opposite(guards[0], text),)
    return (Guard("unknown", f"not ({text})"),)


def _opposite(guard: Guard, text: str) -> Guard:
    kind, subject, spec = guard.kind, guard.subject, guard.spec
    found = _SPEC.fullmatch(spec)
    if kind in ("version", "python") and found is not None and "," not in spec:
        return Guard(kind, subject, OPPOSITE[found[1]] + found[2])
    if kind == "present":
        return Guard("absent", subject, spec)
    if kind == "absent":
        return Guard("present", subject, spec)
    if kind == "platform":
        return Guard("platform", subject, "" if spec else "!")
    if kind == "takes":
        return Guard("takes", subject, spec[1:] if spec.startswith("!") else f"!{spec}")
    return Guard("unknown", f"not ({text})")


def of_python(left: ast.expr, sign: str, right: ast.expr) -> Guard | None:
    """The guard of one comparison; None where neither side is version_info or a literal."""
    part = _part(left)
    if part is None:
        left, right, sign = right, left, MIRROR[sign]
        part = _part(left)
    if part is None:
        return None
    one = part.startswith("[") and ":" not in part
    wanted = _items([right] if one else right.elts if isinstance(right, ast.Tuple) else [])
    return Guard("python", part, sign + wanted) if wanted else None


def _part(node: ast.expr) -> str | None:
    """Nothing for the whole version_info, "[0]" or "[:2]" for a part; None for anything else."""
    if isinstance(node, ast.Call):  # tuple(sys.version_info[:2])
        whole = dotted(node.func) == "tuple" and len(node.args) == 1 and not node.keywords
        return _part(node.args[0]) if whole else None
    if dotted(node) in _NAMES:
        return ""
    if isinstance(node, ast.Attribute) and dotted(node.value) in _NAMES:
        return _FIELDS.get(node.attr)
    if isinstance(node, ast.Subscript) and dotted(node.value) in _NAMES:
        return _slice(node.slice)
    return None


def _slice(node: ast.expr) -> str | None:
    if not isinstance(node, ast.Slice):
        place = _number(node)
        return f"[{place}]" if place is not None else None
    first = 0 if node.lower is None else _number(node.lower)
    end = None if node.upper is None else _number(node.upper)
    return f"[:{end}]" if first == 0 and end and node.step is None else None


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def _items(nodes: list[ast.expr]) -> str:
    """Literals with dots between them: (3, 12, 0, "beta") is 3.12.0.beta."""
    values = [node.value if isinstance(node, ast.Constant) else None for node in nodes]
    plain = all(type(one) is int or (isinstance(one, str) and one.isalpha()) for one in values)
    return ".".join(map(str, values)) if plain else ""


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
