"""Tests that a mirror filled from a lock can be the only source of a build.

The mirror is Debian's docker-registry. The index and the registry of the base are servers of this
test, which can be stopped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imgbuild.assemble.mirror_items import ARTIFACT
from imgbuild.oci import layout
from imgbuild.values import Arch
from tests.support import docker_registry, images, needs, sample_project
from tests.support.docker_registry import OwnRegistry
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

MIRROR = ("registry", "mirror")

pytestmark = pytest.mark.engine
BOTH = ("x86_64", "arm64")
# In the namespace: only a loopback, and the registry.
ALONE = """
ip link set lo up
test -z "$(ip route)"
"$REGISTRY" serve "$CONFIGURATION" >"$LOG" 2>&1 &
trap "kill $!" EXIT
for _ in $(seq 300); do
    (: < "/dev/tcp/127.0.0.1/$PORT") 2>/dev/null && break
    sleep 0.1
done
"$@"
"""


@dataclass
class Sample:
    """A locked project whose upstream may be unavailable, and a registry with its inputs."""

    project: Project
    registry: OwnRegistry
    site: FileSite
    pushed: dict[str, Any]

    @property
    def place(self) -> str:
        return f"{self.registry.host}/team/inputs"

    def fresh(self, cache: Path, **env: str) -> Project:
        """A copy of the project with an empty cache."""
        return Project(self.project.folder, self.project.index_url, cache=cache, env=env)


def base(folder: Path, site: FileSite) -> str:
    """A base served by `site`: accounts and a stub of Python, for both architectures."""
    members = [
        *(
            images.text_member(f"etc/{name}", "root:x:0:0::/:/bin/sh\n")
            for name in ("passwd", "group")
        ),
        images.text_member("usr/bin/python3.11", "", mode=0o755),
    ]
    layers = [images.make_layer(folder / "blobs", members)]
    summaries = {arch: images.image_files(layers, arch) for arch in Arch}
    layout.write_layout(folder / "base", summaries, "base")
    return sample_project.serve_image(site, folder / "base", "upstream/base")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    folder = tmp_path_factory.mktemp("mirror")
    with (
        docker_registry.serve_registry(folder / "registry") as registry,
        serve_site(FileSite(files=sample_project.sample_index().site_files())) as site,
    ):
        project = Project(folder / "project", site.url("simple"), cache=folder / "cache")
        below = {"kind": "registry", "image": base(folder, site), "python": "3.11",
                 "glibc": "2.36", "interpreter": "/usr/bin/python3.11"}  # fmt: skip
        project.write(below, arches=BOTH)
        project.run("lock", TARGET)
        project.run("build", TARGET, "--arch", "all", "--output", str(folder / "image"))
        done = project.run(
            "registry", "mirror", "push", TARGET, f"{registry.host}/team/inputs", "--json"
        )
        yield Sample(project, registry, site, json.loads(done.stdout))
        shutil.rmtree(folder / "image")


def alone(sample: Sample, project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run imgbuild in a network namespace whose only server is a copy of the registry."""
    unshare = needs.user_namespaces()
    needs.require_tool("ip", "iproute2")
    env = {
        **project.environment(),
        "REGISTRY": docker_registry.registry_program(),
        "CONFIGURATION": str(sample.registry.folder / "config.yml"),
        "LOG": str(sample.registry.folder / "log-alone"),
        "PORT": sample.registry.host.rpartition(":")[2],
    }
    inside = [unshare, "--user", "--map-root-user", "--net", "bash", "-ec", ALONE, "alone"]
    return subprocess.run(
        [*inside, *project.command(*arguments)],
        cwd=project.folder, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip


def manifest(sample: Sample, tag: str) -> dict[str, Any]:
    """An artifact as stored in the registry."""
    skopeo = needs.require_tool("skopeo")
    command = [skopeo, "inspect", "--raw", "--tls-verify=false", f"docker://{sample.place}:{tag}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_mirror_has_every_input_of_lock(sample):
    lock = sample.project.read(f"{TARGET}/lock.json")
    blobs = sample.registry.blobs()
    for arch in BOTH:
        resolution = lock["arch"][arch]
        expected = {f"sha256:{wheel['sha256']}": wheel["file"] for wheel in resolution["wheels"]}
        expected |= {layer["digest"]: "" for layer in resolution["base_layers"]}
        artifact = manifest(sample, f"{TARGET}-{arch}-inputs")
        assert artifact["artifactType"] == ARTIFACT
        titles = {
            layer["digest"]: layer["annotations"]["org.opencontainers.image.title"]
            for layer in artifact["layers"]
        }
        assert titles.keys() == expected.keys()
        assert all(titles[digest] == file for digest, file in expected.items() if file)
        assert expected.keys() <= blobs.keys()
    listed = {item["tag"]: item for item in sample.pushed["artifacts"]}
    for tag, item in listed.items():
        assert manifest(sample, tag) == manifest(sample, f"{TARGET}-{item['arch']}-inputs")


def test_second_push_writes_nothing(sample):
    before = len(sample.registry.received_requests())
    done = sample.project.run(*MIRROR, "push", TARGET, sample.place, "--json")
    again = json.loads(done.stdout)
    assert (again["sent"], again["sent_size"], again["fetched"]) == (0, 0, 0)
    assert sample.pushed["sent"] == sample.pushed["files"] == again["files"]
    assert len(sample.registry.received_requests()) > before
    assert sample.registry.writes(before) == []


def test_build_uses_only_the_mirror(sample, tmp_path):
    """With an empty cache and without upstream servers, the mirror yields the locked digest."""
    before = sample.project.files()
    project = sample.fresh(tmp_path / "cache")
    output = tmp_path / "image"
    sample.project.run(*MIRROR, "use", sample.place, "--mirror-only")
    try:
        done = alone(sample, project, "build", TARGET, "--arch", "all", "--output", str(output))
        assert done.returncode == 0, done.stderr
        assert f"from the mirror {sample.place}" in done.stderr
    finally:
        sample.project.run(*MIRROR, "use", "--off")
    assert (
        images.verify_layout(output).digest
        == sample.project.read(f"{TARGET}/digests.json")["digest"]
    )
    assert sample.project.files() == before
    access_log = (sample.registry.folder / "log-alone").read_text()
    assert '"GET /v2/team/inputs/blobs/sha256:' in access_log


def test_build_without_the_mirror_fails_in_the_network_namespace_of_the_tests(sample, tmp_path):
    """Without the mirror, the build fails in the network namespace of these tests."""
    project = sample.fresh(tmp_path / "cache", IMGBUILD_MIRROR="off")
    output = tmp_path / "image"
    done = alone(sample, project, "build", TARGET, "--arch", "all", "--output", str(output))
    assert done.returncode == 7, done.stderr
    assert not output.exists()


def build_options(sample, output):
    """The options that build all architectures from the mirror into the layout `output`."""
    build = ("build", TARGET, "--arch", "all", "--output", str(output))
    return (*build, "--mirror", sample.place)


def test_input_that_the_mirror_lacks_is_fetched_or_reported(sample, tmp_path):
    wheel = sample.project.read(f"{TARGET}/lock.json")["arch"]["x86_64"]["wheels"][0]
    place = sample.registry.storage / "docker/registry/v2"
    link = place / f"repositories/team/inputs/_layers/sha256/{wheel['sha256']}/link"
    original = link.read_bytes()
    link.unlink()
    try:
        strict = sample.fresh(tmp_path / "strict")
        options = build_options(sample, tmp_path / "image")
        done = strict.run(*options, "--mirror-only", status=7)
        assert wheel["file"] in done.stderr
        assert "lacks 1 inputs of small" in done.stderr
        assert f"imgbuild registry mirror push small {sample.place}" in done.stderr
        done = sample.project.run(
            "registry", "mirror", "status", TARGET, sample.place, "--json", status=1
        )
        assert [item["lacking"] for item in json.loads(done.stdout)] == [[wheel["file"]]] * 2
        request_count = len(sample.site.requests)
        sample.fresh(tmp_path / "lenient").run(*options)
        wheels = [
            path for _, path, _ in sample.site.requests[request_count:] if path.endswith(".whl")
        ]
        assert [path.rpartition("/")[2] for path in wheels] == [wheel["file"]]
    finally:
        link.write_bytes(original)
    sample.project.run(*MIRROR, "status", TARGET, sample.place)


def test_damaged_mirror_file_is_not_used(sample, tmp_path):
    wheel = sample.project.read(f"{TARGET}/lock.json")["arch"]["x86_64"]["wheels"][0]
    key = wheel["sha256"]
    blob = sample.registry.storage / f"docker/registry/v2/blobs/sha256/{key[:2]}/{key}/data"
    original = blob.read_bytes()
    blob.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    try:
        options = build_options(sample, tmp_path / "image")
        done = sample.fresh(tmp_path / "strict").run(*options, "--mirror-only", status=9)
        assert key in done.stderr
        done = sample.fresh(tmp_path / "lenient").run(*options)
        assert f"skipping {wheel['file']} in {sample.place}" in done.stderr
    finally:
        blob.write_bytes(original)
    assert (
        images.verify_layout(tmp_path / "image").digest
        in sample.project.run("digest", TARGET).stdout
    )


@pytest.mark.long
def test_unreachable_input_mirror_is_skipped(sample, tmp_path):
    nobody = "127.0.0.1:9/team/inputs"
    project = sample.fresh(tmp_path / "cache", IMGBUILD_MIRROR=nobody)
    done = project.run("build", TARGET, "--arch", "all", "--output", str(tmp_path / "image"))
    assert f"skipping the mirror {nobody}" in done.stderr


def test_damaged_cache_file_is_not_uploaded(sample, tmp_path):
    """The damaged file is fetched again and then uploaded."""
    project = sample.fresh(tmp_path / "cache")
    project.run("build", TARGET, "--arch", "all", "--output", str(tmp_path / "image"))
    wheel = sample.project.read(f"{TARGET}/lock.json")["arch"]["x86_64"]["wheels"][0]
    path = tmp_path / "cache/files" / wheel["sha256"][:2] / wheel["sha256"]
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    other = f"{sample.registry.host}/other/inputs"
    done = project.run(*MIRROR, "push", TARGET, other)
    assert f"removed {path} ({wheel['file']}), which is damaged" in done.stderr
    assert path.read_bytes() == data
    (stored,) = sample.registry.storage.rglob(f"blobs/sha256/*/{wheel['sha256']}/data")
    assert stored.read_bytes() == data
    project.run(*MIRROR, "status", TARGET, other)
