"""Tests the text and the sizes of differences between two locks."""

from __future__ import annotations

import msgspec
import pytest

from imgbuild.errors import NothingSelected
from imgbuild.plan import image_digests
from imgbuild.report import Floors
from imgbuild.show import diff_sides, image_diff
from imgbuild.values import Arch
from tests.support import samples
from tests.unit.plan.test_image_digests import records


def locked_targets(lock):
    return lock, image_digests.compute_digests(lock, records(lock))


def test_equal_images_have_no_changes():
    sample_lock = locked_targets(samples.lock())
    arch_diff = image_diff.diff_locked_targets(sample_lock, sample_lock).arch[Arch.X86_64]
    assert (arch_diff.changes, arch_diff.layers, arch_diff.pull) == ((), (), 0)


def test_changed_package_requires_a_pull_of_its_layer():
    old = locked_targets(samples.lock(samples.wheel("trl", "1.0")))
    new = locked_targets(samples.lock(samples.wheel("trl", "1.1")))
    difference = image_diff.diff_locked_targets(old, new)
    part = difference.arch[Arch.X86_64]
    assert part.layers == ("trl",)
    assert part.pull == 10
    assert image_diff.diff_lines(difference)[1] == "  trl 1.0 → 1.1"


def test_image_diff_lists_changed_settings_without_image_properties():
    old = samples.lock()
    settings = msgspec.structs.replace(old.settings, readme="text", env={"A": "1"})
    new = msgspec.structs.replace(old, settings=settings, cuda="13.0")
    difference = image_diff.diff_locked_targets(locked_targets(old), locked_targets(new))
    assert "a README was added: /opt/imgbuild/README" in difference.settings
    assert any(line.startswith("variable added: A") for line in difference.settings)
    assert not any("CUDA" in line for line in difference.settings)
    assert image_diff.diff_lines(difference)[0] == f"{new.target}: base and settings"


def test_comparison_without_an_old_lock_shows_all_packages_as_new():
    new = locked_targets(samples.lock())
    part = image_diff.diff_locked_targets(None, new).arch[Arch.X86_64]
    assert {change.package for change in part.changes} == {"torch", "pip", "bash", "python3"}
    assert part.pull == sum(layer.size for layer in new[1].arch[Arch.X86_64].layers)


def test_image_diff_names_at_most_five_layers():
    part = image_diff.ArchDiff(changes=(), layers=tuple("abcdefg"), pull=1_000_000, total=2_000_000)
    difference = image_diff.ImageDiff(
        before="one", target="two", arch={Arch.X86_64: part}, absent=()
    )
    [line] = image_diff.diff_lines(difference)
    assert line == (
        "one → two x86_64: 0 packages changed; 1.0 MB of 2.0 MB to pull (7 layers: a, b, c, d, e"
        " and 2 more)"
    )


def test_two_targets_are_compared_by_packages_and_unshared_layers():
    first, second = (
        samples.lock(samples.wheel(*pair)) for pair in (("trl", "1.0"), ("vllm", "0.9"))
    )
    old = image_diff.lock_side(first, locked_targets(first)[1], "one")
    new = image_diff.lock_side(second, locked_targets(second)[1], "two")
    difference = image_diff.diff_sides(old, new)
    part = difference.arch[Arch.X86_64]
    assert (difference.before, difference.target, part.layers) == ("one", "two", ("vllm",))
    assert [(change.package, change.before, change.after) for change in part.changes] == [
        ("trl", "1.0", ""), ("vllm", "", "0.9")
    ]  # fmt: skip
    assert image_diff.diff_lines(difference)[0].startswith("one → two x86_64: 2 packages changed")


