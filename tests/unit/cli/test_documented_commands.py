"""Tests that commands documented before November 2026 work or have a listed replacement.

`tests/data/documented-commands.txt` lists each verb and option in README and docs at 4330a1d9.
"""

from __future__ import annotations

import re
from typing import Any

import typer.main

from imgbuild.cli._app import app
from tests.support.rows import each_row
from tests.support.source_code import ROOT

LINES = (ROOT / "tests/data/documented-commands.txt").read_text().splitlines()
REMOVED = (ROOT / "CHANGELOG.md").read_text().partition("### Removed")[2]
# The options of a removed verb are removed, except for those in its row.
CODE = re.compile(r"`([^`]+)`")


def works(words: list[str]) -> bool:
    """Whether the command line has the verb, and the option if given."""
    command: Any = typer.main.get_command(app)
    for word in words:
        if word.startswith("--"):
            return any(word in (*option.opts, *option.secondary_opts) for option in command.params)
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            return False
    return True


def is_listed(words: list[str]) -> bool:
    """Whether a row of the table names the verb or its group, with the option if given."""
    verbs = [word for word in words if not word.startswith("--")]
    option = words[-1] if words[-1].startswith("--") else ""
    for row in REMOVED.splitlines():
        named = " ".join(CODE.findall(row.partition(" | ")[0]))
        if all(re.search(rf"\b{verb}\b", named) for verb in verbs) and (
            not option or option in named or not works(verbs)
        ):
            return True
    return False


@each_row("line", LINES)
def test_a_documented_command_works_or_its_replacement_is_listed(line: str) -> None:
    assert works(line.split()) or is_listed(line.split())


def test_missing_documented_commands_are_detected() -> None:
    for line in ("build --never", "never", "registry never", "cache never --all"):
        assert not works(line.split())
        assert not is_listed(line.split())
