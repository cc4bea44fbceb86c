"""The matrix as a picture: CUDA, engines and TRL."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.version import InvalidVersion, Version

from imgbuild.audit.binaries.gpus import numbers
from imgbuild.site.model import Cell, Grid, GridRow, SiteTarget
from imgbuild.smoke.records import RecordedRun

ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}
WITHOUT = "no engine"


def grid(targets: Sequence[SiteTarget]) -> Grid:
    """Rows: vLLM, SGLang, neither; columns: CUDA releases; of all the newest first."""
    cuda = tuple(sorted({target.row.cuda for target in targets}, key=numbers, reverse=True))
    engines: dict[tuple[int, Version, str], list[SiteTarget]] = {}
    for target in targets:
        engines.setdefault(_engine(target), []).append(target)
    return Grid(
        cuda=cuda,
        rows=tuple(
            GridRow(
                engine=key[2],
                cells=tuple(
                    tuple(_cell(target) for target in engines[key] if target.row.cuda == release)
                    for release in cuda
                ),
            )
            for key in sorted(engines, reverse=True)
        ),
    )


def _engine(target: SiteTarget) -> tuple[int, Version, str]:
    for rank, (package, name) in enumerate(ENGINES.items()):
        if version := target.row.pins.get(package):
            return len(ENGINES) - rank, _version(version), f"{name} {version}"
    return 0, Version("0"), WITHOUT


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")


def _cell(target: SiteTarget) -> Cell:
    state, words = state_of(target)
    labels = [
        f"{name.upper() if name == 'trl' else name} {version}"
        for name, version in target.row.pins.items()
        if name in ("trl", "verl", "unsloth", "deepspeed")
    ]
    return Cell(target=target.name, label=", ".join(labels), state=state, words=words)


def state_of(target: SiteTarget) -> tuple[str, str]:
    """A state (see `Cell`) and its words: of the tests of the current image that count."""
    if target.row.retired:
        return "retired", "retired"
    if target.lock is None:
        return "unlocked", f"not locked: needs {'; '.join(target.needs)}" if target.needs else (
            "not locked"
        )
    runs = [run for image in target.page.images for run in image.runs]
    failed = [run for run in runs if not run.good]
    gpu = list(dict.fromkeys(name for run in runs if run.good for name in gpu_names(run)))
    images = target.page.images
    ran = [each.arch for each in images if any(run.good and run.gpu for run in each.runs)]
    places = f" ({', '.join(ran)})" if len(ran) < len(images) else ""
    passed = f"passed on {', '.join(gpu)}{places}" if gpu else ""
    if failed:
        tiers = ", ".join(dict.fromkeys(run.tier for run in failed))
        return "failed", "; ".join(filter(None, (f"failed: {tiers}", passed)))
    if gpu:
        return "gpu", passed
    if runs:
        return "cpu", "passed without a GPU: " + ", ".join(dict.fromkeys(run.tier for run in runs))
    return "untested", "no test record"


def gpu_names(run: RecordedRun) -> list[str]:
    """The GPUs of a run, each kind once, without the manufacturer and the memory."""
    return [*dict.fromkeys(name.removeprefix("NVIDIA ").split()[0] for name in run.gpu if name)]
