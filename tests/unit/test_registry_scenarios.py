"""docs/registry.md names a test for each scenario of the specification: they are there."""

from __future__ import annotations

import re

from tests.sourcecode import ROOT


def test_each_scenario_names_tests_that_are_there():
    text = (ROOT / "docs/registry.md").read_text()
    _, _, section = text.partition("## The specification's scenarios")
    rows = [row.split("|") for row in section.splitlines() if row.startswith("| ")]
    scenarios = [row for row in rows[2:] if "**" not in row[1]]
    named = [re.findall(r"`(test_\w+)`", row[3]) for row in scenarios]
    assert len(named) > 30
    assert [row for row, tests in zip(scenarios, named, strict=True) if not tests] == []
    units = _tests("tests/unit/test_registry_*.py")
    real = _tests("tests/integration/test_registry_*.py")
    assert {test for tests in named for test in tests} - units - real == set()


def _tests(pattern: str) -> set[str]:
    text = "\n".join(path.read_text() for path in ROOT.glob(pattern))
    return set(re.findall(r"^def (test_\w+)", text, re.MULTILINE))
