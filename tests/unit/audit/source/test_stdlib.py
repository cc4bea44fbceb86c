"""Compares the table of the standard library with the Python that runs the tests."""

from __future__ import annotations

import importlib
import sys
import warnings

from packaging.specifiers import SpecifierSet

from imgbuild.audit.checks.findings import missing_package_remedy
from imgbuild.audit.source import stdlib
from imgbuild.audit.source.facts import OpaqueModule
from imgbuild.matrix.load import load_matrix
from tests.support.rows import each_row
from tests.support.source_code import ROOT

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
TABLE = stdlib.load_standard_library()
WITH_TK = ("idlelib", "tkinter", "turtle", "turtledemo")  # Debian has them in packages of their own


def name_availability(names: dict[str, str]) -> list[tuple[str, bool]]:
    return [
        (name, SpecifierSet(spec).contains(HERE))
        for spec, listed in names.items()
        for name in listed.split()
    ]


def imported(module: str) -> object | None:
    """Import a module. Returns None if it cannot be imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(module)
        except ImportError:
            return None


@each_row("module", sorted(TABLE.names))
def test_table_of_standard_library_names_matches_the_running_python(module):
    holder = imported(module)
    if holder is None:
        assert module.partition(".")[0] in WITH_TK
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = [
            name
            for name, there in name_availability(TABLE.names[module])
            if there != (hasattr(holder, name) or imported(f"{module}.{name}") is not None)
        ]
    assert wrong == []


@each_row("module", sorted(TABLE.subscripts))
def test_table_of_subscriptable_classes_matches_the_running_python(module):
    holder = imported(module)
    if holder is None:
        assert module.partition(".")[0] in WITH_TK
        return
    wrong = [
        name
        for name, there in name_availability(TABLE.subscripts[module])
        if there != hasattr(getattr(holder, name), "__class_getitem__")
    ]
    assert wrong == []


def test_table_of_standard_library_modules_matches_the_running_python():
    wrong = [
        name
        for name, there in name_availability(TABLE.modules)
        if there != (name in sys.stdlib_module_names)
    ]
    assert wrong == []


@each_row(
    ("python", "there", "gone"),
    [
        ("3.10", {"binhex", "imp", "cgi"}, {"tomllib", "annotationlib"}),
        ("3.11", {"tomllib", "imp", "cgi"}, {"binhex"}),
        ("3.12", {"tomllib", "cgi"}, {"imp", "asyncore"}),
        ("3.13", {"tomllib", "json"}, {"cgi", "pipes", "annotationlib"}),
        ("3.14", {"annotationlib", "compression"}, {"imp"}),
    ],
)
def test_standard_library_modules_of_a_different_python_are_known(python, there, gone):
    assert there <= stdlib.stdlib_modules(python)
    assert not gone & stdlib.stdlib_modules(python)


@each_row(
    ("module", "having"),
    [
        ("tomllib", "Python 3.11 or newer"),
        ("annotationlib", "Python 3.14 or newer"),
        ("distutils", "Python 3.11 or older"),
        ("cgi", "Python 3.12 or older"),
        ("json", ""),
        ("wandb", ""),
    ],
)
def test_remedy_for_a_missing_module_names_the_python_versions_that_have_the_module(
    module: str, having: str
) -> None:
    assert stdlib.pythons_with_module(module) == having
    add = f"add the package that provides {module}"
    add = "add setuptools (it provides distutils)" if module == "distutils" else add
    use = f"use {having}, whose standard library has {module}, or " if having else ""
    assert missing_package_remedy(module) == use + add


@each_row(
    ("module", "name", "lacking"),
    [
        ("typing", "override", {"3.10", "3.11"}),
        ("warnings", "deprecated", {"3.10", "3.11", "3.12"}),
        ("inspect", "getargspec", {"3.11", "3.12", "3.13", "3.14"}),
        ("pkgutil", "ImpImporter", {"3.12", "3.13", "3.14"}),
        ("array", "array.__class_getitem__", {"3.10", "3.11"}),
        ("typing", "List", set()),
        ("typing", "no_such_name", set()),
    ],
)
def test_python_versions_without_a_standard_library_name_are_listed(module, name, lacking):
    versions = [f"3.{minor}" for minor in range(10, 15)]
    lacking_versions = {
        version for version in versions if name in stdlib.missing_names(version).get(module, ())
    }
    assert lacking_versions == lacking


def test_standard_library_submodule_is_looked_up_by_python_version():
    assert stdlib.opaque_module("importlib.resources.abc", "3.10") is None
    assert stdlib.opaque_module("importlib.resources.abc", "3.11") is not None
    assert stdlib.opaque_module("json.tool", "3.11") == OpaqueModule("json.tool", "stdlib")


def test_standard_library_table_covers_the_python_versions_of_all_bases():
    pythons = {base.python for base in load_matrix(ROOT / "matrix.yaml").bases.values()}
    standalone = {"3.10", "3.12"}  # docs/howto/python-version.md lists what was run with them
    assert set(stdlib.SUPPORTED_PYTHONS) == pythons | standalone


def test_remedy_for_a_missing_module_names_a_package_with_another_name() -> None:
    assert missing_package_remedy("yaml") == "add pyyaml (it provides yaml)"
