"""Reads the lines of notebooks that install packages (`!pip`, `%pip`, `!apt`).

A block under `if "COLAB_" in …` is only for notebooks that Google hosts. Its `else` branch is read
instead.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from imgbuild.project.commands import ShellScript, keep_last
from imgbuild.project.model import FilePlace
from imgbuild.project.project_files import CONTROL
from imgbuild.project.reading import ProjectReading

MAGIC = re.compile(r"(?P<indent>\s*)(?:\w+\s*=\s*)?[!%]{1,2}\s*(?P<command>\S.*)")
INSTALLER = re.compile(
    r"(?:sudo\s+)?(?:python[\d.]*\s+-m\s+)?(?:pip[\d.]*|uv|apt(?:-get)?|conda|mamba)\b"
)
BRANCH = re.compile(
    r"(?P<indent>\s*)(?P<word>if|elif|else|try|except|finally|for|while|with)\b(?P<rest>.*)"
)
HOSTED_PATTERN = re.compile(r"colab|kaggle|paperspace", re.IGNORECASE)
SHELLS = ("%%bash", "%%sh", "%%script bash")


class IndentedBlock(msgspec.Struct, frozen=True, kw_only=True):
    """An indented block. If it is skipped, `condition` is the reason, else "".

    `test` is the condition of the block's `if`.
    """

    indent: int
    condition: str
    test: str = ""


def read_file(reading: ProjectReading, name: str) -> None:
    """Read the cells of a notebook."""
    document = reading.json(name)
    if document is None:
        return
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list):
        reading.add_problem(
            FilePlace(file=name), "has no list of cells", expected="a notebook of format 4"
        )
        return
    script = ShellScript(reading, name, variables={})
    text = reading.sources.text(name)
    for cell in cells:
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            _cell(script, _source(cell), text)
    keep_last(reading, name)


def _source(cell: dict[str, Any]) -> str:
    source = cell.get("source", "")
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    return CONTROL.sub(" ", source) if isinstance(source, str) else ""


def _cell(script: ShellScript, source: str, text: str) -> None:
    lines = re.sub(r"\\[ \t]*\n\s*", " ", source.replace("\t", "    ")).split("\n")
    if lines[0].strip().startswith(SHELLS):
        for line in lines[1:]:
            number = _line(text, line)
            script.run(line, number, number)
        return
    open_branches: list[IndentedBlock] = []
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        branch = BRANCH.fullmatch(line)
        tests = [each.test for each in open_branches if each.indent == indent]
        open_branches = [each for each in open_branches if each.indent < indent]
        if branch:
            open_branches.append(_branch(branch["word"], branch["rest"], tests, indent))
        body = re.search(r":\s*([!%].*)", line) if branch else None
        magic = MAGIC.fullmatch(body[1] if body else line)
        if magic and INSTALLER.match(magic["command"]):
            number = _line(text, magic["command"])
            condition = next((each.condition for each in open_branches if each.condition), "")
            script.run(magic["command"], number, number, condition=condition)


def _branch(word: str, rest: str, tests: list[str], indent: int) -> IndentedBlock:
    """Return the block that starts at a line. `tests` are conditions of previous branches."""
    test = rest.strip().rstrip(":").strip()
    before = tests[0] if tests else ""
    if word in ("if", "while"):
        hosted = HOSTED_PATTERN.search(test)
        negated = bool(re.search(r"\bnot\b", test))
        return IndentedBlock(
            indent=indent, condition=test if hosted and not negated else "", test=test
        )
    if word == "elif":
        return IndentedBlock(indent=indent, condition=test, test=before)
    if word == "else" and before:
        taken = HOSTED_PATTERN.search(before) and not re.search(r"\bnot\b", before)
        condition = "" if taken else f"this condition is false: {before}"
        return IndentedBlock(indent=indent, condition=condition, test=before)
    return IndentedBlock(indent=indent, condition="", test="")


def _line(text: str, command: str) -> int:
    """Return the line of the notebook's JSON file that contains the start of `command`."""
    import json

    head = json.dumps(command.split("  ", maxsplit=1)[0].rstrip()[:60], ensure_ascii=False)[1:-1]
    at = text.find(head)
    return text.count("\n", 0, at) + 1 if at >= 0 else 1
