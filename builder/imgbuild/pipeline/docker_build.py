"""Builds the committed Dockerfile of a target with Docker.

The image has the same files as an image built by imgbuild, but different layers. The OCI layout is
written to `build/docker/TARGET`.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from imgbuild.assemble.image_layout import BuiltImage
from imgbuild.cache import prune
from imgbuild.container import buildx
from imgbuild.matrix.select import Selected
from imgbuild.oci import layout
from imgbuild.oci.layout import Layout
from imgbuild.pipeline.build import output_path, refuse_one_file
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import Session
from imgbuild.plan import current
from imgbuild.render import bake, contexts, templates, write
from imgbuild.system.console import console
from imgbuild.values import Arch

COMMAND = "imgbuild build --builder docker"
# BuildKit compresses each layer again to rewrite its times, with one thread: hence the low level.
OUTPUT = "type=oci,tar=false,oci-mediatypes=true,compression=gzip,compression-level=1"


def build_all(
    session: Session, selected: Sequence[Selected], output: Path | None
) -> list[BuiltImage]:
    """Build each target with Docker into a layout.

    Raises LockStale if the committed files are out of date.
    """
    refuse_one_file(selected, output, "oci")
    images = []
    for item in selected:
        default = session.project.output_path(f"build/docker/{item.name}")
        place = output_path(default, item.name, output, several=len(selected) > 1, form="oci")
        layout.refuse_others(place, item.name)
        with temporary_layout(session, item, dated=True) as built:
            digest = layout.write_layout(
                place, _images(built, item.arches), item.name, reporter=console
            )
        images.append(_summary(layout.read_layout(place)))
        console.info(
            f"{item.name}: {images[-1].size / 1e9:.2f} GB in {place}, {digest}; the files are "
            "the same as in imgbuild's image, but the layers differ (to compare, run: "
            "imgbuild diff --builder docker)"
        )
    return images


@contextlib.contextmanager
def temporary_layout(session: Session, item: Selected, *, dated: bool = False) -> Iterator[Layout]:
    """Build the image of a target with Docker into a temporary layout.

    Unless `dated` is set, files have the time of the build, so that BuildKit compresses each layer
    only once. Raises LockStale if the committed files do not match the lock, and InputError in the
    catalogue, because the catalogue has no Dockerfiles.
    """
    project, target = session.project, item.name
    project.require_writable(COMMAND)
    lock, target_digests = current.read_current(project, session.matrix, target)
    write.check_committed(project, session.matrix, [lock], console)
    inputs = open_inputs(session)
    place = contexts.base_folder(project, target)
    base = contexts.write_base_context(
        lock, target_digests, item.arches, place, inputs, processes=session.options.jobs
    )
    wheels = contexts.wheels_folder(project, target)
    title = f"building {target} for {', '.join(item.arches)} with docker"
    with (
        console.step(title),
        contexts.locked_wheels(lock, item.arches, wheels, inputs),
        tempfile.TemporaryDirectory(prefix=f".{target}-", dir=place.parent) as scratch,
    ):
        # Paths are relative to the folder of the bake file: buildx accepts no : or @ in that of a
        # layout, and a comma separates the parts of an output.
        dest = Path(scratch).relative_to(project.folder) / "layout"
        values = {
            "platform": ",".join(f"linux/{arch.oci}" for arch in item.arches),
            "contexts.base": bake.base_context(target, base.digest),
            "output": f"{OUTPUT},dest={dest}" + (",rewrite-timestamp=true" if dated else ""),
        }
        buildx.bake_target(
            project.folder, bake.FILE, templates.target_slug(target), values,
            reporter=console, terminal=console.on_terminal,
        )  # fmt: skip
        yield layout.read_layout(project.folder / dest)
    prune.trim_cache(inputs.store)


def _images(built: Layout, arches: Sequence[Arch]) -> dict[Arch, layout.ImageFiles]:
    images = {}
    for arch in arches:
        stored = built.image(arch)
        images[arch] = layout.ImageFiles(
            config=stored.config_data,
            manifest=stored.manifest_data,
            layers={layer.digest: built.blob(layer.digest) for layer in stored.layers},
        )
    return images


def _summary(built: Layout) -> BuiltImage:
    layers = {layer.digest: layer.size for image in built.images.values() for layer in image.layers}
    documents = [
        part.size for image in built.images.values() for part in (image.manifest, image.config)
    ]
    return BuiltImage(
        target=built.name,
        digest=built.digest,
        arch={arch: image.manifest.digest for arch, image in built.images.items()},
        output=built.path,
        size=sum(layers.values()) + sum(documents),
        assembled=len(layers),
        unchanged=False,
    )
