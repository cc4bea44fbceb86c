"""Proofs: what runs say of themselves is held against the seal, kept, and shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from imgbuild import codec, project
from imgbuild.cache.store import Store
from imgbuild.errors import InputError
from imgbuild.plan import current
from imgbuild.plan import seal as seals
from imgbuild.report import Case, Floors, Report
from imgbuild.smoke import proofs, records, reports, result
from imgbuild.system.process import Result
from imgbuild.values import Arch
from tests.support import inprocess_project
from tests.support.inprocess_project import TARGET, UNLOCKED, Command, World
from tests.support.smoke_records import (
    FAILED,
    NVRM,
    OTHER,
    PASSED,
    SHA,
    SKIPPED,
    left,
    machine,
    recorded,
    report,
)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    return inprocess_project.make(tmp_path)


@pytest.fixture
def imgbuild(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capfd)


def test_a_run_elsewhere_is_recorded_and_shown(world: World, imgbuild: Command) -> None:
    left(world)
    done = imgbuild("smoke", "--import", "docs/out")
    assert (done.status, done.stdout) == (0, f"{TARGET} x86_64 gpu pass\n")
    assert "1 new, 0 known before" in " ".join(done.stderr.split())
    image = world.seal.arch[Arch.X86_64]
    (run,) = recorded(world)
    assert run == records.Run(
        date="2026-11-21T14:48:17Z", arch=Arch.X86_64, tier="gpu", result="pass",
        digest=image.manifest, config=image.config, gpu=("NVIDIA H200",), driver="580.159.04",
        versions={
            name: world.lock.arch[Arch.X86_64].versions[name] for name in ("torch", "vllm", "trl")
        }, seconds=373.7, passed=1, failed=0, skipped=1,
        through="unpacked", jobs=3, share=2, caches="nothing", report="docs/out",
    )  # fmt: skip
    known = records.read_ledger(world.folder / "images", TARGET)
    assert known.images[image.config].diff_ids == tuple(each.diff_id for each in image.layers)

    (row,) = inprocess_project.json_of(imgbuild("list", TARGET, "--json"))
    (shown,) = row["images"]
    assert (shown["arch"], shown["digest"], shown["size"]) == ("x86_64", image.manifest, image.size)
    assert shown["proven"] == "gpu on NVIDIA H200, driver 580.159.04, 2026-11-21"
    assert [each["date"] for each in shown["runs"]] == ["2026-11-21T14:48:17Z"]
    for form in ("text", "markdown"):
        lines = imgbuild("list", "--wide", "--format", form).stdout.splitlines()
        short = image.manifest.removeprefix(SHA)[:12]
        assert f"{short}: {shown['proven']}" in next(line for line in lines if TARGET in line)
        assert "proven" not in next(line for line in lines if UNLOCKED in line)
    assert "0 new, 1 known before" in " ".join(
        imgbuild("smoke", "--import", "docs/out").stderr.split()
    )


def test_a_failed_run_is_recorded_with_its_cause(world: World, imgbuild: Command) -> None:
    left(world)
    left(world, PASSED, FAILED, name="later", status=1, started="2026-11-22T00:00:00Z")
    answer = inprocess_project.json_of(
        imgbuild("smoke", "--import", "later", "--import", "docs/out", "--json")
    )
    assert [each["result"] for each in answer] == ["fail", "pass"]
    good, bad = recorded(world)
    assert (good.good, bad.good, bad.report) == (True, False, "")
    assert bad.first == records.FirstFailure(case="nccl", message="RuntimeError: no peers")
    (row,) = inprocess_project.json_of(imgbuild("list", TARGET, "--json"))
    assert row["images"][0]["proven"] == (
        "gpu failed on NVIDIA H200, driver 580.159.04, 2026-11-22"
    )


def test_a_run_that_was_ended_after_a_failure_is_one(world: World) -> None:
    found = reports.image_runs(left(world, PASSED, FAILED, status=124), project.find(world.folder))
    (one,) = proofs.prove(project.find(world.folder), found, Store.open())
    assert (one.result, one.new) == ("fail", True)


def test_what_a_sif_was_run_by_is_kept(world: World, imgbuild: Command) -> None:
    left(world, through="apptainer 1.4.5 --unsquash", sif=OTHER)
    assert imgbuild("smoke", "--import", "docs/out").status == 0
    (run,) = recorded(world)
    assert (run.through, run.sif, run.stranger) == ("apptainer 1.4.5 --unsquash", OTHER, True)


def other_layers(world: World) -> dict[str, Any]:
    found = machine(world)["diff_ids"]
    return {"diff_ids": [*found[:-1], OTHER], "unpacked": [*found[:-1], OTHER]}


REFUSED: dict[str, tuple[Callable[[World], Path], str]] = {
    "layers unpacked": (
        lambda world: left(world, unpacked=[*machine(world)["unpacked"][:-1], OTHER]),
        f"and {OTHER} was unpacked",
    ),
    "layers lacking": (
        lambda world: left(world, unpacked=machine(world)["unpacked"][:-1]),
        "and none was unpacked",
    ),
    "configuration": (
        lambda world: left(world, config=OTHER),
        f"is of {TARGET} on x86_64 with configuration {OTHER}",
    ),
    "layers": (lambda world: left(world, **other_layers(world)), f"that it ran is {OTHER};"),
    "architecture": (lambda world: left(world, arch="arm64"), "has no image there"),
    "target": (lambda world: left(world, target="../x"), "'../x', which has no lock here"),
    "unlocked target": (lambda world: left(world, target=UNLOCKED), "which has no lock here"),
    "part of the tier": (lambda world: left(world, only="vllm*"), "only 'vllm*' of its tier"),
    "a model": (lambda world: left(world, model="Qwen2.5-0.5B"), "with the model Qwen2.5-0.5B"),
    "no end": (lambda world: left(world, status=None), "the run did not end"),
    "out of time": (lambda world: left(world, status=124), "ended (status 124) before any had"),
    "status": (lambda world: left(world, status=1), "status 1, and its cases are 1 passed, 0 f"),
    "cases": (lambda world: left(world, PASSED, FAILED), "status 0, and its cases are 1 passed, 1"),
    "only skips": (lambda world: left(world, SKIPPED), "0 passed, 0 failed, 1 skipped"),
    "tier": (lambda world: left(world, tier="cpu"), "report.json is of tier gpu in format 1"),
    "format": (
        lambda world: left(world, document={"format": 2, "tier": "gpu", "python": "", "cases": []}),
        "report.json is of tier gpu in format 2",
    ),
    "no GPU": (
        lambda world: left(world, host={"driver": NVRM, "gpus": []}),
        "tier gpu needs 1 GPU(s); it names none",
    ),
    "no GPU, failed": (
        lambda world: left(world, FAILED, status=1, host={"driver": NVRM, "gpus": []}),
        "tier gpu needs 1 GPU(s); it names none",
    ),
    "damaged machine": (
        lambda world: left(world, arch="vax"),
        "machine.json is not a valid record",
    ),
    "damaged report": (
        lambda world: left(world, document={"format": 1, "tier": "gpu", "python": ""}),
        "report.json is not a valid report",
    ),
    "date": (lambda world: left(world, started="today"), "machine.json is not a valid record"),
    "outcome": (
        lambda world: left(world, PASSED, msgspec.structs.replace(PASSED, outcome="exploded")),
        "outcomes that there are not: exploded",
    ),
    "nothing": (lambda world: world.folder, "has no test results"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_and_nothing_written(
    case: str, world: World, imgbuild: Command
) -> None:
    make, words = REFUSED[case]
    good = left(world, name="good")
    bad = make(world)
    done = imgbuild("smoke", "--import", str(good), "--import", str(bad))
    said = " ".join(done.stderr.split())
    assert done.status == 2, said
    assert words in said.replace("…", ""), said
    assert "hint: " in said
    assert recorded(world) == ()


def test_no_report_at_all(world: World, imgbuild: Command) -> None:
    (left(world) / "report.json").unlink()
    done = imgbuild("smoke", "--import", "docs/out")
    assert (done.status, recorded(world)) == (2, ())
    assert "report.json" in done.stderr


def test_answers_of_smoke_are_recorded(world: World, imgbuild: Command) -> None:
    job = world.folder / "build/ci/job"
    job.mkdir(parents=True)
    reports = [report(world), report(world, SKIPPED, FAILED, tier="cpu", stranger=True)]
    (job / "smoke.answer.json").write_bytes(codec.encode(reports))
    done = imgbuild("smoke", "--import", str(job))
    assert (
        done.stdout.splitlines()
        == [f"{TARGET} x86_64 cpu fail", f"{TARGET} x86_64 static pass"][::-1]
    )
    cpu, static = recorded(world)
    assert (static.seconds, static.through, static.stranger) == (61.5, "docker", False)
    assert (cpu.failed, cpu.skipped, cpu.stranger, cpu.caches) == (1, 1, True, "nothing")
    assert (static.gpu, static.driver, static.report) == ((), "", "")
    assert imgbuild("smoke", "--import", str(job / "smoke.answer.json")).status == 0
    assert len(recorded(world)) == 2


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[]", "it has no report"),
        (b'{"error": "InputError", "message": "no"}', "is not a valid answer of imgbuild smoke"),
        (b'[{"target": "x", "arch": "x86_64", "tier": "cpu"}]', "an older imgbuild"),
        (
            b'[{"target": "x", "arch": "x86_64", "tier": "cpu", "config": "' + OTHER.encode()
            + b'", "digest": "' + OTHER.encode() + b'", "started": "now", "through": "root"}]',
            "is no proof: Expected `str` matching regex",
        ),
    ],
)  # fmt: skip
def test_answers_that_prove_nothing(
    world: World, imgbuild: Command, data: bytes, words: str
) -> None:
    (world.folder / "answer.json").write_bytes(data)
    done = imgbuild("smoke", "--import", "answer.json")
    assert (done.status, recorded(world)) == (2, ())
    assert words in " ".join(done.stderr.split())


def test_the_active_environment_and_a_sif_prove_nothing(world: World, imgbuild: Command) -> None:
    with pytest.raises(InputError, match="do not say which image they ran in"):
        reports.of_reports([report(world, digest="", config="", through="here")])
    for words in (("--through", "here"), ("--sif", "x.sif")):
        done = imgbuild("smoke", TARGET, "--record", *words)
        assert done.status == 2
        assert "cannot be combined with --sif" in " ".join(done.stderr.split())
    for words in (("--case", "nccl"), ("--model", str(world.folder))):
        done = imgbuild("smoke", TARGET, "--record", *words)
        assert done.status == 2
        assert "--record needs a whole tier" in " ".join(done.stderr.split())
    done = imgbuild("smoke", TARGET, "--case", "nccl")
    assert done.status == 2
    assert "--case nccl needs --tier" in " ".join(done.stderr.split())


def test_an_image_that_is_not_the_sealed_one_is_not_tested_at_all(world: World) -> None:
    own, image = project.find(world.folder), world.seal.arch[Arch.X86_64]
    proofs.require_sealed(own, world.lock, Arch.X86_64, image.config, "build/x")
    with pytest.raises(InputError, match="build/x is no proof") as caught:
        proofs.require_sealed(own, world.lock, Arch.X86_64, OTHER, "build/x")
    assert image.config in caught.value.message
    with pytest.raises(InputError, match="has no image there"):
        proofs.require_sealed(own, world.lock, Arch.ARM64, image.config, "build/x")


def test_a_change_of_annotations_keeps_a_proof_and_other_layers_do_not(
    world: World, imgbuild: Command
) -> None:
    left(world)
    assert imgbuild("smoke", "--import", "docs/out").status == 0
    own = project.find(world.folder)
    floors = {Arch.X86_64: Floors(cuda="12.4", driver="525.60.13", glibc="2.28")}
    annotated = seals.seal(world.lock, seals.sealed_records(world.seal), floors)
    before, after = (one.arch[Arch.X86_64] for one in (world.seal, annotated))
    assert (before.manifest != after.manifest, before.config == after.config) == (True, True)
    current.write_locked(own, world.lock, annotated)
    (row,) = inprocess_project.json_of(imgbuild("list", TARGET, "--json"))
    assert row["images"][0]["proven"].startswith("gpu on NVIDIA H200")
    assert row["images"][0]["digest"] == after.manifest
    assert recorded(world)[0].digest == before.manifest

    known = seals.sealed_records(world.seal)
    (layer,) = (each for each in before.layers if each.name == "trl")
    known[layer.id] = msgspec.structs.replace(known[layer.id], diff_id=OTHER)
    current.write_locked(own, world.lock, seals.seal(world.lock, known))
    (row,) = inprocess_project.json_of(imgbuild("list", TARGET, "--json"))
    assert row["images"][0]["proven"] == "no test record for this digest"
    assert len(recorded(world)) == 1


def test_what_the_gate_of_a_gpu_tier_saw_is_read() -> None:
    two = "NVIDIA H200 sm_90 143155 MiB; Tesla T4 sm_75 15109 MiB"
    log = f"the driver is 580.159.04\nthe driver knows CUDA 13.0\n{two}\n"
    gate = Case(name="devices", outcome="passed", seconds=1, message=two, log=log)
    own = Report(target=TARGET, arch="x86_64", tier="multi-gpu", cases=(gate, SKIPPED))
    made = result.ran(own, Result(0, "", "", 12.345), "podman", result.How())
    assert (made.gpu, made.driver) == (("NVIDIA H200", "Tesla T4"), "580.159.04")
    assert (made.seconds, made.through, made.cases) == (12.3, "podman", own.cases)
    assert made.started.endswith("Z")
    failed = msgspec.structs.replace(gate, outcome="failed")
    assert result.seen([failed]) == ((), "")
