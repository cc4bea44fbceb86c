"""Finds targets of a matrix with newer versions of the frameworks that a target pins."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec
from packaging.version import Version

from imgbuild.audit.binaries import gpus
from imgbuild.doctor.targets import target_needs
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.solve.kept_releases import ENGINES
from imgbuild.values import Arch

STACK = (*ENGINES, "verl", "trl", "unsloth", "deepspeed")


class NewerTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target with its CUDA release, the oldest supported driver, and versions of frameworks."""

    target: str
    cuda: str
    driver: str
    versions: dict[str, str]


def find_newer_targets(
    project: Project, matrix: Matrix, lock: Lock, arch: Arch, locks: Iterable[Lock]
) -> tuple[NewerTarget, ...]:
    """Find targets with all frameworks of `lock`, of which at least one is newer and none is older.

    For each driver, the result contains only the best target of `locks`: first by the fewest other
    frameworks, then recommended targets, then the latest date. Retired targets are omitted. The
    target for the oldest driver is first.
    """
    versions, pins = lock.arch[arch].versions, matrix.targets[lock.target].pins
    stack = {name: Version(versions[name]) for name in STACK if name in pins and name in versions}

    def _distance(other: Lock) -> tuple[int, bool]:
        target = matrix.targets[other.target]
        return len((set(STACK) & target.pins.keys()) - stack.keys()), not target.recommended

    newer = [
        each
        for each in locks
        if each.target in matrix.targets
        and not matrix.targets[each.target].retired
        and arch in each.arch
        and _is_newer(each.arch[arch].versions, stack)
    ]
    newer.sort(key=lambda each: each.as_of, reverse=True)
    best: dict[str, NewerTarget] = {}
    for each in sorted(newer, key=_distance):
        shown = _shown_target(project, each, arch, stack)
        best.setdefault(shown.driver, shown)
    return tuple(sorted(best.values(), key=lambda each: gpus.version_numbers(each.driver)))


def locked_with(package: str, version: str, lock: Lock, arch: Arch, locks: Iterable[Lock]) -> str:
    """Describe the versions of an engine of `lock` in targets with `version` of `package`.

    An example is "trl 1.16.0 is locked with vllm 0.31.0, 0.33.0, not with 0.8.5.post1". Return ""
    if such a target has the engine version of `lock`, if no target has `version`, or if the package
    is not a framework.
    """
    if package not in STACK:
        return ""
    versions = lock.arch[arch].versions
    sets = [each.arch[arch].versions for each in locks if arch in each.arch]
    sets = [each for each in sets if each.get(package) == version]
    for engine in ENGINES:
        others = {each[engine] for each in sets if engine in each}
        if engine != package and engine in versions and others and versions[engine] not in others:
            named = ", ".join(sorted(others, key=Version))
            return (
                f"{package} {version} is locked with {engine} {named}, not with {versions[engine]}"
            )
    return ""


def _is_newer(versions: dict[str, str], stack: dict[str, Version]) -> bool:
    others = {name: Version(versions[name]) for name in stack if name in versions}
    return (
        len(others) == len(stack)
        and all(others[name] >= version for name, version in stack.items())
        and any(others[name] > version for name, version in stack.items())
    )


def _shown_target(project: Project, lock: Lock, arch: Arch, stack: Collection[str]) -> NewerTarget:
    return NewerTarget(
        target=lock.target,
        cuda=lock.cuda,
        driver=target_needs(project.images, lock).floors[arch].driver,
        versions={name: lock.arch[arch].versions[name] for name in stack},
    )
