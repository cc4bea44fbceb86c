"""Tests builds with a damaged cache, a damaged image, and an output of another image."""

from __future__ import annotations

import shutil
from pathlib import Path

from imgbuild.cache.store import Store
from imgbuild.oci import layout
from imgbuild.values import Arch
from tests.support import images, inprocess_project
from tests.support.inprocess_project import TARGET, Command, SampleProject

BUILD = ("build", "--offline", "--jobs", "1")


def test_build_removes_a_damaged_cached_wheel_and_fetches_the_wheel_again(
    imgbuild: Command, sample: SampleProject
) -> None:
    """The damaged wheel is removed; fetching it again fails in offline mode."""
    wheel = inprocess_project.damage_wheel(sample, "trl")
    done = imgbuild(*BUILD, TARGET, status=7)
    assert done.stdout == ""
    assert done.stderr.count("is damaged") == done.stderr.count("warning: ") == 1
    assert wheel.sha256 in done.stderr
    assert "hint: " in done.stderr
    assert not (sample.folder / "build").exists()


def flip(path: Path) -> None:
    """Change one byte of a file without changing its size and mode."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)


def test_build_creates_a_damaged_cached_layer_again(
    imgbuild: Command, sample: SampleProject
) -> None:
    assert imgbuild(*BUILD, TARGET).status == 0
    built = images.verify_layout(sample.folder / "build" / TARGET)
    shutil.rmtree(sample.folder / "build")
    layers = built.image(Arch.X86_64).layers
    path = Store.open().blob(layers[-1].digest)
    assert path is not None
    flip(path)
    done = imgbuild(*BUILD, TARGET, status=0)
    assert done.stderr.count("warning: ") == 1
    assert f"removed {path}, which is damaged" in done.stderr
    assert images.verify_layout(sample.folder / "build" / TARGET) == built
    assert "warning" not in imgbuild(*BUILD, TARGET).stderr


def test_build_replaces_a_damaged_layer_of_the_built_image(
    imgbuild: Command, sample: SampleProject
) -> None:
    """The layer is either a copy or a link to the file in the cache."""
    assert imgbuild(*BUILD, TARGET).status == 0
    built = images.verify_layout(sample.folder / "build" / TARGET)
    path = built.blob(built.image(Arch.X86_64).layers[-1].digest)
    for copied in (True, False):
        if copied:
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data)
        flip(path)
        assert f"{path}, which is damaged" in imgbuild(*BUILD, TARGET, status=0).stderr
        assert images.verify_layout(sample.folder / "build" / TARGET) == built
    assert "nothing to do" in imgbuild(*BUILD, TARGET).stderr


def test_build_does_not_write_to_a_layout_with_another_image(
    imgbuild: Command, sample: SampleProject
) -> None:
    layers = [images.make_layer(sample.folder / "blobs", [images.text_member("word", "mine")])]
    layout.write_layout(sample.folder / "out", {Arch.X86_64: images.image_files(layers)}, "mine")
    done = imgbuild(*BUILD, TARGET, "--output", "out", status=2)
    assert "out contains images other than cu124-vllm: mine" in done.stderr
    assert "--output" in done.stderr
    assert images.verify_layout(sample.folder / "out").name == "mine"
