"""Tests which failures of a forced package set lab/oracle.py counts."""

from pathlib import Path

import pytest

import oracle
import oracle_probe
from oracle_sets import ResolvedPins
from oracle_verdicts import Failure, Verdict, set_verdict

pytestmark = pytest.mark.long  # lab/ is not part of the product


def _installed(*failures, modules=()):
    return oracle.InstalledSet(
        pins=ResolvedPins({}, {}),
        folder=Path(),
        probe=oracle_probe.SetProbe(Path(), (), bytecode=Path()),
        imported=(),
        unmet=(),
        failures=[Failure(package="one", name=name, error="Error: broken") for name in failures],
        modules=set(modules),
    )


def test_import_failure_counts_if_the_module_exists_in_both_package_sets():
    control = _installed(modules=("one", "space.part"))
    forced = _installed("one", "space.part", modules=("one", "space.part"))
    oracle.ignore_incomparable(control, forced)
    assert [failure.name for failure in forced.failures] == ["one", "space.part"]


def test_import_failure_is_ignored_if_the_control_set_lacks_the_namespace_module():
    forced = _installed("space.part", modules=("space.part",))
    oracle.ignore_incomparable(_installed(modules=("space",)), forced)
    assert not forced.fails


def test_shared_library_failure_counts_only_if_the_control_set_loads_the_package():
    control, forced = _installed("one/a.so"), _installed("one/b.so")
    oracle.ignore_incomparable(control, forced)
    assert not control.fails
    assert not forced.fails
    forced = _installed("one/b.so")
    oracle.ignore_incomparable(_installed(), forced)
    assert forced.fails


def test_package_set_that_is_not_audited_has_no_verdict():
    result = _installed("one").result()
    assert result.fails
    assert set_verdict(result, "one") is Verdict.UNANSWERED
