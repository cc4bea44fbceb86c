"""Tests that package sets outside the version ranges that code checks are reported."""

import json
from textwrap import dedent

import pytest

from imgbuild.audit.checks import support
from imgbuild.audit.main_path.closure import Level, MainPath, Reached, main_path
from imgbuild.audit.source import windows
from imgbuild.audit.source.facts import Guard
from imgbuild.report import ConflictRelation, Severity
from tests.support import audited
from tests.support.rows import each_row
from tests.support.source_modules import rules

RANGE = """
import warnings
from packaging.version import Version
_vllm_available, _vllm_version = _is_package_available("vllm", return_version=True)
def is_vllm_available():
    if _vllm_available:
        if not (Version("0.10.2") <= Version(_vllm_version) <= Version("0.11.2")):
            warnings.warn("not supported")
"""
EQUAL = """
from ..version import __version__ as flash_version
def has_cubin():
    return find_spec("cubin") is not None
def get():
    if has_cubin():
        import cubin
        cubin_version = cubin.__version__
        if not os.getenv("NO_CHECK") and flash_version != cubin_version:
            raise RuntimeError("not the same")
"""
LEAST = """
import torch
from packaging import version
if version.parse(torch.__version__) < version.parse("2.6"):
    raise ImportError("too old")
"""
SOME = """
import torch
from packaging.version import Version
def load(fast):
    if fast and Version(torch.__version__) < Version("2.6"):
        raise ImportError("too old")
"""


NESTED = """
import jinja2
from packaging import version
def compile(template):
    if version.parse(jinja2.__version__) < version.parse("3.1"):
        raise ImportError("too old")
    def raise_exception(message):
        raise jinja2.TemplateError(message)
    return raise_exception
"""


def guards(source, module="own.a"):
    return [
        window.guards[-1] for window in windows.read_windows(source.encode(), module, package=False)
    ]


def test_check_for_a_version_range_becomes_a_negated_guard():
    assert guards(RANGE) == [Guard("version", "vllm", "!>=0.10.2,<=0.11.2")]


def test_version_check_in_a_nested_function_has_separate_conditions():
    (window,) = windows.read_windows(NESTED.encode(), "own.a", package=False)
    assert (window.line, window.scope) == (6, "compile")


def test_version_bound_in_a_module_level_condition_is_read():
    (window,) = windows.read_windows(LEAST.encode(), "own.a", package=False)
    assert (window.line, window.outcome, window.name, window.scope) == (
        5,
        "raise",
        "ImportError",
        "",
    )
    assert window.guards == (Guard("version", "torch", "<2.6"),)


def test_check_for_version_equality_is_read():
    assert guards(EQUAL, "flash.jit.env") == [Guard("version", "cubin", "!=@flash")]


def test_condition_on_data_is_kept_as_a_guard_of_the_version_check():
    (window,) = windows.read_windows(SOME.encode(), "own.a", package=False)
    assert [guard.kind for guard in window.guards] == ["data", "version"]


def test_call_of_require_version_is_read_as_a_version_check():
    source = 'require_version("numpy>=1.20,<2")\n'
    assert guards(source) == [Guard("version", "numpy", "!<2,>=1.20")]


def test_assertion_about_a_version_is_read_as_a_version_check():
    source = 'import torch\nassert Version(torch.__version__) >= Version("2.6")\n'
    assert guards(source) == [Guard("version", "torch", "<2.6")]


@each_row(
    "source",
    [
        'import own\nif Version(own.__version__) < Version("2"):\n    raise ImportError\n',
        'import torch\nif Version(torch.__version__) < Version("2"):\n    old = True\n',
        "if version(data) < 2:\n    raise ImportError\n",
        "raise ImportError(  # version.parse\n",
    ],
)
def test_other_statements_are_not_version_checks(source):
    assert guards(source) == []


def support_findings(tmp_path, packages, reached=(), partial=False):
    package_set = audited.package_set(tmp_path, packages, partial=partial)
    modules = {
        module for package in package_set.packages for module in package_set.modules_of(package)
    }
    level = {(module, runner): Reached(Level.CERTAIN, "own.main") for module, runner in reached}
    return support.check_support(package_set, MainPath(level, modules))


