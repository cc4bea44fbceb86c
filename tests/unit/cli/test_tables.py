"""Tests the output of verbs on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from imgbuild.cli import smoke
from imgbuild.doctor.host import Host, HostGpu, RuntimeSupport
from imgbuild.report import CaseResult, Report
from imgbuild.system.console import Console
from imgbuild.values import Arch
from tests.support import inprocess_project, registry_project, smoke_records, terminal
from tests.support.inprocess_project import TARGET, UNLOCKED, Command
from tests.support.registry_project import Place
from tests.support.smoke_records import PASSED

NAME = "research-group/reinforcement-learning/images"
MACHINE = Host(
    arch=Arch.X86_64,
    kernel="6.18.5-200.fc43.x86_64",
    glibc="2.36",
    driver="470.57.02",
    gpus=(HostGpu(name="NVIDIA RTX PRO 6000 Blackwell Server Edition", capability="12.0"),),
    engines=(
        RuntimeSupport(name="docker", version="28.5.1, containerd store, rootless", gpus=True),
    ),
)
RUNNERS = """\
version: 1
runners:
  - {labels: [self-hosted, linux, x64, large-disk, research-group], arch: x86_64, disk: 100}
  - {labels: [self-hosted, linux, arm64, large-disk, research-group], arch: arm64, disk: 100}
  - {labels: [self-hosted, linux, x64, gpu, research-group], arch: x86_64, disk: 100, gpus: 2}
"""


@pytest.fixture(name="place")
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A project with two locked targets."""
    monkeypatch.setattr("imgbuild.cli.doctor.read_host", lambda: MACHINE)
    for place in registry_project.place(tmp_path, monkeypatch):
        place.sample.edit('{torch: "2.11.0"}', '{torch: "2.6.0"}')
        place.both()
        (place.sample.folder / "ci.yaml").write_text(RUNNERS)
        smoke_records.answer_file(place.sample)
        yield place


def commands(place: Place) -> Iterator[tuple[int, str, Sequence[str]]]:
    """Commands with their exit status and the words that must not be broken in the output."""
    digest, repository = place.sample.target_digests.digest, f"{place.registry.host}/{NAME}"
    yield 0, "smoke --import gpu.json", [TARGET, "gpu", "pass"]
    yield 0, "list", [TARGET, UNLOCKED]
    yield 0, f"show {TARGET}", [digest]
    yield 0, f"show {TARGET} --layers", ["debian-12", "trl"]
    yield 0, f"show {TARGET} --packages", ["vllm", "vllm-0.8.5.post1-py3-none-any.whl"]
    yield 0, f"show {TARGET} --variables", ["VLLM_USE_V1=1"]
    yield 0, "show --all --sbom spdx --output sboms", [TARGET, UNLOCKED]
    yield 0, f"why torch {TARGET} --offline", ["==2.6.0"]
    yield 0, "why torch --offline", [TARGET, UNLOCKED]
    yield 0, f"tree {TARGET} --offline", ["vllm"]
    yield 0, "digest --all", [TARGET, UNLOCKED, digest]
    yield 0, f"build {TARGET} --offline --output images-of-today", [TARGET, digest]
    words = f"{repository} --jobs 1 --offline --no-attach"
    yield 0, f"push {TARGET} {words} --dry-run", [TARGET, "x86_64", "configuration", "lacking"]
    yield 0, f"push {TARGET} {words}", [TARGET, f"{repository}@{digest}"]
    yield 0, f"push {UNLOCKED} {words}", [UNLOCKED]
    yield 0, f"registry tag {repository}:{TARGET} good", [f"{repository}:good", digest]
    yield 0, f"registry ls {repository}", [f"{repository}:{TARGET},", TARGET, UNLOCKED, digest]
    yield 1, f"registry mirror status --all {repository}", [TARGET, UNLOCKED]
    yield 0, f"diff {TARGET} {UNLOCKED}", [TARGET, UNLOCKED]
    yield 0, f"diff {TARGET} {UNLOCKED} --full", [TARGET, UNLOCKED, "setuptools"]
    yield 0, f"verify {repository}:good --target {TARGET}", ["provenance", digest]
    yield 0, f"pull {repository}:good --output pulled-today", [digest, "pulled-today"]
    yield 0, "doctor", [TARGET, UNLOCKED]
    yield 0, f"audit {TARGET} --offline --select metadata", [TARGET]
    yield 0, "resolve torch==2.6.0", [TARGET]
    yield 0, "ci jobs --all", [f"{TARGET}@x86_64", f"{UNLOCKED}@arm64"]
    for name in (TARGET, UNLOCKED):  # a folder of results, which is still empty
        (place.sample.folder / f"build/ci/{name}@x86_64").mkdir(parents=True)
    yield 1, "ci report", [TARGET, UNLOCKED, f"{TARGET}@x86_64"]
    yield 0, "cache info", []
    yield 0, "cache list", [place.sample.wheels["vllm"].sha256]
    yield 9, "cache verify", [inprocess_project.damage_wheel(place.sample, "vllm").sha256]
    yield 0, "cache prune --max-size 1", []


def whole_word(line: str) -> bool:
    """Whether a line is a single word to be copied, such as a reference or a URL."""
    return len(line.removeprefix("    source: ").split()) == 1


def test_tables_with_complete_names_fit_the_terminal(
    imgbuild: Command, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[tuple[str, object]] = []
    for status, line, whole in commands(place):
        with terminal.terminal_stdout(monkeypatch) as shown:
            done = imgbuild(*line.split())
        wide = [each for each in shown.lines if len(each) > terminal.COLUMNS]
        shown_words = {word for each in shown.lines for word in each.split()}
        problems += [(line, done)] if done.status != status or not shown.lines else []
        problems += [(line, each) for each in wide if not whole_word(each)]
        problems += [(line, f"lacks {word}") for word in whole if word not in shown_words]
    assert problems == [], problems


def test_table_of_test_cases_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(terminal.COLUMNS))
    name = "a-case-with-a-long-name-of-its-own/"
    cases = (CaseResult(name=name * 3, outcome="failed", seconds=1234.5, message="x"), PASSED)
    report = Report(target=TARGET, arch=Arch.X86_64, tier="gpu", cases=cases)
    # A separate console, since it reads the terminal's size once.
    monkeypatch.setattr(smoke, "console", Console())
    smoke.print_report(report)
    table, counts, _ = capsys.readouterr().err.partition("tier gpu: ")
    assert counts
    assert max(map(len, table.splitlines())) <= terminal.COLUMNS
    assert table.count(name) == 3


def test_failed_case_is_shown_with_the_cause_from_its_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = "RuntimeError: Failed to find C compiler. Please specify via CC environment variable\n"
    case = CaseResult(
        name="kernels", outcome="failed", seconds=1.0, message="exit status 1", log=log
    )
    report = Report(target=TARGET, arch=Arch.X86_64, tier="gpu", cases=(case,))
    monkeypatch.setattr(smoke, "console", Console())
    smoke.print_report(report)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("IMG626: the image has no C compiler")
    assert "; cure: run apt-get install -y gcc" in last
