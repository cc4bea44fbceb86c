"""Tests that unsatisfiable package sets on the real index are refused with correct reasons.

The requests are from issue trackers of the packages. The tests compare only old versions, so that
new releases do not break a test.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec
import pytest

from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import NoSolution
from imgbuild.http.client import HttpClient
from imgbuild.matrix import project_paths
from imgbuild.matrix.load import load_matrix
from imgbuild.matrix.model import Matrix
from imgbuild.resolve import answers, explain, first_solve, resolve_request
from imgbuild.resolve.answers import NoAnswer
from imgbuild.resolve.resolve_request import ResolveRequest
from imgbuild.resolve.suggest import UNREAD_NOTE
from imgbuild.solve.problem import SolveProblem
from imgbuild.values import Arch
from tests.support.source_code import ROOT

pytestmark = [pytest.mark.network, pytest.mark.timeout(1800)]

Refuse = Callable[..., NoAnswer]


@functools.cache
def matrix() -> Matrix:
    return load_matrix(ROOT / "matrix.yaml")


@pytest.fixture(scope="module")
def refuse(tmp_path_factory: pytest.TempPathFactory) -> Refuse:
    """Request a package set that must be refused with few reasons."""
    store = Store.open(tmp_path_factory.mktemp("cache"))

    def ask(*requirements: str, arch: Arch = Arch.X86_64, index: str = "", **more: str) -> NoAnswer:
        assigned = resolve_request.parse_index_words([index] if index else [], matrix())
        package_requests, _ = resolve_request.parse_requests(requirements, [], assigned)
        package_set_request = ResolveRequest(
            requests=package_requests,
            arches=(arch,),
            indexes=assigned,
            **more,  # type: ignore[arg-type]
        )
        resolve_answer = answers.answer_request(
            package_set_request,
            project_paths.find_project(ROOT),
            matrix(),
            (),
            Context(store, HttpClient()),
        )
        assert resolve_answer.target is None
        assert resolve_answer.row == ()
        refused = resolve_answer.arch[arch].refused
        assert refused is not None
        assert 1 <= len(refused.reasons) <= 6
        assert 1 <= len(refused.nearest) <= 5
        return refused

    return ask


@pytest.mark.long  # unit/resolve/test_conflict.py has such a torch
def test_cuda_12_4_on_arm64_is_refused(refuse: Refuse) -> None:
    refusal = refuse("torch==2.6.0", "tensordict==0.6.2", arch=Arch.ARM64, cuda="12.4")
    torch, any_torch, tensordict = refusal.reasons
    assert torch == "torch 2.6.0 (a CPU build: requires no CUDA library) on aarch64"
    assert any_torch.startswith("no torch on aarch64 is built for CUDA 12.4: ")
    assert any_torch.endswith("to 2.10.0: CPU builds")
    assert tensordict.startswith("tensordict 0.6.2: no Linux aarch64 wheel")
    near = "torch 2.11.0 and tensordict 0.8.0, with torch 2.11.0 for CUDA 13.0"
    assert refusal.nearest[0] == f"{near} ({UNREAD_NOTE})"
    assert refusal.nearest[-1].startswith("the target cu130-verl0.9 on arm64: CUDA 13.0, torch")


@pytest.mark.parametrize(
    "requested", [pytest.param("tensordict==0.6.2", marks=pytest.mark.long), "tensordict<=0.6.2"]
)
def test_tensordict_0_6_2_on_arm64_is_not_replaced_by_0_1_2(refuse: Refuse, requested: str) -> None:
    refusal = refuse(requested, arch=Arch.ARM64, cuda="13.0")
    assert refusal.reasons[0] == f"you require {requested}"
    assert refusal.reasons[1].startswith(
        "tensordict 0.6.2: no Linux aarch64 wheel, nor has any version from 0.2.0 to 0.7.2"
    )
    assert refusal.nearest[0].startswith("tensordict 0.8.0")
    assert "0.1.2" not in str(refusal)


@pytest.mark.long
def test_trl_1_16_with_vllm_0_8_5_is_refused(refuse: Refuse) -> None:
    refusal = refuse("trl==1.16.0", "vllm==0.8.5.post1")
    chain = "\n".join(refusal.reasons)
    assert "trl 1.16.0 needs vllm>=0.11.1: trl/generation/vllm_client.py:" in chain
    assert "imports vllm.utils.network_utils, added in vllm 0.11.1" in chain
    assert "trl 1.16.0 supports vllm<=0.31.0,>=0.22.0 according to its code (trl/import" in chain
    near = [sample for sample in refusal.nearest if not sample.startswith("the target")]
    (vllm,) = [sample for sample in near if sample.startswith("vllm ")]
    assert vllm == "vllm 0.22.0, with torch 2.11.0 for CUDA 13.0"  # the oldest that trl names
    (trl,) = [sample for sample in near if sample.startswith("trl ")]
    assert trl.endswith(", with torch 2.6.0 for CUDA 12.4")
    version = tuple(map(int, trl.split(",")[0].split()[1].split(".")))
    # 0.18.2 is tested with this vLLM; from 0.24 on the trainer passes unsupported arguments.
    assert (0, 18, 2) <= version < (0, 24)
    assert refusal.nearest[-1].startswith("the target cu124-vllm0.8.5 on x86_64")


def test_python_3_8_with_grpo_is_refused(refuse: Refuse) -> None:
    refusal = refuse("trl", python="3.8")
    assert refusal.reasons == (
        "you require Python 3.8, but the bases of the matrix have 3.10, 3.11, 3.12 or 3.13",
        "since 0.12.0, trl requires Python >=3.9; the newest for Python 3.8 is 0.11.4",
        "trl 0.11.4 has no trl.GRPOTrainer, which was added in 0.14.0",
    )
    assert refusal.nearest[0].startswith("Python 3.11, of the base debian-12, with trl ")


@pytest.mark.long  # unit/resolve/test_conflict.py has such wheels
def test_flashinfer_for_torch_2_6_with_torch_2_7_is_refused(refuse: Refuse) -> None:
    index = "flashinfer-python=flashinfer"
    wheel = "flashinfer-python==0.2.5+cu124torch2.6"
    refusal = refuse("torch==2.7.0", wheel, index=index, cuda="12.6")
    assert refusal.reasons[:2] == ("you require torch==2.7.0", f"you require {wheel}")
    assert "is compiled for torch 2.6, according to its version" in refusal.reasons[2]
    assert refusal.nearest[0] == f"torch 2.6.0 for CUDA 12.4 ({UNREAD_NOTE})"


@pytest.mark.long  # reads every vLLM; other tests have a required CUDA and a required torch
def test_vllm_0_33_on_cuda_12_4_is_refused(refuse: Refuse) -> None:
    refusal = refuse("vllm==0.33.0", cuda="12.4")
    assert refusal.reasons[:3] == (
        "you require CUDA 12.4",
        "you require vllm==0.33.0",
        "vllm 0.33.0 requires torch==2.14.0 (its METADATA)",
    )
    assert refusal.reasons[3].startswith("torch 2.14.0 (CUDA 13.0: requires cuda-toolkit==13.0")
    assert refusal.nearest[0] == f"vllm 0.8.5.post1, with torch 2.6.0 for CUDA 12.4 ({UNREAD_NOTE})"
    assert refusal.nearest[-1].startswith("the target cu124-vllm0.8.5 on x86_64: CUDA 12.4")


@pytest.mark.long
def test_target_that_cannot_be_resolved_is_explained(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    context = Context(Store.open(tmp_path_factory.mktemp("cache")), HttpClient())
    target = matrix().targets["cu124-vllm"]
    changed = msgspec.structs.replace(target, pins={**target.pins, "tensordict": "0.15.0"})
    other = first_solve.add_target(matrix(), "later", changed)
    before = NoSolution("no package set satisfies later", reasons=("many words",))
    explanation = explain.explain_error(before, SolveProblem(other, "later", Arch.X86_64, context))
    assert explanation is not before
    assert any(
        reason.startswith("tensordict 0.15.0: its wheel was uploaded 2026")
        for reason in explanation.reasons
    )
    assert explanation.nearest
    assert not [result for result in explanation.nearest if "the target later" in result]
    assert not [reason for reason in explanation.reasons if "you require" in reason]
    same = explain.explain_error(before, SolveProblem(matrix(), "cu124-vllm", Arch.X86_64, context))
    assert same is before