def package_files(source):
    return {"own/__init__.py": "", "own/a.py": source}


def test_version_check_that_raises_on_the_main_path_is_an_error(tmp_path):
    packages = {"own==1": package_files(LEAST), "torch==2.5.1": {"torch/__init__.py": ""}}
    (finding,) = support_findings(tmp_path, packages, [("own.a", "")])
    assert finding.severity is Severity.ERROR
    assert finding.where == "own 1 own/a.py:5"
    assert finding.evidence.relation is ConflictRelation.WINDOW
    assert (finding.evidence.other, finding.evidence.spec) == ("torch", ">=2.6")
    assert "raises ImportError when it is imported with torch 2.5.1" in finding.message


def test_version_check_that_raises_on_a_rare_path_is_a_note(tmp_path):
    packages = {"own==1": package_files(LEAST), "torch==2.5.1": {"torch/__init__.py": ""}}
    assert [finding.severity for finding in support_findings(tmp_path, packages)] == [Severity.NOTE]


def test_version_check_that_raises_only_for_some_data_is_a_note(tmp_path):
    packages = {"own==1": package_files(SOME), "torch==2.5.1": {"torch/__init__.py": ""}}
    (finding,) = support_findings(tmp_path, packages, [("own.a", "load")])
    assert finding.severity is Severity.NOTE
    assert "in some cases" in finding.message


@pytest.mark.parametrize(
    ("calls", "severity"), [("", Severity.NOTE), (".convert()", Severity.ERROR)]
)
def test_uncalled_method_that_raises_is_not_an_error(tmp_path, calls, severity):
    source = """
        import torch
        from packaging.version import Version
        class Data:
            def convert(self):
                assert Version(torch.__version__) >= Version("2.6")
        def main():
            data = Data()
            data{}
    """
    files = package_files(dedent(source).format(calls))
    package_set = audited.package_set(
        tmp_path, {"own==1": files, "torch==2.5.1": {"torch/__init__.py": ""}}
    )
    (finding,) = support.check_support(
        package_set, main_path(package_set, rules("own.a.main", walk=("own",)))
    )
    assert finding.severity is severity


def test_version_check_that_passes_has_no_findings(tmp_path):
    packages = {"own==1": package_files(LEAST), "torch==2.6.0+cu124": {"torch/__init__.py": ""}}
    assert support_findings(tmp_path, packages, [("own.a", "")]) == []


def test_version_check_whose_exception_is_caught_is_not_reported(tmp_path):
    body = "".join(f"    {line}\n" for line in LEAST.splitlines())
    packages = {
        "own==1": package_files(f"try:\n{body}except ImportError:\n    pass\n"),
        "torch==2.5.1": {"torch/__init__.py": ""},
    }
    assert support_findings(tmp_path, packages, [("own.a", "")]) == []


@each_row(
    ("version", "severities"),
    [("0.8.5", [Severity.WARNING]), ("0.10.2", []), ("0.11.2", []), ("0.12.0", [Severity.WARNING])],
)
def test_unsupported_version_that_logs_a_warning_is_a_warning(tmp_path, version, severities):
    packages = {"own==1": package_files(RANGE), f"vllm=={version}": {"vllm/__init__.py": ""}}
    findings = support_findings(tmp_path, packages, [("own.a", "is_vllm_available")])
    assert [finding.severity for finding in findings] == severities
    assert all(finding.evidence.spec == "<=0.11.2,>=0.10.2" for finding in findings)


@pytest.mark.parametrize(("version", "count"), [("0.6.8", 1), ("0.6.10", 0)])
def test_packages_that_must_have_equal_versions_are_compared(tmp_path, version, count):
    flash = {
        "flash/__init__.py": "",
        "flash/version.py": "",
        "flash/jit/__init__.py": "",
        "flash/jit/env.py": EQUAL,
    }
    packages = {"flash==0.6.10": flash, f"cubin=={version}": {"cubin/__init__.py": ""}}
    findings = support_findings(tmp_path, packages, [("flash.jit.env", "get")])
    assert [(finding.severity, finding.evidence.spec) for finding in findings] == (
        [(Severity.ERROR, "==0.6.10")] * count
    )


