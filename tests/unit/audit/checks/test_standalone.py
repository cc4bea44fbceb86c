"""Tests findings about libraries that the files of a standalone Python cannot load."""

from __future__ import annotations

import pytest

from imgbuild.audit import judge
from imgbuild.audit.checks import standalone
from imgbuild.audit.packages.base import libraries_loaded_first
from imgbuild.audit.source.facts import ElfFacts
from imgbuild.matrix.accepted import Waiver
from imgbuild.report import ConflictRelation, Finding, Severity
from tests.support.shared_objects import BASE, SharedObjects, extension_module, shared_library

LIBPYTHON = shared_library("lib/libpython3.12.so.1.0", needed=("libc.so.6",))
PROGRAM = shared_library(
    "bin/python3.12", soname="", needed=("libpython3.12.so.1.0",), runpath=("$ORIGIN/../lib",)
)
FOLDER = "lib/python3.12/lib-dynload"
SUFFIX = ".cpython-312-x86_64-linux-gnu.so"
SQLITE = extension_module(
    f"{FOLDER}/_sqlite3{SUFFIX}", needed=("libsqlite3.so.0", "libpython3.12.so.1.0", "libc.so.6")
)


def findings(*modules: ElfFacts, base: tuple[ElfFacts, ...] = BASE) -> list[Finding]:
    interpreter = [PROGRAM, LIBPYTHON, *modules]
    package_set = SharedObjects({}, python="3.12")
    return standalone.check_standalone_python(
        package_set, [*base, *libraries_loaded_first(interpreter, "3.12")], interpreter
    )


def test_missing_library_of_a_standalone_python_module_is_an_error() -> None:
    (finding,) = findings(SQLITE)
    assert finding.severity is Severity.ERROR
    assert finding.message == (
        f"CPython 3.12: {SQLITE.file} is linked to libsqlite3.so.0, which neither its archive nor"
        " the base provides"
    )
    assert finding.remedy == (
        "add the Debian package libsqlite3-0, which has libsqlite3.so.0, to the base"
    )
    assert finding.evidence is not None
    assert finding.evidence.relation is ConflictRelation.LIBRARY
    assert finding.evidence.subject == "libsqlite3.so.0"


def test_library_of_a_standalone_python_that_is_found_is_not_reported() -> None:
    assert findings(SQLITE, base=(*BASE, shared_library("usr/lib/libsqlite3.so.0"))) == []
    bundled = shared_library("lib/libsqlite3.so.0", needed=("libc.so.6",))
    own = extension_module(SQLITE.file, needed=SQLITE.needed, runpath=("$ORIGIN/../..",))
    assert findings(own, bundled) == []
    # The dynamic linker searches neither the interpreter's RUNPATH nor the archive for others.
    (finding,) = findings(SQLITE, bundled)
    assert finding.evidence is not None
    assert finding.evidence.file == SQLITE.file


def test_library_search_path_is_resolved_from_the_folder_of_the_file() -> None:
    """python-build-standalone writes such paths into lib/libpython3.so and its programs."""
    path = "$ORIGIN/../lib/libpython3.12.so.1.0"
    assert findings(shared_library("lib/libpython3.so", needed=(path,))) == []
    (finding,) = findings(shared_library("lib/other/libpython3.so", needed=(path,)))
    assert finding.evidence is not None
    assert finding.evidence.subject == path
    program = shared_library(
        "bin/python3.12", soname="", needed=("${ORIGIN}/../lib/libpython3.12.so.1.0",)
    )
    assert libraries_loaded_first([program, LIBPYTHON], "3.12") == [program, LIBPYTHON]


def test_finding_about_a_missing_library_lists_all_files_that_need_the_library() -> None:
    files = [f"{FOLDER}/{name}{SUFFIX}" for name in ("_hashlib", "_ssl")]
    (finding,) = findings(*(extension_module(file, needed=("libmissing.so.1",)) for file in files))
    assert f"{files[0]}, {files[1]} are linked to libmissing.so.1" in finding.message
    assert finding.remedy == "add libmissing.so.1 to the base"


@pytest.mark.parametrize(
    ("library_name", "version"), [("libc.so.6", "GLIBC_2.38"), ("libstdc++.so.6", "GLIBCXX_3.4.32")]
)
def test_standalone_python_that_needs_a_newer_symbol_version_is_an_error(
    library_name: str, version: str
) -> None:
    required = {library_name: (version,)}
    file = extension_module(
        f"{FOLDER}/_new{SUFFIX}", needed=(library_name,), required_versions=required
    )
    (finding,) = findings(file)
    assert finding.severity is Severity.ERROR
    assert f"linked to version {version} of {library_name}" in finding.message
    assert finding.evidence is not None
    assert finding.evidence.relation is ConflictRelation.ABI


def test_library_finding_of_a_standalone_python_is_reported_and_can_be_waived() -> None:
    package_set = SharedObjects({}, python="3.12")
    interpreter = [PROGRAM, LIBPYTHON, SQLITE]
    waiver = Waiver(check="elf", package="cpython", subject="libsqlite3*", reason="no database")
    reports = [
        judge.audit_package_set(
            package_set,
            judge.AuditTerms(waivers=waivers),
            libraries=lambda: [*BASE, LIBPYTHON],
            interpreter=lambda: interpreter,
            checks=("elf",),
        )
        for waivers in ((), (waiver,))
    ]
    severities = [[finding.severity for finding in report.findings] for report in reports]
    assert severities == [[Severity.ERROR], [Severity.NOTE]]
