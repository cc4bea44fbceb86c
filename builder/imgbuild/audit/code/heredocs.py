"""Reads the Python code in here-documents of shell scripts: `python - <<'EOF'`."""

# A separate module: one format.
from __future__ import annotations

import re

from imgbuild.system.syntax import valid_source

# A here-document that Python runs, or that is written to a Python file.
_PYTHON = re.compile(
    rb"\bpython[\d.]*(?:[ \t]+-\w+)*(?:[ \t]+-(?:[ \t][^<\n]*)?)?[ \t]*<<"
    rb"|(?:>|\btee\b)[ \t]*[^\s<>]+\.py\b"
)
_START = re.compile(rb"[^#]*?(?<!<)<<(?P<tabs>-?)[ \t]*(?P<quote>['\"\\]?)(?P<end>[A-Za-z_]\w*)")
_LONGEST_START = 500  # characters of a line that starts a here-document
# A string with an expansion, or an expansion outside of strings.
_EXPANSION = re.compile(rb"(?<!\w)[bfruBFRU]*([\"'])[^\"'$]*+\$[^\"']*+\1|\$\{?\w+\}?")


def python_module(script: bytes) -> bytes:
    """Return the Python code of a script as one module, on the same lines, or b"" if it has none.

    Other lines are empty. Here-documents that are not valid Python are omitted.
    """
    lines = script.split(b"\n") if b"<<" in script else []
    module = [b""] * len(lines)
    ends = {line.lstrip(b"\t") for line in lines}
    end = -1
    for number, line in enumerate(lines, start=1):
        inside = number <= end + 1 or len(line) > _LONGEST_START
        start = None if inside else _START.match(line)
        if start is None or start["end"] not in ends:
            continue
        end = next((n for n in range(number, len(lines)) if _is_end(lines[n], start)), len(lines))
        if _PYTHON.search(line):
            module[number:end] = _python_lines(lines[number:end], start)
    return b"\n".join(module) if any(module) else b""


def _is_end(line: bytes, start: re.Match[bytes]) -> bool:
    return (line.lstrip(b"\t") if start["tabs"] else line) == start["end"]


def _python_lines(lines: list[bytes], start: re.Match[bytes]) -> list[bytes]:
    """Return the lines of a here-document, without tabs and expansions, or empty lines."""
    if start["tabs"]:
        lines = [line.lstrip(b"\t") for line in lines]
    if not start["quote"]:
        lines = [_EXPANSION.sub(lambda match: b"_".ljust(len(match[0])), line) for line in lines]
    is_valid = valid_source(b"\n".join(lines)) is not None
    return lines if is_valid else [b""] * len(lines)
