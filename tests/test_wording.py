"""Tests the words of pages, docstrings, comments and messages, and their spelling."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.rows import each_row
from tests.support.source_code import ROOT, all_nodes, parse_file, tracked_files

LIST = ROOT / "tests/data/banned-words.txt"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "ARCHITECTURE.md")),
    *tracked_files("docs/*.md", ".github/*.md", "lab/*.md", "smoke_tests/*.md"),
]
SOURCES = [p for p in tracked_files(
    "builder/imgbuild/*.py", "smoke_tests/*.py", "lab/*.py", "tools/*.py"
) if "data/image" not in str(p)]  # fmt: skip
# Read whole. Other templates and builder/imgbuild/data/image end in Dockerfiles and layers, whose
# bytes are locked.
TEXTS = [p for p in tracked_files(
    "matrix.yaml", "ci.yaml", "tool/*.yaml", "builder/imgbuild/data/*.yaml", "smoke_tests/*.json",
    ".github/*.yml", "Makefile", "tools/apptainer", "tools/engines", "pyproject.toml",
    "images/templates/slurm/*.j2", "images/templates/script.j2", "images/templates/apptainer.j2",
) if not p.is_symlink()]  # fmt: skip
# Texts that other files take over byte for byte.
LOCKED = {
    "the same wish in the words that other packages read": "matrix.yaml",  # in Dockerfiles
    "This file lists certificates that you wish to use or to ignore":
        "builder/imgbuild/deb/certificates.py",  # /etc/ca-certificates.conf of Debian
    # Messages of vLLM and verl, which the rules of `imgbuild diagnose` search for.
    "World size": "builder/imgbuild/data/diagnose/world-size-gpus.yaml",
    "world size": "builder/imgbuild/data/diagnose/checkpoint-world-size.yaml",
    "world[ _]size": "builder/imgbuild/data/diagnose/parallel-sizes.yaml",
    "dp|world|n_gpus": "builder/imgbuild/data/diagnose/verl-batch-sizes.yaml",
}  # fmt: skip


@cache
def _banned() -> re.Pattern[str]:
    lines = [line.strip() for line in LIST.read_text().splitlines()]
    words = [line for line in lines if line and not line.startswith("#")]
    return re.compile(rf"(?<![\w-])(?:{'|'.join(words)})(?![\w-])", re.IGNORECASE)


def _hits(path: Path, text: str, first_line: int = 1) -> list[str]:
    name = str(path.relative_to(ROOT))
    for phrase in (phrase for phrase, file in LOCKED.items() if file == name):
        text = text.replace(phrase, "")
    return [
        f"{name}:{first_line + text.count(chr(10), 0, match.start())}: {match[0]}"
        for match in _banned().finditer(text)
    ]


def _prose(path: Path) -> Iterator[tuple[str, int]]:
    """The strings and comments of a Python file, each with its first line number.

    Comments are read only if the file has a banned word, because tokenizing is slow.
    """
    for node in all_nodes(parse_file(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno
    if not _banned().search(path.read_text()):
        return
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.string, token.start[0]


@each_row("path", [*PAGES, *TEXTS], ids=lambda p: str(p.relative_to(ROOT)))
def test_documentation_page_has_no_banned_words(path: Path):
    hits = _hits(path, path.read_text())
    assert not hits, "\n".join(hits)


def test_strings_and_comments_have_no_banned_words():
    hits = [
        hit for path in SOURCES for text, line in _prose(path) for hit in _hits(path, text, line)
    ]
    assert not hits, "\n".join(hits)


@each_row(("phrase", "file"), LOCKED.items(), ids=LOCKED.values())
def test_every_exception_for_a_banned_word_is_used(phrase, file):
    assert phrase in (ROOT / file).read_text()
    assert _banned().search(phrase)


def test_wording_checks_read_files_of_each_kind():
    names = {path.relative_to(ROOT).parts[0] for path in (*SOURCES, *TEXTS)}
    expected = {"builder", "smoke_tests", "tools", "tool", ".github", "images"}
    assert names >= expected | {"Makefile", "matrix.yaml"}
    assert not any("data/image" in str(path) for path in (*SOURCES, *TEXTS))


def test_wording_checks_read_comments(tmp_path):
    file = tmp_path / "module.py"
    file.write_text('"""A page."""\n\nx = 1  # the testimony\n')
    assert list(_prose(file)) == [("A page.", 1), ("# the testimony", 3)]


@each_row("text", ["TESTIMONY_SIZE", "testimonyless", "my_testimony", "inclusion proof"])
def test_wording_checks_skip_identifiers(text: str):
    assert not _banned().search(text)


@each_row("text", ["Goes out: a lock", "the testimony", "X is no day", "How it speaks", "a proof"])
def test_banned_idioms_are_detected(text: str):
    assert _banned().search(text)


@pytest.mark.skipif(not importlib.util.find_spec("codespell_lib"), reason="codespell is missing")
def test_spelling_is_correct():
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
