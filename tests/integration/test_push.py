"""Tests pushing small images to a real registry and running them in engines.

Three targets are based on Debian's Python for two architectures. All tests of this file use one
docker-registry of Debian, whose log and files show what was transferred. A test server is used as a
registry that delays a push.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imgbuild import codec
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.values import Arch
from tests.support import docker_registry, images, memory_registry, needs, sample_project
from tests.support.docker_registry import OwnRegistry
from tests.support.memory_registry import Answer, Fault, Registry
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.engine, pytest.mark.network]
DEBIAN = {
    "kind": "debian", "suite": "bookworm", "python": "3.11", "glibc": "2.36",
    "packages": ["python3", "usr-is-merged"],
}  # fmt: skip
NEWER = "newer"  # as small, but for the version of its wheel
OTHER = "other"  # on one architecture
TARGETS = (TARGET, NEWER, OTHER)
LOOK = "import thewheel, platform; print(thewheel.VALUE, thewheel.VERSION, platform.machine())"


@dataclass
class Shop:
    """The project, the registry, and the images pushed before the tests."""

    project: Project
    registry: OwnRegistry
    pushed: list[dict[str, Any]]

    @property
    def place(self) -> str:
        """The repository with all targets."""
        return f"{self.registry.host}/rl"

    def digests_of(self, target: str = TARGET) -> TargetDigests:
        """The digests of a target."""
        return codec.read_document(
            self.project.folder / "images" / target / "digests.json", TargetDigests
        )

    def json(self, *arguments: str) -> Any:
        """The JSON output of a verb."""
        return json.loads(self.project.run(*arguments, "--json").stdout)


def add_targets(matrix: Path) -> None:
    """Add two rows derived from the first."""
    text = matrix.read_text()
    row = text.partition("targets:\n")[2]
    newer = row.replace(f"  {TARGET}:", f"  {NEWER}:").replace('thewheel: "1.0"', 'thewheel: "2.0"')
    other = row.replace(f"  {TARGET}:", f"  {OTHER}:").replace("x86_64, arm64", "x86_64")
    matrix.write_text(text + newer + other)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """The project; its Debian packages are downloaded only in the first run."""
    folder = tmp_path_factory.mktemp("push")
    with (
        serve_site(FileSite(files=sample_project.sample_index().site_files())) as site,
        docker_registry.serve_registry(folder / "registry") as registry,
    ):
        project = Project(folder / "project", site.url("simple"), cache=None)
        project.write(DEBIAN, arches=("x86_64", "arm64"), user="imgbuild", uid=1000)
        add_targets(project.folder / "matrix.yaml")
        project.run("lock", "--all", "--keep")
        shop = Shop(project, registry, [])
        shop.pushed += shop.json("push", TARGET, shop.place)
        shop.pushed += shop.json("push", "--all", shop.place)
        yield shop


def output(*command: str) -> str:
    """The output of a command, which must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def layers(target_digests: TargetDigests) -> set[str]:
    """The digests of all layers and configurations of a target."""
    return {layer.digest for image in target_digests.arch.values() for layer in image.layers} | {
        image.config for image in target_digests.arch.values()
    }


def sent(writes: Sequence[docker_registry.ReceivedRequest]) -> list[str]:
    """The digests of the blobs uploaded by requests."""
    return [
        request.path.rpartition("digest=")[2].replace("%3A", ":")
        for request in writes
        if request.method == "PUT" and "digest=" in request.path
    ]


def test_first_push_uploads_everything_and_later_pushes_upload_only_changes(shop):
    first, again, newer, other = shop.pushed
    assert {row["state"] for row in first["blobs"]} == {"sent"}
    assert {row["digest"] for row in newer["blobs"] if row["state"] == "sent"} == (
        layers(shop.digests_of(NEWER)) - layers(shop.digests_of())
    )
    assert {row["name"] for row in other["blobs"] if row["state"] == "sent"} == {"configuration"}
    assert again["sent"] == 0
    assert [item["digest"] for item in shop.pushed[1:]] == [
        shop.digests_of(target).digest for target in TARGETS
    ]
    locked_digests = {digest for target in TARGETS for digest in layers(shop.digests_of(target))}
    moved = [digest for digest in sent(shop.registry.writes()) if digest in locked_digests]
    assert sorted(moved) == sorted(locked_digests)


