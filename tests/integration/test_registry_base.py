"""Tests that an image on a registry base is pushed, locked, built and run.

The base is Debian's Python for two architectures. imgbuild builds it, and skopeo pushes it to a
local registry in OCI and Docker format.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from imgbuild.oci import documents, layout
from imgbuild.oci import documents as oci_documents
from imgbuild.oci.layer import LayerRecord
from imgbuild.plan import image_documents
from imgbuild.values import Arch
from tests.support import images, needs, sample_project
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

pytestmark = [pytest.mark.engine, pytest.mark.network]
DEBIAN = {
    "kind": "debian", "suite": "bookworm", "python": "3.11", "glibc": "2.36",
    "packages": ["python3", "usr-is-merged"],
}  # fmt: skip
BOTH = ("x86_64", "arm64")
LOOK = "import thewheel, sys; print(thewheel.VALUE, sys.prefix, sys.version_info[:2])"
SEEN = "42 /opt/venv (3, 11)"


@dataclass
class Pushed:
    """The base as a local layout, with its names in the registry in OCI and Docker format."""

    folder: Path
    oci: str
    docker: str


def skopeo(*arguments: str) -> str:
    """Run skopeo with registries without TLS."""
    done = subprocess.run(
        [needs.require_tool("skopeo"), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def push(folder: Path, *options: str) -> str:
    """Copy a layout to the registry. Returns the name with the digest."""
    name = f"{needs.require_registry()}/base-{uuid.uuid4().hex[:12]}"
    note = folder.with_name(f"digest-{uuid.uuid4().hex[:12]}")
    tag = layout.read_layout(folder).name
    skopeo(
        "copy", "--quiet", "--dest-tls-verify=false", "--digestfile", str(note), *options,
        f"oci:{folder}:{tag}", f"docker://{name}:1",
    )  # fmt: skip
    return f"{name}@{note.read_text().strip()}"


@pytest.fixture(scope="module")
def index() -> Iterator[str]:
    with serve_site(FileSite(files=sample_project.sample_index().site_files())) as site:
        yield site.url("simple")


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory, index: str) -> Pushed:
    """The pushed base; its Debian packages are downloaded only in the first run."""
    needs.require_registry()
    folder = tmp_path_factory.mktemp("debian")
    project = Project(folder, index, cache=None)
    project.write(DEBIAN, arches=BOTH, user="imgbuild", uid=1000)
    project.run("lock", TARGET, "--keep")
    project.run(
        "build", TARGET, "--arch", "all", "--only", "base", "--output", str(folder / "base")
    )
    return Pushed(
        folder=folder / "base",
        oci=push(folder / "base", "--all"),
        docker=push(folder / "base", "--all", "--format", "v2s2"),
    )


@dataclass
class Sample:
    """A project based on the pushed base, locked and built."""

    project: Project
    output: Path
    base: str


# Docker's format differs only in its media types: tests that depend on these use both.
both_formats = pytest.mark.parametrize(
    "sample",
    ["oci", pytest.param("docker", marks=pytest.mark.long)],
    indirect=True,
    scope="module",
)


@pytest.fixture(scope="module", params=["oci"])
def sample(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    pushed: Pushed,
    index: str,
) -> Iterator[Sample]:
    folder = tmp_path_factory.mktemp(request.param)
    project = Project(folder / "project", index, cache=folder / "cache")
    below = getattr(pushed, request.param)
    project.write(sample_project.registry_base(below), arches=BOTH)
    project.run("lock", TARGET)
    project.run("build", TARGET, "--arch", "all", "--output", str(folder / "image"))
    yield Sample(project=project, output=folder / "image", base=below)
    shutil.rmtree(folder)


def manifest_of(image: str, arch: Arch) -> dict[str, list[dict[str, object]]]:
    """The manifest of a pushed image on `arch`, as stored in the registry."""
    name = image.partition("@")[0]
    raw = skopeo("inspect", "--raw", "--tls-verify=false", f"docker://{image}")
    for entry in json.loads(raw).get("manifests", ()):
        if entry["platform"]["architecture"] == arch.oci:
            place = f"docker://{name}@{entry['digest']}"
            raw = skopeo("inspect", "--raw", "--tls-verify=false", place)
    manifest: dict[str, list[dict[str, object]]] = json.loads(raw)
    return manifest


@both_formats
@pytest.mark.parametrize("arch", Arch)
def test_base_layers_are_copied_unchanged(sample, arch):
    below = manifest_of(sample.base, arch)["layers"]
    stored = images.verify_layout(sample.output).image(arch)
    base_layers = stored.layers[: len(below)]
    assert [(layer.digest, layer.size) for layer in base_layers] == [
        (layer["digest"], layer["size"]) for layer in below
    ]
    assert {layer.media_type for layer in stored.layers} == {documents.LAYER_GZIP}
    assert len(stored.layers) > len(below)
    assert (
        sample.project.run("digest", TARGET).stdout.strip()
        == layout.read_layout(sample.output).digest
    )


def test_images_keep_the_media_types_of_their_base_layers(pushed):
    kinds = [
        json.loads(skopeo("inspect", "--raw", "--tls-verify=false", f"docker://{image}"))
        for image in (pushed.oci, pushed.docker)
    ]
    assert [kind["mediaType"] for kind in kinds] == [
        documents.INDEX, "application/vnd.docker.distribution.manifest.list.v2+json"
    ]  # fmt: skip
    layer = manifest_of(pushed.docker, Arch.X86_64)["layers"][0]
    assert layer["mediaType"] == "application/vnd.docker.image.rootfs.diff.tar.gzip"


def test_docker_container_has_the_image_user_and_imports_the_wheel(sample):
    docker = needs.require_docker()
    loaded = json.loads(
        sample.project.run(
            "load", TARGET, "--layout", str(sample.output), "--arch", "x86_64", "--json"
        ).stdout
    )
    reference = loaded[0]["reference"]
    lines = [
        "id", "getent passwd trainer", "getent group trainer", "id root", "pwd",
        f'python -c "{LOOK}"',
    ]  # fmt: skip
    try:
        done = subprocess.run(
            [docker, "run", "--rm", "--network=none", reference, "sh", "-ec", "\n".join(lines)],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        subprocess.run([docker, "image", "rm", "--force", reference], check=False,
                       capture_output=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "uid=1234(trainer) gid=1234(trainer) groups=1234(trainer)",
        "trainer:x:1234:1234::/home/trainer:/bin/bash",
        "trainer:x:1234:",
        "uid=0(root) gid=0(root) groups=0(root)",
        "/workspace",
        SEEN,
    ]


def test_image_with_a_registry_base_runs_in_a_root_folder(sample):
    done = sample.project.run(
        "run", TARGET, "--through", "root", "--arch", "x86_64", "--layout", str(sample.output),
        "--", "python", "-c", LOOK,
    )  # fmt: skip
    assert done.stdout.strip() == SEEN


@pytest.mark.long  # test_lock_command.py locks twice
def test_second_lock_is_identical_and_check_passes(sample):
    before = sample.project.files()
    sample.project.run("lock", TARGET, "--check")
    sample.project.run("lock", TARGET)
    assert sample.project.files() == before
    assert {"layers.json", f"{TARGET}/lock.json", f"{TARGET}/requirements-arm64.txt"} <= set(before)


def test_empty_cache_yields_the_same_digest(sample, tmp_path):
    project = Project(sample.project.folder, sample.project.index_url, cache=tmp_path / "cache")
    project.run("build", TARGET, "--arch", "all", "--output", str(tmp_path / "image"))
    assert (
        images.verify_layout(tmp_path / "image").digest == layout.read_layout(sample.output).digest
    )
    project.run(
        "build",
        TARGET,
        "--arch",
        "all",
        "--output",
        str(tmp_path / "again"),
        "--offline",
        "--verify",
    )
    assert (
        images.verify_layout(tmp_path / "again").digest == layout.read_layout(sample.output).digest
    )


@both_formats
def test_base_only_image_is_built(sample, tmp_path):
    sample.project.run(
        "build", TARGET, "--arch", "all", "--only", "base", "--output", str(tmp_path / "base")
    )
    image_layout = images.verify_layout(tmp_path / "base")
    for arch in Arch:
        below = manifest_of(sample.base, arch)["layers"]
        assert [layer.digest for layer in image_layout.image(arch).layers] == [
            layer["digest"] for layer in below
        ]


@pytest.mark.parametrize("form", ["oci-archive", "docker-archive"])
def test_archives_contain_base_layers(sample, tmp_path, form):
    archive = tmp_path / "small.tar"
    # A docker-archive has one architecture.
    sample.project.run(
        "build", TARGET, "--arch", "x86_64", "--format", form, "--output", str(archive)
    )
    config = json.loads(skopeo("inspect", "--config", f"{form}:{archive}"))
    diff_ids = layout.read_layout(sample.output).image(Arch.X86_64).diff_ids
    assert tuple(config["rootfs"]["diff_ids"]) == diff_ids


@pytest.mark.long
def test_uncompressed_and_duplicate_base_layers_are_kept(tmp_path):
    """Old images repeat an empty layer, and some registries keep uncompressed layers."""
    members = [
        *(
            images.text_member(f"etc/{name}", "root:x:0:0::/:/bin/sh\n")
            for name in ("passwd", "group")
        ),
        images.text_member("usr/bin/python3.11", "", mode=0o755),
    ]
    packed, path = images.make_layer(tmp_path / "b", members)
    plain = tmp_path / "plain.tar"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    size = plain.stat().st_size
    record = LayerRecord(digest=packed.diff_id, size=size, diff_id=packed.diff_id, unpacked=size)
    twice = images.make_layer(tmp_path / "b", [images.text_member("word", "twice")])
    records = [record, twice[0], twice[0]]
    config = image_documents.image_configuration(
        images.create_plan(names="abc"), [each.diff_id for each in records]
    )
    types = {record.digest: documents.LAYER}
    summary = layout.ImageFiles(
        config=config,
        manifest=oci_documents.docker_manifest(config, records, media_types=types),
        layers={record.digest: plain, twice[0].digest: twice[1]},
    )
    layout.write_layout(tmp_path / "base", {Arch.X86_64: summary}, "odd")
    with serve_site(FileSite(files=sample_project.sample_index().site_files())) as site:
        project = Project(tmp_path / "project", site.url("simple"), cache=tmp_path / "cache")
        project.write(
            sample_project.registry_base(sample_project.serve_image(site, tmp_path / "base", "odd"))
        )
        project.run("lock", TARGET)
        project.run("build", TARGET, "--arch", "all")
    stored = images.verify_layout(tmp_path / "project/build" / TARGET).image(Arch.X86_64)
    assert [layer.digest for layer in stored.layers[:3]] == [each.digest for each in records]
    assert [layer.media_type for layer in stored.layers[:4]] == [
        documents.LAYER, *[documents.LAYER_GZIP] * 3
    ]  # fmt: skip
    for form in ("oci-archive", "docker-archive"):
        archive = tmp_path / f"{form}.tar"
        project.run(
            "build",
            TARGET,
            "--arch",
            "all",
            "--format",
            form,
            "--output",
            str(archive),
            "--offline",
        )
        skopeo("copy", "--quiet", f"{form}:{archive}", f"dir:{tmp_path / form}")
    docker = needs.require_docker()
    loaded = json.loads(project.run("load", TARGET, "--through", "docker", "--json").stdout)
    subprocess.run([docker, "image", "rm", "--force", loaded[0]["reference"]], check=True,
                   capture_output=True)  # fmt: skip


class TestRefusals:
    """Tests that unusable bases are an error with location and remedy and leave no files."""

    @pytest.fixture
    def project(self, tmp_path, index):
        return Project(tmp_path / "project", index, cache=tmp_path / "cache")

    def refuse(self, project, status, *words):
        message = " ".join(project.run("lock", TARGET, status=status).stderr.split())
        assert [word for word in words if word not in message] == [], message
        assert not (project.folder / "images").exists() or project.files() == {}

    def test_base_without_architecture_is_refused(self, project, pushed):
        digest = next(
            entry["digest"]
            for entry in json.loads(
                skopeo("inspect", "--raw", "--tls-verify=false", f"docker://{pushed.oci}")
            )["manifests"]
            if entry["platform"]["architecture"] == "amd64"
        )
        image = f"{pushed.oci.partition('@')[0]}@{digest}"
        project.write(sample_project.registry_base(image), arches=("arm64",))
        self.refuse(
            project, 2, image, "has no image for arm64, only for x86_64", "for this architecture"
        )

    def test_base_digest_missing_in_the_registry_is_reported(self, project, pushed):
        image = f"{pushed.oci.partition('@')[0]}@sha256:{'0' * 64}"
        project.write(sample_project.registry_base(image))
        self.refuse(project, 7, "404", "0" * 64)

    def test_zstd_base_layer_is_refused(self, project):
        folder = project.folder.parent
        # A new layer each time, because skopeo reuses a gzip known to have the same content.
        self.write_layers(project, [images.text_member("word", uuid.uuid4().hex)])
        # skopeo does not recompress compressed layers.
        skopeo("copy", "--quiet", "--dest-decompress", f"oci:{folder}/layout:{TARGET}",
               f"dir:{folder}/dir")  # fmt: skip
        image = f"{needs.require_registry()}/zstd-{uuid.uuid4().hex[:12]}"
        skopeo("copy", "--quiet", "--format", "oci", "--dest-compress-format", "zstd",
               "--dest-tls-verify=false", "--digestfile", f"{folder}/digest", f"dir:{folder}/dir",
               f"docker://{image}:1")  # fmt: skip
        image += f"@{(folder / 'digest').read_text().strip()}"
        assert manifest_of(image, Arch.X86_64)["layers"][0]["mediaType"] == documents.LAYER_ZSTD
        project.write(sample_project.registry_base(image))
        self.refuse(
            project, 2, image, f"the unsupported type {documents.LAYER_ZSTD}", "gzip layers"
        )

    def test_base_without_a_passwd_file_is_refused(self, project):
        image = push(
            self.write_layers(project, [images.text_member("usr/bin/python3.11", "", mode=0o755)])
        )
        project.write(sample_project.registry_base(image))
        self.refuse(project, 2, image, "/etc/passwd does not exist", "choose a base with this file")

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"interpreter": "/usr/local/bin/python3"}, ["/usr/local/bin/python3 does not exist"]),
            ({"python": "3.12"}, ["python3.11 is /usr/bin/python3.11, not Python 3.12"]),
        ],
    )
    def test_base_with_a_different_python_is_refused(self, project, pushed, changes, words):
        project.write(sample_project.registry_base(pushed.oci, **changes))
        self.refuse(project, 2, pushed.oci, "image has /usr/bin/python3.11", "interpreter", *words)

    def write_layers(self, project, members):
        layer = images.make_layer(project.folder.parent / "b", members)
        folder = project.folder.parent / "layout"
        layout.write_layout(folder, {Arch.X86_64: images.image_files([layer])}, TARGET)
        return folder
