"""Reads the code blocks of the docs and the comment before each block that declares its test.

    <!-- run: ENVIRONMENT -->                run the commands in an environment of docs_shell.py
    <!-- run: ENVIRONMENT, writes FILE -->   write the block to a file for the next commands
    <!-- run: ENVIRONMENT, adds to FILE -->  merge the block into a YAML file
    <!-- run by: PATH -->                    the file that runs the block
    <!-- not run: REASON -->                 one of `REASONS`

Blocks in the language `text` contain no commands and need no comment. tests/unit/test_docs.py
checks the blocks and tests/integration/test_docs.py runs them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]

PICTURE = "text"
SCRIPTS = ("console", "bash", "python")
ENVIRONMENTS = ("small", "home", "checkout", "empty", "project")
REASONS = (
    "needs a GPU",
    "needs a Kubernetes cluster",
    "needs enroot and pyxis",
    "needs oras",
    "needs another Docker Engine",
    "needs GitHub",
    "needs a Python archive",
    "takes hours",
    "downloads gigabytes",
    "asks the real package index",
    "read by the command line itself in tests/unit/cli/test_verbs.py",
)
MARK = re.compile(r"<!-- (?P<kind>run by|run|not run): (?P<said>[^\n]+?) -->\s*")
RUN = re.compile(r"(?P<environment>[a-z]+)(?:, (?P<verb>writes|adds to) (?P<file>\S+))?")
HIDDEN = "…"


@dataclass(frozen=True)
class BlockMark:
    """The comment of a block: a path, a reason, or an environment and a file."""

    kind: str
    said: str
    environment: str = ""
    verb: str = ""
    file: str = ""


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block. `line` is the line of its fence."""

    path: Path
    line: int
    language: str
    text: str
    mark: BlockMark | None

    @property
    def place(self) -> str:
        """The location of the block as FILE:LINE."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command as typed, with the output shown in the docs."""

    line: int
    words: str
    expected: tuple[str, ...]

    @property
    def fails(self) -> bool:
        """Whether the expected output contains an error message."""
        return any(line.startswith("error:") for line in self.expected)


def small_documents() -> list[Path]:
    """All files with tested blocks. Files in docs/images are excluded."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    tested = [path for path in pages if path.parent != ROOT / "docs/images"]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *tested]


def read_blocks(path: Path) -> list[CodeBlock]:
    """The blocks of a file, in order."""
    blocks, before = [], ""
    for token in MarkdownIt("commonmark").parse(path.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block"):
            begin = (token.map or [0])[0] + 1
            blocks.append(
                CodeBlock(path, begin, token.info.strip(), token.content, read_mark(before))
            )
        before = token.content if token.type == "html_block" else ""
    return blocks


def read_mark(comment: str) -> BlockMark | None:
    """The mark in a comment, or None if there is no mark."""
    match = MARK.fullmatch(comment)
    if match is None:
        return None
    if match["kind"] != "run":
        return BlockMark(match["kind"], match["said"])
    result = RUN.fullmatch(match["said"])
    if result is None:
        return None
    return BlockMark(
        "run", match["said"], result["environment"], result["verb"] or "", result["file"] or ""
    )


def block_commands(block: CodeBlock) -> list[Command]:
    """The commands of a block, with line numbers in the file.

    In a console block, a command begins with `$ ` and continues after a backslash and within
    quotes. A block in another language is one command.
    """
    if block.language == "bash":
        return [Command(block.line + 1, block.text, ())]
    if block.language == "python":
        return [Command(block.line + 1, f"python - <<'PYTHON'\n{block.text}PYTHON", ())]
    return list(_typed_commands(block))


def _typed_commands(block: CodeBlock) -> Iterator[Command]:
    lines = block.text.splitlines()
    at = 0
    while at < len(lines):
        begin = at
        if not lines[at].startswith("$ "):
            message = f"{block.place}: begins with no command: {lines[at]}"
            raise ValueError(message)
        words = lines[at][2:]
        at += 1
        while at < len(lines) and _is_incomplete(words):
            words += f"\n{lines[at]}"
            at += 1
        end = at
        while end < len(lines) and not lines[end].startswith("$ "):
            end += 1
        yield Command(block.line + 1 + begin, words, tuple(lines[at:end]))
        at = end


def _is_incomplete(words: str) -> bool:
    """Whether a shell would wait for another line."""
    try:
        shlex.split(words, comments=True)
    except ValueError:  # an open quote, or a backslash at the end
        return True
    return False


def output_matches(expected: tuple[str, ...], printed: str, *, whole: bool) -> bool:
    """Whether `printed` matches `expected`. `…` matches any text, or any lines if it is alone.

    If not `whole`, other lines may precede and follow.
    """
    parts = [r"(?:.*\n)*?" if line.strip() == HIDDEN else _line(line.rstrip()) for line in expected]
    pattern = "(?m:^)" + "".join(parts)
    lines = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    match = re.fullmatch(pattern, lines) if whole else re.search(pattern, lines)
    return match is not None


def _line(line: str) -> str:
    return ".*?".join(map(re.escape, line.split(HIDDEN))) + r"\n"
