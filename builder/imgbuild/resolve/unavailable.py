"""Finds packages whose accepted versions all have an unavailable requirement.

`init` lists all of them together with other causes. Packages with many versions are not examined,
because a solution is likely.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from packaging.requirements import Requirement

from imgbuild.errors import ImgbuildError
from imgbuild.index.pages import IndexFile
from imgbuild.resolve import engine_torch, sdist_code
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import IndexPages, UnmetDemand, find_obstacles
from imgbuild.values import normalize_package
from imgbuild.wheel.tags import WheelTags

VERSIONS = 8  # of a package, all of which are examined
PACKAGES = 80  # that are examined
LEVELS = 3  # of requirements of requirements
UPPER_OPERATORS = frozenset({"==", "===", "<", "<=", "~="})
SOURCES = {
    "native": sdist_code.NATIVE_REASON,
    "placeholder": sdist_code.PLACEHOLDER,
    "cuda": "only source with CUDA code exists",
}


def unavailable_demands(
    demands: Sequence[PackageDemand],
    have: Collection[str],
    omitted: Collection[str],
    pages: IndexPages,
    tags: WheelTags,
) -> list[UnmetDemand]:
    """Return an obstacle for each demand whose versions all have an unavailable requirement.

    `have` are packages of the nearest target, which are available. `omitted` are excluded or
    overridden packages. Locked versions are not examined.
    """
    search = _UnavailableSearch(have, omitted, pages, tags)
    return [
        UnmetDemand(
            package=demand.package,
            demand=str(demand),
            cause="version",
            reason=reason,
            places=demand.places,
        )
        for demand in demands
        if demand.installed and not demand.source and not demand.locked
        if (reason := search.reason(demand))
    ]


class _UnavailableSearch:
    def __init__(
        self, have: Collection[str], omitted: Collection[str], pages: IndexPages, tags: WheelTags
    ) -> None:
        self._have, self._omitted, self._pages, self._tags = have, omitted, pages, tags
        self._known: dict[tuple[str, str, tuple[str, ...]], str] = {}

    def reason(self, demand: PackageDemand, levels: int = LEVELS) -> str:
        """Return "" if a version has no unavailable requirement, or cannot be read."""
        key = (demand.package, demand.spec, demand.extras)
        if key not in self._known:
            self._known[key] = ""  # for cycles
            if len(self._known) <= PACKAGES:
                self._known[key] = self._reason_of_versions(demand, levels)
        return self._known[key]

    def _reason_of_versions(self, demand: PackageDemand, levels: int) -> str:
        wheels = self._pages.wheels(demand, self._tags)
        if len(wheels) > VERSIONS:
            return ""
        newest = ""
        for wheel in wheels:
            reason = self._reason_of_wheel(demand, wheel, levels)
            if not reason:
                return ""
            newest = newest or reason
        return newest

    def _reason_of_wheel(self, demand: PackageDemand, wheel: IndexFile, levels: int) -> str:
        try:
            text = self._pages.metadata(wheel)
            required = engine_torch.required_with_extras(demand, text, self._tags.markers)
            needed = [_create_demand(item) for item in required if self._is_examined(item)]
            for each in find_obstacles(needed, self._pages, self._tags):
                code = sdist_code.obstacle_code(each, self._pages) if each.cause == "source" else ""
                if each.cause != "source" or code in SOURCES:
                    reason = SOURCES.get(code, each.reason)
                    return f"requires {msgspec.structs.replace(each, reason=reason).text}"
            deeper = needed if levels > 1 else ()
            reasons = ((each, self.reason(each, levels - 1)) for each in deeper)
            return next(
                (f"requires {each}, which {reason}" for each, reason in reasons if reason), ""
            )
        except ImgbuildError as error:  # the solver reports it if it matters
            self._pages.context.reporter.detail(f"{demand}: {error.message}")
            return ""

    def _is_examined(self, item: Requirement) -> bool:
        name = normalize_package(item.name)
        if item.url is not None or name in self._omitted:
            return False
        return name not in self._have or any(
            each.operator in UPPER_OPERATORS for each in item.specifier
        )


def _create_demand(item: Requirement) -> PackageDemand:
    return PackageDemand(
        package=normalize_package(item.name),
        spec=str(item.specifier),
        extras=tuple(sorted(item.extras)),
    )
