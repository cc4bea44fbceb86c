"""Reads notebooks as Python modules and shell commands."""

# A separate module: one format.
from __future__ import annotations

import json
import re
import shlex
from typing import Any

from imgbuild.system.syntax import valid_source

# Magics of a cell whose other lines are Python.
_PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun")
_SHELL_CELL = re.compile(r"%%(?:bash|sh|script)\b")
_ENVIRONMENT = re.compile(r"\s*%(?:set_)?env\s+(\w+)[= ]\s*(\S.*)")
_BLOCK = re.compile(
    r"(?P<head>\s*(?:if|elif|else|try|except|finally|for|with)\b.{0,400}:)\s*[!%].*"
)
_MAGIC = re.compile(
    r"(?P<indent>\s*)(?:(?P<target>[\w, .\[\]'\"]{1,200}=)\s*[%!].*|[%!?].*|"
    r"[\w.*]{1,200}\?{1,2}\s*)"
)


_TIMED = re.compile(r"(?P<indent>\s*)(?P<magic>%time(?:it)?\s+)(?P<statement>[^-\s].*)")


def notebook_module(data: bytes) -> tuple[bytes, bytes, tuple[int, ...]]:
    """Return the code cells of a notebook as a module, its commands, and each cell's first line.

    A cell that is not Python becomes empty lines in the module. The commands (`!COMMAND` and shell
    cells) are on the same lines as in the notebook. Raises ValueError if `data` is not a notebook.
    """
    try:
        cells = json.loads(data)["cells"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        message = f"not a notebook: {type(error).__name__}: {error}"
        raise ValueError(message) from error
    if not isinstance(cells, list):
        message = "not a notebook: `cells` is not a list"
        raise ValueError(message)  # noqa: TRY004 (of the file, not of an argument)
    lines: list[str] = []
    commands: list[str] = []
    starts = []
    for cell in cells:
        starts.append(len(lines) + 1)
        text = _lines(cell)
        lines += _python(text)
        commands += _commands(text)
    module, script = ("\n".join(part).encode("utf-8", "replace") for part in (lines, commands))
    return module, script, tuple(starts)


def _lines(cell: Any) -> list[str]:
    """Return the lines of a cell.

    The result is empty if it is not a code cell.
    """
    if not isinstance(cell, dict) or cell.get("cell_type") != "code":
        return []
    source = cell.get("source")
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    if not isinstance(source, str):
        return []
    return source.split("\n")


def _commands(lines: list[str]) -> list[str]:
    """Return the lines with commands in a cell. `%env` becomes an assignment.

    Other lines become empty.
    """
    if lines and _SHELL_CELL.match(lines[0]):
        return ["", *lines[1:]]
    commands = []
    continued = False
    for line in lines:
        if match := _ENVIRONMENT.fullmatch(line):
            line = f"!{'':{match.start(1) - 1}}{match[1]}={shlex.quote(match[2])}"  # noqa: PLW2901
        is_command = continued or line.lstrip().startswith("!")
        commands.append((line if continued else line.replace("!", " ", 1)) if is_command else "")
        continued = is_command and line.endswith("\\")
    return commands


def _python(lines: list[str]) -> list[str]:
    """Return the Python lines of a cell. Other lines become empty."""
    lines = [*lines]
    if not lines:
        return lines
    if lines[0].startswith("%%") and lines[0].split()[0] in _PYTHON_CELLS:
        lines[0] = ""
    if lines[0].startswith("%%"):
        return [""] * len(lines)
    for text in (lines, _replace_magics(lines)):
        if valid_source("\n".join(text)) is not None:
            return text
    return [""] * len(lines)


def _replace_magics(lines: list[str]) -> list[str]:
    """Return `lines` with Python statements instead of magics and commands."""
    plain = []
    continued = False
    for line in lines:
        block = _BLOCK.fullmatch(line)
        match = block or _MAGIC.fullmatch(line)
        timed = _TIMED.fullmatch(line)
        if continued:
            plain.append("")
        elif timed is not None and valid_source(timed["statement"]) is not None:
            plain.append(f"{timed['indent']}{'pass;':{len(timed['magic'])}}{timed['statement']}")
        elif block is not None:
            plain.append(f"{block['head']} pass")
        elif match is not None:
            value = f"{match['target']} None" if match["target"] else "pass"
            plain.append(f"{match['indent']}{value}")
        else:
            plain.append(line)
        continued = (continued or match is not None) and line.endswith("\\")
    return plain
