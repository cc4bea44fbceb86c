"""Runs git in an untrusted repository, read-only and without hooks and filters.

Use only commands that read objects. Commands that read files of the checkout, such as `git diff`
and `git status`, run filters from the repository's configuration.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from imgbuild.system import process

ReadingCommand = Literal[
    "cat-file", "grep", "log", "ls-files", "ls-tree", "remote", "rev-list", "rev-parse"
]
# Options that prevent commands from running programs of attributes and configuration.
OPTIONS: dict[str, tuple[str, ...]] = {
    "grep": ("--no-textconv",),
    "log": ("--no-ext-diff", "--no-textconv"),
}
LIMIT = 120.0  # seconds; a pipe in place of a repository's file would be waited for without end


def run_git(
    folder: Path, command: ReadingCommand, *words: str, stdin: str | None = None
) -> process.ProcessResult:
    """Run a git command in `folder`. The exit status is not checked.

    Raises ToolMissing if git is not installed, and WorkFailed if it runs longer than `LIMIT`
    seconds.
    """
    program = process.find_program("git", remedy="install git")
    full = [program, "-c", "core.fsmonitor=false", command, *OPTIONS.get(command, ()), *words]
    return process.run_command(full, cwd=folder, stdin=stdin, check=False, limit=LIMIT)
