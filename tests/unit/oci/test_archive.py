from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci import archive, layout
from imgbuild.oci.layout import Layout
from imgbuild.values import Arch, sha256
from tests.support import images
from tests.support.rows import each_row

BOTH = (Arch.X86_64, Arch.ARM64)


@pytest.fixture(name="single")
def _single(tmp_path: Path) -> Layout:
    return written_layout(tmp_path, (Arch.X86_64,))


@pytest.fixture(name="two")
def _two(tmp_path: Path) -> Layout:
    return written_layout(tmp_path, BOTH)


def written_layout(folder: Path, arches: tuple[Arch, ...]) -> Layout:
    layers = [
        images.make_layer(folder / "blobs", [images.text_member("word", word)])
        for word in ("a", "b")
    ]
    out = folder / "out"
    layout.write_layout(out, {arch: images.image_files(layers, arch) for arch in arches}, "tiny")
    return layout.read_layout(out)


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = ((member.name, tar.extractfile(member)) for member in tar)
        return {name: file.read() for name, file in files if file is not None}


@pytest.mark.parametrize("form", ["oci-archive", "docker-archive"])
def test_image_archives_are_deterministic(single, form):
    first = b"".join(archive.archive_chunks(single, Arch.X86_64, form))
    assert first == b"".join(archive.archive_chunks(single, Arch.X86_64, form))
    assert len(first) % 512 == 0


def test_oci_archive_unpacks_to_an_image_layout(two, tmp_path):
    archived_files = members(b"".join(archive.archive_chunks(two, None, "oci-archive")))
    for name, data in archived_files.items():
        path = tmp_path / "again" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    again = images.verify_layout(tmp_path / "again")
    assert (again.digest, again.images, again.name) == (two.digest, two.images, "tiny")


def test_oci_archive_of_one_architecture_excludes_other_architectures(two, tmp_path):
    archived_files = members(b"".join(archive.archive_chunks(two, Arch.ARM64, "oci-archive")))
    manifest = two.image(Arch.ARM64).manifest.digest
    assert json.loads(archived_files["index.json"])["manifests"][0]["digest"] == manifest
    blobs = {name for name in archived_files if name.startswith("blobs/")}
    other = two.image(Arch.X86_64)
    for digest in (other.manifest.digest, other.config.digest):
        assert f"blobs/sha256/{digest.removeprefix('sha256:')}" not in blobs
    assert archive.archive_size(two, Arch.ARM64, "oci-archive") == sum(
        len(archived_files[name]) for name in blobs
    )


def test_docker_archive_lists_configuration_and_layers(single):
    archived_files = members(
        b"".join(archive.archive_chunks(single, Arch.X86_64, "docker-archive", tag="me/x:1"))
    )
    (listing,) = json.loads(archived_files["manifest.json"])
    stored = single.image(Arch.X86_64)
    assert listing["RepoTags"] == ["me/x:1"]
    assert f"sha256:{sha256(archived_files[listing['Config']])}" == stored.config.digest
    assert [f"sha256:{sha256(archived_files[name])}" for name in listing["Layers"]] == [
        layer.digest for layer in stored.layers
    ]
    entry = json.loads(archived_files["index.json"])["manifests"][0]
    assert entry["digest"] == single.digest
    assert entry["annotations"]["io.containerd.image.name"] == "docker.io/me/x:1"


def test_docker_archive_with_two_architectures_is_refused(two):
    with pytest.raises(InputError, match="has one architecture"):
        next(archive.archive_chunks(two, None, "docker-archive"))


@pytest.mark.parametrize("harm", ["gone", "short"])
def test_archive_of_damaged_layout_is_an_error(single, harm):
    path = single.blob(single.image(Arch.X86_64).layers[0].digest)
    data = path.read_bytes()
    path.unlink()
    if harm == "short":
        path.write_bytes(data[:-1])
    with pytest.raises(IntegrityError, match=path.name):
        list(archive.archive_chunks(single, Arch.X86_64, "docker-archive"))


def test_archive_is_written_atomically(single, tmp_path):
    out = tmp_path / "deep" / "tiny.tar"
    archive.write_archive(single.path, out, "oci-archive", "tiny")
    assert out.read_bytes() == b"".join(archive.archive_chunks(single, None, "oci-archive"))
    single.blob(single.image(Arch.X86_64).layers[0].digest).unlink()
    with pytest.raises(IntegrityError):
        archive.write_archive(single.path, tmp_path / "deep" / "broken.tar", "oci-archive", "tiny")
    assert [path.name for path in out.parent.iterdir()] == ["tiny.tar"]


def test_unknown_archive_format_is_an_error(single, tmp_path):
    with pytest.raises(InputError, match="invalid archive format: 'zip'") as caught:
        archive.write_archive(single.path, tmp_path / "x", "zip", "tiny")
    assert "docker-archive" in caught.value.message


@each_row(
    ("tag", "short", "full"),
    [
        ("tiny", "tiny:latest", "docker.io/library/tiny:latest"),
        ("tiny:1", "tiny:1", "docker.io/library/tiny:1"),
        ("me/tiny", "me/tiny:latest", "docker.io/me/tiny:latest"),
        ("localhost/tiny", "localhost/tiny:latest", "localhost/tiny:latest"),
        ("host:5000/tiny", "host:5000/tiny:latest", "host:5000/tiny:latest"),
        ("ghcr.io/me/tiny:2", "ghcr.io/me/tiny:2", "ghcr.io/me/tiny:2"),
    ],
)
def test_image_names_in_archives_are_normalized_as_by_container_engines(tag, short, full):
    assert (archive.complete_reference(tag), archive.full_reference(tag)) == (short, full)
