"""Test records as lines of tables, with the digest that was tested (separate: tests of images)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild.show.page import PageImage
from imgbuild.site.grid import numbered
from imgbuild.site.model import SiteTarget
from imgbuild.smoke.records import RecordedRun, by_other_digest
from imgbuild.smoke.result import CaseMessage
from imgbuild.values import Arch, Digest

NO_GPU = "Without a GPU"


class TestLine(msgspec.Struct, frozen=True):
    """A run of smoke tests of a target, and the digest of the image that the page shows."""

    target: str
    run: RecordedRun
    current: Digest
    retired: bool = False

    @property
    def failures(self) -> tuple[CaseMessage, ...]:
        """The failed cases that the record names."""
        first = self.run.first
        named = (CaseMessage(case=first.case, message=first.message),) if first else ()
        return (*named, *self.run.further)

    @property
    def unnamed(self) -> int:
        """The number of failed cases that the record only counts."""
        return self.run.failed - len(self.failures)


class TestedDigest(msgspec.Struct, frozen=True, kw_only=True):
    """A tested digest that is not the current one, and its tiers: "gpu, multi-gpu"."""

    arch: Arch
    digest: Digest
    current: Digest
    runs: str


def lines(target: SiteTarget) -> list[TestLine]:
    """The runs that count for a target."""
    retired = bool(target.row.retired)
    return [
        TestLine(target.name, run, image.digest, retired)
        for image in target.page.images
        for run in image.runs
    ]


def other_digests(target: SiteTarget) -> list[TestedDigest]:
    """The tested digests that are not those of the current manifests."""
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
    """All runs that count, by number and type of GPUs: "H100", "2 H100"; NO_GPU comes last."""
    groups: dict[str, list[TestLine]] = {}
    for target in targets:
        for line in lines(target):
            groups.setdefault(numbered(line.run) or NO_GPU, []).append(line)
    names = sorted(groups, key=lambda name: (name == NO_GPU, name.lstrip("0123456789 "), name))
    return [(name, sorted(groups[name], key=_order)) for name in names]


def standing(image: PageImage) -> str:
    """The tiers that passed and failed, with the GPUs, as a sentence without its full stop."""
    if not image.runs:
        return "not tested"
    groups: dict[tuple[bool, str], list[str]] = {}
    for run in sorted(image.runs, key=lambda run: (not run.good, not run.gpu)):
        groups.setdefault((run.good, run.gpus), []).append(run.tier)
    parts = [
        f"{' and '.join(dict.fromkeys(tiers))} {'passed' if good else 'failed'}"
        f" {f'on {gpus}' if gpus else 'without a GPU'}"
        for (good, gpus), tiers in groups.items()
    ]
    rest = "no other GPU was tested" if any(run.gpu for run in image.runs) else "not on a GPU"
    return "; ".join([*parts, rest])


def _order(line: TestLine) -> tuple[bool, bool, str, str, str]:
    return (line.run.good, line.retired, line.target, line.run.tier, line.run.started)


def _words(run: RecordedRun) -> str:
    return f"{run.tier} on {run.gpus}" if run.gpus else run.tier
