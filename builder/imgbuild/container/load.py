"""Loads an image of a layout into Docker or podman; only layers that the engine lacks are sent.

An engine on this machine pulls from a registry on the loopback (see `container.loopback`): it
requests the layers that it lacks. Docker unpacks them when it has all, one after another; to pull
some of them first, or while the image is built, is no faster on two cores. An engine that cannot
reach that registry, on another or a virtual machine, is sent an archive. For Docker it leaves out
the layers of its other images, unless Docker refuses that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from imgbuild.container import docker_api, engine, loopback
from imgbuild.container.engine import Engine
from imgbuild.container.loopback import LoopbackImage
from imgbuild.errors import WorkFailed
from imgbuild.oci import archive
from imgbuild.oci.layout import Layout, Stored
from imgbuild.system import process
from imgbuild.system.reporter import SILENT, ProgressBar, Reporter
from imgbuild.values import Arch, Digest

SHORT = 12  # characters of a layer's digest in Docker's events
DONE = ("Pull complete", "Already exists")


class EngineImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image in an engine: its name, and its id, a digest."""

    reference: str
    id: Digest


def load(
    found: Engine, layout: Layout, arch: Arch, tag: str, *, reporter: Reporter = SILENT
) -> EngineImage:
    """Load the image on `arch` into an engine as `tag`, unless it is there already.

    WorkFailed if the image in the engine is not that of the layout afterwards.
    """
    stored = layout.image(arch)
    reference = archive.reference(tag)
    present = engine.inspect(found, reference)
    if present is not None and _same(present, stored):
        reporter.detail(f"{found.kind} has {tag} already")
        return EngineImage(reference=reference, id=present.id)
    total = sum(layer.size for layer in stored.layers)
    title = f"loading {tag} into {found.kind}"
    with reporter.step(title), reporter.progress(title, total) as bar:
        if not _pulled(found, layout, arch, reference, bar, reporter):
            _send(found, layout, arch, reference, bar, reporter)
    present = engine.inspect(found, reference)
    if present is None or not _same(present, stored):
        name = present.id if present is not None else "no image"
        message = (
            f"{found.kind} {found.version} has {name} as {reference}"
            f" (expected {stored.manifest.digest}, from {layout.path})"
        )
        raise WorkFailed(message, hint=f"remove it with: {found.kind} image rm {reference}")
    return EngineImage(reference=reference, id=present.id)


def _pulled(
    found: Engine, layout: Layout, arch: Arch, reference: str, bar: ProgressBar, reporter: Reporter
) -> bool:
    """Let the engine pull from the loopback; False if it cannot reach that of this machine."""
    with loopback.serve(layout, arch) as served:
        try:
            if found.kind == "docker":
                _docker_pull(served, layout, arch, reference, bar)
            else:
                _podman_pull(found, served, arch, reference)
        except WorkFailed as error:
            if served.requested():
                raise
            reporter.detail(f"{error.message}; sending an archive instead")
            return False
    return True


def _docker_pull(
    served: LoopbackImage, layout: Layout, arch: Arch, reference: str, bar: ProgressBar
) -> None:
    layers = layout.image(arch).layers
    sizes = {one.digest.removeprefix("sha256:")[:SHORT]: one.size for one in layers}
    with docker_api.connect() as api:
        for event in api.pull(served.repository, served.tag, arch):
            if event.get("status") in DONE:
                bar.advance(sizes.pop(event.get("id", ""), 0))
        api.tag(served.reference, reference)
        api.remove(served.reference)


def _podman_pull(found: Engine, served: LoopbackImage, arch: Arch, reference: str) -> None:
    options = ("--quiet", "--tls-verify=false", f"--arch={arch.oci}")
    process.run(found.command("pull", *options, served.reference))
    process.run(found.command("tag", served.reference, reference))
    process.run(found.command("untag", served.reference, served.reference))


def _send(
    found: Engine, layout: Layout, arch: Arch, reference: str, bar: ProgressBar, reporter: Reporter
) -> None:
    """Send a docker-archive of the layers that the engine lacks, or of all if it refuses that."""
    stored = layout.image(arch)
    if found.kind == "podman":
        process.feed(found.command("load"), _counted(layout, arch, reference, bar))
        return
    with docker_api.connect() as api:
        known = api.diff_ids()
        pairs = zip(stored.layers, stored.diff_ids, strict=True)
        there = frozenset(layer.digest for layer, diff_id in pairs if diff_id in known)
        if there:
            try:
                api.load(_counted(layout, arch, reference, bar, without=there))
            except WorkFailed as error:
                reporter.detail(f"{error.message}; sending all layers")
            else:
                return
        api.load(_counted(layout, arch, reference, bar))


def _counted(
    layout: Layout,
    arch: Arch,
    reference: str,
    bar: ProgressBar,
    *,
    without: Collection[Digest] = (),
) -> Iterator[bytes]:
    for chunk in archive.chunks(layout, arch, "docker-archive", tag=reference, without=without):
        yield chunk
        bar.advance(len(chunk))


def _same(found: engine.InspectedImage, stored: Stored) -> bool:
    """Whether an image in an engine is that of a layout.

    Its id is the digest of the manifest if the engine stores OCI documents, and otherwise that of
    the configuration.
    """
    known = (stored.manifest.digest, stored.config.digest)
    return found.id in known and found.diff_ids in ((), stored.diff_ids)