def test_architecture_in_only_one_image_is_reported():
    both = samples.lock(of=samples.matrix(arch=(Arch.X86_64, Arch.ARM64)))
    old, new = (
        image_diff.lock_side(*locked_targets(both)),
        image_diff.lock_side(*locked_targets(samples.lock())),
    )
    assert image_diff.diff_sides(old, new).absent == (Arch.ARM64,)
    assert "small arm64: only before" in image_diff.diff_lines(image_diff.diff_sides(old, new))
    renamed = msgspec.structs.replace(old, name="other")
    assert "other → small arm64: only in other" in image_diff.diff_lines(
        image_diff.diff_sides(renamed, new)
    )
    [line] = [
        line
        for line in image_diff.diff_lines(image_diff.diff_sides(new, renamed))
        if line.startswith("small → other arm64")
    ]
    assert line.startswith("small → other arm64: only in other; ")
    part = image_diff.diff_sides(new, old).arch[Arch.ARM64]
    assert {change.before for change in part.changes} == {""}
    assert part.pull == sum(layer.size for layer in old.arch[Arch.ARM64].layers)


def test_images_without_locks_are_compared_by_the_packages_in_labels():
    whole = image_diff.lock_side(*locked_targets(samples.lock(samples.wheel("trl", "1.0"))))
    content = whole.arch[Arch.X86_64]
    labels = {("wheel", "torch"): "2.7.0", ("wheel", "vllm"): "0.9"}
    labelled_content = image_diff.SideContent(
        packages=labels, layers=content.layers, size=content.size
    )
    part = image_diff.DiffSide(
        name="host/rl:x", arch={Arch.X86_64: labelled_content}, complete=False
    )
    for difference, sides in (
        (image_diff.diff_sides(part, whole), [("torch", "2.7.0", "2.6.0"), ("vllm", "0.9", "")]),
        (image_diff.diff_sides(whole, part), [("torch", "2.6.0", "2.7.0"), ("vllm", "", "0.9")]),
    ):
        changes = difference.arch[Arch.X86_64].changes
        assert [(each.package, each.before, each.after) for each in changes] == sides


def test_diff_lists_x86_64_first_and_wheels_before_debian_packages():
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
    lines = image_diff.diff_lines(image_diff.diff_sides(old, new))
    assert lines[:4] == [
        "one → two x86_64: 2 packages changed; 0 B of 0 B to pull (0 layers)",
        "  trl 1 → 2",
        "  Debian packages:",
        "  bash 1 → 2",
    ]
    assert lines[4].startswith("one → two arm64: ")
    left = diff_sides.select_arches(new, [Arch.ARM64])
    assert list(left.arch) == [Arch.ARM64]
    assert diff_sides.select_arches(new, []) is new
    with pytest.raises(NothingSelected, match="two has no x86_64, only arm64"):
        diff_sides.select_arches(left, [Arch.X86_64])


def of_wheels(name, versions, **properties):
    content = image_diff.SideContent(
        packages={("wheel", package): version for package, version in versions.items()},
        layers=(),
        size=0,
        properties=properties,
    )
    return image_diff.DiffSide(name=name, arch={Arch.X86_64: content})


def test_summary_of_a_diff_has_host_limits_main_packages_and_counts():
    many = {f"p{number:02}": "1" for number in range(20)}
    old = of_wheels(
        "one", {**many, "torch": "2.6.0", "gone": "1", "zope": "1"}, CUDA="12.4", Python="3.11"
    )
    new = of_wheels(
        "two",
        {**dict.fromkeys(many, "2"), "torch": "2.11.0", "vllm": "0.26.0", "zope": "1"},
        CUDA="13.0", Python="3.11",
    )  # fmt: skip
    difference = image_diff.diff_sides(old, new)
    assert image_diff.is_short(difference)
    assert image_diff.diff_summary(difference)[1:] == [
        "  CUDA: 12.4 → 13.0",
        "  torch 2.6.0 → 2.11.0",
        "  vllm (new) → 0.26.0",
        "  wheels: 1 added, 1 removed, 21 changed",
    ]
    whole = image_diff.diff_lines(difference)
    assert len(whole) == 2 + 23
    assert whole[1] == "  CUDA: 12.4 → 13.0"


