"""Arranges targets in a grid by CUDA release, engine and TRL version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from packaging.version import Version

from imgbuild.audit.binaries.gpus import version_numbers
from imgbuild.site.model import GridCell, GridRow, SiteTarget, TargetGrid
from imgbuild.smoke.records import RecordedRun
from imgbuild.system.syntax import parse_version

ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}
NO_ENGINE = "no engine"
LABELS = {"trl": "TRL", "verl": "verl", "unsloth": "unsloth", "deepspeed": "deepspeed",
          "transformers": "transformers"}  # fmt: skip


def target_grid(targets: Sequence[SiteTarget]) -> TargetGrid:
    """A grid of targets with a row per CUDA release, and columns for vLLM, SGLang and no engine."""
    cuda = sorted({target.row.cuda for target in targets}, key=version_numbers, reverse=True)
    families = {_family(target) for target in targets}
    engines = tuple(each for each in (*ENGINES.values(), NO_ENGINE) if each in families)
    return TargetGrid(
        engines=engines,
        rows=tuple(
            GridRow(cuda=release, cells=tuple(_cells(targets, release, each) for each in engines))
            for release in cuda
        ),
    )


def _cells(targets: Sequence[SiteTarget], cuda: str, engine: str) -> tuple[GridCell, ...]:
    """The targets of a cell, sorted by engine and TRL (newest first), retired targets last."""
    here = [each for each in targets if each.row.cuda == cuda and _family(each) == engine]
    here.sort(key=_newest_first, reverse=True)
    here.sort(key=lambda each: bool(each.row.retired))
    return tuple(map(_cell, here))


def _engine(target: SiteTarget) -> str:
    """Return the package of the engine, or "" for a target without an engine."""
    return next((package for package in ENGINES if package in target.row.pins), "")


def _family(target: SiteTarget) -> str:
    return ENGINES.get(_engine(target), NO_ENGINE)


def _newest_first(target: SiteTarget) -> tuple[Version, ...]:
    versions = dict(target.versions)
    names = (_engine(target), "trl", "torch")
    return tuple(parse_version(versions.get(name)) or Version("0") for name in names)


def _cell(target: SiteTarget) -> GridCell:
    state, words = target_state(target)
    engine = _engine(target)
    return GridCell(
        target=target.name,
        engine=f"{ENGINES[engine]} {target.row.pins[engine]}" if engine else "",
        labels=tuple(
            f"{LABELS[name]} {version}" for name, version in target.versions if name in LABELS
        ),
        state=state,
        words=words,
        recommended=bool(target.row.recommended),
    )


def target_state(target: SiteTarget) -> tuple[str, str]:
    """The state (see `GridCell`) and its description, based on test runs of the current image."""
    state, words = _tested_state(target) if target.lock else _unlocked_state(target)
    return ("retired", f"retired; {words}") if target.row.retired else (state, words)


def _unlocked_state(target: SiteTarget) -> tuple[str, str]:
    return "unlocked", f"not locked: needs {'; '.join(target.needs)}" if target.needs else (
        "not locked"
    )


def _tested_state(target: SiteTarget) -> tuple[str, str]:
    images = target.page.images
    runs = [run for image in images for run in image.runs]
    results = gpu_results(runs)
    ran = [each.arch for each in images if any(run.good and run.gpu for run in each.runs)]
    places = f" ({', '.join(ran)})" if len(ran) < len(images) else ""
    passed = f"passed on {', '.join(results.passed)}{places}" if results.passed else ""
    if results.failed:
        return "failed", "; ".join(filter(None, (*results.failed, passed)))
    if passed:
        return "gpu", passed
    if runs:
        return "cpu", "passed without a GPU: " + ", ".join(dict.fromkeys(run.tier for run in runs))
    return "untested", "no test record"


class GpuResults(msgspec.Struct, frozen=True, kw_only=True):
    """The results of runs, as shown on all pages.

    `passed` maps the GPUs on which a tier passed ("H100", "2 H100") to the runs: single GPUs first.
    `failed` maps failed tiers ("gpu failed on H200", "import failed") to the runs.
    """

    passed: dict[str, list[RecordedRun]]
    failed: dict[str, list[RecordedRun]]


def gpu_results(runs: Iterable[RecordedRun]) -> GpuResults:
    """Return the GPUs on which tiers passed, and the tiers that failed."""
    passed: dict[str, list[RecordedRun]] = {}
    failed: dict[str, list[RecordedRun]] = {}
    for run in sorted(runs, key=lambda run: (len(run.gpu), run.gpu_models)):
        name = run.gpu_models
        if not run.good:
            failed.setdefault(f"{run.tier} failed{f' on {name}' if name else ''}", []).append(run)
        elif name:
            passed.setdefault(name, []).append(run)
    return GpuResults(passed=passed, failed=failed)
