"""Reads the Python code in here-documents of shell scripts: `python - <<'EOF'`."""

# A separate module: one format.
from __future__ import annotations

import re

from imgbuild.audit.code.shell import here_documents
from imgbuild.system.syntax import valid_source

# A here-document that Python runs, or that is written to a Python file.
_PYTHON = re.compile(
    r"\bpython[\d.]*(?:[ \t]+-\w+)*(?:[ \t]+-(?:[ \t][^<\n]*)?)?[ \t]*<<"
    r"|(?:>|\btee\b)[ \t]*[^\s<>]+\.py\b"
)
_LONGEST_START = 500  # characters of a line that starts a here-document
# A string with an expansion, or an expansion outside of strings.
_EXPANSION = re.compile(r"(?<!\w)[bfruBFRU]*([\"'])[^\"'$]*+\$[^\"']*+\1|\$\{?\w+\}?")


def python_module(script: bytes) -> bytes:
    """Return the Python code of a script as one module, on the same lines, or b"" if it has none.

    Other lines are empty. Here-documents that are not valid Python are omitted.
    """
    if b"<<" not in script or b"py" not in script:
        return b""
    source = script.decode(errors="replace")
    lines = source.split("\n")
    module = [""] * len(lines)
    for document in here_documents(source):
        start = lines[document.start - 1]
        if len(start) <= _LONGEST_START and _PYTHON.search(start):
            code = document.lines if document.quoted else map(_without_expansions, document.lines)
            text = "\n".join(code)
            if valid_source(text) is not None:
                end = document.first - 1 + len(document.lines)
                module[document.first - 1 : end] = text.split("\n") if document.lines else []
    return "\n".join(module).encode() if any(module) else b""


def _without_expansions(line: str) -> str:
    """Replace variables that the shell expands, and strings with them, by `_` in the same width."""
    return _EXPANSION.sub(lambda match: "_".ljust(len(match[0].encode())), line)