def test_second_push_of_an_unchanged_image_uploads_nothing(shop):
    before = len(shop.registry.received_requests())
    done = shop.json("push", "--all", shop.place)
    assert [item["sent"] for item in done] == [0, 0, 0]
    assert shop.registry.writes(before) == []
    assert len(shop.registry.received_requests()) > before


def test_docker_pulls_and_runs_both_architectures(shop):
    docker = needs.require_docker()
    machines = {Arch.X86_64: "x86_64"}
    if Path("/proc/sys/fs/binfmt_misc/qemu-aarch64").exists():
        machines[Arch.ARM64] = "aarch64"
    else:
        needs.skip_or_fail("the kernel cannot start arm64 programs", needs.INSTALL)
    for arch, machine in machines.items():
        image = f"{shop.place}@{shop.digests_of().arch[arch].manifest}"
        platform = f"linux/{arch.oci}"
        try:
            output(docker, "pull", "--quiet", "--platform", platform, image)
            container_output = output(
            docker, "run", "--rm", "--network=none", "--platform", platform, image,
                          "python", "-c", LOOK)  # fmt: skip
        finally:
            subprocess.run([docker, "image", "rm", "--force", image], check=False,
                           capture_output=True)  # fmt: skip
        assert container_output == f"42 1.0 {machine}"
    tagged = f"{shop.place}:{NEWER}"
    output(docker, "pull", "--quiet", tagged)
    identity = json.loads(output(docker, "image", "inspect", tagged))[0]["Id"]
    output(docker, "image", "rm", "--force", tagged)
    assert identity == shop.digests_of(NEWER).digest


@pytest.mark.long  # the previous test pulls both by Docker
def test_podman_pulls_both_architectures(shop):
    podman = needs.require_podman()
    for arch in Arch:
        image = output(podman, "pull", "--quiet", "--tls-verify=false", "--arch", arch.oci,
                       f"{shop.place}:{TARGET}")  # fmt: skip
        image_facts = json.loads(output(podman, "image", "inspect", image))[0]
        output(podman, "image", "rm", "--force", image)
        assert image_facts["Architecture"] == arch.oci
        assert f"sha256:{image}" == shop.digests_of().arch[arch].config


def test_skopeo_reads_the_same_digest(shop):
    skopeo = needs.require_tool("skopeo")
    raw = output(skopeo, "inspect", "--tls-verify=false", f"docker://{shop.place}:{TARGET}")
    inspected = json.loads(raw)
    assert inspected["Digest"] == shop.digests_of().digest
    assert inspected["Labels"]["dev.imgbuild.target"] == TARGET
    names = {tag["name"] for row in shop.pushed for tag in row["tags"]}
    assert {re.sub("-20[0-9]{6}$", "", name) for name in names} == set(TARGETS)
    assert names <= set(inspected["RepoTags"])


def test_listing_diff_and_pull_have_the_locked_digests(shop, tmp_path):
    listed = shop.json("registry", "ls", shop.registry.host)
    assert {entry["target"]: entry["digest"] for entry in listed["entries"]} == {
        target: shop.digests_of(target).digest for target in TARGETS
    }
    old, new = (f"{shop.place}:{target}" for target in (TARGET, NEWER))
    remote, local = shop.json("diff", old, new), shop.json("diff", TARGET, NEWER)
    for arch in Arch:
        layer_digests = {layer.digest for layer in shop.digests_of().arch[arch].layers}
        fresh = [
            each
            for each in shop.digests_of(NEWER).arch[arch].layers
            if each.digest not in layer_digests
        ]
        for comparison in (remote, local):
            part = comparison["arch"][arch]
            assert part["pull"] == sum(layer.size for layer in fresh) > 0
            assert part["layers"] == [layer.name for layer in fresh]
        moved = {each["package"] for each in local["arch"][arch]["changes"]}
        assert moved == {"thewheel", "another"}
    out = tmp_path / "pulled"
    done = shop.json("pull", old, "--output", str(out))
    assert (done["digest"], done["moved"]) == (shop.digests_of().digest, 0)
    assert images.verify_layout(out).digest == shop.digests_of().digest
    empty = Project(shop.project.folder, shop.project.index_url, cache=tmp_path / "cache")
    empty.run("pull", old, "--output", str(tmp_path / "again"))
    assert images.verify_layout(tmp_path / "again").digest == shop.digests_of().digest


