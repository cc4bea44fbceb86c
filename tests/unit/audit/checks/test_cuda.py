"""Tests the check `cuda` and the computation of required drivers and GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from imgbuild.audit.binaries import gpus
from imgbuild.audit.checks import cuda as cudas
from imgbuild.audit.checks.floors import compute_floors
from imgbuild.audit.source.facts import ElfFacts, GpuCode
from imgbuild.report import ConflictRelation, Finding, Floors
from tests.support.rows import each_row
from tests.support.shared_objects import SharedObjects, extension_module, shared_library


def subjects(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    assert all(
        finding.evidence and finding.evidence.relation is ConflictRelation.CUDA
        for finding in findings
    )
    return [
        (finding.evidence.package, finding.evidence.subject)
        for finding in findings
        if finding.evidence
    ]


def wheels(**packages: str) -> SharedObjects:
    named = {name.replace("_", "-"): version for name, version in packages.items()}
    return SharedObjects({f"{name} {version}": [] for name, version in named.items()})


# -- families

CU12 = shared_library("torch/lib/libtorch_cuda.so", needed=("libcudart.so.12",))
CPU = shared_library("torch/lib/libtorch_cpu.so")


def test_package_set_with_a_single_cuda_family_has_no_findings() -> None:
    asks = extension_module("vllm/_C.abi3.so", needed=("libcudart.so.12",))
    assert (
        cudas.check_cuda(SharedObjects({"torch 2.9.0": [CU12, CPU], "vllm 1": [asks]}), "12.8")
        == []
    )


def test_two_cuda_families_in_one_process_are_an_error() -> None:
    asks = extension_module("vllm/_C.abi3.so", needed=("libcudart.so.13",))
    package_set = SharedObjects({"torch 2.9.0": [CU12, CPU], "vllm 0.20.2": [asks]})
    findings = cudas.check_cuda(package_set, "12.8")
    assert subjects(findings) == [("vllm", "libcudart.so.13")]
    assert cudas.unsupported_gpus(findings[0]) == ()
    assert "torch 2.9.0 (torch/lib/libtorch_cuda.so) to libcudart.so.12" in findings[0].message


def test_private_copy_of_a_cuda_library_in_triton_is_ignored() -> None:
    private_copy = shared_library(
        "triton/backends/nvidia/lib/libcupti.so.12", needed=("libcudart.so.11",)
    )
    assert (
        cudas.check_cuda(
            SharedObjects({"torch 2.9.0": [CU12], "triton 3.2": [private_copy]}), "12.8"
        )
        == []
    )


def test_alternative_libraries_for_other_cuda_releases_are_not_a_second_family() -> None:
    files = [
        shared_library(
            f"bitsandbytes/libbitsandbytes_cuda{major}0.so", needed=(f"libcudart.so.{major}",)
        )
        for major in (12, 13)
    ]
    package_set = SharedObjects({"torch 2.8.0": [CU12, CPU], "bitsandbytes 0.48.1": files})
    assert cudas.check_cuda(package_set, "12.8") == []


def saver(name: str, major: str) -> ElfFacts:
    needed = (f"libcudart.so.{major}",)
    return extension_module(f"torch_memory_saver_hook_{name}.abi3.so", needed=needed)


@each_row(
    ("files", "broken"),
    [
        ((saver("preload", "13"),), True),
        ((saver("preload_cu13", "13"),), True),
        ((saver("preload_cu12", "12"), saver("preload_cu13", "13")), False),
        ((saver("preload_cu12", "12"), saver("preload", "13")), False),
        # Two libraries, and one of them is for another family alone.
        ((saver("preload_cu12", "12"), saver("torch_cu13", "13")), True),
        # The name of the first does not show that it is for this family.
        ((saver("preload", "12"), saver("preload_cu13", "13")), True),
        # For this family by its name, and linked to another.
        ((saver("preload_cu12", "13"), saver("preload_cu13", "13")), True),
    ],
)
def test_variants_for_other_cuda_families_that_are_not_loaded_are_ignored(
    files: tuple[ElfFacts, ...], broken: bool
) -> None:
    package_set = SharedObjects({"torch 2.9.0": [CU12, CPU], "torch-memory-saver 0.0.9": files})
    expected = [("torch-memory-saver", "libcudart.so.13")] if broken else []
    assert subjects(cudas.check_cuda(package_set, "12.8")) == expected


def test_variants_of_a_library_in_two_packages_are_not_alternatives() -> None:
    package_set = SharedObjects(
        {
            "torch 2.9.0": [CU12, CPU],
            "one 1": [extension_module("hook_cu12.so", needed=("libcudart.so.12",))],
            "two 1": [extension_module("hook_cu13.so", needed=("libcudart.so.13",))],
        }
    )
    assert subjects(cudas.check_cuda(package_set, "12.8")) == [("two", "libcudart.so.13")]


def test_cpu_build_of_torch_is_an_error() -> None:
    package_set = SharedObjects({"torch 2.6.0": [CPU]})
    assert subjects(cudas.check_cuda(package_set, "12.4")) == [("torch", "libtorch_cuda.so")]
    assert cudas.check_cuda(package_set, "") == []
    assert cudas.check_cuda(SharedObjects({"torch 2.6.0": []}), "12.4") == []


# -- components


@each_row(
    ("cuda", "package", "version", "broken"),
    [
        ("13.0", "nvidia_cuda_nvcc", "13.5.37", True),
        ("13.0", "nvidia_cuda_nvcc", "13.0.88", False),
        ("12.4", "nvidia_cuda_runtime_cu12", "12.4.127", False),
        ("12.4", "nvidia_cuda_nvrtc_cu12", "12.1.105", False),
        ("12.4", "nvidia_cuda_nvrtc_cu12", "12.8.93", True),
        ("12.1", "nvidia_nvjitlink_cu12", "12.9.86", False),
        ("12.8", "nvidia_nvjitlink", "13.0.88", True),
        ("13.0", "nvidia_cublas_cu12", "12.8.4.1", True),
        ("12.8", "nvidia_cuda_nvdisasm", "13.3.73", False),
        ("13.0", "nvidia_cutlass_dsl_libs_cu12", "4.7.1", False),
        ("13.0", "nvidia_cudnn_cu13", "9.19.0.56", False),
        ("13.0", "cuda_bindings", "13.4.3", False),
        ("13.0", "nvidia_ml_py", "13.615.71", False),
        ("13.0", "nvidia_cutlass_dsl", "4.5.2", False),
    ],
)
def test_components_of_a_different_cuda_release_are_reported(
    cuda: str, package: str, version: str, broken: bool
) -> None:
    findings = cudas.check_cuda(wheels(**{package: version}), cuda)
    name = package.replace("_", "-")
    assert subjects(findings) == ([(name, f"{name} {version}")] if broken else [])


@pytest.mark.parametrize(
    ("beside", "severity"), [({}, "warning"), ({"nvidia-cuda-nvcc 13.0.88": []}, "error")]
)
def test_cuda_headers_of_another_release_are_reported_only_with_a_compiler(
    beside: dict[str, list[ElfFacts]], severity: str
) -> None:
    package_set = SharedObjects(
        {"cuda-toolkit 13.0.2": [], "nvidia-cuda-cccl 13.3.5": [], **beside},
        requires={"cuda-toolkit": ('nvidia-cuda-cccl==13.0.85.*; extra == "cccl"',)},
    )
    assert [finding.severity for finding in cudas.check_cuda(package_set, "13.0")] == [severity]


def test_cuda_metapackage_determines_component_versions() -> None:
    package_set = SharedObjects(
        {"cuda-toolkit 13.0.2": [], "nvidia-cublas 13.2.0.9": [], "nvidia-cufft 12.0.0.61": []},
        requires={
            "cuda-toolkit": (
                'nvidia-cublas==13.1.0.*; extra == "cublas"',
                'nvidia-cufft==12.0.0.*; extra == "cufft"',
            )
        },
    )
    findings = cudas.check_cuda(package_set, "13.0")
    assert subjects(findings) == [("nvidia-cublas", "nvidia-cublas 13.2.0.9")]
    assert findings[0].remedy == "constrain nvidia-cublas to CUDA 13.0: nvidia-cublas==13.1.0.*"


# -- GPUs


def code(*archs: str) -> tuple[GpuCode, ...]:
    """Parse GPU code such as "sm_90", "compute_90:8.4" or "sm_90a*3" (three units)."""
    gpu_codes = []
    for text in archs:
        arch, _, units = text.partition("*")
        arch, _, ptx = arch.partition(":")
        gpu_codes.append(GpuCode(arch, ptx, int(units or 1)))
    return tuple(gpu_codes)


@each_row(
    ("arch", "runs_on", "not_on"),
    [
        ("sm_80", ("8.0", "8.6", "8.9"), ("7.5", "9.0", "12.0")),
        ("sm_86", ("8.6", "8.9"), ("8.0",)),
        ("sm_90a", ("9.0",), ("10.0", "8.9")),
        ("sm_100f", ("10.0", "10.3"), ("9.0", "12.0")),
        ("compute_80", ("8.0", "9.0", "12.1"), ("7.5",)),
        ("compute_90a", ("9.0",), ("10.0",)),
        ("compute_120f", ("12.0", "12.1"), ("10.0",)),
        ("lto_90", (), ("9.0",)),
    ],
)
def test_gpu_code_of_compatible_architectures_is_accepted(
    arch: str, runs_on: tuple[str, ...], not_on: tuple[str, ...]
) -> None:
    assert all(gpus.can_run(GpuCode(arch), gpu) for gpu in runs_on)
    assert not any(gpus.can_run(GpuCode(arch), gpu) for gpu in not_on)


def test_gpu_architectures_with_few_kernels_are_ignored() -> None:
    built = code("sm_80*20", "sm_90*18", "compute_52:8.4*1", "sm_120a*2")
    assert [gpu for gpu in ("8.0", "9.0", "10.0", "12.0") if gpus.covers_gpu(built, gpu)] == [
        "8.0",
        "9.0",
    ]


def kernels(*archs: str) -> ElfFacts:
    return shared_library("torch/lib/libtorch_cuda.so", gpu=code(*archs))


def test_library_without_code_for_a_gpu_of_the_target_is_an_error() -> None:
    package_set = SharedObjects({"torch 2.6.0": [kernels("sm_80", "sm_90"), CPU]})
    assert cudas.check_cuda(package_set, "12.4", ("8.0", "8.6", "9.0")) == []
    findings = cudas.check_cuda(package_set, "12.4", ("9.0", "12.0"))
    assert subjects(findings) == [("torch", "sm_120")]
    assert "built for sm_80, sm_90 (CUDA error: no kernel image" in findings[0].message


def test_kernels_for_a_single_gpu_generation_are_not_reported() -> None:
    hopper = extension_module("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", gpu=code("sm_90a"))
    package_set = SharedObjects({"torch 2.6.0": [kernels("sm_80"), CPU], "vllm 1": [hopper]})
    assert cudas.check_cuda(package_set, "12.4", ("8.0",)) == []


def test_assembler_that_does_not_support_a_gpu_of_the_target_is_an_error() -> None:
    binaries = "triton/backends/nvidia/bin/"
    older = shared_library(f"{binaries}ptxas", ptxas_architectures=("sm_90", "sm_90a", "sm_100a"))
    newer = shared_library(f"{binaries}ptxas-blackwell", ptxas_architectures=("sm_100a", "sm_103f"))
    package_set = SharedObjects({"triton 3.6.0": [older, newer]})
    assert cudas.check_cuda(package_set, "13.0", ("9.0", "10.0", "10.3")) == []
    findings = cudas.check_cuda(package_set, "13.0", ("9.0", "12.1"))
    assert subjects(findings) == [("triton", "sm_121")]
    assert cudas.check_assemblers(package_set, ("9.0", "12.1")) == findings
    findings = cudas.check_assemblers(package_set, ("9.0", "12.0", "12.1"))
    assert [cudas.unsupported_gpus(finding) for finding in findings] == [("12.0", "12.1")]
    assert cudas.check_cuda(SharedObjects({"torch 2.11.0": [CPU]}), "", ("12.1",)) == []


# -- floors


def test_minimum_gpu_and_driver_are_computed_from_library_files() -> None:
    files = [
        shared_library(
            "torch/lib/libtorch_cuda.so",
            gpu=code("sm_80", "sm_86", "sm_90", "compute_90:8.7"),
            required_versions={"libc.so.6": ("GLIBC_2.2.5", "GLIBC_2.28", "GLIBC_2.9")},
        ),
        extension_module("vllm/_C.abi3.so", gpu=code("sm_80", "sm_90", "compute_90:8.4")),
        extension_module("vllm/_flashmla_C.abi3.so", gpu=code("sm_90a")),
    ]
    assert compute_floors(files, "12.4") == Floors(
        cuda="12.4",
        driver="525.60.13",
        driver_full="570.26",  # the PTX that newer GPUs run was written by CUDA 12.8
        gpu=("8.0", "8.6", "8.9", "9.0"),
        gpu_ptx=("10.0", "10.3", "12.0", "12.1"),
        glibc="2.28",
    )


def test_machine_code_requires_the_minimum_driver_of_its_cuda_release() -> None:
    bounds = compute_floors([kernels("sm_90")], "13.0.2")
    assert (bounds.driver, bounds.driver_full) == ("580.65.06", "580.65.06")
    assert (bounds.gpu, bounds.gpu_ptx) == (("9.0",), ())


@each_row(
    ("cuda", "ptx", "driver"),
    [
        ("13.2", "9.2", "595.45.04"),
        ("13.3", "9.0", "610.43.02"),
        ("13.4", "9.0", ""),  # its driver is not in the data
        ("13.0", "9.4", ""),
        ("13.9", "9.0", ""),
        ("13.0", "9.9", ""),
    ],
)
def test_driver_requirement_is_empty_for_an_unknown_cuda_release(
    cuda: str, ptx: str, driver: str
) -> None:
    bounds = compute_floors([kernels("sm_90", f"compute_90:{ptx}")], cuda)
    assert bounds.driver == "580.65.06"
    assert bounds.driver_full == driver


def test_unknown_cuda_major_version_has_no_minimum_driver() -> None:
    bounds = compute_floors([kernels("sm_90")], "14.0")
    assert (bounds.driver, bounds.driver_full) == ("", "")


def test_image_without_kernels_has_no_gpu_requirement() -> None:
    assert compute_floors([CPU], "12.4").gpu == ()


def test_table_of_drivers_is_sorted_by_cuda_release() -> None:
    drivers_table = gpus.load_drivers()
    order = [gpus.version_numbers(release.cuda) for release in drivers_table.releases]
    assert order == sorted(order)
    result = [release for release in drivers_table.releases if release.driver]
    for release in result:
        assert gpus.version_numbers(
            drivers_table.oldest_driver(release.cuda)
        ) <= gpus.version_numbers(release.driver)
    drivers = [gpus.version_numbers(release.driver) for release in result]
    assert drivers == sorted(drivers)
    assert result == list(drivers_table.releases[: len(result)])  # only the newest have none
    written = [gpus.version_numbers(release.ptx) for release in drivers_table.releases]
    assert written == sorted(written)


@pytest.mark.parametrize(
    ("driver", "cuda"), [("580.159.04", "13.5"), ("550.54.15", "12.9"), ("390.48", "")]
)
def test_newest_cuda_release_that_a_driver_supports_is_found(driver: str, cuda: str) -> None:
    assert gpus.load_drivers().newest_release(driver) == cuda
