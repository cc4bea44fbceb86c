"""Tests resolving targets of this repository's matrix against the real index."""

import functools
import os

import msgspec
import pytest
from packaging.version import Version

from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import NoSolution
from imgbuild.http.client import HttpClient
from imgbuild.lock.resolution import Wheel
from imgbuild.matrix.load import load_matrix
from imgbuild.matrix.model import Matrix
from imgbuild.solve import solve
from imgbuild.solve.build_root import host_root
from imgbuild.solve.problem import SolveProblem
from imgbuild.solve.sdists import host_arch
from imgbuild.values import Arch
from tests.support import needs
from tests.support.resolving import resolve_wheels
from tests.support.source_code import ROOT

pytestmark = pytest.mark.network

# The set tested on a GPU; another version in the result is another package set.
PROVEN = {
    "torch": "2.6.0",
    "vllm": "0.8.5.post1",
    "trl": "0.18.2",
    "tensordict": "0.6.2",
    "transformers": "4.52.4",
    "ray": "2.47.1",
    "numpy": "2.2.6",
    "xformers": "0.0.29.post2",
    "nvidia-cublas-cu12": "12.4.5.8",
    "nvidia-cuda-runtime-cu12": "12.4.127",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store.open(tmp_path_factory.mktemp("cache"))


def no_root():
    raise AssertionError("a root folder was unpacked for a package set of wheels")


def ask(matrix: Matrix, name: str, arch: Arch, store: Store) -> tuple[Wheel, ...]:
    wheels, _ = resolve_wheels(matrix, name, arch, "3.11.2", no_root, Context(store, HttpClient()))
    return wheels


@functools.cache
def matrix() -> Matrix:
    return load_matrix(ROOT / "matrix.yaml")


@pytest.mark.long
def test_cu124_resolves_deterministically_to_the_tested_package_set(store, tmp_path):
    wheels = ask(matrix(), "cu124-vllm", Arch.X86_64, store)
    versions = {wheel.package: wheel.version for wheel in wheels}
    assert {package: versions.get(package) for package in PROVEN} == PROVEN
    assert {"pip", "uv"} <= versions.keys()
    assert 155 <= len(wheels) <= 162
    assert all(wheel.size > 0 and len(wheel.sha256) == 64 for wheel in wheels)
    assert ask(matrix(), "cu124-vllm", Arch.X86_64, Store.open(tmp_path / "other")) == wheels


def test_cu124_on_arm64_is_refused_with_reason(store):
    with pytest.raises(NoSolution) as caught:
        solve.resolve_target(
            SolveProblem(matrix(), "cu124-vllm", Arch.ARM64, Context(store, HttpClient()))
        )
    assert caught.value.reasons == (matrix().targets["cu124-vllm"].exclude[Arch.ARM64],)
    assert "cu130-vllm" in (caught.value.hint or "")


def test_cu124_on_arm64_is_refused_without_learned_constraints(store):
    with pytest.raises(NoSolution, match="cu124-vllm cannot be solved for arm64") as caught:
        ask(matrix(), "cu124-vllm", Arch.ARM64, store)
    text = "\n".join(caught.value.reasons)
    assert "torch 2.6.0 for aarch64 on the index pypi requires no CUDA library: a CPU build" in text
    assert "tensordict 0.6.2: no Linux aarch64 wheel" in text


def test_pin_newer_than_the_cutoff_date_is_refused_with_a_date(store):
    target = matrix().targets["cu124-vllm"]
    later = msgspec.structs.replace(target, pins={**target.pins, "trl": "0.19.0"})
    changed = msgspec.structs.replace(matrix(), targets={"later": later})
    with pytest.raises(NoSolution) as caught:
        ask(changed, "later", Arch.X86_64, store)
    (reason,) = caught.value.reasons
    assert reason.startswith("trl 0.19.0: its wheel was uploaded 2025-06-2")
    assert "not before the cut-off 2025-06-20; nearest compatible: 0.18.2" in reason


@pytest.fixture(scope="module")
def debian(store):
    """A function that creates the root folder of the base when a build requires it."""
    if os.geteuid() != 0:
        needs.user_namespaces()
    repository_matrix = matrix()
    base = repository_matrix.bases[repository_matrix.targets["cu130-vllm"].base]
    return host_root(base, repository_matrix.image.user, host_arch(), Context(store, HttpClient()))


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.parametrize("arch", list(Arch))
def test_cu130_resolves_to_one_cuda_release_with_verl(arch, store, debian):
    wheels, built = resolve_wheels(
        matrix(), "cu130-vllm", arch, "3.11.2", debian, Context(store, HttpClient())
    )
    versions = {wheel.package: wheel.version for wheel in wheels}
    (antlr,) = built
    assert (antlr.package, antlr.version) == ("antlr4-python3-runtime", "4.9.3")
    assert antlr.wheel.file == "antlr4_python3_runtime-4.9.3-py3-none-any.whl"
    assert store.file(antlr.wheel.sha256) is not None
    pins = matrix().targets["cu130-vllm"].pins
    assert {package: versions.get(package) for package in pins} == pins
    assert Version(versions["hydra-core"]) >= Version("1.3")
    for component in ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-runtime"):
        assert versions[component].startswith("13.0.")
    assert not [name for name in versions if name.endswith("-cu12")]
    other = Arch.ARM64 if arch is Arch.X86_64 else Arch.X86_64
    assert not [wheel.file for wheel in wheels if other.wheel in wheel.file]
