"""Tests the text of reasons for refused updates, and the packages named in it."""

from __future__ import annotations

import datetime

import msgspec
import pytest

from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import AuditFailed, FilesDisagree, NoSolution
from imgbuild.http.client import HttpClient
from imgbuild.matrix.model import RequiredPackage
from imgbuild.update import snapshots, trial
from imgbuild.update.axes import CoolDown
from tests.support import samples
from tests.support.rows import each_row

TODAY = datetime.date(2026, 11, 28)
COOL_DOWN = CoolDown(days=7, today=TODAY)


def test_reasons_of_a_refused_update_are_the_lines_of_the_conflict():
    error = NoSolution("no set", reasons=("a 1\n  requires b<2", "b 2 is pinned"))
    refused = trial.refusal_of_error(error)
    assert refused.reasons == ("a 1 requires b<2", "b 2 is pinned")
    assert not refused.audited


@pytest.mark.parametrize(
    "error",
    [
        AuditFailed("the audit found 1 error:\n  x86_64: no name f"),
        FilesDisagree("packages disagree about files:\n  a, b: bin/x"),
        NoSolution("the packages are incompatible, and no other", reasons=("no name f",)),
    ],
)
def test_refusals_of_an_update_by_an_audit_are_marked(error):
    assert trial.refusal_of_error(error).audited


def test_reasons_of_a_refused_update_are_bounded_and_have_no_control_characters():
    error = NoSolution("x", reasons=tuple(f"\x1b[31m{'y' * 5000}" for _ in range(30)))
    reasons = trial.refusal_of_error(error).reasons
    assert len(reasons) == trial.REASONS + 1
    assert reasons[-1] == "and 22 more"
    assert all(len(reason) <= trial.LINE and "\x1b" not in reason for reason in reasons)


@each_row(
    ("reason", "named"),
    [
        ("Because trl==1.16.0 depends on accelerate>=1.4.0", {"trl", "accelerate"}),
        ("torch wants cuda-toolkit ==13.2.2", {"torch", "cuda-toolkit"}),
        ("Because nowhere was not found in the package registry", {"nowhere"}),
        ("learned: Flash_Attn==2.8 needs torch<3 (calls)", {"flash-attn", "torch"}),
        ("pytorch-lightning is fine, torchvision too", set()),
    ],
)
def test_packages_named_in_the_reasons_of_a_refusal_are_found(reason, named):
    known = {"trl", "torch", "accelerate", "cuda-toolkit", "flash-attn"}
    assert trial.mentioned_packages((reason,), known) == named


def test_hash_of_a_row_depends_only_on_settings_and_not_on_versions():
    matrix = samples.matrix()
    target = matrix.targets["small"]
    before = trial.settings_hash(matrix, target)
    pins = dict.fromkeys(target.pins, "9.9")
    texts = msgspec.structs.replace(target, pins=pins, as_of=TODAY, tested="it ran", summary="b")
    assert trial.settings_hash(matrix, texts) == before
    more = {**target.requires, "peft": RequiredPackage(reason="adapters of TRL")}
    for change in ({"requires": more}, {"cuda": "13.0"}, {"pins": {**pins, "peft": "1"}}):
        other = msgspec.structs.replace(target, **change)
        assert trial.settings_hash(matrix, other) != before


def test_a_base_without_a_snapshot_of_security_updates_is_kept(tmp_path):
    matrix = samples.matrix()
    lock = samples.lock()
    context = Context(Store.open(tmp_path), HttpClient(offline=True))
    (name,) = matrix.bases
    assert snapshots.find_newer_base(matrix.bases, name, lock, COOL_DOWN, context) is None
    for security in ((), ("http://archive.example/debian-security",),
                     ("http://archive.example/debian-security/20261128T000000Z",)):  # fmt: skip
        dated = msgspec.structs.replace(matrix.bases[name], security=security)
        assert snapshots.find_newer_base({name: dated}, name, lock, COOL_DOWN, context) is None
    old = ("http://archive.example/debian-security/20200101T000000Z",)
    dated = msgspec.structs.replace(matrix.bases[name], security=old)
    assert snapshots.find_newer_base({name: dated}, name, None, COOL_DOWN, context) is None
