"""What changed between two locks, in words and in bytes."""

from __future__ import annotations

from imgbuild.plan import seal
from imgbuild.show import diff
from imgbuild.values import Arch
from tests.support import samples
from tests.unit.plan.test_seal import records


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


def test_no_more_than_five_layers_are_named():
    part = diff.ArchDiff(changes=(), layers=tuple("abcdefg"), pull=1_000_000, total=2_000_000)
    found = diff.Diff(before="one", target="two", arch={Arch.X86_64: part}, absent=())
    [line] = diff.words(found)
    assert line == (
        "one → two x86_64: 0 packages changed; 1.0 MB of 2.0 MB to pull (7 layers: a, b, c, d, e"
        " and 2 more)"
    )


def test_two_targets_are_compared_by_name_and_by_layers_not_shared():
    first, second = (samples.lock(samples.wheel(*one)) for one in (("trl", "1.0"), ("vllm", "0.9")))
    old = diff.side(first, sealed(first)[1], "one")
    new = diff.side(second, sealed(second)[1], "two")
    found = diff.between(old, new)
    part = found.arch[Arch.X86_64]
    assert (found.before, found.target, part.layers) == ("one", "two", ("vllm",))
    assert [(change.package, change.before, change.after) for change in part.changes] == [
        ("trl", "1.0", ""), ("vllm", "", "0.9")
    ]  # fmt: skip
    assert diff.words(found)[0].startswith("one → two x86_64: 2 packages changed")


def test_an_architecture_that_only_one_has():
    both = samples.lock(of=samples.matrix(arch=(Arch.X86_64, Arch.ARM64)))
    old, new = diff.side(*sealed(both)), diff.side(*sealed(samples.lock()))
    assert diff.between(old, new).absent == (Arch.ARM64,)
    assert "small arm64: only before" in diff.words(diff.between(old, new))
    part = diff.between(new, old).arch[Arch.ARM64]
    assert {change.before for change in part.changes} == {""}
    assert part.pull == sum(layer.size for layer in old.arch[Arch.ARM64].layers)


def test_of_a_side_without_a_lock_only_what_its_labels_name_is_compared():
    whole = diff.side(*sealed(samples.lock(samples.wheel("trl", "1.0"))))
    content = whole.arch[Arch.X86_64]
    labels = {("wheel", "torch"): "2.7.0", ("wheel", "vllm"): "0.9"}
    said = diff.SideContent(packages=labels, layers=content.layers, size=content.size)
    part = diff.DiffSide(name="host/rl:x", arch={Arch.X86_64: said}, complete=False)
    for found, sides in (
        (diff.between(part, whole), [("torch", "2.7.0", "2.6.0"), ("vllm", "0.9", "")]),
        (diff.between(whole, part), [("torch", "2.6.0", "2.7.0"), ("vllm", "", "0.9")]),
    ):
        changes = found.arch[Arch.X86_64].changes
        assert [(each.package, each.before, each.after) for each in changes] == sides
