"""Describes what tests do not cover."""

# A separate module: tools/reference.py writes its texts to docs.
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from imgbuild.site.grid import gpu_results
from imgbuild.site.model import SiteCatalogue, SiteTarget
from imgbuild.system import files
from imgbuild.values import Arch


class CatalogueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about images that are not retired.

    `gpus` and `drivers` are those of passed tests. `untested` lists the targets without a passed
    test on a GPU, by architecture. `numbers` has the number of images of each architecture.
    `failed` and `incompatible` list targets with a failed tier, and with known incompatibilities.
    """

    gpus: tuple[str, ...]
    drivers: tuple[str, ...]
    untested: tuple[tuple[Arch, tuple[str, ...]], ...]
    numbers: dict[Arch, int]
    failed: tuple[str, ...]
    incompatible: tuple[str, ...]
    unlocked: int


def limit_texts() -> str:
    """Return the limits of imgbuild as Markdown, which docs/reference/limits.md also contains."""
    return files.data("site/limits.md").read_text(encoding="utf-8")


def limit_sections() -> list[tuple[str, str, str]]:
    """Return the ID, the title and the Markdown of each section of `limit_texts`."""
    sections = (part.partition("\n") for part in limit_texts().split("## ")[1:])
    return [(title.split()[0].lower(), title, body) for title, _, body in sections]


def catalogue_limits(catalogue: SiteCatalogue) -> CatalogueLimits:
    """Return what the test records of the images do not cover."""
    current = [each for each in catalogue.targets if each.lock and not each.row.retired]
    images = [(target, image) for target in current for image in target.page.images]
    good = [run for _, image in images for run in image.runs if run.good and run.gpu]
    names = {name.lstrip("0123456789 ") for _, image in images
             for name in gpu_results(image.runs).passed}  # fmt: skip
    untested: dict[Arch, list[str]] = {}
    for target, image in images:
        if not any(run.good and run.gpu for run in image.runs):
            untested.setdefault(image.arch, []).append(target.name)
    return CatalogueLimits(
        gpus=tuple(sorted(names)),
        drivers=tuple(sorted({run.driver for run in good if run.driver})),
        untested=tuple((arch, tuple(each)) for arch, each in sorted(untested.items())),
        numbers=dict(Counter(image.arch for _, image in images)),
        failed=tuple(_failed(current)),
        incompatible=tuple(each.name for each in current if each.incompatible),
        unlocked=sum(not each.lock for each in catalogue.targets),
    )


def _failed(targets: Sequence[SiteTarget]) -> list[str]:
    return [
        target.name
        for target in targets
        if any(not run.good for image in target.page.images for run in image.runs)
    ]