TABLE = {
    "own/__init__.py": "",
    "own/dependency_versions_table.py": 'deps = {\n    "hub": "hub>=0.30,<1.0",\n    "x": "x"}\n',
    "own/dependency_versions_check.py": 'pkgs_to_check_at_runtime = ["hub", "python"]\n',
}


def test_dependency_table_that_is_checked_at_import_is_read(tmp_path):
    (finding,) = support_findings(tmp_path, {"own==1": TABLE, "hub==1.3": {}})
    assert finding.severity is Severity.ERROR
    assert finding.where == "own 1 own/dependency_versions_table.py:2"
    assert finding.evidence.spec == "<1.0,>=0.30"
    assert support_findings(tmp_path / "new", {"own==1": TABLE, "hub==0.36": {}}) == []


@pytest.mark.parametrize(("least", "count"), [("LEAST", 0), ('"0.26.0"', 1), ("None", 1)])
def test_package_below_the_minimum_version_of_its_availability_test_is_not_checked(
    tmp_path, least, count
):
    predicate = f"def is_accelerate_available(min_version: str = {least}) -> bool:\n    ...\n"
    package = {
        "own/__init__.py": "",
        "own/dependency_versions_table.py": 'deps = {"accelerate": "accelerate>=1.1.0"}\n',
        "own/dependency_versions_check.py": 'pkgs_to_check_at_runtime = ["accelerate"]\n',
        "own/utils/import_utils.py": f'LEAST = "1.1.0"\n{predicate}',
    }
    assert len(support_findings(tmp_path, {"own==1": package, "accelerate==0.32.0": {}})) == count


def test_missing_package_of_a_dependency_table_is_an_error_in_a_complete_set(tmp_path):
    (finding,) = support_findings(tmp_path, {"own==1": TABLE})
    assert "hub is not installed" in finding.message
    assert support_findings(tmp_path / "2", {"own==1": TABLE}, partial=True) == []


@pytest.mark.parametrize(("torch", "count"), [("2.7.0", 1), ("2.6.0+cu126", 0)])
def test_operators_built_for_a_different_torch_are_reported(tmp_path, torch, count):
    note = {"xformers/cpp_lib.json": json.dumps({"version": {"torch": "2.6.0+cu124"}})}
    findings = support_findings(tmp_path, {"xformers==0.0.29": note, f"torch=={torch}": {}})
    assert [finding.severity for finding in findings] == [Severity.WARNING] * count


def test_invalid_requirement_is_ignored(tmp_path):
    """No finding without a pin of torch: with the pin, this version is intended."""
    note = {"xformers/cpp_lib.json": json.dumps({"version": {"torch": "2.6.0+cu124"}})}
    pins: dict[str, audited.Files] = {"xformers==0.0.29": note, "torch==2.7.0": {}}
    bad = "Requires-Dist: !!\n"
    for more, count in (("", 1), ("Requires-Dist: torch>=2.7\n", 0)):
        folder = tmp_path / str(count)
        package_set = audited.package_set(folder, pins, metadata={"xformers==0.0.29": bad + more})
        assert len(support.check_support(package_set, main_path(package_set))) == count


@pytest.mark.parametrize(("torch", "count"), [("2.7.0", 1), ("2.6.1", 0)])
def test_torch_version_in_the_local_version_of_a_wheel_is_checked(tmp_path, torch, count):
    pins: dict[str, audited.Files] = {
        "flashinfer-python==0.2.5+cu124torch2.6": {},
        f"torch=={torch}": {},
    }
    findings = support_findings(tmp_path, pins)
    assert [(finding.severity, finding.evidence.spec) for finding in findings] == (
        [(Severity.ERROR, "==2.6.*")] * count
    )


@pytest.mark.parametrize(("runtime", "count"), [("12.9.79", 1), ("12.4.127", 0)])
def test_bitsandbytes_without_library_for_cuda_release_is_reported(tmp_path, runtime, count):
    files = {f"bitsandbytes/libbitsandbytes_cuda{cuda}.so": b"" for cuda in (118, 124)}
    pins = {"bitsandbytes==0.46.0": files, f"nvidia-cuda-runtime-cu12=={runtime}": {}}
    findings = support_findings(tmp_path, pins)
    assert len(findings) == count
    assert all("not for 129" in finding.message for finding in findings)
