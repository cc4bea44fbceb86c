"""Tests findings about extension modules that a wheel has only for other versions of Python."""

from __future__ import annotations

import pytest

from imgbuild.audit.checks import imports, other_python
from imgbuild.audit.main_path.closure import main_path
from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.package_set import PackageSet, open_package_set
from imgbuild.cache.store import Store
from imgbuild.report import ConflictRelation, Severity
from imgbuild.values import Arch
from tests.support import audited
from tests.support.rows import each_row
from tests.support.source_modules import rules

BUILD = "cpython-312-x86_64-linux-gnu.so"
GUARDED = "try:\n    from user.part import run\nexcept ImportError:\n    run = None\n"


def package(**sources: str) -> dict[str, audited.Files]:
    """Return the package `user` with `user.part._C` for Python 3.12.

    In a keyword, "__" is a slash.
    """
    files: dict[str, str | bytes] = {f"user/part/_C.{BUILD}": b"\0"}
    files |= {"user/__init__.py": "", "user/part/__init__.py": "def run(): ...\n"}
    files |= {f"user/{name.replace('__', '/')}.py": text for name, text in sources.items()}
    return {"user==1.0": files}


def check(package_set: PackageSet, *entries: str):
    return other_python.check_other_python(
        package_set, main_path(package_set, rules(*(entries or ("user",))))
    )


def severities(tmp_path, source, *entries, **more):
    findings = check(audited.package_set(tmp_path, package(use=source), **more), *entries)
    return [finding.severity for finding in findings]


def parts(init, part):
    files = dict(package()["user==1.0"])
    return {"user==1.0": {**files, "user/__init__.py": init, "user/part/__init__.py": part}}


def test_module_built_for_another_python_is_an_error_on_the_main_path(tmp_path):
    packages = parts("from user.part import run\n", "import os\nfrom . import _C\n")
    (finding,) = check(audited.package_set(tmp_path, packages))
    assert finding.severity is Severity.ERROR
    assert finding.check == "imports"
    assert finding.where == "user 1.0 user/part/__init__.py:2"
    assert finding.message == (
        "user 1.0 imports user.part._C, which its wheel contains only for Python 3.12;"
        " this package set has Python 3.11 (used by user)"
    )
    assert finding.remedy == "choose another version of user, or a base with a different Python"
    assert finding.evidence.relation is ConflictRelation.MODULE
    assert (finding.evidence.subject, finding.evidence.other) == ("user.part._C", "")


def test_optional_module_built_for_another_python_is_a_warning(tmp_path):
    packages = parts(GUARDED, "from . import _C\nfrom ._C import run\n")
    (finding,) = check(audited.package_set(tmp_path, packages))
    assert finding.severity is Severity.WARNING
    assert finding.where == "user 1.0 user/part/__init__.py:1"


def test_module_for_another_python_imported_by_string_is_a_warning(tmp_path):
    by_name = "import importlib\nfound = importlib.import_module('user.part')\n"
    packages = parts(by_name, "from . import _C\n")
    (finding,) = check(audited.package_set(tmp_path, packages))
    assert finding.severity is Severity.WARNING


@each_row(
    "source",
    [
        "from user.part import _C\n",
        "from .part import _C as c\n",
        "import user.part._C\n",
        "from user.part._C import f\n",
        "from user.part._C.inner import f\n",
        "def later():\n    from user.part import _C\n",
        "try:\n    from user.part import _C\nexcept ModuleNotFoundError:\n    pass\n",
        "import odd\nif odd.unknown():\n    from user.part import _C\n",
    ],
)
def test_module_for_another_python_imported_off_the_main_path_is_a_warning(tmp_path, source):
    assert severities(tmp_path, source) == [Severity.WARNING]


def test_module_for_another_python_imported_in_a_main_path_function_is_an_error(tmp_path):
    source = "def later():\n    from user.part import _C\n"
    assert severities(tmp_path, source, "user.use.later") == [Severity.ERROR]


