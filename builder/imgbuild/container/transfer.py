"""Transfers an image of a layout into Docker or podman; only layers that the engine lacks are sent.

An engine on this machine pulls from a registry on the loopback (see `container.loopback`): it
requests the layers that it lacks. Docker unpacks them when it has all, one after another; to pull
some of them first, or while the image is built, is no faster on two cores. An engine that cannot
reach that registry, on another or a virtual machine, is sent an archive. For Docker it leaves out
the layers of its other images, unless Docker refuses that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator

import msgspec

from imgbuild.container import docker_api, loopback
from imgbuild.container.engine import Engine
from imgbuild.container.loopback import LoopbackImage
from imgbuild.errors import WorkFailed
from imgbuild.oci import archive
from imgbuild.oci.layout import Layout
from imgbuild.system import process
from imgbuild.system.amounts import count, size_text
from imgbuild.system.reporter import ProgressBar, Reporter
from imgbuild.values import Arch, Digest

SHORT = 12  # characters of a layer's digest in Docker's events
DONE = ("Pull complete", "Already exists")


class ImageTransfer(msgspec.Struct, frozen=True, kw_only=True):
    """An image on its way into an engine; `there` are digests of layers that the engine has."""

    engine: Engine
    layout: Layout
    arch: Arch
    reference: str
    title: str
    there: frozenset[Digest]

    def size(self, without: Collection[Digest] = ()) -> int:
        """The bytes of all layers but those of `without`."""
        layers = self.layout.image(self.arch).layers
        return sum(layer.size for layer in layers if layer.digest not in without)


def transfer(job: ImageTransfer, reporter: Reporter) -> None:
    """ImageTransfer the image; WorkFailed if the engine refuses it."""
    with reporter.step(f"{job.title}, {_amount(job)}"):
        if not _pulled(job, reporter):
            _send(job, reporter)


def _amount(job: ImageTransfer) -> str:
    layers = job.layout.image(job.arch).layers
    missing, total = job.size(job.there), job.size()
    number = count(len(layers), "layer")
    if missing == total:
        return f"{size_text(total)} in {number}"
    return f"{size_text(missing)} of {size_text(total)} in {number}"


def _pulled(job: ImageTransfer, reporter: Reporter) -> bool:
    """Let the engine pull from the loopback; False if it cannot reach that of this machine."""
    with (
        reporter.progress(job.title, job.size(job.there)) as bar,
        loopback.serve(job.layout, job.arch, _sent(job, bar)) as served,
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


def _sent(job: ImageTransfer, bar: ProgressBar) -> Callable[[int], object]:
    """What advances the bar with each piece: for Docker, whose events say more, nothing does."""
    return bar.advance if job.engine.kind == "podman" else lambda _: None


def _docker_pull(job: ImageTransfer, served: LoopbackImage, bar: ProgressBar) -> None:
    layers = job.layout.image(job.arch).layers
    missing = (layer for layer in layers if layer.digest not in job.there)
    sizes = {layer.digest.removeprefix("sha256:")[:SHORT]: layer.size for layer in missing}
    with docker_api.connect() as api:
        for event in api.pull(served.repository, served.tag, job.arch):
            if event.get("status") in DONE:
                bar.advance(sizes.pop(event.get("id", ""), 0))
        api.tag(served.reference, job.reference)
        api.remove(served.reference)


def _podman_pull(job: ImageTransfer, served: LoopbackImage) -> None:
    command = job.engine.command
    options = ("--quiet", "--tls-verify=false", f"--arch={job.arch.oci}")
    process.run(command("pull", *options, served.reference))
    process.run(command("tag", served.reference, job.reference))
    process.run(command("untag", served.reference, served.reference))


def _send(job: ImageTransfer, reporter: Reporter) -> None:
    """Send a docker-archive of the layers that the engine lacks, or of all if it refuses that."""
    if job.engine.kind == "podman":
        with _archive(job, reporter) as chunks:
            process.feed(job.engine.command("load"), chunks)
        return
    with docker_api.connect() as api:
        if job.there:
            try:
                with _archive(job, reporter, job.there) as chunks:
                    api.load(chunks)
            except WorkFailed as error:
                reporter.detail(f"{error.message}; sending all layers")
            else:
                return
        with _archive(job, reporter) as chunks:
            api.load(chunks)


@contextlib.contextmanager
def _archive(
    job: ImageTransfer, reporter: Reporter, without: Collection[Digest] = ()
) -> Iterator[Iterator[bytes]]:
    """The pieces of a docker-archive, counted by a bar as they are taken."""
    with reporter.progress(job.title, job.size(without)) as bar:

        def _counted() -> Iterator[bytes]:
            tag = job.reference
            for chunk in archive.chunks(
                job.layout, job.arch, "docker-archive", tag=tag, without=without
            ):
                yield chunk
                bar.advance(len(chunk))

        yield _counted()
