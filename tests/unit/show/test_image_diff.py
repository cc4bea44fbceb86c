"""What changed between two locks, in words and in bytes."""

from __future__ import annotations

import pytest

from imgbuild.errors import NothingSelected
from imgbuild.plan import image_digests
from imgbuild.show import diff_sides, image_diff
from imgbuild.values import Arch
from tests.support import samples
from tests.unit.plan.test_image_digests import records


def locked_targets(lock):
    return lock, image_digests.digests_of(lock, records(lock))


def test_nothing_changed():
    sample_lock = locked_targets(samples.lock())
    arch_diff = image_diff.diff(sample_lock, sample_lock).arch[Arch.X86_64]
    assert (arch_diff.changes, arch_diff.layers, arch_diff.pull) == ((), (), 0)


def test_a_moved_package_pulls_its_own_layer():
    old = locked_targets(samples.lock(samples.wheel("trl", "1.0")))
    new = locked_targets(samples.lock(samples.wheel("trl", "1.1")))
    difference = image_diff.diff(old, new)
    part = difference.arch[Arch.X86_64]
    assert part.layers == ("trl",)
    assert part.pull == 10
    assert image_diff.words(difference)[1] == "  trl 1.0 → 1.1"


def test_without_an_old_lock_all_is_new():
    new = locked_targets(samples.lock())
    part = image_diff.diff(None, new).arch[Arch.X86_64]
    assert {change.package for change in part.changes} == {"torch", "pip", "bash", "python3"}
    assert part.pull == sum(layer.size for layer in new[1].arch[Arch.X86_64].layers)


def test_no_more_than_five_layers_are_named():
    part = image_diff.ArchDiff(changes=(), layers=tuple("abcdefg"), pull=1_000_000, total=2_000_000)
    difference = image_diff.Diff(before="one", target="two", arch={Arch.X86_64: part}, absent=())
    [line] = image_diff.words(difference)
    assert line == (
        "one → two x86_64: 0 packages changed; 1.0 MB of 2.0 MB to pull (7 layers: a, b, c, d, e"
        " and 2 more)"
    )


def test_two_targets_are_compared_by_name_and_by_layers_not_shared():
    first, second = (
        samples.lock(samples.wheel(*pair)) for pair in (("trl", "1.0"), ("vllm", "0.9"))
    )
    old = image_diff.side(first, locked_targets(first)[1], "one")
    new = image_diff.side(second, locked_targets(second)[1], "two")
    difference = image_diff.between(old, new)
    part = difference.arch[Arch.X86_64]
    assert (difference.before, difference.target, part.layers) == ("one", "two", ("vllm",))
    assert [(change.package, change.before, change.after) for change in part.changes] == [
        ("trl", "1.0", ""), ("vllm", "", "0.9")
    ]  # fmt: skip
    assert image_diff.words(difference)[0].startswith("one → two x86_64: 2 packages changed")


def test_an_architecture_that_only_one_has():
    both = samples.lock(of=samples.matrix(arch=(Arch.X86_64, Arch.ARM64)))
    old, new = (
        image_diff.side(*locked_targets(both)),
        image_diff.side(*locked_targets(samples.lock())),
    )
    assert image_diff.between(old, new).absent == (Arch.ARM64,)
    assert "small arm64: only before" in image_diff.words(image_diff.between(old, new))
    part = image_diff.between(new, old).arch[Arch.ARM64]
    assert {change.before for change in part.changes} == {""}
    assert part.pull == sum(layer.size for layer in old.arch[Arch.ARM64].layers)


def test_of_a_side_without_a_lock_only_what_its_labels_name_is_compared():
    whole = image_diff.side(*locked_targets(samples.lock(samples.wheel("trl", "1.0"))))
    content = whole.arch[Arch.X86_64]
    labels = {("wheel", "torch"): "2.7.0", ("wheel", "vllm"): "0.9"}
    labelled_content = image_diff.SideContent(
        packages=labels, layers=content.layers, size=content.size
    )
    part = image_diff.DiffSide(
        name="host/rl:x", arch={Arch.X86_64: labelled_content}, complete=False
    )
    for difference, sides in (
        (image_diff.between(part, whole), [("torch", "2.7.0", "2.6.0"), ("vllm", "0.9", "")]),
        (image_diff.between(whole, part), [("torch", "2.6.0", "2.7.0"), ("vllm", "", "0.9")]),
    ):
        changes = difference.arch[Arch.X86_64].changes
        assert [(each.package, each.before, each.after) for each in changes] == sides


def test_wheels_come_before_debian_packages_and_x86_64_first():
    both = (Arch.ARM64, Arch.X86_64)
    content = [
        image_diff.SideContent(
            packages={("deb", "bash"): version, ("wheel", "trl"): version}, layers=(), size=0
        )
        for version in ("1", "2")
    ]
    old, new = (
        image_diff.DiffSide(name=name, arch=dict.fromkeys(both, each))
        for name, each in zip(("one", "two"), content, strict=True)
    )
    lines = image_diff.words(image_diff.between(old, new))
    assert lines[:4] == [
        "one → two x86_64: 2 packages changed; 0.0 MB of 0.0 MB to pull (0 layers: )",
        "  trl 1 → 2",
        "  Debian packages:",
        "  bash 1 → 2",
    ]
    assert lines[4].startswith("one → two arm64: ")
    left = diff_sides.only(new, [Arch.ARM64])
    assert list(left.arch) == [Arch.ARM64]
    assert diff_sides.only(new, []) is new
    with pytest.raises(NothingSelected, match="two has no x86_64; it has arm64"):
        diff_sides.only(left, [Arch.X86_64])
