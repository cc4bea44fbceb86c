"""The root folder of an image, for commands without a container engine.

Layers are unpacked once and kept in the cache. A root folder is made of hard links to their files,
and an overlay takes what commands write.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from imgbuild.cache import checked_layers
from imgbuild.cache.store import Store
from imgbuild.container import sandbox
from imgbuild.oci import tree
from imgbuild.oci.layout import Layout
from imgbuild.oci.reader import LayerFile
from imgbuild.oci.unpack import keep, stack, unpack
from imgbuild.system import files
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Arch, Digest


@contextlib.contextmanager
def root_folder(
    layout: Layout, arch: Arch, store: Store, *, reporter: Reporter = SILENT
) -> Iterator[sandbox.Root]:
    """The image on `arch` as a root folder, which is removed at the end.

    Where the kernel or the cache's disk does not allow an overlay, the image is unpacked each time.
    """
    digests = [layer.digest for layer in layout.image(arch).layers]
    layers = list(zip(digests, layout.layer_files(arch), strict=True))
    with store.scratch() as scratch:
        probe = scratch / "probe"
        probe.mkdir()
        overlay = sandbox.can_overlay(probe)
        root = sandbox.Root(path=scratch / "root", changes=scratch if overlay else None)
        with files.plain_errors(store.root):
            if overlay:
                kept = _kept_layers(layout, layers, store, scratch, reporter)
                stack(kept, root.path, reporter=reporter)
            else:
                reporter.detail(
                    f"{store.root}: no overlay can be mounted, so all layers are unpacked"
                )
                with reporter.step(f"unpacking {len(digests)} layers"):
                    for digest in digests:
                        layout.require_intact(digest)
                    unpack([layer for _, layer in layers], root.path, reporter=reporter)
        try:
            yield root
        finally:
            tree.remove(root.path)  # an image may contain read-only folders


def _kept_layers(
    layout: Layout,
    layers: Sequence[tuple[Digest, LayerFile]],
    store: Store,
    scratch: Path,
    reporter: Reporter,
) -> list[Path]:
    """The folders of the unpacked layers, bottom first; those that the cache lacks are made."""
    files_of = dict(layers)
    found = {digest: path for digest in files_of if (path := store.unpacked(digest)) is not None}
    made = {digest: scratch / digest for digest in files_of if digest not in found}
    for digest in made:  # others will take these folders for what the digest names
        layout.require_intact(digest)
    if made:
        with reporter.step(f"unpacking {len(made)} of {len(made) + len(found)} layers"):
            keep({files_of[digest]: path for digest, path in made.items()}, reporter=reporter)
        for digest in made:
            checked_layers.note(store, digest, files_of[digest].diff_id)
        found |= store.add_unpacked(made)
    for digest, layer in layers:
        if not checked_layers.is_noted(store, digest, layer.diff_id):
            layout.require_intact(digest)
            checked_layers.require(store, digest, layer)
    return [found[digest] for digest, _ in layers]
