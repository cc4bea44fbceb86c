"""Test records as lines of tables, with the digest that was tested (separate: tests of images)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from imgbuild.show.page import PageImage
from imgbuild.site.grid import gpu_names
from imgbuild.site.model import SiteTarget
from imgbuild.smoke.records import RecordedRun
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


def other_digests(test_lines: Iterable[TestLine]) -> list[TestedDigest]:
    """The digests that were tested and are not those of today's manifests."""
    tiers: dict[tuple[Arch, Digest, Digest], list[str]] = {}
    for line in test_lines:
        if not line.same:
            words = f"{line.tier} on {line.gpu}" if line.gpu else line.tier
            tiers.setdefault((line.arch, line.digest, line.current), []).append(words)
    return [
        TestedDigest(arch=arch, digest=digest, current=current, runs=", ".join(names))
        for (arch, digest, current), names in tiers.items()
    ]


def by_gpu(targets: Sequence[SiteTarget]) -> list[tuple[str, list[TestLine]]]:
    """All runs that count, under the kind of GPU; those without a GPU last."""
    groups: dict[str, list[TestLine]] = {}
    for line in (line for target in targets for line in _with_images(target)):
        groups.setdefault(line[0], []).append(line[1])
    names = sorted(groups, key=lambda name: (name == NO_GPU, name))
    return [(name, sorted(groups[name], key=_order)) for name in names]


def _with_images(target: SiteTarget) -> Iterator[tuple[str, TestLine]]:
    for image in target.page.images:
        for run in image.runs:
            yield " and ".join(gpu_names(run)) or NO_GPU, _line(target.name, image, run)


def _order(line: TestLine) -> tuple[bool, str, str, str]:
    return (line.good, line.target, line.tier, line.date)


def _line(target: str, image: PageImage, run: RecordedRun) -> TestLine:
    kinds = {name: run.gpu.count(name) for name in sorted(set(run.gpu))}
    gpu = ", ".join(f"{number} x {name}" if number > 1 else name for name, number in kinds.items())
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