@pytest.mark.parametrize("caught", ["ImportError", "Exception"])
def test_module_for_another_python_imported_with_a_fallback_is_a_note(tmp_path, caught):
    source = f"try:\n    from user.part import _C\nexcept {caught}:\n    _C = None\n"
    assert severities(tmp_path, source, "user.use") == [Severity.NOTE]


@each_row(
    "source",
    [
        "import sys\nif sys.version_info >= (3, 12):\n    from user.part import _C\n",
        "import sys\nif sys.platform == 'win32':\n    from user.part import _C\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from user.part import _C\n",
        "from user.part import run\nimport user._C\nimport other._C\n",
        "# from user.part import _C\n",
    ],
)
def test_imports_that_are_unreached_or_unrelated_are_not_reported(tmp_path, source):
    assert severities(tmp_path, source, "user.use") == []


@pytest.mark.parametrize("python", ["3.12", "3.12.4"])
def test_extension_module_built_for_this_python_is_not_reported(tmp_path, python):
    assert severities(tmp_path, "from user.part import _C\n", "user.use", python=python) == []


@each_row("other", ["_C.abi3.so", "_C.so", "_C.py", "_C/__init__.py"])
def test_module_that_also_has_a_build_or_source_for_this_python_is_not_reported(tmp_path, other):
    source_files = package(use="from user.part import _C\n")["user==1.0"]
    files: audited.Files = {**source_files, f"user/part/{other}": ""}
    assert check(audited.package_set(tmp_path, {"user==1.0": files}), "user.use") == []


@pytest.mark.parametrize("caught", [(False, Severity.ERROR), (True, Severity.NOTE)])
def test_entry_point_in_an_extension_module_for_another_python_is_reported(tmp_path, caught):
    guarded, severity = caught
    line = "import user.part._C\n"
    source = f"try:\n    {line}except ModuleNotFoundError:\n    pass\n" if guarded else line
    assert severities(tmp_path, source, "user.use") == [severity]


def test_source_file_that_only_this_python_uses_is_read(tmp_path):
    files = dict(package(use="from user.part import _C\n")["user==1.0"])
    twin: audited.Files = {**files, f"user/use.{BUILD}": b"\0"}
    (finding,) = check(audited.package_set(tmp_path, {"user==1.0": twin}), "user.use")
    assert finding.where == "user 1.0 user/use.py:1"


def test_top_level_extension_module_for_another_python_is_reported(tmp_path):
    files: audited.Files = {
        "user/__init__.py": "from _user import _C\n",
        "_user/__init__.py": "",
        f"_user/_C.{BUILD}": b"\0",
    }
    (finding,) = check(audited.package_set(tmp_path, {"user==1.0": files}))
    assert (finding.severity, finding.evidence.subject) == (Severity.ERROR, "_user._C")


@pytest.mark.parametrize("line", ["from lib import _C\n", "import lib._C\n"])
def test_module_built_for_another_python_is_not_reported_as_removed(tmp_path, line):
    packages: dict[str, audited.Files] = {
        "user==1.0": {"user/__init__.py": line},
        "lib==2.0": {"lib/__init__.py": "", f"lib/_C.{BUILD}": b"\0"},
    }
    package_set = audited.package_set(tmp_path, packages)
    (finding,) = imports.check_imports(package_set, main_path(package_set, rules("user")))
    assert finding.severity is Severity.ERROR
    assert "imports lib._C, which its wheel contains only for Python 3.12" in finding.message
    assert finding.evidence is not None
    assert (finding.evidence.subject, finding.evidence.other) == ("lib._C", "")
    assert check(package_set) == []


