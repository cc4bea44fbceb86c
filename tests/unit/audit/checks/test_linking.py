"""Tests the check `elf` on small package sets of facts."""

from __future__ import annotations

import pytest

from imgbuild.audit.checks import linking
from imgbuild.report import ConflictRelation, Finding, Severity
from tests.support.rows import each_row
from tests.support.shared_objects import BASE, SharedObjects, extension_module, shared_library

OLD = "_ZN5torch3jit17parseSchemaOrNameERKSs"
NEW = "_ZN5torch3jit17parseSchemaOrNameERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
TORCH = [
    shared_library("torch/lib/libc10.so"),
    shared_library("torch/lib/libtorch_cpu.so", defines=[NEW]),
]
FILE = "flashinfer/kernels.abi3.so"


def linking_findings(package_set: SharedObjects, *, base: bool = True) -> list[Finding]:
    return linking.check_linking(package_set, BASE if base else ())


def only(package_set: SharedObjects, *, base: bool = True) -> Finding:
    (finding,) = linking_findings(package_set, base=base)
    return finding


def relation(finding: Finding) -> tuple[ConflictRelation, str, str, str]:
    assert finding.evidence is not None
    evidence = finding.evidence
    return evidence.relation, evidence.other, evidence.subject, evidence.file


# -- symbols


def kernels(symbol: str, **facts: object) -> SharedObjects:
    asks = extension_module(FILE, needed=("libc10.so",), undefined=(symbol,), **facts)
    return SharedObjects({"torch 2.6.0": TORCH, "flashinfer-python 0.2.5": [asks]})


@pytest.mark.parametrize("base", [True, False])
def test_symbol_required_with_a_different_string_abi_is_an_error(base: bool) -> None:
    finding = only(kernels(OLD), base=base)
    assert finding.severity is Severity.ERROR
    assert relation(finding) == (ConflictRelation.SYMBOL, "torch", OLD, FILE)
    assert f"torch 2.6.0 defines it with std::string of the C++11 ABI ({NEW})" in finding.message


@pytest.mark.parametrize("base", [True, False])
def test_defined_symbol_is_not_reported(base: bool) -> None:
    assert linking_findings(kernels(NEW), base=base) == []


@each_row(
    "symbol",
    ["PyErr_SetString", "memcpy@GLIBC_2.2.5", "_Znwm@GLIBCXX_3.4", "cuLaunchKernel", "nvmlInit_v2"],
)
def test_symbols_of_base_interpreter_and_driver_are_defined(symbol: str) -> None:
    assert linking_findings(kernels(symbol)) == []


@pytest.mark.parametrize("symbol", ["PyNew_OfTomorrow", "cublasOfTomorrow", "custom_op"])
def test_partial_package_set_ignores_undefined_symbols(symbol: str) -> None:
    assert relation(only(kernels(symbol)))[0] is ConflictRelation.SYMBOL
    assert linking_findings(kernels(symbol), base=False) == []


def test_private_copy_of_a_library_does_not_provide_symbols_to_other_packages() -> None:
    private = shared_library("other.libs/libjpeg-1234.so.8", defines=["jpeg_start"])
    asks = extension_module("pic/_pic.abi3.so", undefined=("jpeg_start",))
    package_set = SharedObjects({"other 1": [private], "pic 1": [asks]})
    assert relation(only(package_set))[2] == "jpeg_start"
    bundled_set = SharedObjects({"pic 1": [asks, private]})
    assert linking_findings(bundled_set) == []


def test_many_undefined_symbols_are_summarized() -> None:
    asks = extension_module(FILE, undefined=tuple(f"_ZN5torch{number}" for number in range(20)))
    package_set = SharedObjects({"torch 2.6.0": TORCH, "flashinfer-python 0.2.5": [asks]})
    findings = linking_findings(package_set)
    assert len(findings) == linking.SHOWN_SYMBOLS
    places = [f"({place} of 20 undefined symbols)" for place in (1, 2, 3)]
    assert [finding.message[-len(places[0]) :] for finding in findings] == places
    every = sorted(f"_ZN5torch{number}" for number in range(20))
    evidence = [finding.evidence for finding in findings if finding.evidence is not None]
    assert [item.subject for item in evidence] == every[:3]
    assert [item.symbols for item in evidence] == [tuple(every), (), ()]


