"""Tests lab/oracle_probe.py on real folders of packages."""

import pytest

import oracle_probe

USER = b"""\
from library import name
"""
LIBRARY = b"""\
def name(first, *, second=1): ...
def any_keyword(**all): ...
class Thing:
    part = 1
"""

pytestmark = pytest.mark.long  # lab/ is not part of the product


def _installed(folder, **files):
    site = folder / "site"
    for name, content in files.items():
        path = site / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return oracle_probe.SetProbe(folder, [site], folder / "bytecode")


def test_import_of_a_working_module_has_no_failure(tmp_path):
    probe = _installed(tmp_path, user=USER, library=LIBRARY)
    assert probe.run_query(modules=["user"], names=["library.Thing.part"])["failures"] == []


def test_import_failure_has_an_error_message_and_line_numbers(tmp_path):
    probe = _installed(tmp_path, user=b"\n" + USER, library=b"")
    (failure,) = probe.run_query(modules=["user"])["failures"]
    assert failure["name"] == "user"
    assert failure["error"].startswith("ImportError: cannot import name 'name' from 'library'")
    assert failure["trace"] == ["user.py:2"]


def test_use_of_a_removed_name_is_a_failure(tmp_path):
    probe = _installed(tmp_path, library=LIBRARY)
    (failure,) = probe.run_query(names=["library.Thing.gone"])["failures"]
    assert failure["error"].startswith("AttributeError: type object 'Thing' has no")


def test_crashed_process_is_an_import_failure(tmp_path):
    probe = _installed(tmp_path, fine=b"", dies=b"import os; os.abort()")
    (failure,) = probe.run_query(modules=["fine", "dies"])["failures"]
    assert (failure["name"], failure["error"]) == ("dies", "exit status -6")


def test_library_that_cannot_be_loaded_is_a_failure(tmp_path):
    library = tmp_path / "broken.so"
    library.write_bytes(b"not ELF")
    (failure,) = _installed(tmp_path, fine=b"").run_query(libraries=[str(library)])["failures"]
    assert failure["name"] == str(library)


@pytest.mark.parametrize(
    ("relation", "subject", "expected"),
    [
        ("name", "library:name", "refuted"),
        ("name", "library:gone", "holds"),
        ("name", "broken:name", "unknown"),
        ("module", "library", "refuted"),
        ("module", "library.gone", "holds"),
        ("attribute", "library.Thing.part", "refuted"),
        ("attribute", "library.Thing.gone", "holds"),
        ("keyword", "library.name(second)", "refuted"),
        ("keyword", "library.name(third)", "holds"),
        ("keyword", "library.any_keyword(third)", "refuted"),
        ("argument", "library.name(first)", "holds"),
        ("argument", "library.name(second)", "refuted"),
        ("argument", "library.name(1)", "holds"),
        ("argument", "library.name(2)", "refuted"),
        ("window", "library<1", "unknown"),
    ],
)
def test_claims_of_the_audit_are_checked_in_the_installed_packages(
    tmp_path, relation, subject, expected
):
    probe = _installed(tmp_path, library=LIBRARY, broken=b"1 / 0")
    assert probe.run_query(facts=[{"relation": relation, "subject": subject}])["facts"] == [
        expected
    ]
