"""The commands of README and docs, run as they are printed: a shell for each file and environment.

A comment before each block says how it is run (tests/support/doc_blocks.py).
tests/unit/test_docs.py checks that every block has one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import docs_shell
from tests.support.doc_blocks import ROOT, Block, blocks, commands, papers
from tests.support.docs_shell import Shell, Worlds

pytestmark = [pytest.mark.engine, pytest.mark.apptainer, pytest.mark.network]
# What reads a file that a block was made to be.
READERS = {"matrix.yaml": "imgbuild list", "ci.yaml": "imgbuild ci jobs --all"}


def runs(path: Path) -> list[Block]:
    """The blocks of a file that say that they are run."""
    return [block for block in blocks(path) if block.mark and block.mark.kind == "run"]


PAPERS = [path for path in papers() if runs(path)]


@pytest.fixture(scope="module", name="worlds")
def _worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    with docs_shell.serve_worlds(tmp_path_factory.mktemp("docs")) as worlds:
        yield worlds


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_do_what_they_are_said_to(path: Path, worlds: Worlds) -> None:
    shells: dict[str, Shell] = {}
    with contextlib.ExitStack() as stack:
        for block in runs(path):
            assert block.mark is not None
            world = block.mark.world
            if world not in shells:
                shells[world] = stack.enter_context(worlds.shell(world))
            do(block, shells[world])


def do(block: Block, shell: Shell) -> None:
    """Run a block, or write it and let its reader read it."""
    assert block.mark is not None
    if not block.mark.verb:
        for command in commands(block):
            shell.run(command, block)
        return
    shell.write(block)
    reader = READERS.get(Path(block.mark.file).name)
    if reader:
        status, out, err = shell.type(reader)
        assert status == 0, f"{block.place}: {reader}\n{out}{err}"
