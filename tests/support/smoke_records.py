"""Files that runs of the smoke tests leave, for the image of `inprocess_project`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from imgbuild.report import Case, Report
from imgbuild.smoke import records, result, run
from imgbuild.values import Arch
from tests.support.inprocess_project import TARGET, Sample

NVRM = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)"
PASSED = Case(name="device", outcome="passed", seconds=0.2, message="NVIDIA H200 sm_90 143155 MiB")
SKIPPED = Case(name="sglang", outcome="skipped", seconds=0, message="the lock has no sglang")
FAILED = Case(name="nccl", outcome="failed", seconds=3, message="RuntimeError:\n no  peers")
SHA = "sha256:"
OTHER = SHA + "9" * 64


def machine(sample: Sample, **changes: object) -> dict[str, Any]:
    """machine.json of an unpacked run in the project's image."""
    image = sample.seal.arch[Arch.X86_64]
    diff_ids = [layer.diff_id for layer in image.layers]
    return {
        "target": TARGET,
        "arch": "x86_64",
        "manifest": image.manifest,
        "config": image.config,
        "diff_ids": diff_ids,
        "unpacked": diff_ids,
        "tier": "gpu",
        "caches": "nothing",
        "jobs": 3,
        "share": 2,
        "only": "*",
        "host": {"kernel": "6.18", "cpus": 16, "driver": NVRM, "gpus": ["NVIDIA H200"]},
        "started": "2026-11-21T14:48:17Z",
        "status": 0,
        "seconds": 373.7,
        **changes,
    }


def left(
    sample: Sample, *cases: Case, name: str = "docs/out", document: object = None, **changes: object
) -> Path:
    """The folder of an unpacked run; `changes` are those of machine.json."""
    folder = sample.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "machine.json").write_text(json.dumps(machine(sample, **changes)))
    report = run.RunnerReport(format=1, tier="gpu", python="3.11", cases=cases or (PASSED, SKIPPED))
    (folder / "report.json").write_bytes(msgspec.json.encode(document or report))
    return folder


def recorded(sample: Sample, target: str = TARGET) -> tuple[records.RecordedRun, ...]:
    return records.read_records(sample.folder / "images", target).runs


def report(
    sample: Sample, *cases: Case, tier: str = "static", **changes: object
) -> result.SmokeRun:
    """A report of `imgbuild smoke` in the project's image."""
    image = sample.seal.arch[Arch.X86_64]
    fields: dict[str, object] = {
        "digest": image.manifest,
        "config": image.config,
        "through": "docker",
        "started": "2026-11-22T01:00:00Z",
        "seconds": 61.5,
        "caches": "nothing",
        **changes,
    }
    own = Report(target=TARGET, arch="x86_64", tier=tier, cases=cases or (PASSED,))
    plain = {name: getattr(own, name) for name in Report.__struct_fields__}
    return result.SmokeRun(**(plain | fields))
