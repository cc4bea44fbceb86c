from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest

from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci import archive, image, layout
from imgbuild.oci.layout import Layout
from imgbuild.oci.merged import MergedTree
from imgbuild.oci.reader import TarReader, open_inflated
from imgbuild.values import Arch, sha256
from tests.support import images


def written_layout(folder: Path, *arches: Arch) -> Layout:
    blobs = folder / "blobs"
    stack = [
        images.make_layer(blobs, [images.text_member(name, name * 3000)]) for name in ("one", "two")
    ]
    summaries = {arch: images.image_files(stack, arch) for arch in arches or (Arch.X86_64,)}
    layout.write_layout(folder / "layout", summaries, "tiny")
    return layout.read_layout(folder / "layout")


def paths(summary: image.ImageSummary) -> list[str]:
    """The actual content of the layers."""
    tree = MergedTree()
    for blob in summary.layers:
        with open_inflated(blob) as stream:
            tree.add(TarReader(stream, "test"))
    return [path for path, _ in tree.iterate_paths()]


def tar(path: Path, files: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w") as out:
        for name, to in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, to
            out.addfile(info)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("form", ["folder", "oci-archive", "docker-archive"])
def test_image_is_read_from_every_supported_format(tmp_path, form):
    folder = written_layout(tmp_path)
    place = folder.path
    if form != "folder":
        place = tmp_path / "image.tar"
        archive.write_archive(folder.path, place, form, "tiny")
    summary = image.read_image(place)
    assert summary.digest == folder.digest
    assert summary.configuration.architecture == "amd64"
    assert summary.configuration.config == folder.image(Arch.X86_64).settings
    assert paths(summary) == ["/one", "/two"]


def test_one_architecture_of_an_image_with_several_is_read(tmp_path):
    folder = written_layout(tmp_path, Arch.X86_64, Arch.ARM64)
    summary = image.read_image(folder.path, Arch.ARM64)
    assert summary.digest == folder.image(Arch.ARM64).manifest.digest
    with pytest.raises(InputError, match="has 2 images: amd64, arm64"):
        image.read_image(folder.path)
    with pytest.raises(InputError, match="no image for arm64"):
        image.read_image(written_layout(tmp_path / "one").path, Arch.ARM64)


def test_old_docker_save_archive_is_read(tmp_path):
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as out:
        out.addfile(tarfile.TarInfo("file"))
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{sha256(layer.getvalue())}"] * 2}
    document = {"architecture": "amd64", "os": "linux", "config": None, "rootfs": rootfs}
    config = json.dumps(document).encode()
    listing = [{"Config": "c.json", "RepoTags": None, "Layers": ["a/layer.tar", "b/layer.tar"]}]
    files = {
        "c.json": config, "a/layer.tar": layer.getvalue(),
        "manifest.json": json.dumps(listing).encode(),
    }  # fmt: skip
    summary = image.read_image(tar(tmp_path / "old.tar", files, {"b/layer.tar": "../a/layer.tar"}))
    assert summary.digest == f"sha256:{sha256(config)}"
    assert paths(summary) == ["/file"]
    assert len(summary.layers) == 2


def _with_entries(folder: Path, entries: list[dict[str, object]]) -> None:
    """Make the layout's top document an index of `entries`."""
    inner = json.dumps({"schemaVersion": 2, "manifests": entries}).encode()
    (folder / "blobs/sha256" / sha256(inner)).write_bytes(inner)
    top = {
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "digest": f"sha256:{sha256(inner)}", "size": len(inner),
    }  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [top]}))


def test_buildkit_attestations_are_not_read_as_images(tmp_path):
    folder = written_layout(tmp_path).path
    entry = json.loads((folder / "index.json").read_bytes())["manifests"][0]
    note = {**entry, "annotations": {"vnd.docker.reference.type": "attestation-manifest"}}
    note["digest"] = "sha256:" + "0" * 64
    _with_entries(folder, [entry, note])
    assert image.read_image(folder).digest == entry["digest"]


def test_path_without_an_image_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no tar")
    for place, error in (
        (tmp_path / "empty", "neither index.json nor manifest.json"),
        (tmp_path / "text", "is not a tar archive"),
        (tmp_path / "absent", "No such file"),
        (tar(tmp_path / "other.tar", {"x": b""}), "neither index.json nor manifest.json"),
        (tar(tmp_path / "bad.tar", {"index.json": b"{}"}), "not a valid image"),
    ):
        with pytest.raises(InputError, match=error):
            image.read_image(place)


def test_damaged_image_document_is_an_error(tmp_path):
    folder = written_layout(tmp_path)
    config = folder.blob(folder.image(Arch.X86_64).config.digest)
    shutil.copytree(folder.path, tmp_path / "gone")
    (tmp_path / "gone/blobs/sha256" / config.name).unlink()
    with pytest.raises(IntegrityError, match="No such file"):
        image.read_image(tmp_path / "gone")
    data = config.read_bytes()
    config.unlink()
    config.write_bytes(data + b" ")
    with pytest.raises(IntegrityError, match="has the digest"):
        image.read_image(folder.path)


IMPLIED = {"amd64": "v1", "arm64": "v8"}


def test_two_images_for_the_same_platform_are_refused(tmp_path):
    folder = written_layout(tmp_path, Arch.X86_64, Arch.ARM64).path
    index = json.loads((folder / "index.json").read_bytes())["manifests"][0]
    entries = json.loads((folder / "blobs/sha256" / index["digest"][7:]).read_bytes())["manifests"]
    _with_entries(folder, entries)
    assert len(image.list_manifests(layout.layout_source(folder))) == 2
    for more in ({}, {"variant": ""}, {"variant": IMPLIED[entries[0]["platform"]["architecture"]]}):
        platform = {"os": "linux", "architecture": entries[0]["platform"]["architecture"], **more}
        _with_entries(folder, [*entries, {**entries[1], "platform": platform}])
        with pytest.raises(IntegrityError, match="has two images for linux/a"):
            image.list_manifests(layout.layout_source(folder))


def test_index_entry_with_wrong_platform_is_refused(tmp_path):
    folder = written_layout(tmp_path, Arch.X86_64, Arch.ARM64).path
    index = json.loads((folder / "index.json").read_bytes())["manifests"][0]
    first, second = json.loads((folder / "blobs/sha256" / index["digest"][7:]).read_bytes())[
        "manifests"
    ]
    _with_entries(folder, [{**first, "platform": second["platform"]}])
    with pytest.raises(IntegrityError, match=r"has the architecture .* in the index"):
        layout.read_layout(folder)
