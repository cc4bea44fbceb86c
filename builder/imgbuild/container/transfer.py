"""Transfers images to Docker or podman.

An engine on this machine pulls missing layers from a registry on the loopback interface (see
`container.loopback`). Docker unpacks the layers one by one after it has downloaded all of them, so
pulling some layers earlier or during the build is not faster on two cores. An engine that cannot
reach the registry, for example because it is on another machine, receives an archive. For Docker,
the archive omits existing layers, unless Docker rejects such an archive.
"""

# A separate module: `docker` is imported only if needed.
from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import docker
import msgspec
from docker.errors import APIError, DockerException, ImageNotFound

from imgbuild.container import loopback
from imgbuild.container.engine import Engine
from imgbuild.container.loopback import LoopbackImage
from imgbuild.errors import ToolMissing, WorkFailed
from imgbuild.oci import archive
from imgbuild.oci.layout import Layout
from imgbuild.system import process
from imgbuild.system.amounts import format_count, size_text
from imgbuild.system.reporter import ProgressBar, Reporter
from imgbuild.values import Arch, Digest

HINT = "check the output of `docker info`, and the log of the engine"

SHORT_DIGEST = 12  # characters of a layer's digest in Docker's events
FINAL_STATES = ("Pull complete", "Already exists")


class ImageTransfer(msgspec.Struct, frozen=True, kw_only=True):
    """The transfer of an image into an engine, which already has the layers `there`."""

    engine: Engine
    layout: Layout
    arch: Arch
    reference: str
    title: str
    there: frozenset[Digest]

    def size(self, without: Collection[Digest] = ()) -> int:
        """Return the size of all layers except `without`, in bytes."""
        layers = self.layout.image(self.arch).layers
        return sum(layer.size for layer in layers if layer.digest not in without)


def transfer_image(job: ImageTransfer, reporter: Reporter) -> None:
    """Transfer the image. Raises WorkFailed if the engine rejects it."""
    with reporter.step(f"{job.title}, {_amount(job)}"):
        if not _pull_from_loopback(job, reporter):
            _send_archive(job, reporter)


def _amount(job: ImageTransfer) -> str:
    layers = job.layout.image(job.arch).layers
    missing, total = job.size(job.there), job.size()
    number = format_count(len(layers), "layer")
    if missing == total:
        return f"{size_text(total)} in {number}"
    return f"{size_text(missing)} of {size_text(total)} in {number}"


def _pull_from_loopback(job: ImageTransfer, reporter: Reporter) -> bool:
    """Let the engine pull the image from a loopback registry.

    Returns False if the engine cannot reach the registry.
    """
    with (
        reporter.progress(job.title, job.size(job.there)) as bar,
        loopback.serve_image(job.layout, job.arch, _progress_callback(job, bar)) as served,
    ):
        try:
            if job.engine.kind == "docker":
                _docker_pull(job, served, bar)
            else:
                _podman_pull(job, served)
        except WorkFailed as error:
            if served.requested():
                raise
            reporter.detail(f"{error.message}; sending an archive instead")
            return False
    return True


def _progress_callback(job: ImageTransfer, bar: ProgressBar) -> Callable[[int], object]:
    """Return the function to call with the size of each chunk. Docker sends events instead."""
    return bar.advance if job.engine.kind == "podman" else lambda _: None


def _docker_pull(job: ImageTransfer, served: LoopbackImage, bar: ProgressBar) -> None:
    layers = job.layout.image(job.arch).layers
    missing = (layer for layer in layers if layer.digest not in job.there)
    sizes = {layer.digest.removeprefix("sha256:")[:SHORT_DIGEST]: layer.size for layer in missing}
    with connect_to_docker() as api:
        for event in api.pull(served.repository, served.tag, job.arch):
            if event.get("status") in FINAL_STATES:
                bar.advance(sizes.pop(event.get("id", ""), 0))
        api.tag(served.reference, job.reference)
        api.remove(served.reference)


