"""Tests that reports of runs are compared with the digests, recorded and shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.errors import InputError
from imgbuild.matrix import project_paths
from imgbuild.plan import current, image_digests
from imgbuild.report import CaseResult, Floors, Report
from imgbuild.smoke import recording, records, reports, result
from imgbuild.system.process import ProcessResult
from imgbuild.values import Arch
from tests.support import inprocess_project
from tests.support.inprocess_project import TARGET, UNLOCKED, Command, SampleProject
from tests.support.smoke_records import (
    FAILED,
    OTHER,
    PASSED,
    SHA,
    SKIPPED,
    answer_file,
    recorded_runs,
    smoke_report,
)


def test_smoke_run_on_another_machine_is_recorded_and_shown(
    sample: SampleProject, imgbuild: Command
) -> None:
    answer_file(sample)
    done = imgbuild("smoke", "--import", "gpu.json")
    assert (done.status, done.stdout) == (0, f"{TARGET} x86_64 gpu pass\n")
    assert "1 new, 0 already recorded" in " ".join(done.stderr.split())
    image = sample.target_digests.arch[Arch.X86_64]
    (run,) = recorded_runs(sample)
    assert run == records.RecordedRun(
        started="2026-11-21T14:48:17Z", arch=Arch.X86_64, tier="gpu", result="pass",
        digest=image.manifest, config=image.config, gpu=("NVIDIA H200",), driver="580.159.04",
        passes=(PASSED.name,), versions={
            name: sample.lock.arch[Arch.X86_64].versions[name] for name in ("torch", "vllm", "trl")
        }, seconds=373.7, passed=1, failed=0, skipped=1,
        skips=(result.CaseMessage(case=SKIPPED.name, message=SKIPPED.message),),
        through="root", jobs=3, share=2, caches="nothing",
    )  # fmt: skip
    smoke_records = records.read_records(sample.folder / "images", TARGET)
    assert smoke_records.images[image.config].diff_ids == tuple(
        each.diff_id for each in image.layers
    )

    (row,) = inprocess_project.read_json(imgbuild("list", TARGET, "--json"))
    (shown,) = row["images"]
    assert (shown["arch"], shown["digest"], shown["size"]) == ("x86_64", image.manifest, image.size)
    assert shown["tested"] == "gpu on NVIDIA H200, driver 580.159.04, 2026-11-21"
    assert [each["date"] for each in shown["runs"]] == ["2026-11-21T14:48:17Z"]
    for form in ("text", "markdown"):
        lines = imgbuild("list", "--wide", "--format", form).stdout.splitlines()
        short = image.manifest.removeprefix(SHA)[:12]
        assert f"{short}: {shown['tested']}" in next(line for line in lines if TARGET in line)
        assert "tested" not in next(line for line in lines if UNLOCKED in line)
    assert "0 new, 1 already recorded" in " ".join(
        imgbuild("smoke", "--import", "gpu.json").stderr.split()
    )


def test_notes_of_a_smoke_case_are_recorded_and_shown(
    sample: SampleProject, imgbuild: Command
) -> None:
    noted = msgspec.structs.replace(PASSED, notes=("Falling back to default tactics.",))
    answer_file(sample, noted, SKIPPED)
    assert imgbuild("smoke", "--import", "gpu.json").status == 0
    assert recorded_runs(sample)[0].notes == noted.notes
    assert "  Falling back to default tactics." in imgbuild("show", TARGET, "--tests").stdout


def test_failed_smoke_run_is_recorded_with_cause(sample: SampleProject, imgbuild: Command) -> None:
    answer_file(sample)
    other = msgspec.structs.replace(FAILED, name="trl sft", message="RuntimeError: no model")
    answer_file(sample, PASSED, FAILED, other, name="later.json", started="2026-11-22T00:00:00Z")
    answer = inprocess_project.read_json(
        imgbuild("smoke", "--import", "later.json", "--import", "gpu.json", "--json")
    )
    assert [each["result"] for each in answer] == ["fail", "pass"]
    good, bad = recorded_runs(sample)
    assert (good.good, bad.good) == (True, False)
    assert bad.first == result.FirstFailure(case="nccl", message="RuntimeError: no peers")
    assert bad.further == (result.CaseMessage(case=other.name, message=other.message),)
    text = imgbuild("show", TARGET, "--tests").stdout
    assert "  also failed: trl sft: RuntimeError: no model" in text
    assert f"passed, gpu on H200: 1\n  {PASSED.name}\n" in text
    (row,) = inprocess_project.read_json(imgbuild("list", TARGET, "--json"))
    assert row["images"][0]["tested"] == (
        "gpu failed on NVIDIA H200, driver 580.159.04, 2026-11-22"
    )


def test_target_that_failed_only_with_several_gpus_is_listed_with_one(
    sample: SampleProject, imgbuild: Command
) -> None:
    answer_file(sample)
    two = ["NVIDIA H200", "NVIDIA H200"]
    answer_file(sample, FAILED, name="two.json", tier="multi-gpu", gpu=two)
    imgbuild("smoke", "--import", "gpu.json", "--import", "two.json")
    assert imgbuild("list", TARGET).stdout.rstrip().endswith(" H200 2026-11")


def test_highest_tier_passed_on_any_architecture_is_shown(sample: SampleProject) -> None:
    local_project = project_paths.find_project(sample.folder)
    assert recording.highest_passed_tier(local_project, sample.lock, Arch) is None
    for tier, case in (("static", PASSED), ("cpu", PASSED), ("gpu", FAILED)):
        file = answer_file(sample, case, tier=tier)
        recording.record_runs(local_project, reports.image_runs(file), Store.open())
    assert (
        recording.highest_passed_tier(local_project, sample.lock, Arch) == "cpu"
    )  # the gpu tier failed
    assert recording.highest_passed_tier(local_project, sample.lock, [Arch.ARM64]) is None
    image_digests.digests_path(local_project.images, TARGET).unlink()
    assert recording.highest_passed_tier(local_project, sample.lock, Arch) is None


def test_tool_of_a_smoke_run_in_a_sif_is_recorded(sample: SampleProject, imgbuild: Command) -> None:
    answer_file(sample, through="apptainer", sif=OTHER, arbitrary_user=True)
    assert imgbuild("smoke", "--import", "gpu.json").status == 0
    (run,) = recorded_runs(sample)
    assert (run.through, run.sif, run.arbitrary_user) == ("apptainer", OTHER, True)


def _damaged(sample: SampleProject) -> Path:
    file = sample.folder / "damaged.json"
    file.write_bytes(answer_file(sample).read_bytes()[:-20])
    return file


REFUSED: dict[str, tuple[Callable[[SampleProject], Path], str]] = {
    "configuration": (
        lambda sample: answer_file(sample, config=OTHER),
        f"belongs to {TARGET} on x86_64 with configuration {OTHER}",
    ),
    "architecture": (lambda sample: answer_file(sample, arch="arm64"), "has no image"),
    "target": (
        lambda sample: answer_file(sample, target="../x"),
        "'../x', which has no lock in this project",
    ),
    "unlocked target": (
        lambda sample: answer_file(sample, target=UNLOCKED),
        f"select another project with --matrix FILE; locked in this project: {TARGET}",
    ),
    "part of the tier": (
        lambda sample: answer_file(sample, only="vllm*"),
        "only 'vllm*' of the tier",
    ),
    "a model": (
        lambda sample: answer_file(sample, model="Qwen2.5-0.5B"),
        "with the model Qwen2.5-0.5B",
    ),
    "no GPU": (
        lambda sample: answer_file(sample, gpu=[]),
        "tier gpu requires 1 GPU(s), but the run lists none",
    ),
    "no GPU, failed": (
        lambda sample: answer_file(sample, FAILED, gpu=[]),
        "tier gpu requires 1 GPU(s), but the run lists none",
    ),
    "damaged file": (_damaged, "is not a valid report of imgbuild smoke"),
    "date": (
        lambda sample: answer_file(sample, started="today"),
        "is not a test record: Expected `str` matching regex",
    ),
    "outcome": (
        lambda sample: answer_file(
            sample, PASSED, msgspec.structs.replace(PASSED, outcome="exploded")
        ),
        "unknown outcomes: exploded",
    ),
    "nothing": (lambda sample: sample.folder, "has no test results"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_inconsistent_smoke_run_is_refused_without_writing(
    case: str, sample: SampleProject, imgbuild: Command
) -> None:
    make, words = REFUSED[case]
    good = answer_file(sample, name="good.json")
    bad = make(sample)
    done = imgbuild("smoke", "--import", str(good), "--import", str(bad))
    output = " ".join(done.stderr.split())
    assert done.status == 2, output
    assert words in output.replace("…", ""), output
    assert "hint: " in output
    assert recorded_runs(sample) == ()


def test_smoke_json_output_is_recorded(sample: SampleProject, imgbuild: Command) -> None:
    job = sample.folder / "build/ci/job"
    job.mkdir(parents=True)
    reports = [
        smoke_report(sample),
        smoke_report(sample, SKIPPED, FAILED, tier="cpu", arbitrary_user=True),
    ]
    (job / "smoke.answer.json").write_bytes(codec.encode(reports))
    done = imgbuild("smoke", "--import", str(job))
    assert (
        done.stdout.splitlines()
        == [f"{TARGET} x86_64 cpu fail", f"{TARGET} x86_64 static pass"][::-1]
    )
    cpu, static = recorded_runs(sample)
    assert (static.seconds, static.through, static.arbitrary_user) == (61.5, "docker", False)
    assert (cpu.failed, cpu.skipped, cpu.arbitrary_user, cpu.caches) == (1, 1, True, "nothing")
    assert (static.gpu, static.driver) == ((), "")
    assert imgbuild("smoke", "--import", str(job / "smoke.answer.json")).status == 0
    assert len(recorded_runs(sample)) == 2


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[]", "the file contains no run"),
        (b'{"error": "InputError", "message": "no"}', "is not a valid report of imgbuild smoke"),
        (b'[{"target": "x", "arch": "x86_64", "tier": "cpu"}]', "an older imgbuild"),
        (
            b'[{"target": "x", "arch": "x86_64", "tier": "cpu", "config": "' + OTHER.encode()
            + b'", "digest": "' + OTHER.encode() + b'", "started": "now", "through": "root"}]',
            "is not a test record: Expected `str` matching regex",
        ),
    ],
)  # fmt: skip
def test_incomplete_smoke_results_are_refused(
    sample: SampleProject, imgbuild: Command, data: bytes, words: str
) -> None:
    (sample.folder / "answer.json").write_bytes(data)
    done = imgbuild("smoke", "--import", "answer.json")
    assert (done.status, recorded_runs(sample)) == (2, ())
    assert words in " ".join(done.stderr.split())


def test_results_of_environment_or_unknown_sif_are_refused(
    sample: SampleProject, imgbuild: Command
) -> None:
    with pytest.raises(InputError, match="have no record of the tested image"):
        reports.check_image_run(smoke_report(sample, digest="", config="", through="here"))
    for words in (("--through", "here"), ("--sif-file", "x.sif")):
        done = imgbuild("smoke", TARGET, "--record", *words, status=2)
        assert "cannot be combined with --sif-file" in " ".join(done.stderr.split())
    for words in (("--case", "nccl"), ("--model", str(sample.folder))):
        done = imgbuild("smoke", TARGET, "--record", *words, status=2)
        assert "--record requires all cases of a tier" in " ".join(done.stderr.split())
    done = imgbuild("smoke", TARGET, "--case", "nccl", status=2)
    assert "--case nccl requires --tier" in " ".join(done.stderr.split())


def test_image_that_differs_from_the_lock_is_not_tested(sample: SampleProject) -> None:
    local_project, image = (
        project_paths.find_project(sample.folder),
        sample.target_digests.arch[Arch.X86_64],
    )
    recording.require_locked(local_project, sample.lock, Arch.X86_64, image.config, "build/x")
    with pytest.raises(InputError, match="build/x is not a test record") as caught:
        recording.require_locked(local_project, sample.lock, Arch.X86_64, OTHER, "build/x")
    assert image.config in caught.value.message
    with pytest.raises(InputError, match="has no image"):
        recording.require_locked(local_project, sample.lock, Arch.ARM64, image.config, "build/x")


def test_smoke_record_depends_on_layers_but_not_on_annotations(
    sample: SampleProject, imgbuild: Command
) -> None:
    answer_file(sample)
    assert imgbuild("smoke", "--import", "gpu.json").status == 0
    local_project = project_paths.find_project(sample.folder)
    floors = {Arch.X86_64: Floors(cuda="12.4", driver="525.60.13", glibc="2.28")}
    annotated = image_digests.compute_digests(
        sample.lock, image_digests.layer_records(sample.target_digests), floors
    )
    before, after = (
        target_digests.arch[Arch.X86_64] for target_digests in (sample.target_digests, annotated)
    )
    assert (before.manifest != after.manifest, before.config == after.config) == (True, True)
    current.write_locked(local_project, sample.lock, annotated)
    (row,) = inprocess_project.read_json(imgbuild("list", TARGET, "--json"))
    assert row["images"][0]["tested"].startswith("gpu on NVIDIA H200")
    assert row["images"][0]["digest"] == after.manifest
    assert recorded_runs(sample)[0].digest == before.manifest
    named = f"gpu on an image with the same configuration, {before.manifest[:19]}…"
    assert row["images"][0]["tested"].endswith(f"({named})")
    for words in ((), ("--tests",), (UNLOCKED,)):  # two targets are side by side
        assert named in " ".join(imgbuild("show", TARGET, *words).stdout.split())
    guide = " ".join(imgbuild("show", TARGET, "--guide").stdout.split())
    assert f"skipped; {named.removeprefix('gpu ')}" in guide

    layer_records = image_digests.layer_records(sample.target_digests)
    (layer,) = (each for each in before.layers if each.name == "trl")
    layer_records[layer.id] = msgspec.structs.replace(layer_records[layer.id], diff_id=OTHER)
    current.write_locked(
        local_project, sample.lock, image_digests.compute_digests(sample.lock, layer_records)
    )
    (row,) = inprocess_project.read_json(imgbuild("list", TARGET, "--json"))
    assert row["images"][0]["tested"] == "no test record for this digest"
    assert len(recorded_runs(sample)) == 1


def test_driver_and_gpus_are_read_from_the_gpu_gate_case() -> None:
    two = "NVIDIA H200 sm_90 143155 MiB; Tesla T4 sm_75 15109 MiB"
    log = f"the driver is 580.159.04\nthe driver supports CUDA 13.0\n{two}\n"
    gate = CaseResult(name="devices", outcome="passed", seconds=1, message=two, log=log)
    report = Report(target=TARGET, arch="x86_64", tier="multi-gpu", cases=(gate, SKIPPED))
    run_record = result.completed_run(
        report, ProcessResult(0, "", "", 12.345), "podman", result.RunSettings()
    )
    assert (run_record.gpu, run_record.driver) == (("NVIDIA H200", "Tesla T4"), "580.159.04")
    assert (run_record.seconds, run_record.through, run_record.cases) == (
        12.3,
        "podman",
        report.cases,
    )
    assert run_record.started.endswith("Z")
    assert result.seen_machine([msgspec.structs.replace(gate, outcome="failed")]) == ((), "")
