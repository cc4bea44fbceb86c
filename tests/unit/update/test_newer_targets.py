"""Tests finding targets of the catalogue with newer versions of the main packages."""

from __future__ import annotations

import pytest

from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.published import load_matrix
from imgbuild.matrix import project_paths
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.update import newer_targets
from imgbuild.update.newer_targets import NewerTarget
from imgbuild.values import Arch
from tests.support.source_code import ROOT


@pytest.fixture(name="project", scope="module")
def _project() -> Project:
    return project_paths.find_project(ROOT / "matrix.yaml")


@pytest.fixture(name="locks", scope="module")
def _locks(project: Project) -> dict[str, Lock]:
    names = ("cu124-vllm", "cu130-vllm", "cu130-vllm0.33.0", "cu130-vllm0.25.1", "cu130-unsloth")
    return {name: lock_file.read_lock(project.images, name) for name in names}


def find(
    project: Project, matrix: Matrix, name: str, locks: dict[str, Lock], arch: Arch = Arch.X86_64
) -> list[NewerTarget]:
    return [*newer_targets.find_newer_targets(project, matrix, locks[name], arch, locks.values())]


def test_newer_targets_have_every_framework_in_the_same_or_a_newer_version(
    project: Project, locks: dict[str, Lock]
) -> None:
    matrix = load_matrix(project.matrix)
    [first] = find(project, matrix, "cu124-vllm", locks)
    assert first.target == "cu130-vllm0.33.0"  # not one with other frameworks, nor a retired one
    assert (first.cuda, first.driver) == ("13.0", "580.65.06")
    assert first.versions["vllm"] == locks["cu130-vllm0.33.0"].arch[Arch.X86_64].versions["vllm"]
    assert find(project, matrix, "cu130-vllm0.33.0", locks) == []  # the newest of these
    # One that pins verl too is not replaced by one without it.
    assert find(project, matrix, "cu130-vllm", locks) == []
    # On arm64 only what has it.
    arm64 = find(project, matrix, "cu130-vllm0.25.1", locks, Arch.ARM64)
    assert [each.target for each in arm64] == ["cu130-vllm0.33.0"]


def test_best_target_is_listed_for_each_driver(project: Project, locks: dict[str, Lock]) -> None:
    matrix = load_matrix(project.matrix)
    more = [
        *locks.values(),
        *(lock_file.read_lock(project.images, name) for name in ("cu126-vllm", "cu128-vllm")),
    ]
    named = newer_targets.find_newer_targets(
        project, matrix, locks["cu124-vllm"], Arch.X86_64, more
    )
    assert [(each.target, each.driver) for each in named] == [
        ("cu128-vllm", "525.60.13"),
        ("cu130-vllm0.33.0", "580.65.06"),
    ]


def test_version_locked_only_with_another_engine_is_reported(locks: dict[str, Lock]) -> None:
    lock = locks["cu124-vllm"]
    has = {name: each.arch[Arch.X86_64].versions for name, each in locks.items()
           if Arch.X86_64 in each.arch}  # fmt: skip
    newest = has["cu130-vllm0.33.0"]

    def _named(package: str, version: str) -> str:
        return newer_targets.locked_with(package, version, lock, Arch.X86_64, locks.values())

    trl, own = newest["trl"], has["cu124-vllm"]["vllm"]
    engines = [each["vllm"] for each in has.values() if each["trl"] == trl]
    text = f"trl {trl} is locked with vllm {', '.join(sorted(engines))}, not with {own}"
    assert _named("trl", trl) == text
    assert _named("trl", has["cu124-vllm"]["trl"]) == ""  # with this engine
    assert _named("trl", "9.9") == ""  # in no target
    assert _named("pip", newest["pip"]) == ""  # no framework
