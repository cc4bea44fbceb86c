"""Tests the effect of FlashInfer's three modes on a lock, and contradictions in a row."""

from __future__ import annotations

import pytest

from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import Resolution
from imgbuild.matrix import flashinfer
from imgbuild.matrix.load import parse_matrix
from imgbuild.matrix.model import Flashinfer, RequiredPackage, Variable
from imgbuild.values import Arch
from tests.support import samples
from tests.support.matrix_text import FILE, VALID_MATRIX, break_matrix, only_problem

OFF = '    flashinfer: {mode: "off", reason: there is no wheel}'
TOOLKIT = "/opt/venv/lib/python3.11/site-packages/nvidia/cu13"


def locked(mode: str, **changes: object) -> Lock:
    """The lock of a target of CUDA 13.0 with `mode`."""
    settings = Flashinfer(mode=mode, reason=samples.REASON)  # type: ignore[arg-type]
    matrix = samples.matrix(cuda="13.0", flashinfer=settings, **changes)
    return lock_file.make_lock(matrix, "small", {Arch.X86_64: Resolution(wheels=())})


@pytest.mark.parametrize("mode", ["prebuilt", "jit", "off"])
def test_flashinfer_mode_is_set_in_label_and_environment(mode: str) -> None:
    settings = locked(mode).settings
    assert settings.labels["dev.imgbuild.flashinfer"] == mode
    assert settings.env["IMGBUILD_FLASHINFER"] == mode
    assert settings.env["FLASHINFER_WORKSPACE_BASE"] == "/var/cache/imgbuild"


def test_flashinfer_mode_jit_adds_the_compiler_of_the_cuda_release() -> None:
    lock = locked("jit")
    assert lock.requirements["nvidia-cuda-nvcc"] == "==13.0.*"
    assert lock.requirements["nvidia-cuda-cccl"] == "==13.0.*"
    assert lock.settings.env["CUDA_HOME"] == TOOLKIT
    assert lock.settings.links == {
        f"{TOOLKIT}/lib64": "lib",
        f"{TOOLKIT}/lib/libcudart.so": "libcudart.so.13",
    }
    assert flashinfer.SAMPLER not in lock.settings.env
    assert lock.settings.env["PATH"] == f"/opt/venv/bin:/usr/bin:/bin:{TOOLKIT}/bin"
    assert lock.drop == ()


@pytest.mark.parametrize("mode", ["prebuilt", "jit", "off"])
def test_every_variable_of_a_flashinfer_mode_has_a_source(mode: str) -> None:
    settings = Flashinfer(mode=mode, reason=samples.REASON)  # type: ignore[arg-type]
    matrix = samples.matrix(cuda="13.0", flashinfer=settings)
    target, base = matrix.targets["small"], matrix.bases[matrix.targets["small"].base]
    variables = flashinfer.mode_environment(target, matrix.image, base)
    assert variables
    assert [name for name, variable in variables.items() if not variable.source] == []


@pytest.mark.parametrize("mode", ["prebuilt", "off"])
def test_flashinfer_modes_other_than_jit_add_no_compiler(mode: str) -> None:
    lock = locked(mode)
    assert not {"nvidia-cuda-nvcc", "nvidia-cuda-cccl"} & lock.requirements.keys()
    assert "CUDA_HOME" not in lock.settings.env
    assert lock.settings.links == {}
    assert lock.settings.env["PATH"] == "/opt/venv/bin:/usr/bin:/bin"


def test_flashinfer_mode_off_disables_flashinfer_sampling_in_vllm() -> None:
    assert locked("off").settings.env[flashinfer.SAMPLER] == "0"
    assert flashinfer.SAMPLER not in locked("prebuilt").settings.env


def test_flashinfer_mode_off_excludes_cubins() -> None:
    (dropped,) = locked("off").drop
    assert dropped.package == "flashinfer-cubin"
    assert dropped.paths == ("lib/python3.11/site-packages/flashinfer_cubin/*",)
    assert locked("prebuilt").drop == ()


