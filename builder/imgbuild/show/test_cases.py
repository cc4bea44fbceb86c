"""The test records of an image as a table: cases by GPU and tier."""

from __future__ import annotations

from collections.abc import Sequence

from imgbuild.smoke.records import TIERS, RecordedRun

HEAD = ("GPU", "tier", "passed", "failed", "skipped", "minutes", "driver", "date", "in")
NUMBERS = frozenset({2, 3, 4, 5})
NO_GPU = "none"


def rows(runs: Sequence[RecordedRun]) -> list[tuple[str, ...]]:
    """A head, and a row for each run: without GPUs first, then by GPU and tier."""
    ordered = sorted(runs, key=lambda run: (_gpus(run) != NO_GPU, _gpus(run), _tier(run)))
    return [
        HEAD,
        *(
            (
                _gpus(run),
                run.tier,
                str(run.passed),
                str(run.failed),
                str(run.skipped),
                f"{run.seconds / 60:.1f}",
                run.driver or "-",
                run.started[:10],
                run.through,
            )
            for run in ordered
        ),
    ]


def failures(runs: Sequence[RecordedRun]) -> list[str]:
    """A line for each run with a failed case: the first, and its message."""
    return [
        f"first failure of {run.tier}{f' on {_gpus(run)}' if run.gpu else ''}:"
        f" {run.first.case}: {run.first.message}"
        for run in sorted(runs, key=_tier)
        if run.first is not None
    ]


def _tier(run: RecordedRun) -> int:
    return TIERS.index(run.tier)


def _gpus(run: RecordedRun) -> str:
    """The GPUs of a run, without the manufacturer: "2 H200", "none"."""
    return run.gpus.replace("NVIDIA ", "") or NO_GPU