def test_summary_of_a_diff_lists_packages_of_a_kind_if_few_differ():
    many = {("wheel", f"p{number:02}"): "1" for number in range(21)}
    old = image_diff.SideContent(packages={("deb", "bash"): "1"}, layers=(), size=0)
    content = image_diff.SideContent(
        packages={**many, ("deb", "bash"): "2", ("interpreter", "cpython"): "3.12.1"},
        layers=(),
        size=0,
    )
    sides = [
        image_diff.DiffSide(name=name, arch={Arch.X86_64: each})
        for name, each in (("one", old), ("two", content))
    ]
    difference = image_diff.diff_sides(*sides)
    assert image_diff.diff_summary(difference)[1:] == [
        "  wheels: 21 added",
        "  Debian packages:",
        "  bash 1 → 2",
        "  interpreter:",
        "  cpython (new) → 3.12.1",
    ]
    assert image_diff.diff_lines(difference)[22:] == image_diff.diff_summary(difference)[2:]


def test_summary_of_a_diff_gives_only_the_size_of_a_new_architecture():
    new = locked_targets(samples.lock(of=samples.matrix(arch=(Arch.X86_64, Arch.ARM64))))
    old = locked_targets(samples.lock())
    difference = image_diff.diff_sides(image_diff.lock_side(*old), image_diff.lock_side(*new))
    assert image_diff.diff_summary(difference)[0].endswith("x86_64: no change")
    [line] = image_diff.diff_summary(difference)[1:]
    assert line.startswith("small arm64: ")
    assert len(image_diff.diff_lines(difference)) > 2


def test_summary_of_a_diff_with_few_changes_lists_all_changes():
    old, new = (of_wheels(name, {"trl": name}, CUDA="12.4") for name in ("1", "2"))
    difference = image_diff.diff_sides(old, new)
    assert image_diff.diff_summary(difference) == image_diff.diff_lines(difference)
    assert image_diff.diff_summary(difference)[1:] == ["  trl 1 → 2"]
    assert not image_diff.is_short(difference)


def test_image_diff_lists_no_host_changes_if_an_image_has_no_properties():
    old, new = of_wheels("1", {"trl": "1"}), of_wheels("2", {"trl": "2"}, CUDA="13.0")
    for sides in ((old, new), (new, old), (None, new)):
        assert image_diff.diff_sides(*sides).arch[Arch.X86_64].hosts == ()


def test_image_diff_lists_only_gpus_that_one_image_lacks():
    old = of_wheels("1", {"trl": "1"}, GPUs="A100, A30 (8.0), H100, H200 (9.0)")
    new = of_wheels("2", {"trl": "2"}, GPUs="T4, RTX 20 (7.5), H100, H200 (9.0)")
    lines = image_diff.diff_lines(image_diff.diff_sides(old, new))
    assert lines[1:3] == ["  GPUs added: T4, RTX 20 (7.5)", "  GPUs removed: A100, A30 (8.0)"]


def test_driver_and_gpus_of_an_image_are_read_from_its_digests():
    lock, target_digests = locked_targets(samples.lock())
    image = target_digests.arch[Arch.X86_64]
    floors = Floors(cuda="12.4", driver="525.60.13", gpu=("9.0", "10.0"), gpu_ptx=("8.0",))
    properties = image_diff.image_properties(
        lock, Arch.X86_64, msgspec.structs.replace(image, floors=floors)
    )
    assert properties["oldest driver"] == "525.60.13"
    assert properties["GPUs"] == "A100, A30 (8.0), H100, H200 (9.0), B200 (10.0)"
    compiled = properties["GPUs for which the driver compiles code at first use"]
    assert compiled == "A100, A30 (8.0)"
    assert properties["CUDA"] == lock.cuda


def test_summary_of_a_diff_lists_equal_changes_only_for_the_first_architecture():
    sides = [
        image_diff.DiffSide(
            name=name,
            arch=dict.fromkeys(
                (Arch.X86_64, Arch.ARM64),
                image_diff.SideContent(packages={("wheel", "trl"): name}, layers=(), size=0),
            ),
        )
        for name in ("1", "2")
    ]
    lines = image_diff.diff_summary(image_diff.diff_sides(*sides))
    assert [lines[1], lines[3]] == ["  trl 1 → 2", "  packages: the same changes as on x86_64"]
    assert image_diff.diff_lines(image_diff.diff_sides(*sides))[3] == "  trl 1 → 2"
