"""Tests atomic replacement of files with concurrent, failing and killed writers."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.errors import ImgbuildError, InputError
from imgbuild.oci import archive, layout
from imgbuild.system import files
from imgbuild.values import Arch
from tests.support import images


def test_temporary_file_names_are_unique(tmp_path):
    names = set()
    for _ in range(3):
        with files.replace_file(tmp_path / "deep/out") as file:
            file.write(b"x")
            (left,) = (tmp_path / "deep").glob(".*")
            names.add(left.name)
    assert len(names) == 3
    assert all(re.fullmatch(r"\.out\.[0-9a-f]{16}\.tmp", name) for name in names)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


def test_failed_write_leaves_the_file_unchanged(tmp_path):
    out = tmp_path / "out"
    out.write_bytes(b"old")

    def fail() -> None:
        with files.replace_file(out) as file:
            file.write(b"new")
            message = "half"
            raise ValueError(message)

    with pytest.raises(ValueError, match="half"):
        fail()
    assert out.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [out]


def test_temporary_files_of_a_killed_writer_are_removed(tmp_path):
    out = tmp_path / "out"
    left = tmp_path / f".out.{'a' * 16}.tmp"
    left.write_bytes(b"half")
    others = [tmp_path / name for name in (".out.tmp", ".out.mine.tmp", f".other.{'a' * 16}.tmp")]
    for path in others:
        path.write_bytes(b"mine")
    os.mkfifo(tmp_path / f".out.{'b' * 16}.tmp")
    with files.replace_file(out) as first:
        first.write(b"first")
        assert not left.exists()
        with files.replace_file(out) as second:
            second.write(b"second")
        assert out.read_bytes() == b"second"
    assert out.read_bytes() == b"first"
    assert all(path.read_bytes() == b"mine" for path in others)


def test_link_in_place_of_a_written_file_is_refused(tmp_path):
    (tmp_path / "target").write_bytes(b"mine")
    (tmp_path / "out").symlink_to(tmp_path / "target")
    with (
        pytest.raises(InputError, match="out: it is a symbolic link"),
        files.replace_file(tmp_path / "out"),
    ):
        pass
    assert (tmp_path / "target").read_bytes() == b"mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "target"]


def built(folder: Path) -> Path:
    """A layout of one layer."""
    layers = [images.make_layer(folder / "blobs", [images.text_member("word", "x" * 100_000)])]
    layout.write_layout(folder / "layout", {Arch.X86_64: images.image_files(layers)}, "tiny")
    return folder / "layout"


def test_links_in_place_of_temporary_files_are_not_followed(tmp_path):
    """The links have the temporary names that earlier versions used."""
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    source, out = built(tmp_path), tmp_path / "out"
    out.mkdir()
    (out / ".image.tar.tmp").symlink_to(target)
    digest = layout.read_layout(source).image(Arch.X86_64).layers[0].digest.removeprefix("sha256:")
    (out / "again/blobs/sha256").mkdir(parents=True)
    (out / "again/oci-layout").write_bytes(layout.MARKER_TEXT)
    (out / f"again/blobs/sha256/.tmp-{digest}").symlink_to(target)
    archive.write_archive(source, out / "image.tar", "oci-archive", "tiny")
    layout.write_layout(out / "again", {Arch.X86_64: summary(source)}, "tiny")
    codec.write_bytes(out / "lock.json", b"{}")
    assert target.read_bytes() == b"mine"
    for path in ("image.tar", "lock.json", f"again/blobs/sha256/{digest}"):
        assert not (out / path).is_symlink()
        assert (out / path).is_file()
    assert images.verify_layout(out / "again").digest == layout.read_layout(source).digest


def summary(source: Path) -> layout.ImageFiles:
    """The input of `layout.write_layout`, from another layout."""
    image_layout = layout.read_layout(source)
    stored = image_layout.image(Arch.X86_64)
    return layout.ImageFiles(
        config=image_layout.blob(stored.config.digest).read_bytes(),
        manifest=image_layout.blob(stored.manifest.digest).read_bytes(),
        layers={layer.digest: image_layout.blob(layer.digest) for layer in stored.layers},
    )


def test_concurrent_writers_of_a_file_all_succeed(tmp_path):
    source = built(tmp_path)
    (tmp_path / "out").mkdir()
    out = tmp_path / "out/image.tar"
    expected = b"".join(archive.archive_chunks(layout.read_layout(source), None, "oci-archive"))
    failures: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(20):
                archive.write_archive(source, out, "oci-archive", "tiny")
                assert out.read_bytes() == expected
        except (OSError, AssertionError, ImgbuildError) as failure:
            failures.append(failure)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: work(), range(4)))
    assert failures == []
    assert list(out.parent.iterdir()) == [out]