def test_entries_in_a_row_override_the_flashinfer_mode() -> None:
    nvcc = {"nvidia-cuda-nvcc": RequiredPackage(spec="==13.0.88", reason=samples.REASON)}
    env = {"CUDA_HOME": Variable(value="/usr/local/cuda", reason=samples.REASON)}
    lock = locked("jit", requires=nvcc, env=env)
    assert lock.requirements["nvidia-cuda-nvcc"] == "==13.0.88"
    assert lock.settings.env["CUDA_HOME"] == "/usr/local/cuda"


def test_required_flashinfer_package_with_mode_off_is_refused() -> None:
    text, line, column = break_matrix('flashinfer: {mode: "off"', 'flashinfer: {mode: §"off"')
    text = text.replace('trl: "0.18.2"', 'trl: "0.18.2"\n      flashinfer-python: "0.2.2"')
    problem = only_problem(text)
    assert (problem.line, problem.column) == (line + 1, column)
    assert problem.message == "FlashInfer is off, but the target requires flashinfer-python"


def test_flashinfer_mode_jit_needs_no_compiler_or_location_in_the_row() -> None:
    mode = "    flashinfer: {mode: jit, reason: compiled at first use}"
    text = VALID_MATRIX.replace(OFF, mode).replace('cuda: "12.4"', 'cuda: "13.0"')
    assert parse_matrix(text.encode(), FILE).targets["cu124-vllm"].flashinfer.mode == "jit"


def test_flashinfer_mode_jit_with_a_precompiled_wheel_is_refused() -> None:
    text, line, column = break_matrix(
        OFF, "    flashinfer: {mode: §jit, reason: compiled at first use}"
    )
    text = text.replace('cuda: "12.4"', 'cuda: "13.0"')
    text = text.replace("indexes: {torch: torch}", "indexes: {flashinfer-python: torch}")
    problem = only_problem(text)
    assert (problem.line, problem.column) == (line, column)
    assert "index of precompiled kernels" in problem.message


def test_flashinfer_mode_jit_accepts_a_kernel_cache_package() -> None:
    mode = "    flashinfer: {mode: jit, reason: compiled at first use}"
    text = VALID_MATRIX.replace(OFF, mode).replace('cuda: "12.4"', 'cuda: "13.0"')
    text = text.replace("indexes: {torch: torch}", "indexes: {flashinfer-jit-cache: torch}")
    assert parse_matrix(text.encode(), FILE).targets["cu124-vllm"].flashinfer.mode == "jit"


def test_variable_that_contradicts_flashinfer_mode_off_is_refused() -> None:
    text, line, column = break_matrix(
        "      VLLM_USE_V1: {", "      VLLM_USE_FLASHINFER_SAMPLER: §{value: '1', reason: faster}\n"
        "      VLLM_USE_V1: {",
    )  # fmt: skip
    problem = only_problem(text.replace("faster", "it is faster"))
    assert (problem.line, problem.column) == (line, column)
    assert "FlashInfer is off" in problem.message


def test_flashinfer_packages_with_different_versions_are_refused() -> None:
    mode = "    flashinfer: {mode: jit, reason: compiled at first use}"
    pins = 'flashinfer-python: §"0.6.12"\n      flashinfer-cubin: "0.6.11"'
    text, line, column = break_matrix('trl: "0.18.2"', f'trl: "0.18.2"\n      {pins}')
    problem = only_problem(text.replace(OFF, mode).replace('cuda: "12.4"', 'cuda: "13.0"'))
    assert (problem.line, problem.column) == (line, column)
    assert problem.value == "0.6.11 and 0.6.12"


def test_variable_set_by_the_flashinfer_mode_is_refused_in_a_row() -> None:
    text, line, column = break_matrix("      VLLM_USE_V1: {", "      §IMGBUILD_FLASHINFER: {")
    problem = only_problem(text)
    assert (problem.line, problem.column) == (line, column)
    assert "imgbuild sets this variable" in problem.message
