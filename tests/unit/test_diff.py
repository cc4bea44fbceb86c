"""What changed between two locks, in words and in bytes."""

from __future__ import annotations

from imgbuild import diff, seal
from imgbuild.values import Arch
from tests import samples
from tests.unit.test_seal import records


def sealed(lock):
    return lock, seal.seal(lock, records(lock))


def test_nothing_changed():
    one = sealed(samples.lock())
    found = diff.diff(one, one).arch[Arch.X86_64]
    assert (found.changes, found.layers, found.pull) == ((), (), 0)


def test_a_moved_package_pulls_its_own_layer():
    old = sealed(samples.lock(samples.wheel("trl", "1.0")))
    new = sealed(samples.lock(samples.wheel("trl", "1.1")))
    found = diff.diff(old, new)
    part = found.arch[Arch.X86_64]
    assert part.layers == ("trl",)
    assert part.pull == 10
    assert diff.words(found)[1] == "  trl 1.0 → 1.1"


def test_without_an_old_lock_all_is_new():
    new = sealed(samples.lock())
    part = diff.diff(None, new).arch[Arch.X86_64]
    assert {change.package for change in part.changes} == {"torch", "pip", "bash", "python3"}
    assert part.pull == sum(layer.size for layer in new[1].arch[Arch.X86_64].layers)
