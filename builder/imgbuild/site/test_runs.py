"""Test records as lines of tables, with the digest that was tested (separate: tests of images)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild.site.grid import gpu_names
from imgbuild.site.model import SiteTarget
from imgbuild.smoke.records import RecordedRun, by_other_digest
from imgbuild.values import Arch, Digest

NO_GPU = "Without a GPU"


class TestLine(msgspec.Struct, frozen=True):
    """A run of smoke tests of a target, and the digest of the image that the page shows."""

    target: str
    run: RecordedRun
    current: Digest


class TestedDigest(msgspec.Struct, frozen=True, kw_only=True):
    """A digest that runs were made with, in place of the current one: "gpu, multi-gpu"."""

    arch: Arch
    digest: Digest
    current: Digest
    runs: str


def lines(target: SiteTarget) -> list[TestLine]:
    """The runs that count for a target."""
    return [
        TestLine(target.name, run, image.digest)
        for image in target.page.images
        for run in image.runs
    ]


def other_digests(target: SiteTarget) -> list[TestedDigest]:
    """The digests that were tested and are not those of today's manifests."""
    return [
        TestedDigest(
            arch=image.arch,
            digest=digest,
            current=image.digest,
            runs=", ".join(map(_words, runs)),
        )
        for image in target.page.images
        for digest, runs in by_other_digest(image.runs, image.digest).items()
    ]


def by_gpu(targets: Sequence[SiteTarget]) -> list[tuple[str, list[TestLine]]]:
    """All runs that count, under the kind of GPU; those without a GPU last."""
    groups: dict[str, list[TestLine]] = {}
    for target in targets:
        for line in lines(target):
            groups.setdefault(" and ".join(gpu_names(line.run)) or NO_GPU, []).append(line)
    names = sorted(groups, key=lambda name: (name == NO_GPU, name))
    return [(name, sorted(groups[name], key=_order)) for name in names]


def _order(line: TestLine) -> tuple[bool, str, str, str]:
    return (line.run.good, line.target, line.run.tier, line.run.started)


def _words(run: RecordedRun) -> str:
    return f"{run.tier} on {run.gpus}" if run.gpus else run.tier
