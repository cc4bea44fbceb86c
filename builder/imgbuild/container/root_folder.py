"""The root folder of an image, for commands without a container engine.

Layers are unpacked once and kept in the cache. A root folder is made of hard links to their files,
and an overlay takes what commands write.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from imgbuild.cache import checked_layers
from imgbuild.cache.store import Store
from imgbuild.container import sandbox
from imgbuild.oci import tree
from imgbuild.oci.layout import Layout
from imgbuild.oci.unpack import keep, stack, unpack
from imgbuild.system import files
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Arch


@contextlib.contextmanager
def root_folder(
    layout: Layout, arch: Arch, store: Store, *, reporter: Reporter = SILENT
) -> Iterator[sandbox.Root]:
    """The image on `arch` as a root folder, which is removed at the end.

    Where the kernel or the cache's disk does not allow an overlay, the image is unpacked each time.
    """
    digests = [layer.digest for layer in layout.image(arch).layers]
    with store.scratch() as scratch:
        probe = scratch / "probe"
        probe.mkdir()
        overlay = sandbox.can_overlay(probe)
        root = sandbox.Root(path=scratch / "root", changes=scratch if overlay else None)
        with files.plain_errors(store.root):
            if overlay:
                layers = _kept_layers(layout, arch, store, scratch, reporter)
                stack(layers, root.path, reporter=reporter)
            else:
                reporter.detail(
                    f"{store.root}: no overlay can be mounted, so all layers are unpacked"
                )
                with reporter.step(f"unpacking {len(digests)} layers"):
                    for digest in digests:
                        layout.require_intact(digest)
                    unpack(layout.layer_files(arch), root.path, reporter=reporter)
        try:
            yield root
        finally:
            tree.remove(root.path)  # an image may contain read-only folders


def _kept_layers(
    layout: Layout, arch: Arch, store: Store, scratch: Path, reporter: Reporter
) -> list[Path]:
    """The folders of the unpacked layers, bottom first; those that the cache lacks are made."""
    digests = [layer.digest for layer in layout.image(arch).layers]
    files_of = dict(zip(digests, layout.layer_files(arch), strict=True))
    present = {digest: path for digest in files_of if (path := store.unpacked(digest)) is not None}
    missing = {digest: scratch / digest for digest in files_of if digest not in present}
    for digest in missing:  # others will take these folders for what the digest names
        layout.require_intact(digest)
    if missing:
        with reporter.step(f"unpacking {len(missing)} of {len(missing) + len(present)} layers"):
            keep({files_of[digest]: path for digest, path in missing.items()}, reporter=reporter)
        for digest in missing:
            checked_layers.note(store, digest, files_of[digest].diff_id)
        present |= store.add_unpacked(missing)
    checked_layers.require_image(store, layout, arch, reporter=reporter)
    return [present[digest] for digest in digests]
