"""Tests findings about libraries that extension modules load by name."""

from __future__ import annotations

import _ctypes
from pathlib import Path

import pytest

from imgbuild.audit.checks import linking
from imgbuild.audit.packages.base import linked_libraries
from imgbuild.report import Severity
from imgbuild.values import Arch
from tests.support import audited
from tests.support.rows import each_row
from tests.support.shared_objects import BASE

# A real module that imports dlopen. The strings follow it, where no section is.
MODULE = Path(_ctypes.__file__).read_bytes()
ARCH = Arch.X86_64 if MODULE[18] == 62 else Arch.ARM64
STRING = b"\0libcudart.so\0"
CUDART = {"nvidia/cu13/lib/libcudart.so.13": MODULE}


def _loaded(tmp_path, *names, links=None, more=None, packages=None):
    strings = b"".join(b"\0" + name.encode() + b"\0" for name in names)
    every = {
        "fast==0.5.0": {"fast/cpp.abi3.so": MODULE + strings, **(more or {})},
        "nvidia-cuda-runtime==13.0.96": CUDART,
        **(packages or {}),
    }
    package_set = audited.package_set(tmp_path, every, arch=ARCH)
    found = linking.check_linking(package_set, [*linked_libraries(links or {}), *BASE])
    return [finding for finding in found if " loads lib" in finding.message]


def test_loading_a_versioned_library_by_its_unversioned_name_is_a_warning(tmp_path):
    (finding,) = _loaded(tmp_path, "libcudart.so")
    assert finding.severity is Severity.WARNING
    assert finding.where == "fast 0.5.0 fast/cpp.abi3.so"
    assert "nvidia-cuda-runtime 13.0.96 has libcudart.so.13" in finding.message
    assert "add a link /usr/lib/libcudart.so to nvidia/cu13/lib/libcudart.so.13" in finding.remedy


@each_row(
    "names",
    [
        ["libcudart.so.13"],
        ["libcudart.so", "libcudart.so.13"],
        ["libcudart.so", "libcudart.so.%d"],
        ["/usr/local/cuda/lib64/libcudart.so"],
        ["libamdhip64.so"],
        [],
    ],
)
def test_loading_libraries_with_other_names_is_not_reported(tmp_path, names):
    assert not _loaded(tmp_path, *names)


@pytest.mark.parametrize("folder", ["/usr/lib", "/lib", "/usr/lib/x86_64-linux-gnu"])
def test_link_of_the_target_in_a_loader_folder_provides_the_library(tmp_path, folder):
    links = {f"{folder}/libcudart.so": "/opt/venv/nvidia/cu13/lib/libcudart.so.13"}
    assert not _loaded(tmp_path, "libcudart.so", links=links)


def test_link_outside_the_loader_folders_does_not_provide_the_library(tmp_path):
    links = {"/opt/venv/lib/python3.11/site-packages/nvidia/cu13/lib/libcudart.so": "libcudart.so"}
    assert len(_loaded(tmp_path, "libcudart.so", links=links)) == 1


def test_package_with_its_own_copy_of_the_library_is_not_reported(tmp_path):
    assert not _loaded(tmp_path, "libcudart.so", more={"fast/lib/libcudart.so.12": MODULE})


def test_cuda_toolkit_libraries_that_load_unversioned_names_are_not_reported(tmp_path):
    more = {"nvidia-cuda-cupti==13.0": {"nvidia/cu13/lib/libcupti.so.13": MODULE + STRING}}
    assert not _loaded(tmp_path, packages=more)


def test_library_file_with_the_unversioned_name_provides_the_library(tmp_path):
    assert not _loaded(tmp_path, "libcudart.so", more={"fast/libcudart.so": MODULE})
