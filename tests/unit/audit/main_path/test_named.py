"""Packages that the user names must be importable."""

from __future__ import annotations

from pathlib import Path

from imgbuild.audit.judge import Terms, audit
from imgbuild.audit.main_path import policy
from imgbuild.audit.main_path.named import with_named
from imgbuild.report import Severity
from tests.support import audited

PACKAGES = {
    "helper==1.0": {"helper.py": "VALUE = 42\n"},
    "gadget==1.0": {
        "gadget/__init__.py": "from gadget.core import look\n",
        "gadget/core.py": "from helper import GONE\ndef look(): ...\n",
        "tests/__init__.py": "",
        "_gadget.py": "",
    },
}


def test_named_packages_are_entry_points_and_followed(tmp_path: Path) -> None:
    package_set = audited.package_set(tmp_path, PACKAGES)
    rules = with_named(package_set, ["gadget"])
    assert {entry.name for entry in rules.entries} - {e.name for e in policy.load().entries} == {
        "gadget"
    }
    assert rules.walk == policy.load().walk
    assert rules.imported == {"gadget"}
    assert with_named(package_set, []) == policy.load()


def test_a_named_package_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    package_set = audited.package_set(tmp_path, PACKAGES)
    plain = audit(package_set, Terms(), checks=["imports"])
    assert not [one for one in plain.findings if one.severity is Severity.ERROR]
    report = audit(package_set, Terms(named=("gadget",)), checks=["imports"])
    (error,) = [one for one in report.findings if one.severity is Severity.ERROR]
    assert "GONE" in error.message
    assert error.where.endswith("gadget/core.py:1")


def test_only_what_runs_on_import_is_followed_in_a_named_package(tmp_path: Path) -> None:
    source = (
        "import helper\ndef start():\n    helper.GONE\ndef later():\n    helper.LATER\nstart()\n"
    )
    packages = {"helper==1.0": {"helper.py": ""}, "gadget==1.0": {"gadget.py": source}}
    report = audit(
        audited.package_set(tmp_path, packages), Terms(named=("gadget",)), checks=["calls"]
    )
    assert [one.evidence.subject for one in report.findings if one.evidence] == ["helper:GONE"]
