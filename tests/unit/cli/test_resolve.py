"""Tests that `imgbuild resolve` reports invalid arguments before any lookup."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imgbuild.cli import resolve
from imgbuild.pipeline.session import SessionOptions, open_session
from imgbuild.resolve.answers import ArchOutcome, ChosenVersion, NoAnswer, ResolveAnswer
from imgbuild.resolve.locked import LockedTarget
from imgbuild.resolve.resolve_request import RequestedPackage, ResolveRequest
from imgbuild.values import Arch
from tests.support import extended
from tests.support.inprocess_project import Command
from tests.support.matrix_text import VALID_MATRIX


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    (tmp_path / "matrix.yaml").write_text(VALID_MATRIX, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "no package is requested"),
        (["vllm=="], "invalid requirement"),
        (["torch", "--cuda", "12"], "two numbers"),
        (["torch", "--base", "alpine"], "no base alpine"),
        (["torch", "--name", "cu124-vllm"], "already has a target cu124-vllm"),
        (["torch", "--as-of", "yesterday"], "invalid date for --as-of"),
        (["torch", "--arch", "sparc"], "is not a supported architecture"),
        (["torch", "--index", "torch=nowhere"], "no index nowhere"),
        (["torch", "--have", "torch>=2"], "an exact version"),
        (["torch", "python==3.11"], "request it with --python 3.11"),
        (["torch", "--have", "torch==2.8.0+cu128", "--cuda", "12.6"], "a build for CUDA 12.8"),
        (["trl", "--index", "trl=torch"], "whose URL depends on the CUDA release"),
    ],
)
def test_resolve_refuses_invalid_arguments(command: Command, line: list[str], message: str) -> None:
    done = command("resolve", *line, "--json")
    assert (done.status, message in done.stderr) == (2, True), done.stderr
    assert message in json.loads(done.stdout)["message"] + str(json.loads(done.stdout)["hint"])


@pytest.mark.parametrize(
    ("python", "base"),
    [("3.11", "debian-12 has Python 3.11"), ("3.14", "none has Python 3.14 yet")],
)
def test_python_of_the_locked_targets_is_named(
    capsys: pytest.CaptureFixture[str], python: str, base: str
) -> None:
    catalogue = open_session(None, SessionOptions(offline=True))
    request = ResolveRequest(
        requests=(RequestedPackage(package="vllm", spec="==0.33.0"),),
        arches=(Arch.X86_64,),
        python=python,
    )
    resolve._report_relaxed(request, catalogue, catalogue)
    printed = " ".join(capsys.readouterr().err.split())
    assert "satisfied by cu130-vllm0.33.0 (Python 3.13, CUDA 13.0)" in printed
    assert f"another Python is another base; {base}: docs/howto/python-version.md" in printed


def test_indexes_of_a_project_replace_those_of_the_catalogue(tmp_path: Path) -> None:
    mirror = "https://mirror.example/simple"
    text = f"{extended.ROW}indexes:\n  pytorch:\n    url: {mirror}\n"
    local = open_session(
        extended.create_repository(tmp_path / "mine", text), SessionOptions(offline=True)
    )
    matrix = resolve._published_session(local).matrix
    assert matrix.indexes["pytorch"].url == mirror
    assert "cu130-verl0.9" in matrix.targets


@pytest.mark.parametrize("origin", ["catalogue", "../project"])
def test_resolve_in_a_project_finds_published_targets(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    extended.create_repository(tmp_path / "mine", extended.ROW.replace("../project", origin))
    monkeypatch.chdir(tmp_path / "mine")
    done = command("resolve", "verl==0.9.1", "vllm==0.26.0", "--arch", "x86_64")
    more = "" if origin == "catalogue" else " --lock catalogue"
    assert done.stdout.splitlines()[:2] == [
        "cu130-verl0.9 has verl 0.9.1, vllm 0.26.0 (CUDA 13.0, tested: multi-gpu)",
        f"  imgbuild update --to cu130-verl0.9{more}",
    ]


REFUSED = NoAnswer(
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
    requested=("torch",),
    row=("  cu124-vllm0.8:", "    base: debian-12"),
    checks=("metadata", "imports", "calls", "support", "rules"),
    unchecked=("elf", "cuda"),
)


def test_resolve_prints_results_on_stdout_and_refusals_on_stderr(
    capsys: pytest.CaptureFixture[str], command: Command
) -> None:
    del command
    assert resolve.resolution_lines(ANSWER) == [
        "# cu124-vllm0.8 on x86_64",
        "torch  2.6.0  you have torch==2.6.0",
        "",
        "# a row for matrix.yaml, under targets:",
        "  cu124-vllm0.8:",
        "    base: debian-12",
        "",
        "# checked: metadata, imports, calls, support, rules",
        "# not checked: elf, cuda; imgbuild lock reads shared objects",
        "# 2 packages on x86_64; to list them, add --full",
    ]
    assert resolve.resolution_lines(ANSWER, everything=True)[-4:] == [
        "",
        "# 2 packages on x86_64",
        "torch  2.6.0  you have torch==2.6.0",
        "numpy  2.2.6  a requires ==1; b; c",
    ]
    assert resolve.report_refusals(ANSWER)
    result = capsys.readouterr().err
    assert "verl 0.4.1 is of 2025-07" in result
    assert "because torch 2.6.0 is a CPU build\n" in result
    assert "suggestion: vllm 0.20.0, with torch 2.11.0 for CUDA 13.0\n" in result


def locked_target(name: str) -> LockedTarget:
    return LockedTarget(
        target=name,
        cuda="12.8",
        as_of="2026-01-23",
        arch=(Arch.X86_64,),
        versions={"torch": "2.8.0", "vllm": "0.11.0", "trl": "0.26.2", "verl": "0.6.1"},
        tested="" if name.endswith("5") else "gpu",
        commands=(f"imgbuild run {name}", f"imgbuild init --extends {name}"),
    )


def test_locked_targets_are_printed_with_versions_and_commands() -> None:
    names = [f"cu128-verl0.{number}" for number in range(5, 15)]
    answer = ResolveAnswer(
        name="", python="3.11", arch={}, locked=tuple(locked_target(name) for name in names)
    )
    short, full = resolve.locked_lines(answer), resolve.locked_lines(answer, everything=True)
    assert short[:5] == [
        "cu128-verl0.5 has torch 2.8.0, vllm 0.11.0, trl 0.26.2, verl 0.6.1 (CUDA 12.8,",
        "  not tested)",
        "  imgbuild run cu128-verl0.5",
        "  imgbuild init --extends cu128-verl0.5",
        "",
    ]
    assert short[-1] == "# to solve for different versions, add --solve"
    assert all(name in "\n".join(short) for name in names)
    assert sum(line.startswith("  imgbuild run") for line in full) == len(names)
    assert max(map(len, short + full)) <= resolve.WIDTH


def test_resolve_output_line_of_a_package_fits_the_terminal() -> None:
    why = tuple(f"{name} requires <9.9,>=0.0.1" for name in ("a" * 30, "b" * 30, "c" * 30))
    item = ChosenVersion(package="torch", version="2.6.0", why=why)
    answer = ResolveAnswer(name="x", python="3.11", requested=("torch",),
                          arch={Arch.X86_64: ArchOutcome(packages=(item,))})  # fmt: skip
    first, *more = resolve.resolution_lines(answer)[1:4]
    assert first == f"torch  2.6.0  {why[0]};"
    assert more == [f"{'':14}{why[1]};", f"{'':14}{why[2]}"]
