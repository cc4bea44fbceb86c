"""Tests of values in `project.model` that several verbs share."""

from __future__ import annotations

import pytest

from imgbuild.project.model import exact_version
from imgbuild.resolve.resolve_request import RequestedPackage

EXACT = {
    "==2.6.0": "2.6.0",
    "== 2.6.0": "2.6.0",
    "===2.6.0": "2.6.0",
    ">=2.6,==2.10.0": "2.10.0",
    "==2.6,==2.6.0": "2.6",
    "==2.6.0,==2.6.0+cu124": "2.6.0+cu124",
    "==2.6.0rc1": "2.6.0rc1",
    "==2.*": None,
    "<3": None,
    "": None,
    "==2.10.0,<2.6": None,
    "==2.6,==2.7": None,
    "==text": None,
    "===text": None,
    "==1\n: x": None,
    f"==1,<{'9' * 5000}": None,
}


@pytest.mark.parametrize(("spec", "version"), EXACT.items())
def test_only_version_that_a_specifier_accepts(spec: str, version: str | None) -> None:
    assert exact_version(spec) == version
    assert RequestedPackage(package="torch", spec=spec).pin == version