def test_diff_accepts_git_revision(shop):
    git, folder = needs.require_tool("git"), shop.project.folder
    name = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    for words in (["init", "-q"], ["add", "images"], [*name, "commit", "-q", "-m", "locked"]):
        output(git, "-C", str(folder), *words)
    comparison = shop.json("diff", f"{TARGET}@HEAD", NEWER)
    assert comparison["before"] == f"{TARGET}@HEAD"
    assert {each["package"] for each in comparison["arch"]["x86_64"]["changes"]} == {
        "thewheel", "another"
    }  # fmt: skip


@pytest.mark.long  # unit/publish/test_push.py has threads
def test_concurrent_pushes_share_mounted_layers(shop):
    """Two processes push the same target to a new repository, and no blob is sent."""
    before = len(shop.registry.received_requests())
    words = ("push", TARGET, f"{shop.registry.host}/mounted", "--mount-from", shop.place)
    with ThreadPoolExecutor() as threads:
        done = list(threads.map(lambda _: shop.json(*words), range(2)))
    assert [item["sent"] for answer in done for item in answer] == [0, 0]
    assert layers(shop.digests_of()).isdisjoint(sent(shop.registry.writes(before)))


@pytest.mark.long  # unit/publish/test_push.py has threads
def test_concurrent_pushes_send_each_blob_once(shop):
    before = len(shop.registry.received_requests())
    words = [("push", target, f"{shop.registry.host}/at-once") for target in (*TARGETS, TARGET)]
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda each: shop.json(*each), words))
    locked_digests = {digest for target in TARGETS for digest in layers(shop.digests_of(target))}
    moved = [digest for digest in sent(shop.registry.writes(before)) if digest in locked_digests]
    assert sorted(moved) == sorted(locked_digests)


def test_base_is_pushed_for_online_dockerfiles(shop, tmp_path):
    (done,) = shop.json("push", TARGET, shop.place, "--only", "base")
    assert done["sent"] < 10_000  # its layers are those of the images: configurations are new
    out = tmp_path / "base"
    (built,) = shop.json("build", TARGET, "--arch", "all", "--only", "base", "--output", str(out))
    assert done["digest"] == built["digest"]  # which `render --online` writes
    place = f"docker://{shop.place}@{built['digest']}"
    raw = output(needs.require_tool("skopeo"), "inspect", "--tls-verify=false", place)
    assert json.loads(raw)["Digest"] == built["digest"]


@pytest.mark.long
def test_layer_sharing_computed_from_digests_matches_the_registry(shop):
    command = [
        sys.executable, str(ROOT / "lab/sharing.py"), "--registry", shop.place,
        "--images", str(shop.project.folder / "images"), "--storage", str(shop.registry.storage),
    ]  # fmt: skip
    lines = output(*command).splitlines()
    assert lines[0].startswith(f"- computed for the images in {shop.place}: 5 images")
    assert [line.rpartition(": ")[2] for line in lines[1:]] == ["equal"] * 3
    lost = shop.digests_of().arch[Arch.ARM64].layers[-1].digest.removeprefix("sha256:")
    (data,) = shop.registry.storage.rglob(f"blobs/sha256/*/{lost}/data")
    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        data.write_bytes(whole)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].endswith("**not equal**")


@pytest.mark.parametrize(
    "how", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.long)]
)
def test_killed_push_leaves_no_tag_and_is_resumed_by_the_next_push(shop, how):
    base = shop.digests_of().arch[Arch.X86_64].layers[0].digest
    reached, go_on = threading.Event(), threading.Event()

    def _hold(_: Answer) -> None:
        reached.set()
        go_on.wait(60)

    with memory_registry.serve(Registry()) as registry:
        where = f"{registry.host}/rl"
        registry.faults.append(Fault(f"PUT .*{base.replace(':', '%3A')}", edit=_hold))
        running = subprocess.Popen(
            shop.project.command("push", TARGET, where),
            cwd=shop.project.folder,
            env=shop.project.environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        assert reached.wait(60)
        running.send_signal(how)
        messages = running.communicate(timeout=60)[1]
        go_on.set()
        assert running.returncode == (130 if how is signal.SIGINT else -9), messages
        assert "Traceback" not in messages
        assert registry.tags == {}
        arrived = {digest for _, digest in registry.blobs}
        registry.requests.clear()
        (done,) = shop.json("push", TARGET, where)
        present = {row["digest"] for row in done["blobs"] if row["state"] == "present"}
        assert arrived <= present
        assert set(registry.tags.values()) == {shop.digests_of().digest}
