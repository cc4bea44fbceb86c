"""Pure Python packages that additions require and that are published only as sdists.

Without them a solver selects a version of the addition from before the requirement, or finds no
solution. The requirements of sdists are read from their PKG-INFO or `requires.txt`; nothing is run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from imgbuild.errors import ImgbuildError
from imgbuild.index.candidates import is_sdist
from imgbuild.resolve import engine_torch, sdist_code
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import IndexPages, Obstacle, obstacles
from imgbuild.system import threads
from imgbuild.values import normalize
from imgbuild.wheel.tags import Tags

LEVELS = 4  # of requirements of requirements
PACKAGES = 60  # that are looked up at each level
THREADS = 8


def required_sdists(
    additions: Sequence[PackageDemand], have: Collection[str], pages: IndexPages, tags: Tags
) -> list[Obstacle]:
    """The requirements of the newest versions of `additions`, direct or not, as obstacles.

    This excludes the packages `have`, the additions themselves, and sdists that compile code: the
    solver has to find versions of additions that do not need them.
    """
    return [
        each
        for level in levels(additions, have, pages, tags)
        for each in obstacles(level, pages, tags)
        if each.cause == "source" and sdist_code.code_of(each, pages) == "python"
    ]


def levels(
    additions: Sequence[PackageDemand], have: Collection[str], pages: IndexPages, tags: Tags
) -> Iterator[list[PackageDemand]]:
    """The requirements of the newest versions of `additions`, then the requirements of those.

    This excludes the packages `have` and the additions. Pages and METADATA are fetched in threads.
    """
    level = [each for each in additions if each.installed and not each.source][:PACKAGES]
    seen = {*have, *(each.package for each in additions)}
    for _ in range(LEVELS):
        pages.read(each.package for each in level)
        texts = threads.each(level, lambda each, _: _metadata(each, pages, tags), threads=THREADS)
        needed = {
            name: PackageDemand(
                package=name, spec=str(item.specifier), extras=tuple(sorted(item.extras))
            )
            for demand, text in zip(level, texts, strict=True)
            for item in engine_torch.required(demand, text, tags.markers)
            if (name := normalize(item.name)) not in seen and item.url is None
        }
        if not needed:
            return
        seen |= needed.keys()
        level = list(needed.values())[:PACKAGES]
        yield level


def _metadata(demand: PackageDemand, pages: IndexPages, tags: Tags) -> bytes:
    """METADATA of the newest wheel that meets `demand`, else of the newest sdist, if any."""
    wheel = pages.newest(demand, tags)
    try:
        if wheel is not None:
            return pages.metadata(wheel)
        sdists = [file for file in pages.allowed(demand) if is_sdist(file)]
        final = [file for file in sdists if file.version and not file.version.is_prerelease]
        newest = max(final or sdists, key=lambda file: file.version or 0, default=None)
        return sdist_code.read(newest, pages.context).requires if newest is not None else b""
    except ImgbuildError as error:  # the solver reports it if it matters
        pages.context.reporter.detail(f"{demand.package}: {error.message}")
        return b""
