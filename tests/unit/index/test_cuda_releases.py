"""Tests reading CUDA releases from NVIDIA's metapackage and selecting one for torch."""

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.index import cuda_releases
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support.rows import each_row

# As in cuda-toolkit 13.0.2, shortened.
TOOLKIT = b"""\
Metadata-Version: 2.4
Name: cuda-toolkit
Version: 13.0.2
Requires-Dist: nvidia-cublas==13.1.0.3.*; (sys_platform == 'linux') and extra == 'all'
Requires-Dist: nvidia-cuda-nvcc==13.0.88.*; (sys_platform == 'linux') and extra == 'nvcc'
Requires-Dist: nvidia-cuda-runtime==13.0.96.*; (sys_platform == 'linux') and extra == 'cudart'
Requires-Dist: not a requirement at all
"""
NEWER = TOOLKIT.replace(b"13.0.2", b"13.0.3").replace(b"13.1.0.3", b"13.1.1.1")
RELEASE = cuda_releases.parse_release("13.0.2", TOOLKIT)


def read(version):
    return {"13.0.2": TOOLKIT, "13.0.3": NEWER}[str(version)]


def test_cuda_release_lists_its_components():
    assert RELEASE.constraints == [
        "nvidia-cublas==13.1.0.3.*",
        "nvidia-cuda-nvcc==13.0.88.*",
        "nvidia-cuda-runtime==13.0.96.*",
    ]


def test_range_of_a_cuda_component_is_limited_to_its_release():
    # As in cuda-toolkit 13.0.3.
    line = b"Requires-Dist: nvidia-nvjitlink<14,>=13.0.88; extra == 'nvjitlink'\n"
    spec = cuda_releases.parse_release("13.0.3.0", TOOLKIT + line).components["nvidia-nvjitlink"]
    assert SpecifierSet(spec).contains("13.0.88")
    assert not SpecifierSet(spec).contains("13.4.92")


def test_cuda_patch_releases_are_sorted_newest_first():
    versions = [Version(text) for text in ("13.0.2", "13.0.3.0", "13.1.0", "13.0.9rc1", "12.4.1")]
    assert [str(v) for v in cuda_releases.releases_of_minor(versions, "13.0")] == [
        "13.0.3.0",
        "13.0.2",
    ]


@pytest.mark.parametrize(
    "line",
    ["cuda-toolkit[cublas,cudart]==13.0.2", "nvidia-cublas==13.1.0.3", "nvidia-cublas==13.1.0.3.*"],
)
def test_newest_cuda_release_compatible_with_torch_is_chosen(line):
    candidates = [Version("13.0.3"), Version("13.0.2")]
    release, reasons = cuda_releases.first_compatible(
        candidates, read, [Requirement(line), Requirement("sympy")]
    )
    assert release is not None
    assert release.version == "13.0.2"
    assert len(reasons) == 1
    assert reasons[0].startswith("CUDA 13.0.3: torch requires ")


def test_newest_cuda_release_is_chosen_without_torch():
    release, reasons = cuda_releases.first_compatible(
        [Version("13.0.3"), Version("13.0.2")], read, []
    )
    assert (release and release.version, reasons) == ("13.0.3", ())


def test_missing_cuda_release_that_is_compatible_with_torch_is_reported():
    torch = [Requirement("nvidia-cublas==12.4.5.8")]
    release, reasons = cuda_releases.first_compatible([Version("13.0.2")], read, torch)
    assert release is None
    assert reasons == (
        "CUDA 13.0.2: torch requires nvidia-cublas ==12.4.5.8, but the release has ==13.1.0.3.*",
    )


def test_torch_can_have_components_of_two_patch_releases():
    # torch 2.7.0 uses nvrtc of CUDA 12.6.2 and cuBLAS of 12.6.3.
    pages = {"13.0.2": TOOLKIT, "13.0.3": NEWER.replace(b"13.0.96", b"13.0.99")}
    torch = [Requirement("nvidia-cublas==13.1.1.1"), Requirement("nvidia-cuda-runtime==13.0.96")]
    candidates = [Version("13.0.3"), Version("13.0.2")]
    release, reasons = cuda_releases.first_compatible(
        candidates, lambda version: pages[str(version)], torch
    )
    assert release is not None
    assert release.version == "13.0.3"
    assert release.components["nvidia-cublas"] == "==13.1.1.1.*"
    assert release.components["nvidia-cuda-runtime"] == "==13.0.96"
    assert len(reasons) == 2


def test_resolution_with_mixed_cuda_releases_is_detected():
    chosen = {
        "nvidia-cuda-nvcc": "13.5.37",
        "nvidia-cuda-runtime": "13.0.96",
        "nvidia-cublas-cu12": "12.4.5.8",
        "nvidia-cudnn-cu13": "9.19.0.56",
        "nvidia-cutlass-dsl-libs-cu12": "4.6.0",
        "numpy": "2.2.6",
    }
    assert cuda_releases.release_violations(RELEASE, chosen) == (
        "nvidia-cublas-cu12 12.4.5.8 is for CUDA 12, but the target has CUDA 13",
        "nvidia-cuda-nvcc 13.5.37 is not part of CUDA 13.0.2, which contains ==13.0.88.*",
    )


def test_resolution_with_a_consistent_cuda_release_passes():
    chosen = {"nvidia-cuda-nvcc": "13.0.88", "nvidia-cublas": "13.1.0.3"}
    assert cuda_releases.release_violations(RELEASE, chosen) == ()
    assert cuda_releases.packages_outside_release(
        RELEASE, {**chosen, "nvidia-cuda-nvdisasm": "13.3.73"}
    ) == ("nvidia-cuda-nvdisasm 13.3.73",)


def test_torch_requirements_depend_on_markers():
    metadata = b"""\
Requires-Dist: nvidia-cublas-cu12 (==12.4.5.8) ; platform_machine == "x86_64"
Requires-Dist: sympy (==1.13.1) ; python_version >= "3.9"
Requires-Dist: opt-einsum ; extra == "opt-einsum"
"""
    names = {
        arch: [
            requirement.name
            for requirement in cuda_releases.active_requirements(
                metadata, WheelTags(python="3.11.2", glibc="2.36", arch=arch).markers
            )
        ]
        for arch in Arch
    }
    assert names == {Arch.X86_64: ["nvidia-cublas-cu12", "sympy"], Arch.ARM64: ["sympy"]}


@each_row(
    ("version", "requires", "cpu"),
    [
        ("2.6.0", ["sympy"], True),
        ("2.6.0+cpu", ["sympy"], True),
        ("2.6.0+cu124", ["sympy"], False),
        ("2.6.0", ["nvidia-cublas-cu12==12.4.5.8"], False),
        ("2.11.0", ["cuda-toolkit[cublas]==13.0.2"], False),
    ],
)
def test_torch_cpu_builds_are_recognized(version, requires, cpu):
    assert cuda_releases.is_cpu_build(Version(version), map(Requirement, requires)) is cpu