# -- libraries


def linked(name: str, **facts: object) -> SharedObjects:
    """Return a package set of one file that is linked to the library `name`."""
    return SharedObjects(
        {"vllm 0.20.2": [extension_module("vllm/_C.abi3.so", needed=(name,), **facts)]}
    )


def test_missing_library_is_an_error() -> None:
    finding = only(linked("libcudart.so.13"))
    assert finding.severity is Severity.ERROR
    assert relation(finding) == (ConflictRelation.LIBRARY, "", "libcudart.so.13", "vllm/_C.abi3.so")
    assert finding.remedy.startswith("add nvidia-cuda-runtime, or choose a vllm")


@pytest.mark.parametrize("base", [True, False])
def test_error_for_a_missing_library_names_other_major_versions_of_the_library(base: bool) -> None:
    package_set = SharedObjects(
        {
            "vllm 0.20.2": [extension_module("vllm/_C.abi3.so", needed=("libcudart.so.13",))],
            "nvidia-cuda-runtime-cu12 12.8.90": [shared_library("nvidia/lib/libcudart.so.12")],
        },
        partial=not base,
    )
    finding = only(package_set, base=base)
    assert "available: libcudart.so.12" in finding.message
    assert relation(finding)[1] == "nvidia-cuda-runtime-cu12"


def test_error_for_a_missing_cuda_library_of_torch_names_the_cpu_build() -> None:
    package_set = SharedObjects(
        {
            "vllm 0.20.2": [extension_module("vllm/_C.abi3.so", needed=("libtorch_cuda.so",))],
            "torch 2.11.0": TORCH,
        },
        partial=True,
    )
    finding = only(package_set, base=False)
    assert "torch 2.11.0 does not have it (it is a CPU build)" in finding.message
    assert relation(finding)[1] == "torch"


def test_partial_package_set_ignores_libraries_of_absent_package() -> None:
    package_set = SharedObjects(
        {
            "vllm 0.20.2": [
                extension_module("vllm/_C.abi3.so", needed=("libcudart.so.13", "libgone.so"))
            ]
        },
        partial=True,
    )
    assert linking_findings(package_set, base=False) == []


def test_library_that_was_not_read_is_assumed_to_exist() -> None:
    asks = extension_module("vllm/_C.abi3.so", needed=("libtorch_nvshmem.so",))
    packages = {"vllm 1": [asks], "torch 2.11.0": TORCH}
    unread = {"torch": ("torch/lib/libtorch_nvshmem.so",)}
    assert linking_findings(SharedObjects(packages, unread=unread, partial=True), base=False) == []
    assert len(linking_findings(SharedObjects(packages, partial=True), base=False)) == 1


def test_symbols_of_a_package_that_was_not_read_are_assumed_to_be_defined() -> None:
    package_set = SharedObjects(
        {"torch 2.6.0": [], "a 1": [extension_module("a/_a.abi3.so", undefined=(OLD,))]}
    )
    assert linking_findings(package_set, base=False) == []


@pytest.mark.parametrize("name", ["libc.so.6", "libcuda.so.1", "libnvidia-ml.so.1"])
def test_libraries_of_base_and_driver_are_present(name: str) -> None:
    assert linking_findings(linked(name)) == []


def test_runpath_is_resolved_relative_to_the_installed_file() -> None:
    asks = extension_module(
        "a/sub/_a.abi3.so", needed=("libz.so.9",), runpath=("$ORIGIN/../../other/lib", "/opt")
    )
    located_library = shared_library("b-1.data/purelib/other/lib/libz.so.9")
    assert linking_findings(SharedObjects({"a 1": [asks], "b 1": [located_library]})) == []
    elsewhere = shared_library("b-1.data/purelib/away/lib/libz.so.9")
    assert len(linking_findings(SharedObjects({"a 1": [asks], "b 1": [elsewhere]}))) == 1


def test_package_that_the_metadata_requires_can_provide_libraries() -> None:
    asks = extension_module("a/_a.abi3.so", needed=("libtvm_ffi.so",))
    library_file = shared_library("tvm_ffi/lib/libtvm_ffi.so")
    packages = {"a 1": [asks], "middle 1": [], "apache-tvm-ffi 1": [library_file]}
    requires = {"a": ("middle>=1",), "middle": ("apache_tvm_ffi",)}
    assert linking_findings(SharedObjects(packages, requires=requires)) == []
    assert len(linking_findings(SharedObjects(packages))) == 1


