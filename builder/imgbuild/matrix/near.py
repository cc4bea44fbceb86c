"""Finds the targets whose pins are most similar to a request, without reading an index."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from packaging.specifiers import SpecifierSet

from imgbuild.matrix.model import Matrix, Target
from imgbuild.values import Arch

SHOWN_PINS = 8  # versions in the description of a target: an extension pins all that it extends
FIRST_PINS = ("torch", "vllm", "sglang", "trl", "verl", "unsloth", "deepspeed", "ray")


class _TargetScore(msgspec.Struct, frozen=True, order=True):
    missed: float
    other: bool  # it is not recommended
    indexes: int
    missing: int
    name: str


def rank_targets(
    matrix: Matrix,
    requests: Mapping[str, str],
    cuda: str | None,
    arch: Arch,
    *,
    excluded: str = "",
) -> list[str]:
    """Rank the targets on `arch` by the number of satisfied `requests` (package → specifier).

    Targets with none of the packages are excluded. Without `requests`, targets for a different CUDA
    release are excluded.
    """
    scores = sorted(
        _score(name, target, requests, cuda)
        for name, target in matrix.targets.items()
        if name != excluded
        and arch in target.arch
        and arch not in target.exclude
        and (requests.keys() & target.pins.keys() if requests else cuda == target.cuda)
    )
    return [score.name for score in scores]


def _score(
    name: str, target: Target, requests: Mapping[str, str], cuda: str | None
) -> _TargetScore:
    matched = 1.0 if cuda == target.cuda else 0.0
    for package, spec in requests.items():
        version = target.pins.get(package)
        if version is not None:
            matched += _version_score(spec, version)
    return _TargetScore(
        missed=-matched,
        other=not target.recommended,
        indexes=len(target.indexes),
        missing=-len(target.pins),
        name=name,
    )


def _version_score(spec: str, version: str) -> float:
    """Return 1 for an allowed version, 0.75 for a patch release of `==X.Y`, and 0.25 for others."""
    if SpecifierSet(spec).contains(version, prereleases=True):
        return 1.0
    patch = spec.startswith("==") and version.startswith(f"{spec.removeprefix('==')}.")
    return 0.75 if patch else 0.25


def similar_target_lines(matrix: Matrix, name: str, arch: Arch) -> tuple[str, ...]:
    """Return a description of the target on `arch` that is most similar to `name`.

    The result is empty if no target is similar.
    """
    target = matrix.targets[name]
    requests = {
        package: requirement.spec for package, requirement in matrix.requirements_of(target).items()
    }
    requests |= {package: f"=={version}" for package, version in target.pins.items()}
    names = rank_targets(matrix, requests, target.cuda, arch, excluded=name)
    return tuple(describe_target(matrix, other, arch) for other in names[:1])


def describe_target(
    matrix: Matrix, name: str, arch: Arch, locked: Collection[str] | None = None
) -> str:
    """Return a line about the target: its CUDA release, pins and packages from other indexes.

    If the names of the `locked` targets are known, the line says whether the target is not locked.
    """
    target = matrix.targets[name]
    names = sorted(target.pins, key=lambda name: name not in FIRST_PINS)
    pins = [f"{package} {target.pins[package]}" for package in names]
    more = [f"{len(pins) - SHOWN_PINS} more"] if len(pins) > SHOWN_PINS else []
    listed = ", ".join([*pins[:SHOWN_PINS], *more])
    others = "".join(
        f"; needs {package} from the index {at}" for package, at in target.indexes.items()
    )
    unlocked = "" if locked is None or name in locked else " (planned, not locked)"
    return f"the target {name}{unlocked} on {arch}: CUDA {target.cuda}, {listed}{others}"
