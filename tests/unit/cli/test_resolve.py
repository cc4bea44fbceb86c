"""`imgbuild resolve`: words that are wrong are said to be so before anything is looked up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imgbuild.cli import _resolve_lines as words
from imgbuild.resolve.answer import ArchOutcome, ChosenVersion, Refusal, ResolveAnswer
from imgbuild.values import Arch
from tests.support.inprocess_project import Command
from tests.support.matrix_text import RIGHT


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    (tmp_path / "matrix.yaml").write_text(RIGHT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ([], "no package is requested"),
        (["vllm=="], "invalid requirement"),
        (["torch", "--cuda", "12"], "two numbers"),
        (["torch", "--base", "alpine"], "no base alpine"),
        (["torch", "--name", "cu124-vllm"], "has a target cu124-vllm already"),
        (["torch", "--as-of", "yesterday"], "invalid date for --as-of"),
        (["torch", "--arch", "sparc"], "is not an architecture"),
        (["torch", "--index", "torch=nowhere"], "no index nowhere"),
        (["torch", "--have", "torch>=2"], "one version"),
        (["torch", "--have", "torch==2.8.0+cu128", "--cuda", "12.6"], "built for CUDA 12.8"),
        (["trl", "--index", "trl=torch"], "one index for each CUDA release"),
    ],
)
def test_wrong_words(command: Command, line: list[str], said: str) -> None:
    done = command("resolve", *line, "--json")
    assert (done.status, said in done.stderr) == (2, True), done.stderr
    assert said in json.loads(done.stdout)["message"] + str(json.loads(done.stdout)["hint"])


REFUSED = Refusal(
    message="this set is impossible on arm64",
    reasons=("torch 2.6.0 is a CPU build", "vllm 0.8 has no wheel"),
    nearest=("vllm 0.20.0, with torch 2.11.0 for CUDA 13.0",),
    hint=None,
)
ANSWER = ResolveAnswer(
    name="cu124-vllm0.8",
    python="3.11",
    arch={
        Arch.X86_64: ArchOutcome(
            packages=(
                ChosenVersion(package="torch", version="2.6.0", why=("you have torch==2.6.0",)),
                ChosenVersion(
                    package="numpy", version="2.2.6", why=("a requires ==1", "b", "c", "d")
                ),
            ),
            warnings=("verl 0.4.1 is of 2025-07",),
        ),
        Arch.ARM64: ArchOutcome(refused=REFUSED),
    },
    row=("  cu124-vllm0.8:", "    base: debian-12"),
    checks=("metadata", "imports", "calls", "support", "rules"),
    unchecked=("elf", "cuda"),
)


def test_what_is_possible_is_data_and_the_rest_is_talk(
    capsys: pytest.CaptureFixture[str], command: Command
) -> None:
    del command
    assert words.lines(ANSWER) == [
        "# cu124-vllm0.8 on x86_64: 2 packages",
        "torch  2.6.0  you have torch==2.6.0",
        "numpy  2.2.6  a requires ==1; b; c",
        "",
        "# checked: metadata, imports, calls, support, rules",
        "# not checked: elf, cuda; imgbuild lock reads shared objects",
        "",
        "# a row for matrix.yaml, under targets:",
        "  cu124-vllm0.8:",
        "    base: debian-12",
    ]
    assert words.say_refusals(ANSWER)
    told = capsys.readouterr().err
    assert "verl 0.4.1 is of 2025-07" in told
    assert "because torch 2.6.0 is a CPU build\n" in told
    assert "suggestion: vllm 0.20.0, with torch 2.11.0 for CUDA 13.0\n" in told
