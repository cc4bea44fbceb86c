"""Detects versions that are far older than a project intends.

For example, `vllm<=0.6.3` is meant to select 0.6.3. But if no recent version is installable, uv
selects 0.2.2 without an error. This version is a year older and has fewer requirements.
"""

# A separate module: one rule.
from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.errors import ImpossibleRequirements, NoSolution
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.solve.freshness import VersionLag, newest_file
from imgbuild.solve.problem import SolveProblem
from imgbuild.solve.torch import ENGINES
from imgbuild.solve.uv import ChosenPackage

FAR_LIMIT = datetime.timedelta(days=183)
FAR_ENGINE = datetime.timedelta(days=45)  # with an upper bound; each release has its own API
LOWER_BOUND_OPERATORS = frozenset(
    (">", ">=", "==", "===", "~=")
)  # what accepts old versions, or names one


class FarBehind(msgspec.Struct, frozen=True, kw_only=True):
    """A required package that is far behind the newest version that the project accepts.

    `floor` is the oldest version that is not far behind.
    """

    lag: VersionLag
    spec: str
    floor: str

    @property
    def line(self) -> str:
        """A requirement that excludes the old versions."""
        return f"{self.lag.package}>={self.floor}"

    def warning(self, error: NoSolution) -> str:
        """Return the warning for an old version, with the requirements in `error` as the cause."""
        return "\n  ".join(
            (f"{self.lag}, and {self.spec or 'the project'} accepts both", *error.reasons)
        )


def first_far_behind(
    catalogue: FileCatalogue,
    specs: Mapping[str, str],
    expected: Collection[tuple[str, str]],
    chosen: Iterable[ChosenPackage],
) -> FarBehind | None:
    """Return the first package in `chosen` that is far behind the versions that `specs` accept.

    Packages with a lower bound and versions in `expected`, which are those of the target, are
    skipped.
    """
    for item in chosen:
        spec = SpecifierSet(specs.get(item.package, ">=0"))
        if (item.package, item.version) in expected or LOWER_BOUND_OPERATORS & {
            each.operator for each in spec
        }:
            continue
        far = FAR_ENGINE if item.package in ENGINES and str(spec) else FAR_LIMIT
        wheels = [
            offer.wheel
            for offer in catalogue.offered_files(item.package)
            if offer.wheel.version is not None and offer.wheel.version in spec
        ]
        version = Version(item.version)
        times = [each.uploaded for each in wheels if each.version == version and each.uploaded]
        top = newest_file(wheels)
        if not times or top is None or top.uploaded is None or top.version is None:
            continue
        if top.version <= version or top.uploaded - min(times) <= far:
            continue
        recent = [
            each.version
            for each in wheels
            if each.version is not None
            and version < each.version <= top.version
            and each.uploaded is not None
            and top.uploaded - each.uploaded <= far
        ]
        lag = VersionLag(
            package=item.package,
            version=item.version,
            uploaded=min(times),
            newest=str(top.version),
            newest_uploaded=top.uploaded,
            via=item.via,
        )
        return FarBehind(lag=lag, spec=str(spec), floor=min(recent).public)
    return None


def far_behind_error(
    problem: SolveProblem, behind: FarBehind, installable: str, reasons: tuple[str, ...]
) -> ImpossibleRequirements:
    """Return the error for a target that could only be locked with an old version.

    `installable` is the newest version that is installable without the project's other
    requirements.
    """
    lag, overlay, row = behind.lag, problem.overlay, problem.row
    message = (
        f"{problem.name} requires {lag.package}{behind.spec}, but the newest version of"
        f" {lag.package}, {lag.newest} of {lag.newest_uploaded:%Y-%m}, is not installable, nor is"
        f" any version after {installable}"
    )
    hint = (
        "set a lower bound in the project's files to require a newer version, or pin"
        f" {lag.package}=={installable} to use the old one"
    )
    if overlay is not None:
        like = overlay.published.name
        hint += f"; to solve all versions again, use `like: {like}` instead of `extends:`"
    elif row is not None and (version := _locked_version(problem, lag.package)):
        hint += (
            f"; to use {lag.package} {version} of {row.row.like}: mv matrix.yaml matrix.old.yaml &&"
            f" imgbuild init --relax {lag.package}"
        )
    return ImpossibleRequirements(message, reasons=reasons, hint=hint)


def _locked_version(problem: SolveProblem, package: str) -> str:
    locked = problem.row.published.lock.arch.get(problem.arch) if problem.row else None
    return locked.versions.get(package, "") if locked is not None else ""
