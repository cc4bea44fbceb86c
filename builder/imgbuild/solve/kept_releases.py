"""Finds frameworks with a later release than a target's, and bounds that prevent this change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.solve import solve, uv
from imgbuild.solve.problem import SolveProblem
from imgbuild.solve.solve import PreparedTarget

# Packages with many dependents: another release of one requires other releases of many.
FRAMEWORKS = (
    *("transformers", "trl", "ray", "verl", "deepspeed", "tensordict", "peft", "accelerate"),
    *("datasets", "unsloth", "unsloth-zoo", "flashinfer-python"),
)
ENGINES = ("vllm", "sglang")


class LaterRelease(msgspec.Struct, frozen=True, kw_only=True):
    """A package, its version in the target, and the later release that was chosen."""

    package: str
    has: str
    chosen: str

    @property
    def upper_bound(self) -> str:
        """A requirement that excludes releases incompatible with the target's."""
        return f"{self.package}<{_next_incompatible(Version(self.has))}"

    def __str__(self) -> str:
        return f"{self.package} {self.chosen} ({self.has})"


def later_releases(problem: SolveProblem, chosen: Mapping[str, str]) -> list[LaterRelease]:
    """Return the frameworks with a later release than in the target.

    A framework is included only if the project also accepts its release in the target. The result
    is empty for a target without `like`.
    """
    row = problem.row
    like = row.published.lock.arch.get(problem.arch) if row and row.row.like else None
    specs = problem.requirements.versions
    return [
        LaterRelease(package=package, has=has, chosen=chosen[package])
        for package in (*FRAMEWORKS, *ENGINES)
        if like is not None and package in chosen and (has := like.versions.get(package))
        if SpecifierSet(specs.get(package, "")).contains(has, prereleases=True)
        if Version(chosen[package]) >= Version(_next_incompatible(Version(has)))
    ]


def keep_releases_command(prepared: PreparedTarget, chosen: Mapping[str, str]) -> str:
    """Return the command that keeps the releases of the target, or "" if none can be kept.

    If not all releases can be kept, the command keeps those that METADATA allows individually.
    """
    problem = prepared.problem
    row, moved = problem.row, later_releases(problem, chosen)
    if row is None or not moved:
        return ""
    kept = (
        moved
        if _is_solvable(prepared, moved)
        else [m for m in moved if _is_solvable(prepared, [m])]
    )
    if not kept or (kept != moved and not _is_solvable(prepared, kept)):
        return ""
    added = " ".join(f"'{each.upper_bound}'" for each in kept)
    versions = ", ".join(f"{each.package} {each.has}" for each in kept)
    return (
        f"imgbuild add {added} keeps the releases of {row.row.like} ({versions}, according to "
        "METADATA)"
    )


def _is_solvable(prepared: PreparedTarget, moved: Iterable[LaterRelease]) -> bool:
    lines = (*prepared.requirements, *(each.upper_bound for each in moved))
    try:
        uv.run_resolver(
            prepared.catalogue,
            lines,
            solve.resolver_bounds(prepared),
            prepared.problem.context.store,
        )
    except uv.UnsolvableError:
        return False
    return True


def _next_incompatible(version: Version) -> str:
    """Return 5 for 4.57.6, and 0.12 for 0.11.2."""
    if version.major:
        return str(version.major + 1)
    return f"0.{version.minor + 1}"