def test_missing_libraries_of_one_file_are_reported_in_one_finding() -> None:
    asks = extension_module(
        "a/_a.abi3.so", needed=("libx.so.1", "liby.so.1"), undefined=("x_start",)
    )
    finding = only(SharedObjects({"a 1": [asks]}))
    assert (
        "libx.so.1, which nothing in the image provides; also missing: liby.so.1" in finding.message
    )


# -- versions


def test_library_that_requires_a_newer_glibc_is_reported() -> None:
    wants = {"libc.so.6": ("GLIBC_2.2.5", "GLIBC_2.38")}
    for base in (True, False):
        finding = only(linked("libc.so.6", required_versions=wants), base=base)
        assert relation(finding)[::2] == (ConflictRelation.ABI, "libc.so.6:GLIBC_2.38")
        assert "(glibc 2.36)" in finding.message


def test_library_that_requires_a_newer_libstdcxx_is_reported() -> None:
    wants = {"libstdc++.so.6": ("GLIBCXX_3.4.29", "GLIBCXX_3.4.32")}
    finding = only(linked("libstdc++.so.6", required_versions=wants))
    assert relation(finding)[2] == "libstdc++.so.6:GLIBCXX_3.4.32"
    assert linking_findings(linked("libstdc++.so.6", required_versions=wants), base=False) == []


def test_missing_symbol_version_of_a_bundled_library_is_reported() -> None:
    wants = {"libnvJitLink.so.12": ("libnvJitLink.so.12.4",)}
    asks = extension_module(
        "vllm/_C.abi3.so", needed=("libnvJitLink.so.12",), required_versions=wants
    )
    for offers, count in (
        ((), 0),
        (("libnvJitLink.so.12.4",), 0),
        (("libnvJitLink.so.12.1",), 1),
    ):
        link = shared_library("nvidia/lib/libnvJitLink.so.12", defined_versions=offers)
        package_set = SharedObjects({"vllm 1": [asks], "nvidia-nvjitlink-cu12 12": [link]})
        assert len(linking_findings(package_set)) == count


# -- numpy


@pytest.mark.parametrize(
    ("numpy", "compiled", "count"), [("2.2.6", 1, 1), ("1.26.4", 1, 0), ("2.2.6", 2, 0)]
)
def test_extension_built_for_numpy_1_is_an_error_with_numpy_2(
    numpy: str, compiled: int, count: int
) -> None:
    asks = extension_module("pandas/_libs.abi3.so", numpy=compiled)
    package_set = SharedObjects(
        {"pandas 2.0.3": [asks], f"numpy {numpy}": []},
        sources={"pandas/__init__.py": "from pandas import _libs"},
    )
    findings = linking_findings(package_set)
    assert len(findings) == count
    for finding in findings:
        assert relation(finding)[:2] == (ConflictRelation.ABI, "numpy")
        assert finding.severity is Severity.ERROR


@pytest.mark.parametrize(
    ("compiled", "severity"),
    [((1, 1, 1, 0), Severity.ERROR), ((1, 1), Severity.NOTE), ((1, 1, 1, 2), Severity.NOTE)],
)
def test_package_built_entirely_for_numpy_1_is_an_error(
    compiled: tuple[int, ...], severity: Severity
) -> None:
    # scikit-image 0.22.0 imports its modules on first use, so its source has no such imports.
    asks = [
        extension_module(f"skimage/_m{at}.so", numpy=numpy_version)
        for at, numpy_version in enumerate(compiled)
    ]
    package_set = SharedObjects({"scikit-image 0.22.0": asks, "numpy 2.2.6": []})
    assert {finding.severity for finding in linking_findings(package_set)} == {severity}


# -- what is on the main path

LACKS = {"needed": ("libgone.so.1",)}


