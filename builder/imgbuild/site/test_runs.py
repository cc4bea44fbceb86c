"""Formats test records as lines of tables, with tested digests."""

# A separate module: tests of images.
from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild.show.page import PageImage
from imgbuild.site.model import SiteTarget
from imgbuild.smoke.records import RecordedRun, runs_by_other_digest
from imgbuild.smoke.result import CaseMessage
from imgbuild.values import Arch, Digest

NO_GPU = "Without a GPU"


class TestLine(msgspec.Struct, frozen=True):
    """A run of smoke tests of a target, and the digest of the current image."""

    target: str
    run: RecordedRun
    current: Digest
    retired: bool = False

    @property
    def failures(self) -> tuple[CaseMessage, ...]:
        """The failed cases with names in the record."""
        first = self.run.first
        named = (CaseMessage(case=first.case, message=first.message),) if first else ()
        return (*named, *self.run.further)

    @property
    def unnamed(self) -> int:
        """The number of failed cases without names in the record."""
        return self.run.failed - len(self.failures)


class TestedDigest(msgspec.Struct, frozen=True, kw_only=True):
    """A tested digest that is not the current digest, with tiers such as "gpu, multi-gpu"."""

    arch: Arch
    digest: Digest
    current: Digest
    runs: str


def test_lines(target: SiteTarget) -> list[TestLine]:
    """Return the valid runs of a target."""
    retired = bool(target.row.retired)
    return [
        TestLine(target.name, run, image.digest, retired)
        for image in target.page.images
        for run in image.runs
    ]


def other_digests(target: SiteTarget) -> list[TestedDigest]:
    """Return the tested digests that differ from the current manifests."""
    return [
        TestedDigest(
            arch=image.arch,
            digest=digest,
            current=image.digest,
            runs=", ".join(map(_words, runs)),
        )
        for image in target.page.images
        for digest, runs in runs_by_other_digest(image.runs, image.digest).items()
    ]


def lines_by_gpu(targets: Sequence[SiteTarget]) -> list[tuple[str, list[TestLine]]]:
    """All valid runs by number and type of GPUs, such as "2 H100", with NO_GPU at the end."""
    groups: dict[str, list[TestLine]] = {}
    for target in targets:
        for line in test_lines(target):
            groups.setdefault(line.run.gpu_models or NO_GPU, []).append(line)
    names = sorted(groups, key=lambda name: (name == NO_GPU, name.lstrip("0123456789 "), name))
    return [(name, sorted(groups[name], key=_order)) for name in names]


def test_summary(image: PageImage) -> str:
    """Return a sentence, without a period, about the passed and failed tiers and their GPUs."""
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
