"""Creates output files of smoke test runs, for the image of `inprocess_project`."""

from __future__ import annotations

from pathlib import Path

from imgbuild import codec
from imgbuild.report import CaseResult, Report
from imgbuild.smoke import records, result
from imgbuild.values import Arch
from tests.support.inprocess_project import TARGET, SampleProject

PASSED = CaseResult(
    name="device", outcome="passed", seconds=0.2, message="NVIDIA H200 sm_90 143155 MiB"
)
SKIPPED = CaseResult(name="sglang", outcome="skipped", seconds=0, message="the lock has no sglang")
FAILED = CaseResult(name="nccl", outcome="failed", seconds=3, message="RuntimeError:\n no  peers")
SHA = "sha256:"
OTHER = SHA + "9" * 64


def answer_file(
    sample: SampleProject,
    *cases: CaseResult,
    name: str = "gpu.json",
    tier: str = "gpu",
    **changes: object,
) -> Path:
    """Write the output of `imgbuild smoke --json` on a machine with one GPU, with `changes`."""
    fields: dict[str, object] = {
        "through": "root",
        "started": "2026-11-21T14:48:17Z",
        "seconds": 373.7,
        "gpu": ["NVIDIA H200"],
        "driver": "580.159.04",
        "jobs": 3,
        "share": 2,
        **changes,
    }
    file = sample.folder / name
    run = smoke_report(sample, *(cases or (PASSED, SKIPPED)), tier=tier, **fields)
    file.write_bytes(codec.encode([run]))
    return file


def recorded_runs(sample: SampleProject) -> tuple[records.RecordedRun, ...]:
    return records.read_records(sample.folder / "images", TARGET).runs


def smoke_report(
    sample: SampleProject, *cases: CaseResult, tier: str = "static", **changes: object
) -> result.SmokeRun:
    """A report of `imgbuild smoke` in the project's image."""
    image = sample.target_digests.arch[Arch.X86_64]
    fields: dict[str, object] = {
        "digest": image.manifest,
        "config": image.config,
        "through": "docker",
        "started": "2026-11-22T01:00:00Z",
        "seconds": 61.5,
        "caches": "nothing",
        **changes,
    }
    smoke_report = Report(target=TARGET, arch="x86_64", tier=tier, cases=cases or (PASSED,))
    plain = {name: getattr(smoke_report, name) for name in Report.__struct_fields__}
    return result.SmokeRun(**(plain | fields))
