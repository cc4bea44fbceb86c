"""Tests the configuration of Renovate in this repository."""

import json
import re

from imgbuild.matrix.load import load_matrix
from tests.support.doc_blocks import read_blocks
from tests.support.source_code import ROOT

CONFIGURATION = json.loads((ROOT / ".github/renovate.json").read_text())
(MANAGER,) = CONFIGURATION["customManagers"]


def test_custom_manager_of_renovate_finds_only_pins():
    # Named groups of JavaScript; the second expression is applied to what the first one finds.
    outer, inner = (text.replace("(?<", "(?P<") for text in MANAGER["matchStrings"])
    assert MANAGER["matchStringsStrategy"] == "recursive"
    path = ROOT / "matrix.yaml"
    (named,) = MANAGER["managerFilePatterns"]
    assert re.search(named.strip("/"), "matrix.yaml")
    found = [
        match.group("depName", "currentValue")
        for block in re.finditer(outer, path.read_text())
        for match in re.finditer(inner, block[0])
    ]
    pins = [pin for target in load_matrix(path).targets.values() for pin in target.pins.items()]
    assert sorted(found) == sorted(pins)


def test_renovate_proposes_nothing_without_approval_or_before_the_cool_down():
    assert CONFIGURATION["dependencyDashboardApproval"] is True
    assert CONFIGURATION["minimumReleaseAge"] == "7 days"
    assert CONFIGURATION["enabledManagers"] == ["custom.regex"]


def test_documentation_shows_the_custom_manager_of_renovate():
    page = ROOT / "docs/howto/update-matrix.md"
    (shown,) = [json.loads(block.text) for block in read_blocks(page) if block.language == "json"]
    assert shown == {key: value for key, value in MANAGER.items() if key != "description"}
