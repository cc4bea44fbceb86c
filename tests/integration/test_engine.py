"""Tests that images loaded into real engines are identical to the built ones and run."""

from __future__ import annotations

import contextlib
import io
import socket
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.container import engine, loopback
from imgbuild.container.engine import ContainerOptions, Engine
from imgbuild.container.load import load_image
from imgbuild.container.loopback import LoopbackImage
from imgbuild.errors import IntegrityError, ToolMissing, WorkFailed
from imgbuild.oci import layout
from imgbuild.system import process
from imgbuild.system.amounts import size_text
from imgbuild.system.reporter import SilentReporter
from imgbuild.values import Arch
from tests.support import images, needs, rewritten_image

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


# Without long tests, all engines load, update and run an image, and Docker runs the other tests.
@pytest.fixture(
    params=[
        "docker",
        pytest.param("docker20", marks=pytest.mark.long),
        pytest.param("podman", marks=pytest.mark.long),
    ],
    name="container_engine",
)
def _container_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    kind = request.param
    if kind == "docker20":
        for name, value in needs.require_docker20().items():
            monkeypatch.setenv(name, value)
        kind = "docker"
    else:
        getattr(needs, f"require_{kind}")()
    return engine.require_engine(kind)


every_engine = pytest.mark.parametrize(
    "container_engine", ["docker", "docker20", "podman"], indirect=True
)


@pytest.fixture(name="tag")
def _tag(container_engine: Engine) -> Iterator[str]:
    tag = f"imgbuild-test-{uuid.uuid4().hex[:12]}"
    yield tag
    engine.remove_image(container_engine, f"{tag}:latest")


@pytest.fixture(name="loaded")
def _loaded(container_engine: Engine, folder: Path, tag: str) -> str:
    return load_image(
        container_engine, layout.read_layout(images.write_tiny_image(folder)), Arch.X86_64, tag
    ).reference


def ran(container_engine: Engine, reference: str, *command: str) -> process.ProcessResult:
    """Run a command, or the default command of the image, in a new container."""
    return process.run_command(
        container_engine.command("run", "--rm", reference, *command), check=False
    )


@every_engine
def test_image_loaded_into_an_engine_is_identical_and_runs(container_engine, folder, tag):
    read = layout.read_layout(images.write_tiny_image(folder))
    loaded = load_image(container_engine, read, Arch.X86_64, tag)
    stored = read.image(Arch.X86_64)
    assert loaded.id in (stored.manifest.digest, stored.config.digest)
    completed = ran(container_engine, loaded.reference)
    assert (completed.status, completed.stdout) == (0, "hello\n"), completed
    completed = ran(container_engine, tag, "sh", "-c", "id -u; pwd; echo $WORD; exit 7")
    assert (completed.status, completed.stdout) == (7, "1000\n/opt\ntwo words\n"), completed


def test_engine_with_the_containerd_store_keeps_the_published_digest(folder, monkeypatch):
    needs.require_docker()
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    container_engine = engine.require_engine("docker")
    read = layout.read_layout(images.write_tiny_image(folder, (Arch.X86_64, Arch.ARM64), "digest"))
    for arch in read.images:
        loaded = load_image(container_engine, read, arch, f"imgbuild-test-{arch}")
        assert loaded.id == read.image(arch).manifest.digest
        engine.remove_image(container_engine, loaded.reference)


def test_second_load_of_the_image_sends_no_data(container_engine, folder, tag):
    read = layout.read_layout(images.write_tiny_image(folder, word="once"))
    first = load_image(container_engine, read, Arch.X86_64, tag)
    path = read.blob(read.image(Arch.X86_64).layers[0].digest)
    path.unlink()  # what is not there cannot be sent
    assert load_image(container_engine, read, Arch.X86_64, tag).id == first.id


def test_loaded_image_runs_after_another_image_took_its_name(container_engine, folder, tag):
    first, _ = (
        load_image(
            container_engine,
            layout.read_layout(images.write_tiny_image(folder, word=word)),
            Arch.X86_64,
            tag,
        )
        for word in ("first", "second")
    )
    assert ran(container_engine, first.reference).stdout == "second\n"
    assert ran(container_engine, first.id).stdout == "first\n"


@contextlib.contextmanager
def nowhere(read: layout.Layout, arch: Arch, sent: object) -> Iterator[LoopbackImage]:
    """A loopback address that the engine cannot reach, like an address of another machine."""
    del sent
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    tag = read.image(arch).manifest.digest.removeprefix("sha256:")
    yield LoopbackImage(repository=f"127.0.0.1:{port}/x", tag=tag, requested=lambda: False)


@pytest.mark.parametrize("near", [True, False])
def test_layers_that_the_engine_already_has_are_not_sent(
    container_engine, folder, tag, near, monkeypatch
):
    if not near:
        monkeypatch.setattr(loopback, "serve_image", nowhere)
    old, new = (
        layout.read_layout(images.write_tiny_image(folder, word=f"{word}{near}"))
        for word in ("old", "new")
    )
    load_image(container_engine, old, Arch.X86_64, tag)
    shared, _ = new.image(Arch.X86_64).layers
    assert shared in old.image(Arch.X86_64).layers
    new.blob(shared.digest).unlink()
    if container_engine.kind == "podman" and not near:  # it accepts no archive that lacks a layer
        with pytest.raises(IntegrityError, match="cannot read"):
            load_image(container_engine, new, Arch.X86_64, tag)
        return
    reporter = Told()
    load_image(container_engine, new, Arch.X86_64, tag, reporter=reporter)
    assert ran(container_engine, tag).stdout == f"new{near}\n"
    sizes = [layer.size for layer in new.image(Arch.X86_64).layers]
    assert f"{size_text(sizes[1])} of {size_text(sum(sizes))} in 2 layers" in reporter.steps[0]
    assert reporter.totals[0] == sizes[1]


