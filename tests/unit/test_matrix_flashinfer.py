"""FlashInfer's three modes: what each adds to a lock, so that rows need not repeat it."""

from __future__ import annotations

import pytest

from imgbuild import lock as locks
from imgbuild.lock import Lock
from imgbuild.matrix import flashinfer
from imgbuild.matrix.model import Flashinfer, Variable, Wanted
from imgbuild.resolution import Resolution
from imgbuild.values import Arch
from tests import samples

TOOLKIT = "/opt/venv/lib/python3.11/site-packages/nvidia/cu13"


def locked(mode: str, **changes: object) -> Lock:
    """The lock of a target of CUDA 13.0 with `mode`."""
    own = Flashinfer(mode=mode, reason=samples.REASON)  # type: ignore[arg-type]
    matrix = samples.matrix(cuda="13.0", flashinfer=own, **changes)
    return locks.make_lock(matrix, "small", {Arch.X86_64: Resolution(wheels=())})


@pytest.mark.parametrize("mode", ["prebuilt", "jit", "off"])
def test_every_mode_shows_in_label_and_environment(mode: str) -> None:
    settings = locked(mode).settings
    assert settings.labels["dev.imgbuild.flashinfer"] == mode
    assert settings.env["IMGBUILD_FLASHINFER"] == mode
    assert settings.env["FLASHINFER_WORKSPACE_BASE"] == "/var/cache/imgbuild"


def test_jit_brings_the_compiler_of_the_cuda_release() -> None:
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


@pytest.mark.parametrize("mode", ["prebuilt", "off"])
def test_other_modes_bring_no_compiler(mode: str) -> None:
    lock = locked(mode)
    assert not {"nvidia-cuda-nvcc", "nvidia-cuda-cccl"} & lock.requirements.keys()
    assert "CUDA_HOME" not in lock.settings.env
    assert lock.settings.links == {}
    assert lock.settings.env["PATH"] == "/opt/venv/bin:/usr/bin:/bin"


def test_off_keeps_vllm_from_sampling_with_it() -> None:
    assert locked("off").settings.env[flashinfer.SAMPLER] == "0"
    assert flashinfer.SAMPLER not in locked("prebuilt").settings.env


def test_off_leaves_out_the_cubins_that_make_vllm_use_it() -> None:
    (dropped,) = locked("off").drop
    assert dropped.package == "flashinfer-cubin"
    assert dropped.paths == ("lib/python3.11/site-packages/flashinfer_cubin/*",)
    assert locked("prebuilt").drop == ()


def test_a_rows_own_words_win() -> None:
    nvcc = {"nvidia-cuda-nvcc": Wanted(spec="==13.0.88", reason=samples.REASON)}
    env = {"CUDA_HOME": Variable(value="/usr/local/cuda", reason=samples.REASON)}
    lock = locked("jit", requires=nvcc, env=env)
    assert lock.requirements["nvidia-cuda-nvcc"] == "==13.0.88"
    assert lock.settings.env["CUDA_HOME"] == "/usr/local/cuda"