def test_library_files_loaded_by_path_are_not_reported(tmp_path):
    source = """
    from pathlib import Path
    import torch
    for file in Path(__file__).parent.glob("_C*.so"):
        torch.ops.load_library(str(file))
    from . import ops
    """
    files: audited.Files = {
        "torchao/__init__.py": "\n".join(line[4:] for line in source.splitlines()),
        "torchao/ops.py": "def f():\n    return torch.ops.torchao._C_mxfp8.f()\n",
        f"torchao/_C_mxfp8.{BUILD}": b"\0",
    }
    package_set = audited.package_set(tmp_path, {"torchao==0.17.0": files}, partial=True)
    assert check(package_set, "torchao") == []
    assert package_set.exists("torchao._C_mxfp8") is False


@pytest.mark.parametrize("folder", ["tests", "benchmarks"])
def test_modules_of_tests_and_benchmarks_are_not_reported(tmp_path, folder):
    sources = {f"{folder}__use": "from user.part import _C\n", f"{folder}____init__": ""}
    assert check(audited.package_set(tmp_path, package(**sources))) == []


@pytest.mark.parametrize(
    ("part", "count"),
    [
        ("import user.loader\n_C = user.loader.load()\nfrom . import _C\n", 0),
        ("import user.loader\nfrom . import _C\n_C = user.loader.load()\n", 1),
        ("def __getattr__(name):\n    return load(name)\nfrom . import _C\n", 0),
    ],
)
def test_module_name_bound_by_the_importing_module_is_not_reported(tmp_path, part, count):
    packages = parts("from user import part\n", part)
    assert len(check(audited.package_set(tmp_path, packages))) == count


@pytest.mark.parametrize(
    "part",
    [
        "import user.loader\n_C = user.loader.load()\n",
        "def __getattr__(name):\n    return load(name)\n",
    ],
)
def test_module_name_bound_elsewhere_in_the_package_is_not_reported(tmp_path, part):
    packages = package(use="from user.part import _C\n")
    files = {**packages["user==1.0"], "user/part/__init__.py": part}
    assert check(audited.package_set(tmp_path, {"user==1.0": files}), "user.use") == []


def test_module_that_may_be_added_to_sys_modules_is_not_reported(tmp_path):
    packages = package(use="import user.part._C\n")
    part = "import sys\nfrom user import loader\nsys.modules['user.part._C'] = loader.load()\n"
    files = {**packages["user==1.0"], "user/part/__init__.py": part}
    assert check(audited.package_set(tmp_path, {"user==1.0": files}), "user.use") == []


def test_module_provided_by_another_package_is_not_reported(tmp_path):
    packages = package(use="from user.part import _C\n")
    other: dict[str, audited.Files] = {"user-parts==1.0": {"user/part/_C.abi3.so": b"\0"}}
    assert check(audited.package_set(tmp_path, {**packages, **other}), "user.use") == []


def test_top_level_module_built_for_several_other_pythons_is_reported(tmp_path):
    files: audited.Files = {
        "user/__init__.py": "import _back\nimport _back\n",
        **{f"_back.cpython-{python}-x86_64-linux-gnu.so": b"\0" for python in ("310", "312")},
    }
    (finding,) = check(audited.package_set(tmp_path, {"user==1.0": files}))
    assert finding.severity is Severity.ERROR
    assert "contains only for Python 3.10 and 3.12" in finding.message


def test_incompatible_wheel_is_reported_only_by_the_metadata_check(tmp_path):
    files = package(use="from user.part import _C\n")["user==1.0"]
    wheel, path = audited.wheel(tmp_path, "user", "1.0", files)
    for file, count in ((wheel.file, 1), ("user-1.0-cp312-cp312-manylinux_2_28_x86_64.whl", 0)):
        package_set = open_package_set(
            [audited.with_changes(wheel, file=file)],
            Library(Store.open(tmp_path / "cache"), processes=1),
            python="3.11",
            arch=Arch.X86_64,
            glibc="2.36",
            locate=lambda _: path,
        )
        assert len(check(package_set, "user.use")) == count
