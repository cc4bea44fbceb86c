"""Notebooks as modules, without what only IPython understands (separate: syntax of IPython)."""

from __future__ import annotations

import json
import re
from typing import Any

from imgbuild.system.syntax import parse_source

# Magics of a cell whose other lines are Python.
_PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun")
_BLOCK = re.compile(
    r"(?P<head>\s*(?:if|elif|else|try|except|finally|for|with)\b.{0,400}:)\s*[!%].*"
)
_MAGIC = re.compile(
    r"(?P<indent>\s*)(?:(?P<target>[\w, .\[\]'\"]{1,200}=)\s*[%!].*|[%!?].*|"
    r"[\w.*]{1,200}\?{1,2}\s*)"
)


def module_of(data: bytes) -> tuple[bytes, tuple[int, ...]]:
    """The code cells of a notebook as one module, and the line where each cell begins.

    A cell that is no Python has empty lines.
    """
    try:
        cells = json.loads(data)["cells"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return b"", ()
    lines: list[str] = []
    starts = []
    for cell in cells if isinstance(cells, list) else ():
        starts.append(len(lines) + 1)
        lines += _lines(cell)
    return "\n".join(lines).encode("utf-8", "replace"), tuple(starts)


def _lines(cell: Any) -> list[str]:
    """The lines of a cell, as many as it has; none if it is not a code cell."""
    if not isinstance(cell, dict) or cell.get("cell_type") != "code":
        return []
    source = cell.get("source")
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    if not isinstance(source, str):
        return []
    lines = source.split("\n")
    if lines[0].startswith("%%") and lines[0].split()[0] in _PYTHON_CELLS:
        lines[0] = ""
    if lines[0].startswith("%%"):
        return [""] * len(lines)
    for text in (lines, _without_magics(lines)):
        if _parses("\n".join(text)):
            return text
    return [""] * len(lines)


def _without_magics(lines: list[str]) -> list[str]:
    """`lines` with statements of Python in place of magics and commands."""
    plain = []
    continued = False
    for line in lines:
        block = _BLOCK.fullmatch(line)
        match = block or _MAGIC.fullmatch(line)
        if continued:
            plain.append("")
        elif block is not None:
            plain.append(f"{block['head']} pass")
        elif match is not None:
            value = f"{match['target']} None" if match["target"] else "pass"
            plain.append(f"{match['indent']}{value}")
        else:
            plain.append(line)
        continued = (continued or match is not None) and line.endswith("\\")
    return plain


def _parses(text: str) -> bool:
    try:
        parse_source(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
