"""Tests that skopeo, umoci, podman, Docker and a registry read the layouts and archives."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.http.client import HttpClient
from imgbuild.oci import archive, layout
from imgbuild.registry import base_image
from imgbuild.system import process
from imgbuild.values import Arch, sha256
from tests.support import images, needs

pytestmark = pytest.mark.engine
BOTH = (Arch.X86_64, Arch.ARM64)
INSECURE = ("--src-tls-verify=false", "--dest-tls-verify=false")


@pytest.fixture(scope="module", name="single_arch")
def _single_arch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images.write_tiny_image(tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module", name="two")
def _two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images.write_tiny_image(tmp_path_factory.mktemp("two"), BOTH)


@pytest.fixture(name="repository")
def _repository() -> str:
    """An unused repository name on the registry of this machine."""
    return f"{needs.require_registry()}/test-{uuid.uuid4().hex[:12]}"


def inspect(*reference: str) -> dict[str, object]:
    skopeo = needs.require_tool("skopeo")
    image_facts: dict[str, object] = json.loads(
        process.run_command([skopeo, "inspect", *reference]).stdout
    )
    return image_facts


def test_skopeo_inspects_layout(single_arch):
    image_facts = inspect(f"oci:{single_arch}:tiny")
    stored = layout.read_layout(single_arch).image(Arch.X86_64)
    assert image_facts["Digest"] == stored.manifest.digest
    assert image_facts["Layers"] == [layer.digest for layer in stored.layers]
    assert image_facts["Env"] == ["PATH=/bin", "WORD=two words"]
    assert (image_facts["Architecture"], image_facts["Created"]) == ("amd64", images.CREATED)


def test_skopeo_finds_each_architecture_of_a_layout(two):
    for arch in BOTH:
        image_facts = inspect("--override-arch", arch.oci, f"oci:{two}:tiny")
        assert image_facts["Architecture"] == arch.oci


@pytest.mark.parametrize("form", ["oci-archive", "docker-archive"])
def test_skopeo_reads_image_archives(single_arch, tmp_path, form):
    archive.write_archive(single_arch, tmp_path / "tiny.tar", form, "tiny:1")
    image_facts = inspect(f"{form}:{tmp_path / 'tiny.tar'}:tiny:1")
    diff_ids = layout.read_layout(single_arch).image(Arch.X86_64).diff_ids
    config = json.loads(
        process.run_command(
            [needs.require_tool("skopeo"), "inspect", "--config", f"{form}:{tmp_path / 'tiny.tar'}"]
        ).stdout
    )
    assert image_facts["Architecture"] == "amd64"
    assert tuple(config["rootfs"]["diff_ids"]) == diff_ids


def test_umoci_unpacks_the_same_files(single_arch, tmp_path):
    needs.require_root()
    umoci = needs.require_tool("umoci")
    process.run_command(
        [umoci, "unpack", "--image", f"{single_arch}:tiny", str(tmp_path / "bundle")]
    )
    root = tmp_path / "bundle" / "rootfs"
    assert (root / "opt/hello").read_text() == "hello\n"
    assert (root / "opt/mine").stat().st_mode & 0o7777 == 0o4755
    completed = subprocess.run(
        [root / "bin/busybox", "cat", root / "opt/hello"], capture_output=True, check=True
    )
    assert completed.stdout == b"hello\n"


def test_registry_keeps_the_digests_of_pushed_images(two, repository, tmp_path):
    skopeo = needs.require_tool("skopeo")
    pushed = f"docker://{repository}:tiny"
    process.run_command(
        [skopeo, "copy", "--all", "--dest-tls-verify=false", f"oci:{two}:tiny", pushed]
    )
    raw = process.run_command([skopeo, "inspect", "--raw", "--tls-verify=false", pushed]).stdout
    assert f"sha256:{sha256(raw.encode())}" == layout.read_layout(two).digest
    back = tmp_path / "back"
    process.run_command([skopeo, "copy", "--all", *INSECURE, pushed, f"oci:{back}:tiny"])
    again = images.verify_layout(back)
    assert again.digest == layout.read_layout(two).digest
    assert again.images == layout.read_layout(two).images


@pytest.fixture(name="docker_image")
def _docker_image(single_arch: Path, repository: str) -> Iterator[str]:
    """The name of the image in the registry. The image is removed from Docker at the end."""
    skopeo = needs.require_tool("skopeo")
    name = f"{repository}:tiny"
    process.run_command(
        [skopeo, "copy", "--dest-tls-verify=false", f"oci:{single_arch}:tiny", f"docker://{name}"]
    )
    yield name
    process.run_command([needs.require_docker(), "image", "rm", name], check=False)


def test_docker_20_pulls_and_runs_image(docker_image):
    old = needs.require_docker20()
    docker = needs.require_tool("docker")
    try:
        process.run_command([docker, "pull", "--quiet", docker_image], env=old)
        assert (
            process.run_command([docker, "run", "--rm", docker_image], env=old).stdout == "hello\n"
        )
    finally:
        process.run_command([docker, "image", "rm", docker_image], env=old, check=False)


def test_podman_runs_oci_archive(single_arch, tmp_path):
    podman = needs.require_podman()
    name = f"localhost/test-{uuid.uuid4().hex[:12]}:1"
    archive.write_archive(single_arch, tmp_path / "tiny.tar", "oci-archive", name)
    try:
        process.run_command([podman, "load", "--input", str(tmp_path / "tiny.tar")])
        assert process.run_command([podman, "run", "--rm", name]).stdout == "hello\n"
    finally:
        process.run_command([podman, "image", "rm", name], check=False)


def test_base_is_read_back_from_the_registry(two, repository, tmp_path):
    skopeo = needs.require_tool("skopeo")
    pushed = f"docker://{repository}:tiny"
    process.run_command(
        [skopeo, "copy", "--all", "--dest-tls-verify=false", f"oci:{two}:tiny", pushed]
    )
    source = layout.read_layout(two)
    store = Store.open(tmp_path / "cache")
    for arch in BOTH:
        stored = source.image(arch)
        for digest in (source.digest, stored.manifest.digest):
            base = base_image.read_base_image(f"{repository}@{digest}", arch)
            assert base.manifest == stored.manifest.digest
            assert base.settings == stored.settings
            assert [layer.diff_id for layer in base.layers] == list(stored.diff_ids)
    base = base_image.read_base_image(f"{repository}@{source.digest}", Arch.ARM64)
    base_image.fetch_layers(
        f"{repository}@{source.digest}",
        [layer.as_locked_file for layer in base.layers],
        Context(store, HttpClient()),
    )
    for layer in base.layers:
        blob = store.blob(layer.digest)
        assert blob is not None
        assert blob.read_bytes() == source.blob(layer.digest).read_bytes()
        assert store.file(layer.digest.removeprefix("sha256:")) is None


def test_base_in_docker_format_is_converted(single_arch, repository):
    skopeo = needs.require_tool("skopeo")
    pushed = f"docker://{repository}:tiny"
    command = [skopeo, "copy", "--format", "v2s2", "--dest-tls-verify=false"]
    process.run_command([*command, f"oci:{single_arch}:tiny", pushed])
    raw = process.run_command([skopeo, "inspect", "--raw", "--tls-verify=false", pushed]).stdout
    assert "vnd.docker" in raw
    base = base_image.read_base_image(f"{repository}@sha256:{sha256(raw.encode())}", Arch.X86_64)
    stored = layout.read_layout(single_arch).image(Arch.X86_64)
    assert [layer.digest for layer in base.layers] == [layer.digest for layer in stored.layers]
    gzip = "application/vnd.oci.image.layer.v1.tar+gzip"
    assert {layer.media_type for layer in base.layers} == {gzip}
