"""Provides the settings that the FlashInfer mode of a target implies.

Rows do not have to repeat these requirements, variables, links and drops. An entry with the same
name in a row takes precedence.

    prebuilt  precompiled kernels, in a wheel of FlashInfer's index for one CUDA and torch release
    jit       kernels compiled at first use by the nvcc wheel of the target's CUDA release; an
    |         additional flashinfer-jit-cache has some precompiled ones
    off       vLLM is configured not to use FlashInfer, whether or not its package is installed
"""

from __future__ import annotations

from collections.abc import Collection

from imgbuild.matrix.model import Base, DroppedFiles, Image, Link, RequiredPackage, Target, Variable

PACKAGE = "flashinfer-python"
VARIABLE = "IMGBUILD_FLASHINFER"
SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"
NVCC = "nvidia-cuda-nvcc"
CCCL = "nvidia-cuda-cccl"
WORKSPACE = (
    "flashinfer-python==0.6.12 flashinfer/jit/env.py:52",
    "flashinfer-python==0.6.12 flashinfer/jit/core.py:18",
)
LINKER = (
    "https://gcc.gnu.org/onlinedocs/gcc/Environment-Variables.html",
    "https://apptainer.org/docs/user/latest/gpu.html",
)
FIRST_WITH_NVCC = 13  # up to CUDA 12 NVIDIA's wheel of that name holds ptxas only


def mode_requirements(target: Target) -> dict[str, RequiredPackage]:
    """Return the packages that the mode requires in addition to the target's packages."""
    if target.flashinfer.mode != "jit":
        return {}
    spec = f"=={target.cuda}.*"
    return {
        NVCC: RequiredPackage(
            spec=spec,
            reason="kernels are compiled at first use; PTX of a newer CUDA than the driver's would"
            " not load",
        ),
        CCCL: RequiredPackage(
            spec=spec,
            reason="headers that the kernels include; they belong to the compiler's CUDA release",
        ),
    }


def is_contradicted(mode: str, packages: Collection[str]) -> bool:
    """Return whether `mode` provides kernels but none of `packages` uses them."""
    return mode != "off" and PACKAGE not in packages


def mode_environment(target: Target, image: Image, base: Base) -> dict[str, Variable]:
    """Return the variables that the mode requires, and the variable that contains the mode."""
    mode = target.flashinfer.mode
    variables = {
        VARIABLE: Variable(
            value=mode,
            reason="how this image has FlashInfer's kernels",
            source=("smoke_tests/gpu_flashinfer.py", "docs/howto/flashinfer-index.md"),
        ),
        "FLASHINFER_WORKSPACE_BASE": Variable(
            value=image.cache,
            reason="FlashInfer makes a folder here when it is imported; the default is the home,"
            " which may be read-only or shared by nodes",
            source=WORKSPACE,
        ),
    }
    if mode == "off":
        variables[SAMPLER] = Variable(
            value="0",
            reason="a FlashInfer that is there, or that someone adds, must not sample tokens",
            source=(
                "vllm==0.8.5.post1 vllm/v1/sample/ops/topk_topp_sampler.py:50",
                "vllm==0.24.0 vllm/v1/sample/ops/topk_topp_sampler.py:38",
            ),
        )
    if mode == "jit":
        home = toolkit_folder(target, image, base)
        variables["CUDA_HOME"] = Variable(
            value=home,
            reason="FlashInfer and torch look for bin/nvcc, include and lib64 here",
            source=(
                "flashinfer-python==0.6.12 flashinfer/jit/cpp_ext.py:49",
                "torch==2.11.0 torch/utils/cpp_extension.py:120",
            ),
        )
        if "PATH" in image.env:
            variables["PATH"] = Variable(
                value=f"{image.env['PATH'].value}:{home}/bin",
                reason="vLLM leaves FlashInfer alone where it finds neither cubins nor nvcc",
                source=("vllm==0.24.0 vllm/utils/flashinfer.py:57",),
            )
        variables["LIBRARY_PATH"] = Variable(
            value="/.singularity.d/libs",
            reason="under Apptainer the driver's libcuda.so is here, where gcc does not look when"
            " it links a compiled kernel",
            source=LINKER,
        )
    return variables


def toolkit_links(target: Target, image: Image, base: Base) -> dict[str, Link]:
    """Return links to NVIDIA's wheels that create the layout of the CUDA toolkit for compilers."""
    if target.flashinfer.mode != "jit":
        return {}
    root = toolkit_folder(target, image, base)
    return {
        f"{root}/lib64": Link(
            to="lib",
            reason="FlashInfer and torch link with -L CUDA_HOME/lib64; the wheels name it lib",
        ),
        f"{root}/lib/libcudart.so": Link(
            to=f"libcudart.so.{cuda_major(target)}",
            reason="FlashInfer and torch link with -lcudart; the wheel has the versioned name only",
        ),
    }


def toolkit_drops(target: Target, base: Base) -> tuple[DroppedFiles, ...]:
    """Return the files to exclude so that vLLM does not use FlashInfer's kernels."""
    if target.flashinfer.mode != "off":
        return ()
    return (
        DroppedFiles(
            package="flashinfer-cubin",
            paths=(f"lib/python{base.python}/site-packages/flashinfer_cubin/*",),
            reason="seeing cubins, vLLM uses FlashInfer for more than cubins, and what it then"
            " compiles at first use needs an nvcc that is not there",
        ),
    )


def toolkit_folder(target: Target, image: Image, base: Base) -> str:
    """Return the folder in which NVIDIA's wheels for the target's CUDA release are installed."""
    return f"{image.prefix}/lib/python{base.python}/site-packages/nvidia/cu{cuda_major(target)}"


def cuda_major(target: Target) -> int:
    """Return the major version of the target's CUDA release."""
    return int(target.cuda.split(".")[0])
