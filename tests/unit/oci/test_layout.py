from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest

from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci import layout
from imgbuild.system import known_hashes
from imgbuild.values import Arch, sha256
from tests.support import images, memory_folders
from tests.support.hashed import hashed_files
from tests.support.rows import each_row

BOTH = (Arch.X86_64, Arch.ARM64)


def make(folder: Path, *words: str, arches: tuple[Arch, ...] = (Arch.X86_64,)) -> Path:
    out = folder / "out"
    layers = [
        images.make_layer(folder / "blobs", [images.text_member("word", word)]) for word in words
    ]
    layout.write_layout(out, {arch: images.image_files(layers, arch) for arch in arches}, "tiny")
    return out


def test_image_layout_is_read_back_unchanged(tmp_path):
    out = make(tmp_path, "one", "two")
    image_layout = layout.read_layout(out)
    stored = image_layout.image(Arch.X86_64)
    assert image_layout.name == "tiny"
    assert image_layout.digest == stored.manifest.digest
    assert (
        image_layout.digest
        == f"sha256:{sha256(image_layout.blob(image_layout.digest).read_bytes())}"
    )
    assert len(stored.layers) == len(stored.diff_ids) == 2
    assert stored.settings["WorkingDir"] == "/opt"
    assert images.verify_layout(out) == image_layout
    assert json.loads((out / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    entry = json.loads((out / "index.json").read_bytes())["manifests"][0]
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": "tiny"}


def test_layout_of_two_architectures_has_an_index(tmp_path):
    out = make(tmp_path, "one", arches=BOTH)
    image_layout = layout.read_layout(out)
    assert set(image_layout.images) == set(BOTH)
    assert image_layout.top.media_type.endswith("index.v1+json")
    assert image_layout.digest not in {
        stored.manifest.digest for stored in image_layout.images.values()
    }
    assert layout.has_complete_image(out, image_layout.digest)


def test_layers_are_hard_linked_into_the_layout(tmp_path):
    out = make(tmp_path, "one")
    layer = layout.read_layout(out).image(Arch.X86_64).layers[0]
    source = tmp_path / "blobs" / layer.digest.replace(":", "-")
    assert layout.read_layout(out).blob(layer.digest).samefile(source)


def test_layers_linked_into_a_layout_are_not_hashed_again(tmp_path, monkeypatch):
    reads = hashed_files(monkeypatch)
    layer_pairs = [
        images.make_layer(tmp_path / "blobs", [images.text_member("word", word)])
        for word in ("a", "b")
    ]
    for record, path in layer_pairs:
        path.chmod(0o444)
        known_hashes.user_known_hashes().record_hash(path, record.digest.removeprefix("sha256:"))
    reads.clear()
    for layers in (layer_pairs, layer_pairs[:1]):  # the second removes a link of the other layer
        layout.write_layout(tmp_path / "out", {Arch.X86_64: images.image_files(layers)}, "tiny")
        known_hashes._open_database.cache_clear()  # like another process
        assert layout.has_complete_image(
            tmp_path / "out", layout.read_layout(tmp_path / "out").digest
        )
    for record, path in layer_pairs:
        assert known_hashes.user_known_hashes().matches(path, record.digest.removeprefix("sha256:"))
    assert reads == []


def test_layers_are_copied_into_a_layout_on_another_file_system(tmp_path):
    with memory_folders.other_file_system(tmp_path) as folder:
        layers = [images.make_layer(folder / "blobs", [images.text_member("word", "far")])]
        for _ in range(2):
            layout.write_layout(tmp_path / "out", {Arch.X86_64: images.image_files(layers)}, "tiny")
            images.verify_layout(tmp_path / "out")


def test_second_image_in_a_layout_replaces_the_first_image(tmp_path):
    first = layout.read_layout(make(tmp_path, "shared", "old"))
    out = make(tmp_path, "shared", "new")
    second = images.verify_layout(out)
    assert not layout.has_complete_image(out, first.digest)
    assert layout.has_complete_image(out, second.digest)
    stored = second.image(Arch.X86_64)
    named = {
        stored.manifest.digest,
        stored.config.digest,
        *(layer.digest for layer in stored.layers),
    }
    assert {f"sha256:{path.name}" for path in (out / "blobs/sha256").iterdir()} == named


def test_failed_write_of_a_layout_keeps_the_old_image(tmp_path):
    out = make(tmp_path, "old")
    before = layout.read_layout(out)
    layers = [
        images.make_layer(tmp_path / "blobs", [images.text_member("word", word)])
        for word in ("a", "b")
    ]
    summary = images.image_files(layers)
    layers[1][1].unlink()
    with pytest.raises(FileNotFoundError):
        layout.write_layout(out, {Arch.X86_64: summary}, "tiny")
    assert images.verify_layout(out) == before
    named = {path.name for path in (out / "blobs/sha256").iterdir()}
    assert named == {path.name for path in (make(tmp_path, "old") / "blobs/sha256").iterdir()}


@pytest.mark.parametrize("existed", [False, True])
def test_failed_first_write_of_a_layout_leaves_no_files(tmp_path, existed):
    layers = [
        images.make_layer(tmp_path / "blobs", [images.text_member("word", word)])
        for word in ("a", "b")
    ]
    summary = images.image_files(layers)
    layers[1][1].unlink()
    out = tmp_path / "new"
    if existed:
        out.mkdir()
    with pytest.raises(FileNotFoundError):
        layout.write_layout(out, {Arch.X86_64: summary}, "tiny")
    assert out.exists() == existed
    assert not existed or not list(out.iterdir())


@each_row("harm", ["missing", "short", "manifest", "index", "folder"])
def test_layout_check_detects_incomplete_layouts(tmp_path, harm):
    out = make(tmp_path, "one", "two")
    image_layout = layout.read_layout(out)
    layer = image_layout.blob(image_layout.image(Arch.X86_64).layers[1].digest)
    if harm == "missing":
        layer.unlink()
    elif harm == "short":
        data = layer.read_bytes()
        layer.unlink()
        layer.write_bytes(data[:-1])
    elif harm == "manifest":
        image_layout.blob(image_layout.digest).write_bytes(b"{}")
    elif harm == "index":
        (out / "index.json").write_bytes(b"{")
    else:
        out.rename(tmp_path / "elsewhere")
    assert not layout.has_complete_image(out, image_layout.digest)


@each_row(
    ("marker", "kind", "result"),
    [
        (b"", IntegrityError, "is damaged"),
        (b'{"imageLayoutVersion":"1.0', IntegrityError, "is damaged"),
        (b'{"imageLayoutVersion":"\xff"}', IntegrityError, "is damaged"),
        (b"{}", IntegrityError, "is damaged"),
        (None, IntegrityError, "cannot read"),
        (b'{"imageLayoutVersion":"2.0.0"}', InputError, "layout version '2.0.0'"),
        (b'{"imageLayoutVersion":"1.0"}', InputError, "layout version '1.0'"),
    ],
)
def test_damaged_or_newer_layout_marker_is_an_error(tmp_path, marker, kind, result):
    out = make(tmp_path, "one")
    digest = layout.read_layout(out).digest
    (out / "oci-layout").unlink()
    if marker is not None:
        (out / "oci-layout").write_bytes(marker)
    with pytest.raises(kind, match=result) as caught:
        layout.read_layout(out)
    assert "oci-layout" in caught.value.message
    assert "build the image again" in caught.value.hint
    assert not layout.has_complete_image(out, digest)
    if marker is not None:  # building again is the remedy
        make(tmp_path, "one")
        assert images.verify_layout(out).digest == digest


def test_layout_marker_of_later_patch_is_read(tmp_path):
    out = make(tmp_path, "one")
    (out / "oci-layout").write_bytes(b'{ "imageLayoutVersion": "1.0.1" }\n')
    assert images.verify_layout(out).name == "tiny"


def test_layout_check_detects_a_changed_byte(tmp_path):
    out = make(tmp_path, "one")
    image_layout = layout.read_layout(out)
    path = image_layout.blob(image_layout.image(Arch.X86_64).layers[0].digest)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    assert not layout.has_complete_image(out, image_layout.digest)
    with pytest.raises(IntegrityError, match="is damaged"):
        image_layout.require_intact(image_layout.image(Arch.X86_64).layers[0].digest)
    with pytest.raises(IntegrityError, match="has the digest"):
        images.verify_layout(out)


def test_second_write_of_a_layout_repairs_a_damaged_layer(tmp_path):
    out = make(tmp_path, "one")
    image_layout = layout.read_layout(out)
    path = image_layout.blob(image_layout.image(Arch.X86_64).layers[0].digest)
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(bytes(len(data)))
    make(tmp_path, "one")
    assert images.verify_layout(out) == image_layout


def others(name: str | None, second: str | None = None) -> list[dict[str, object]]:
    """Entries of unreadable images that another program added to `index.json`."""
    named = [name] if second is None else [name, second]
    return [
        {
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": f"sha256:{number:064x}",
            "size": 1,
            **({"annotations": {layout.REF_NAME: each}} if each else {}),
        }
        for number, each in enumerate(named)
    ]


@each_row(
    ("entries", "shown"),
    [
        (others("latest"), "than tiny: latest"),
        (others("tiny", "debian:12"), "than tiny: debian:12"),
        (others("tiny", "tiny"), "than tiny: 2 images with this name"),
        (others(None), "than tiny: an unnamed image"),
    ],
)
def test_layout_with_other_images_is_refused_and_not_changed(tmp_path, entries, shown):
    out = tmp_path / "out"
    (out / "blobs/sha256").mkdir(parents=True)
    (out / "blobs/sha256" / ("0" * 64)).write_text("a blob of another image")
    (out / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}\n')
    (out / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=shown) as caught:
        make(tmp_path, "one")
    assert str(out) in caught.value.message
    assert "--output" in (caught.value.hint or "")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_link_in_place_of_the_layout_marker_is_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_text("mine")
    out = make(tmp_path, "one")
    (out / "oci-layout").unlink()
    (out / "oci-layout").symlink_to(target)
    with pytest.raises(InputError, match="it is a symbolic link"):
        make(tmp_path, "two")
    assert target.read_text() == "mine"


def test_damaged_copy_on_another_file_system_is_replaced(tmp_path, monkeypatch):
    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "other file system")

    monkeypatch.setattr(os, "link", no_links)
    out = make(tmp_path, "one")
    image_layout = images.verify_layout(out)
    path = image_layout.blob(image_layout.image(Arch.X86_64).layers[0].digest)
    path.write_bytes(bytes(path.stat().st_size))
    make(tmp_path, "one")
    assert images.verify_layout(out) == image_layout


def test_layout_is_written_on_a_file_system_without_links_and_modes(tmp_path, monkeypatch):
    """On vfat and exFAT both calls fail with EPERM."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(os, "fchmod", refused)
    images.verify_layout(make(tmp_path, "one"))


def test_folder_that_is_not_a_layout_is_not_modified(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="nor an OCI layout"):
        make(tmp_path, "one")
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]


def test_file_at_the_path_of_a_layout_is_an_input_error(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        make(tmp_path, "one")


def test_layout_layer_of_the_wrong_size_is_an_error(tmp_path):
    layers = [images.make_layer(tmp_path / "blobs", [images.text_member("word", "one")])]
    summary = images.image_files(layers)
    layers[0][1].write_bytes(b"short")
    with pytest.raises(IntegrityError, match="has 5 bytes"):
        layout.write_layout(tmp_path / "out", {Arch.X86_64: summary}, "tiny")


@each_row("more", [-1, 1])
@each_row("document", ["manifest", "config"])
def test_layout_document_of_the_wrong_size_is_an_error(more, document, tmp_path):
    out = make(tmp_path, "a")
    index = json.loads((out / "index.json").read_bytes())
    (entry,) = index["manifests"]
    blobs = out / "blobs/sha256"
    if document == "manifest":
        entry["size"] += more
    else:
        manifest = json.loads((blobs / entry["digest"].removeprefix("sha256:")).read_bytes())
        manifest["config"]["size"] += more
        data = json.dumps(manifest).encode()
        sha256 = hashlib.sha256(data).hexdigest()
        (blobs / sha256).write_bytes(data)
        entry |= {"digest": f"sha256:{sha256}", "size": len(data)}
    (out / "index.json").write_text(json.dumps(index))
    with pytest.raises(IntegrityError, match=r"has \d+ bytes, not \d+"):
        layout.read_layout(out)


def test_architecture_missing_in_a_layout_is_an_error(tmp_path):
    image_layout = layout.read_layout(make(tmp_path, "one"))
    with pytest.raises(InputError, match="has no image for arm64, only x86_64"):
        image_layout.image(Arch.ARM64)
