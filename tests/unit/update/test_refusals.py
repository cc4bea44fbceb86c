"""Tests that recorded refusals of updates expire when their reasons no longer apply."""

from __future__ import annotations

import datetime

import msgspec

from imgbuild.matrix.tried_updates import RefusedVersion
from imgbuild.update import trial
from imgbuild.update.trial import TrialInputs
from tests.support.rows import each_row

DAY = datetime.date(2026, 11, 28)
REFUSED = RefusedVersion(
    package="torch",
    version="2.15.0",
    reasons=("deepspeed 0.19.3 requires torch<2.15",),
    tried=DAY,
    row="settings",
    files="names",
    has={"deepspeed": "0.19.3"},
    newest={"torch": "2.15.0", "deepspeed": "0.19.8"},
    imgbuild="0.1.0",
)
NEWEST = {"torch": "2.15.0", "deepspeed": "0.19.8"}


def inputs(**changes):
    values = {
        "row": "settings",
        "versions": {"torch": "2.11.0", "deepspeed": "0.19.3", "trl": "1.9.2"},
        "files": "names",
        "imgbuild": "0.1.0",
        "newest": NEWEST.get,
    }
    return TrialInputs(**{**values, **changes})


def test_refusal_of_an_update_applies_while_its_causes_are_unchanged():
    assert trial.refusal_holds(REFUSED, inputs())
    other = {"torch": "2.12.0", "deepspeed": "0.19.3", "trl": "1.16.0"}
    assert trial.refusal_holds(REFUSED, inputs(versions=other))  # no reason names trl


@each_row(
    "changes",
    [
        {"row": "another base"},
        {"files": "one more wheel"},
        {"versions": {"torch": "2.11.0", "deepspeed": "0.19.8"}},
        {"newest": {**NEWEST, "deepspeed": "0.20.0"}.get},
    ],
)
def test_refused_version_is_tried_again_after_its_cause_changed(changes):
    assert not trial.refusal_holds(REFUSED, inputs(**changes))


def test_shorter_list_of_versions_does_not_change_the_cause_of_a_refusal():
    assert trial.refusal_holds(REFUSED, inputs(newest={**NEWEST, "deepspeed": "0.19.7"}.get))
    assert trial.refusal_holds(REFUSED, inputs(newest={}.get))


def test_refusal_by_an_audit_ends_with_another_imgbuild_version():
    assert trial.refusal_holds(REFUSED, inputs(imgbuild="0.2.0"))
    audited = msgspec.structs.replace(REFUSED, kind="audit")
    assert trial.refusal_holds(audited, inputs())
    assert not trial.refusal_holds(audited, inputs(imgbuild="0.2.0"))


def test_manually_entered_refusal_always_applies():
    by_hand = RefusedVersion(package="torch", version="2.15.0", reasons=("not yet",), tried=DAY)
    assert trial.refusal_holds(by_hand, inputs(row="another", files="another", imgbuild="9"))
