"""Tests that the audit reports broken combinations of packages and has no finding for valid ones.

All records are audited in a few processes before the first test, because the audits take most of
the time. `tests.support.combinations` divides the records into two halves.
"""

from __future__ import annotations

import pytest

from tests.support.combinations import (
    HALVES,
    Combination,
    Outcome,
    audit_all,
    half_of_record,
    load_combinations,
)

pytestmark = [pytest.mark.network, pytest.mark.timeout(2700), pytest.mark.disk(5)]

ALL = [record for half in HALVES for record in load_combinations(half)]
# Known limits of the audit, with the reason in docs/audit.md.
UNSEEN: frozenset[str] = frozenset()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return audit_all(ALL, tmp_path_factory.mktemp("cache"))


def test_every_kind_of_test_combination_has_enough_rows() -> None:
    assert len(load_combinations("held")) >= 25
    kinds = {"elf", "cuda", "imports", "calls", "support", "metadata", "rules"}
    assert {record.check for record in ALL} >= kinds
    assert {record.check for record in load_combinations("held")} == {
        record.check for record in ALL
    }
    assert {record.arch for record in ALL} == {"x86_64", "arm64"}


@pytest.mark.parametrize("half", HALVES)
def test_test_combinations_are_split_into_halves_deterministically(half: str) -> None:
    assert {half_of_record(record.id) for record in load_combinations(half)} == {half}


@pytest.mark.long
@pytest.mark.parametrize("record", ALL, ids=lambda record: record.id)
def test_audit_reports_a_known_incompatible_combination(
    record: Combination, outcomes: dict[str, Outcome]
) -> None:
    findings = outcomes[record.id].found
    assert bool(findings) == (record.id not in UNSEEN)
    assert all(finding.where and finding.message and finding.remedy for finding in findings)


@pytest.mark.long
@pytest.mark.parametrize("record", ALL, ids=lambda record: record.id)
def test_audit_of_a_known_compatible_combination_has_no_findings(
    record: Combination, outcomes: dict[str, Outcome]
) -> None:
    assert outcomes[record.id].alarms == ()