class Told(SilentReporter):
    """A reporter that records steps and progress bars."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.totals: list[int | None] = []

    def step(self, title):
        self.steps.append(title)
        return super().step(title)

    def progress(self, title, total, **options):
        self.totals.append(total)
        return super().progress(title, total, **options)


@every_engine
def test_remote_engine_receives_the_image_as_an_archive(container_engine, folder, tag, monkeypatch):
    monkeypatch.setattr(loopback, "serve_image", nowhere)
    read = layout.read_layout(
        images.write_tiny_image(folder, word=f"far{container_engine.version}")
    )
    stored = read.image(Arch.X86_64)
    assert load_image(container_engine, read, Arch.X86_64, tag).id in (
        stored.manifest.digest,
        stored.config.digest,
    )


def test_error_of_the_container_engine_is_reported(container_engine, folder, tag):
    read = layout.read_layout(
        images.write_tiny_image(folder, word=f"damaged{container_engine.version}")
    )
    last = read.blob(read.image(Arch.X86_64).layers[-1].digest)
    data = last.read_bytes()
    last.unlink()
    last.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    digest = read.image(Arch.X86_64).layers[-1].digest.removeprefix("sha256:")
    with pytest.raises((IntegrityError, WorkFailed), match=digest[:12]):
        load_image(container_engine, read, Arch.X86_64, tag)
    assert engine.inspect_image(container_engine, tag) is None


@pytest.mark.long  # an earlier test runs the second image
def test_tag_refers_to_the_newly_loaded_image(container_engine, folder, tag):
    old, _ = (
        load_image(
            container_engine,
            layout.read_layout(images.write_tiny_image(folder, word=word)),
            Arch.X86_64,
            tag,
        )
        for word in ("old", "new")
    )
    assert ran(container_engine, tag).stdout == "new\n"
    engine.remove_image(container_engine, old.id)


def test_image_removal_is_idempotent(container_engine, loaded):
    engine.remove_image(container_engine, loaded)
    engine.remove_image(container_engine, loaded)
    assert (
        process.run_command(
            container_engine.command("image", "inspect", loaded), check=False
        ).status
        != 0
    )


def test_container_settings_apply_to_command(container_engine, loaded):
    settings = ContainerOptions(
        env={"MORE": "a b"}, user="4321", network=False, options=("--workdir=/bin",)
    )
    command = ["sh", "-c", "id -u; echo $MORE; pwd; ls /sys/class/net"]
    container = engine.create_container(container_engine, loaded, command, settings)
    completed = engine.start_container(container_engine, container)
    engine.remove_container(container_engine, container)
    assert completed.stdout.split("\n")[:3] == ["4321", "a b", "/bin"], completed
    assert completed.stdout.split()[-1] == "lo"


def test_files_are_copied_into_a_container_without_a_shared_folder(container_engine, loaded):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        info = tarfile.TarInfo("given/word")
        info.size, info.uid, info.gid = 4, 1000, 1000
        tar.addfile(info, io.BytesIO(b"in\nx"))
    command = ["sh", "-c", "stat -c %u /opt/given/word; cat /opt/given/word"]
    settings = ContainerOptions(user="0", network=False)
    container = engine.create_container(container_engine, loaded, command, settings)
    try:
        engine.copy_into_container(container_engine, container, [data.getvalue()], "/opt")
        completed = engine.start_container(container_engine, container)
        assert (completed.status, completed.stdout) == (0, "1000\nin\nx"), completed
    finally:
        engine.remove_container(container_engine, container)
    engine.remove_container(container_engine, container)


def test_unreachable_engine_is_reported_with_remedy(monkeypatch):
    needs.require_tool("docker", "docker.io docker-cli")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    assert engine.find_engine("docker") is None
    with pytest.raises(ToolMissing, match="cannot connect to docker") as caught:
        engine.require_engine("docker")
    assert "DOCKER_HOST" in str(caught.value.hint)


def test_missing_container_engine_is_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert engine.find_engine() is None
    with pytest.raises(ToolMissing, match="no container engine is running"):
        engine.require_engine()


def test_container_host_variable_selects_podman(monkeypatch):
    needs.require_podman()
    needs.require_docker()
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    assert engine.require_engine().kind == "docker"
    monkeypatch.setenv("CONTAINER_HOST", "unix:///nonexistent/podman.sock")
    with pytest.raises(ToolMissing, match="CONTAINER_HOST=unix:///nonexistent"):
        engine.find_engine()


def test_unreachable_engine_of_docker_host_is_not_replaced_by_another_engine(monkeypatch):
    needs.require_podman()
    needs.require_docker()
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    with pytest.raises(ToolMissing, match="cannot connect to docker") as caught:
        engine.find_engine()
    assert "unset DOCKER_HOST" in str(caught.value.hint)
    assert engine.require_engine("podman").kind == "podman"


def test_loading_an_image_with_a_wrong_diff_id_is_refused(container_engine, tmp_path, tag):
    """Docker refuses such an image, but podman would accept it."""

    def _exchange(_: object, config: dict[str, dict[str, list[str]]]) -> None:
        config["rootfs"]["diff_ids"].reverse()

    false = layout.read_layout(rewritten_image.write_changed_layout(tmp_path, _exchange))
    with pytest.raises((IntegrityError, WorkFailed), match=r"(?i)diff id|don't match"):
        load_image(container_engine, false, Arch.X86_64, tag)
    assert engine.inspect_image(container_engine, f"{tag}:latest") is None
