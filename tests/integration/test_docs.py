"""Runs the commands of README.md and docs as printed, in one shell per file and environment.

A comment before each block declares how the block is run (tests/support/doc_blocks.py).
tests/unit/test_docs.py checks that every block has a comment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import docs_shell
from tests.support.doc_blocks import ROOT, CodeBlock, block_commands, read_blocks, small_documents
from tests.support.docs_shell import DocsShell, Environments

pytestmark = [
    pytest.mark.engine, pytest.mark.apptainer, pytest.mark.network, pytest.mark.timeout(1200),
]  # fmt: skip
# Programs that read a file written from a block.
READERS = {"matrix.yaml": "imgbuild list", "ci.yaml": "imgbuild ci jobs --all"}


def runs(path: Path) -> list[CodeBlock]:
    """The code blocks of a file that must be run."""
    return [block for block in read_blocks(path) if block.mark and block.mark.kind == "run"]


# Each takes 5 to 60 seconds; the engines and verbs that they use have separate tests.
SLOW = (
    "docs/apptainer.md", "docs/dockerfiles.md", "docs/extend.md", "docs/howto/add-a-target.md",
    "docs/environment.md", "docs/explanation/splice.md", "docs/howto/air-gapped.md",
    "docs/howto/flashinfer-index.md", "docs/howto/private-index.md",
    "docs/howto/project-forms.md", "docs/howto/site.md", "docs/howto/slurm-site.md",
    "docs/howto/train.md", "docs/registry.md", "docs/smoke.md", "docs/test-records.md",
    "docs/tutorial.md",
)  # fmt: skip
FILES = [
    pytest.param(path, id=name, marks=[pytest.mark.long] if name in SLOW else [])
    for path in small_documents()
    if "<!-- run: " in path.read_text(encoding="utf-8")
    and (name := path.relative_to(ROOT).as_posix())
]


@pytest.fixture(scope="module", name="environments")
def _environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environments]:
    with docs_shell.serve_environments(tmp_path_factory.mktemp("docs")) as environments:
        yield environments


def test_files_listed_as_slow_exist() -> None:
    assert set(SLOW) <= {parameter.id for parameter in FILES}


@pytest.mark.parametrize("path", FILES)
def test_documented_commands_print_the_documented_output(
    path: Path, environments: Environments
) -> None:
    shells: dict[str, DocsShell] = {}
    with contextlib.ExitStack() as stack:
        for block in runs(path):
            assert block.mark is not None
            name = block.mark.environment
            if name not in shells:
                shells[name] = stack.enter_context(environments.shell(name))
            do(block, shells[name])


def do(block: CodeBlock, shell: DocsShell) -> None:
    """Run a code block, or write it to a file and check the file with its reader."""
    assert block.mark is not None
    if not block.mark.verb:
        for command in block_commands(block):
            shell.run(command, block)
        return
    shell.write(block)
    reader = READERS.get(Path(block.mark.file).name)
    if reader:
        status, out, err = shell.type(reader)
        assert status == 0, f"{block.place}: {reader}\n{out}{err}"
