"""Tests the state of the garbage collector after a pause."""

from __future__ import annotations

import gc

import pytest

from imgbuild.system import collector
from imgbuild.system.collector import pause_collector


@pytest.mark.parametrize("enabled", [False, True])
def test_garbage_collector_state_is_restored_after_a_pause(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ValueError, match="in the block"), pause_collector():
            int("in the block" * (not gc.isenabled()))
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_objects_are_frozen_only_before_the_process_exits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    monkeypatch.setattr(
        collector._ProcessState, "ends", False
    )  # a verb in this process may have set it
    with pause_collector(freeze=True):
        pass
    assert frozen == []
    collector.process_ends()
    with pause_collector():
        pass
    assert frozen == []
    with pause_collector(freeze=True):
        pass
    assert frozen == [True]