def _podman_pull(job: ImageTransfer, served: LoopbackImage) -> None:
    command = job.engine.command
    options = ("--quiet", "--tls-verify=false", f"--arch={job.arch.oci}")
    process.run_command(command("pull", *options, served.reference))
    process.run_command(command("tag", served.reference, job.reference))
    process.run_command(command("untag", served.reference, served.reference))


def _send_archive(job: ImageTransfer, reporter: Reporter) -> None:
    if job.engine.kind == "podman":
        with _archive(job, reporter) as chunks:
            process.feed_command(job.engine.command("load"), chunks)
        return
    with connect_to_docker() as api:
        if job.there:
            try:
                with _archive(job, reporter, job.there) as chunks:
                    api.load_archive(chunks)
            except WorkFailed as error:
                reporter.detail(f"{error.message}; sending all layers")
            else:
                return
        with _archive(job, reporter) as chunks:
            api.load_archive(chunks)


@contextlib.contextmanager
def _archive(
    job: ImageTransfer, reporter: Reporter, without: Collection[Digest] = ()
) -> Iterator[Iterator[bytes]]:
    """Yield the chunks of a docker-archive, and show their progress."""
    with reporter.progress(job.title, job.size(without)) as bar:

        def _counted() -> Iterator[bytes]:
            tag = job.reference
            for chunk in archive.archive_chunks(
                job.layout, job.arch, "docker-archive", tag=tag, without=without
            ):
                yield chunk
                bar.advance(len(chunk))

        yield _counted()


class DockerApi:
    """A connection to an engine. Methods raise WorkFailed with the engine's error."""

    def __init__(self, api: docker.APIClient) -> None:
        self._api = api

    def pull(self, repository: str, tag: str, arch: Arch) -> Iterator[dict[str, Any]]:
        """Pull an image, and yield the engine's events."""
        with _convert_errors(f"pull {repository}:{tag}"):
            yield from _check_events(
                self._api.pull(
                    repository, tag, stream=True, decode=True, platform=f"linux/{arch.oci}"
                )
            )

    def load_archive(self, archive: Iterable[bytes]) -> None:
        """Load a docker-archive."""
        with _convert_errors("load"):
            for _ in _check_events(self._api.load_image(archive, quiet=True)):
                pass

    def tag(self, source: str, reference: str) -> None:
        """Add the name `reference` to the image `source`, REPOSITORY:TAG."""
        repository, _, tag = reference.rpartition(":")
        with _convert_errors(f"tag {reference}"):
            self._api.tag(source, repository, tag)

    def remove(self, reference: str) -> None:
        """Remove a name, and the image if it has no other name. A missing name is ignored."""
        with _convert_errors(f"remove {reference}"), contextlib.suppress(ImageNotFound):
            self._api.remove_image(reference)


@contextlib.contextmanager
def connect_to_docker() -> Iterator[DockerApi]:
    """Connect to the engine in DOCKER_HOST, or to the engine of the current context.

    Raises ToolMissing if the connection fails.
    """
    try:
        # An engine may send nothing for minutes while it unpacks a large image: no time limit.
        client = docker.from_env(version="auto", timeout=None, use_ssh_client=True)
    except (DockerException, OSError) as error:
        message = f"cannot connect to docker: {error}"
        raise ToolMissing(message, hint="start Docker, or set DOCKER_HOST") from error
    with contextlib.closing(client):
        yield DockerApi(client.api)


@contextlib.contextmanager
def _convert_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (DockerException, OSError) as error:
        if isinstance(error, ImageNotFound):
            raise
        explanation: object = error
        if isinstance(error, APIError):
            explanation = error.explanation
            error.response.close()
        message = f"docker failed to {what}: {explanation}"
        raise WorkFailed(message, hint=HINT) from error


def _check_events(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Read all `events`, so that the connection is closed.

    Raises DockerException at the end if an event is an error.
    """
    errors = []
    for event in events:
        if "error" in event:
            errors.append(event["error"])
        yield event
    if errors:
        raise DockerException(errors[0])
