"""Tests finding locked targets that satisfy a request."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
import pytest

from imgbuild import codec
from imgbuild.attest.sbom.packages import Package, SbomPackages, packages_path
from imgbuild.lock import lock_file
from imgbuild.matrix.project_paths import Project
from imgbuild.resolve import locked, resolve_request
from imgbuild.resolve.resolve_request import ResolveRequest
from imgbuild.values import Arch
from tests.support import samples


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project whose target `small` is locked with torch 2.6.0 and trl 0.18.2."""
    path = lock_file.lock_path(tmp_path / "images", "small")
    path.parent.mkdir(parents=True)
    path.write_bytes(codec.encode(samples.lock(samples.wheel("trl", "0.18.2"))))
    return Project(matrix=tmp_path / "matrix.yaml")


def request(*wants: str, **more: object) -> ResolveRequest:
    requests, _ = resolve_request.parse_requests(wants, [], {})
    return msgspec.structs.replace(ResolveRequest(requests=requests, arches=(Arch.X86_64,)), **more)


def test_locked_target_lists_versions_in_the_order_of_the_request(project: Project) -> None:
    (locked_target,) = locked.satisfying_targets(
        request("trl>=0.18", "torch==2.6.0"), project, samples.matrix()
    )
    assert (locked_target.target, locked_target.cuda, locked_target.tested) == ("small", "12.4", "")
    assert list(locked_target.versions.items()) == [("trl", "0.18.2"), ("torch", "2.6.0")]
    assert locked_target.commands == ("imgbuild run small", "imgbuild init --extends small")


@pytest.mark.parametrize(
    ("wants", "more"),
    [
        (("trl>=0.19",), {}),
        (("trl", "vllm"), {}),
        (("trl",), {"cuda": "12.6"}),
        (("trl",), {"arches": (Arch.X86_64, Arch.ARM64)}),
        (("trl",), {"python": "3.12"}),
        (("trl",), {"as_of": datetime.date(2020, 1, 1)}),
        (("trl",), {"indexes": {"trl": "other"}}),
    ],
)
def test_request_that_no_target_meets_lists_no_target(
    project: Project, wants: tuple[str, ...], more: dict[str, object]
) -> None:
    assert locked.satisfying_targets(request(*wants, **more), project, samples.matrix()) == ()


def test_requirements_of_extras_are_compared_with_the_lock(project: Project) -> None:
    assert locked.satisfying_targets(request("trl[known]"), project, samples.matrix()) == ()
    requires = (
        'torch>=2.6; extra == "known"',
        'torch<2; extra == "other"',
        'vllm; extra == "known" and python_version < "3"',
    )
    wheel = samples.wheel("trl", "0.18.2")
    record = Package(file=wheel.file, requires=requires)
    packages = SbomPackages(packages={wheel.sha256: record})
    packages_path(project.images).write_bytes(codec.encode(packages))
    (target,) = locked.satisfying_targets(request("trl[known]"), project, samples.matrix())
    assert target.versions == {"trl": "0.18.2"}
    assert locked.satisfying_targets(request("trl[other]"), project, samples.matrix()) == ()


def test_target_with_a_stale_lock_is_not_listed(project: Project) -> None:
    changed = samples.matrix(pins={"torch": "2.7.0"})
    assert locked.satisfying_targets(request("trl"), project, changed) == ()


def test_retired_target_is_listed_after_the_others(project: Project) -> None:
    lock = lock_file.read_lock(project.images, "small")
    path = lock_file.lock_path(project.images, "older")
    path.parent.mkdir()
    for retired, order in (("", ["small", "older"]), ("older takes its place", ["older", "small"])):
        matrix = samples.matrix(retired=retired)
        other = samples.matrix(as_of=datetime.date(2025, 6, 1)).targets["small"]
        matrix = msgspec.structs.replace(matrix, targets={**matrix.targets, "older": other})
        path.write_bytes(codec.encode(lock_file.make_lock(matrix, "older", lock.arch)))
        locked_targets = locked.satisfying_targets(request("trl"), project, matrix)
        assert [locked_target.target for locked_target in locked_targets] == order


def test_similar_package_name_is_suggested(project: Project) -> None:
    matrix = samples.matrix(pins={"torch": "2.6.0", "vllm": "0.8.5"})
    assert locked.similar_packages(request("vlm", "torhc", "trll"), project, matrix) == {
        "torhc": "torch",
        "trll": "trl",  # which the lock has, and the matrix does not name
        "vlm": "vllm",
    }
    assert locked.similar_packages(request("vllm", "trl", "wandb"), project, matrix) == {}


def test_nearest_target_can_differ_in_the_version_of_one_package(project: Project) -> None:
    matrix = samples.matrix()
    near = locked.nearest_target(request("trl==0.19.0", "torch"), project, matrix)
    assert near is not None
    assert (near.target, near.others) == ("small", {"trl": ("0.18.2", "==0.19.0")})
    dated = request("trl>=0.19", as_of=datetime.date(2020, 1, 1))
    assert locked.nearest_target(dated, project, matrix) is not None
    for far in (
        request("trl==0.19.0", "torch==2.7.0"),  # two at other versions
        request("trl==0.19.0", "vllm"),  # one is absent
        request("trl==0.19.0", arches=(Arch.ARM64,)),
        request("trl==0.19.0", cuda="12.6"),
    ):
        assert locked.nearest_target(far, project, matrix) is None
    stale = samples.matrix(pins={"torch": "2.7.0"})
    assert locked.nearest_target(request("trl==0.19.0"), project, stale) is None


def test_nearest_target_can_lack_one_of_three_packages(project: Project) -> None:
    matrix = samples.matrix()
    near = locked.nearest_target(request("trl==0.18.2", "torch", "peft"), project, matrix)
    assert near is not None
    assert (near.target, near.others, near.missing) == ("small", {}, ("peft",))
    for far in (
        request("trl==0.18.2", "torch", "peft>=0.1"),  # whether that version fits is not known
        request("trl==0.19.0", "torch", "peft"),
        request("torch", "peft", "deepspeed"),
    ):
        assert locked.nearest_target(far, project, matrix) is None
