"""Parsers of rendered files, which see an instruction that should not be there."""

from __future__ import annotations

import re


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, as its parser reads lines: comments, continuations."""
    found, line = [], ""
    for raw in text.split("\n"):
        if raw.lstrip().startswith("#") or (line and not raw.strip()):
            continue
        line += raw
        if re.search(r"\\[ \t]*$", line):
            line = re.sub(r"\\[ \t]*$", "", line)
            continue
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            found.append((name, rest))
        line = ""
    assert not line
    return found


def pairs(rest: str) -> dict[str, str]:
    """The values of ENV or LABEL: words with double quotes, and a backslash before some signs."""
    found = {}
    for name, quoted, bare in re.findall(r'(\S+?)=(?:"((?:[^"\\]|\\.)*)"|(\S*))(?:\s+|$)', rest):
        found[name] = bare or re.sub(r"\\(.)", r"\1", quoted)
    return found


def sections(text: str) -> dict[str, list[str]]:
    """The sections of a definition file: a line that begins with % after spaces begins one."""
    found: dict[str, list[str]] = {"": []}
    name = ""
    for line in text.split("\n"):
        if line.strip().startswith("%"):
            name = line.strip()
            assert name not in found
            found[name] = []
        else:
            found[name].append(line)
    return found


def commands(lines: list[str]) -> str:
    """Shell lines of a section or an instruction, in which all programs are on PATH."""
    text = "\n".join(lines).replace("/run/installer/uv", "uv").replace("/imgbuild/uv ", "uv ")
    text = re.sub(r"--mount=\S+ ", "", text)
    return text.replace("/usr/bin/python", "python").replace(". /opt/imgbuild/environment.sh", ":")


def variables(text: str) -> str:
    """The file of variables that a script writes, and that a user sources."""
    return text.split("<<'END'\ncache=")[1].partition("\nEND\n")[0]