@each_row(
    ("source", "severity"),
    [
        ("from pack import _ext", Severity.ERROR),
        ("from pack.inner import thing", Severity.ERROR),
        ("try:\n    from pack import _ext\nexcept ImportError:\n    _ext = None", Severity.NOTE),
        ("def use():\n    from pack import _ext", Severity.NOTE),
        ("", Severity.NOTE),
    ],
)
def test_undefined_symbol_in_module_imported_with_package_is_an_error(
    source: str, severity: Severity
) -> None:
    inner = "import pack._ext as engine\nthing = engine.thing"
    sources = {"pack/__init__.py": source, "pack/inner.py": inner}
    package_set = SharedObjects(
        {"pack 1": [extension_module("pack/_ext.abi3.so", **LACKS)]}, sources=sources
    )
    assert only(package_set).severity is severity


def test_undefined_symbol_in_main_module_is_an_error() -> None:
    sources = {"pack/__init__.py": "import importlib\nimportlib.import_module('pack')"}
    package_set = SharedObjects(
        {"pack 1": [extension_module("pack/pack.abi3.so", **LACKS)]}, sources=sources
    )
    assert only(package_set).severity is Severity.ERROR


def test_finding_about_a_linked_library_has_the_severity_of_the_linking_module() -> None:
    files = [
        extension_module("pack/_ext.abi3.so", needed=("libone.so",)),
        shared_library("pack/lib/libone.so", needed=("libtwo.so",)),
        shared_library("pack/lib/libtwo.so", **LACKS),
        shared_library("pack/lib/libplugin.so", **LACKS),
    ]
    sources = {"pack/__init__.py": "import pack._ext"}
    findings = linking_findings(SharedObjects({"pack 1": files}, sources=sources))
    assert {finding.where.split("/")[-1]: finding.severity for finding in findings} == {
        "libtwo.so": Severity.ERROR,
        "libplugin.so": Severity.NOTE,
    }


def test_optional_extension_built_for_a_different_torch_is_a_warning() -> None:
    symbol = "_ZNK3c106SymInt16sym_ne_slow_pathERKS0_"
    asks = extension_module("pack/_C.abi3.so", needed=("libc10.so",), undefined=(symbol,))
    guarded = {"pack/__init__.py": "try:\n    import pack._C\nexcept ImportError:\n    pass"}
    findings = linking_findings(
        SharedObjects({"pack 1": [asks], "torch 2.8.0": TORCH}, sources=guarded)
    )
    assert [finding.severity for finding in findings] == [Severity.WARNING]


def test_library_alternative_that_is_not_selected_is_skipped() -> None:
    files = [shared_library("torch_c_dlpack_ext/libaddon_torch24-cuda.so", **LACKS)]
    assert linking_findings(SharedObjects({"torch-c-dlpack-ext 1": files})) == []


def test_extension_modules_for_a_different_python_or_machine_are_skipped() -> None:
    files = [
        extension_module("vllm/_C.cpython-313-x86_64-linux-gnu.so", **LACKS),
        extension_module("vllm/_C.abi3.so", machine="arm64", **LACKS),
    ]
    package_set = SharedObjects({"vllm 1": files})
    assert linking_findings(package_set) == []
    for python in ("3.13", "3.13.2"):
        assert len(linking_findings(SharedObjects({"vllm 1": files}, python=python))) == 1


def test_libraries_of_the_loaded_cuda_variant_must_exist() -> None:
    torch = shared_library("torch/lib/libtorch_cuda.so", needed=("libcudart.so.13",))
    runtime = shared_library("nvidia/cu13/lib/libcudart.so.13")
    other = extension_module("hook_preload_cu12.abi3.so", needed=("libcudart.so.12",))
    plain = extension_module("hook_preload.abi3.so", needed=("libcudart.so.12",))
    ours = extension_module("hook_preload_cu13.abi3.so", needed=("libcudart.so.13",))
    around = {"torch 2.11.0": [torch], "nvidia-cuda-runtime 13.0.96": [runtime]}
    assert linking_findings(SharedObjects({**around, "saver 1": [other, plain, ours]})) == []

    (alone,) = linking_findings(SharedObjects({**around, "saver 1": [plain]}))
    assert relation(alone)[2] == "libcudart.so.12"

    torn = extension_module(ours.file, needed=("libcudart.so.13", "libgone.so.1"))
    (finding,) = linking_findings(SharedObjects({**around, "saver 1": [other, plain, torn]}))
    assert relation(finding)[2] == "libgone.so.1"
    assert finding.severity is Severity.ERROR
