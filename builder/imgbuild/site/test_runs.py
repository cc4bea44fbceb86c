"""Test records as lines of tables, with the digest that was tested (separate: tests of images)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild.show.page import PageImage
from imgbuild.site.grid import gpu_names
from imgbuild.site.model import SiteTarget
from imgbuild.smoke.records import RecordedRun, by_other_digest
from imgbuild.values import Arch, Digest

NO_GPU = "Without a GPU"


class TestLine(msgspec.Struct, frozen=True, kw_only=True):
    """A run of smoke tests. `machine` is the architecture and the GPUs, `first` the failed case.

    `digest` is that of the manifest that was tested, `current` that of the image on `arch` today.
    """

    target: str
    tier: str
    arch: Arch
    machine: str
    gpu: str
    good: bool
    passed: int
    failed: int
    skipped: int
    driver: str
    date: str
    through: str
    first: str
    digest: Digest
    current: Digest

    @property
    def same(self) -> bool:
        """Whether the manifest that was tested is the one that the page shows."""
        return self.digest == self.current


class TestedDigest(msgspec.Struct, frozen=True, kw_only=True):
    """A digest that runs were made with, in place of the current one: "gpu, multi-gpu"."""

    arch: Arch
    digest: Digest
    current: Digest
    runs: str


def lines(target: SiteTarget) -> list[TestLine]:
    """The runs that count for a target."""
    return [_line(target.name, image, run) for image in target.page.images for run in image.runs]


def other_digests(target: SiteTarget) -> list[TestedDigest]:
    """The digests that were tested and are not those of today's manifests."""
    return [
        TestedDigest(
            arch=image.arch,
            digest=digest,
            current=image.digest,
            runs=", ".join(f"{run.tier} on {_gpu(run)}" if run.gpu else run.tier for run in runs),
        )
        for image in target.page.images
        for digest, runs in by_other_digest(image.runs, image.digest).items()
    ]


def by_gpu(targets: Sequence[SiteTarget]) -> list[tuple[str, list[TestLine]]]:
    """All runs that count, under the kind of GPU; those without a GPU last."""
    groups: dict[str, list[TestLine]] = {}
    for target in targets:
        for image in target.page.images:
            for run in image.runs:
                name = " and ".join(gpu_names(run)) or NO_GPU
                groups.setdefault(name, []).append(_line(target.name, image, run))
    names = sorted(groups, key=lambda name: (name == NO_GPU, name))
    return [(name, sorted(groups[name], key=_order)) for name in names]


def _order(line: TestLine) -> tuple[bool, str, str, str]:
    return (line.good, line.target, line.tier, line.date)


def _line(target: str, image: PageImage, run: RecordedRun) -> TestLine:
    gpu = _gpu(run)
    return TestLine(
        target=target,
        tier=run.tier,
        arch=image.arch,
        machine=f"{image.arch}, {gpu}" if gpu else str(image.arch),
        gpu=gpu,
        good=run.good,
        passed=run.passed,
        failed=run.failed,
        skipped=run.skipped,
        driver=run.driver,
        date=run.started[:10],
        through=run.through,
        first=f"{run.first.case}: {run.first.message}" if run.first else "",
        digest=run.digest,
        current=image.digest,
    )


def _gpu(run: RecordedRun) -> str:
    """The GPUs of a run with their numbers: "2 x NVIDIA H200"."""
    kinds = {name: run.gpu.count(name) for name in sorted(set(run.gpu))}
    return ", ".join(f"{number} x {name}" if number > 1 else name for name, number in kinds.items())
