"""Tests that every code block of the docs is run by a test or has a comment with a reason."""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import re
import shlex
from pathlib import Path

import pytest

from tests.support.doc_blocks import (
    ENVIRONMENTS,
    PICTURE,
    REASONS,
    ROOT,
    SCRIPTS,
    BlockMark,
    CodeBlock,
    Command,
    block_commands,
    read_blocks,
    small_documents,
)

# Options that the test named by a block does not use, and the file that does: CI's Slurm has no
# partitions and no GPUs.
OPTIONS = {
    word: ROOT / path
    for word, path in {
        "--builder": "tests/integration/test_builders.py",
        "--changed-since": ".github/workflows/images.yml",
        "--gpus": "tests/integration/test_slurm_server.py",
        "--key": "tests/integration/test_cosign.py",
        "--no-push": ".github/workflows/images.yml",
        "--only": "tests/integration/test_render.py",
        "--partition": "tests/unit/slurm/test_array.py",
        "--sbatch": "tests/integration/test_slurm_wait.py",
        "--time": "tests/unit/slurm/test_jobs.py",
    }.items()
}


@functools.cache
def documented() -> list[CodeBlock]:
    """The blocks of all documents."""
    return [block for path in small_documents() for block in read_blocks(path)]


@functools.cache
def marked() -> list[CodeBlock]:
    """The code blocks that require a mark."""
    return [block for block in documented() if block.language != PICTURE]


def names(blocks: list[CodeBlock]) -> list[str]:
    return [block.place for block in blocks]


def test_documentation_has_code_blocks() -> None:
    assert {"README.md", "CONTRIBUTING.md", "cli.md"} <= {block.path.name for block in marked()}
    assert {"run", "run by", "not run"} == {block.mark.kind for block in marked() if block.mark}


def test_every_code_block_in_the_docs_has_a_language() -> None:
    assert names([block for block in documented() if not block.language]) == []


def test_every_code_block_is_run_by_a_test_or_has_a_reason_not_to_run() -> None:
    assert names([block for block in marked() if block.mark is None]) == []


def test_text_blocks_in_the_docs_contain_no_commands() -> None:
    summaries = [block for block in documented() if block.language == PICTURE]
    assert names([block for block in summaries if re.search(r"(?m)^\s*\$ ", block.text)]) == []


def test_markers_of_code_blocks_are_valid() -> None:
    strange = [block for block in marked() if block.mark and not _valid(block, block.mark)]
    assert names(strange) == []


def _valid(block: CodeBlock, mark: BlockMark) -> bool:
    if mark.kind == "not run":
        return mark.said in REASONS
    if mark.kind == "run by":
        return (ROOT / mark.said).is_file()
    if mark.environment not in ENVIRONMENTS:
        return False
    # A block of Python may be a file or a script.
    return block.language == "python" or bool(mark.verb) != (block.language in SCRIPTS)


@functools.cache
def elsewhere() -> list[tuple[CodeBlock, Command, str]]:
    """The commands of code blocks that a test file named in the mark runs."""
    return [
        (block, item, block.mark.said)
        for block in marked()
        if block.mark and block.mark.kind == "run by" and block.language == "console"
        for item in block_commands(block)
    ]


def test_test_named_for_a_code_block_contains_the_programs_of_the_block() -> None:
    """The named file must contain each program, script and make target of the block."""
    strange = [
        f"{block.place}: {item.words}"
        for block, item, path in elsewhere()
        if not re.search(rf"\b{_call_pattern(item)}\b", (ROOT / path).read_text())
    ]
    assert elsewhere()
    assert strange == []


def _call_pattern(command: Command) -> str:
    """The verb of imgbuild, the target of make, the Python script, or the program itself."""
    program, *words = command.words.split()
    named = words[0] if program in ("imgbuild", "make", "python3") and words else program
    return re.escape(Path(named).stem)


def test_test_named_for_a_code_block_contains_its_verb_and_options() -> None:
    """The verb and options must be words of a call in the test or its imports."""
    options = [
        (block, item, ROOT / path) for block, item, path in elsewhere() if _verb_and_options(item)
    ]
    strange = [
        f"{block.place}: {path.name} lacks {word}"
        for block, item, path in options
        for word in _verb_and_options(item)
        if word not in _given(path) and word not in _given(OPTIONS.get(word, path))
    ]
    assert len(options) > 10
    assert strange == []


def _verb_and_options(command: Command) -> list[str]:
    """The verb of imgbuild and its long options. Other programs are ignored."""
    program, *words = shlex.split(command.words, comments=True)
    if program != "imgbuild":
        return []
    verb_words = list(itertools.takewhile(lambda word: word != "--", words))
    return [
        verb_words[0],
        *(word.partition("=")[0] for word in verb_words if word.startswith("--")),
    ]


@functools.cache
def _given(path: Path) -> frozenset[str]:
    """The words of all texts in the code of a file and of its helpers, except docstrings."""
    if path.suffix != ".py":
        return frozenset(re.split(r"[\s=\"]+", path.read_text()))
    tree = ast.parse(path.read_text())
    talk = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in talk
    ]
    words = {word for text in texts for word in re.split(r"[\s=]+", text)}
    helpers = [helper for helper in _imported(tree) if helper != path]
    return frozenset(words.union(*(_given(helper) for helper in helpers)))


def _imported(tree: ast.Module) -> list[Path]:
    """The helpers that a test imports."""
    names = [
        [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tests")
    ]
    paths = [ROOT / f"{name.replace('.', '/')}.py" for each in names for name in each]
    return [path for path in paths if path.is_file()]


def test_code_blocks_that_run_have_no_placeholders() -> None:
    holes = [
        f"{block.place}: {item.words}"
        for block in marked()
        if block.mark and block.mark.kind == "run" and not block.mark.verb
        for item in block_commands(block)
        if "…" in item.words or re.search(r"<[A-Z]", item.words)
    ]
    assert holes == []


def test_documented_total_sizes_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new lock changes the sums; lab/sharing.py prints the current lines."""
    monkeypatch.syspath_prepend(str(ROOT / "lab"))
    sharing = importlib.import_module("sharing")
    text = (ROOT / "docs/benchmarks.md").read_text("utf-8").splitlines()
    sums = [
        line
        for line in sharing.image_table(sharing.list_images(ROOT / "images"))
        if line[:2] == "- "
    ]
    assert len(sums) == 3
    assert [line for line in sums if line not in text] == []
