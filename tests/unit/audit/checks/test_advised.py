"""Tests findings about extras that an import error recommends to install."""

from __future__ import annotations

import pytest

from imgbuild.audit import judge
from imgbuild.audit.judge import AuditTerms
from imgbuild.report import Severity
from tests.support import audited
from tests.support.rows import each_row

PART = """try:
    from cluster.serve.api import run
except {}:
    {}
"""
ADDS = (
    "ModuleNotFoundError as e",
    ("e.msg += '. You can run `pip install \"cluster[serve]\"` to install it.'\n    raise e"),
)
RAISES = "ImportError", "raise ImportError('run: pip install -U cluster[serve]')"
METADATA = (
    "Provides-Extra: serve\nRequires-Dist: reflect>=1.0; extra == 'serve'\n"
    "Requires-Dist: fastweb; extra == 'serve'\n"
)


def _findings(tmp_path, part, *, named=("cluster",), installed=("fastweb==2.0",), **more):
    packages = {
        "cluster==2.60.0": {"cluster/__init__.py": "", "cluster/serve/__init__.py": part},
        **{pin: {f"{pin.partition('=')[0]}/__init__.py": ""} for pin in installed},
    }
    metadata = {"cluster==2.60.0": METADATA}
    package_set = audited.package_set(tmp_path, packages, metadata=metadata, **more)
    return judge.audit_package_set(
        package_set, AuditTerms(named=named), checks=["metadata"]
    ).findings


@pytest.mark.parametrize("handler", [ADDS, RAISES, ("(ImportError, OSError)", RAISES[1])])
def test_module_that_imports_from_an_incomplete_extra_is_a_warning(tmp_path, handler):
    (finding,) = _findings(tmp_path, PART.format(*handler))
    assert finding.severity is Severity.WARNING
    assert finding.where == "cluster 2.60.0 cluster/serve/__init__.py:3"
    text = "requires cluster[serve] for cluster.serve, but reflect is not in this package set"
    assert text in finding.message
    assert finding.remedy == "if cluster.serve is used, require cluster[serve]"


@pytest.mark.parametrize(("module", "is_missing"), [("fastweb", False), ("reflect", True)])
def test_only_missing_packages_that_the_module_imports_are_reported(tmp_path, module, is_missing):
    part = PART.format(*ADDS).replace("from cluster.serve.api import run", f"import {module}")
    assert len(_findings(tmp_path, part)) == is_missing


def test_module_with_a_complete_extra_is_not_reported(tmp_path):
    part = PART.format(*ADDS)
    assert not _findings(tmp_path, part, installed=("fastweb==2.0", "reflect==1.1"))


@each_row(
    "part",
    [
        PART.format("ImportError", "run = None  # pip install cluster[serve]"),
        PART.format("ImportError", "print('pip install cluster[serve]')"),
        PART.format("ImportError", "raise ImportError('pip install other[serve]')"),
        "def run():\n    raise ImportError('pip install cluster[serve]')\n",
        "broken(",
    ],
)
def test_install_advice_without_a_failing_import_is_not_reported(tmp_path, part):
    assert not _findings(tmp_path, part)


def test_incomplete_extras_of_packages_that_are_not_requested_are_not_reported(tmp_path):
    assert not _findings(tmp_path, PART.format(*ADDS), named=())


def test_incomplete_extras_of_a_partial_package_set_are_not_reported(tmp_path):
    assert not _findings(tmp_path, PART.format(*ADDS), partial=True)
