"""The words of pages, docstrings and messages, and their spelling."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.source_code import ROOT

LIST = ROOT / "tests/data/banned-words.txt"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "ARCHITECTURE.md")),
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if "test-records" not in p.parts),
    *sorted((ROOT / ".github").rglob("*.md")),
]
PACKAGE = ROOT / "builder/imgbuild"
SOURCES = [p for p in sorted(PACKAGE.rglob("*.py")) if "data" not in p.relative_to(PACKAGE).parts]


@cache
def _banned() -> re.Pattern[str]:
    lines = [line.strip() for line in LIST.read_text().splitlines()]
    words = [line for line in lines if line and not line.startswith("#")]
    return re.compile("|".join(rf"(?<![\w-])(?:{word})(?![\w-])" for word in words), re.IGNORECASE)


def _hits(path: Path, text: str, first_line: int = 1) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{first_line + text.count(chr(10), 0, found.start())}: {found[0]}"
        for found in _banned().finditer(text)
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_page_has_no_banned_words(path: Path):
    hits = _hits(path, path.read_text())
    assert not hits, "\n".join(hits)


def test_docstrings_and_messages_have_no_banned_words():
    hits = [
        hit
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for hit in _hits(path, node.value, node.lineno)
    ]
    assert not hits, "\n".join(hits)


@pytest.mark.parametrize("text", ["TESTIMONY_SIZE", "testimonyless", "my_testimony"])
def test_identifiers_are_no_words(text: str):
    assert not _banned().search(text)


@pytest.mark.parametrize(
    "text", ["Goes out: a lock", "the testimony", "X is no day", "How it speaks"]
)
def test_idioms_are_found(text: str):
    assert _banned().search(text)


@pytest.mark.skipif(not importlib.util.find_spec("codespell_lib"), reason="codespell is missing")
def test_spelling():
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
