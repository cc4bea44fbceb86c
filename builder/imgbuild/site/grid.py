"""Arranges targets in a grid by CUDA release, engine and TRL version."""

from __future__ import annotations

from collections.abc import Sequence

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
    """The package of the engine, or "" for a target without an engine."""
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
    runs = [run for image in target.page.images for run in image.runs]
    failed = [run for run in runs if not run.good]
    gpu = list(dict.fromkeys(numbered_gpus(run) for run in runs if run.good and run.gpu))
    images = target.page.images
    ran = [each.arch for each in images if any(run.good and run.gpu for run in each.runs)]
    places = f" ({', '.join(ran)})" if len(ran) < len(images) else ""
    passed = f"passed on {', '.join(gpu)}{places}" if gpu else ""
    if failed:
        tiers = dict.fromkeys(
            f"{run.tier} failed{f' on {name}' if (name := numbered_gpus(run)) else ''}"
            for run in failed
        )
        return "failed", "; ".join(filter(None, (*tiers, passed)))
    if gpu:
        return "gpu", passed
    if runs:
        return "cpu", "passed without a GPU: " + ", ".join(dict.fromkeys(run.tier for run in runs))
    return "untested", "no test record"


def numbered_gpus(run: RecordedRun) -> str:
    """The GPUs of a run, such as "H100", "2 H100", or ""."""
    number = f"{len(run.gpu)} " if len(run.gpu) > 1 else ""
    return number + " and ".join(gpu_names(run))


def gpu_names(run: RecordedRun) -> list[str]:
    """The types of GPUs in a run, without manufacturer and memory."""
    return [*dict.fromkeys(name.removeprefix("NVIDIA ").split()[0] for name in run.gpu if name)]
