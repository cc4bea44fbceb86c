"""Unpacks images as root folders in the cache, for commands without an engine.

Layers are unpacked once, and kept in the cache. The tree of an image consists of hard links to the
files of its layers, and is kept, too. Changes by commands are stored in an overlay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from imgbuild.cache import checked_layers
from imgbuild.cache.store import Store
from imgbuild.container import sandbox
from imgbuild.oci.layout import Layout
from imgbuild.oci.unpack import stack_layers, unpack_folders, unpack_layers
from imgbuild.system import files
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Arch, sha256

TREE = "tree"  # in the folder of a root, next to its size


@contextlib.contextmanager
def root_folder(
    layout: Layout, arch: Arch, store: Store, *, reporter: Reporter = SILENT_REPORTER
) -> Iterator[sandbox.SandboxRoot]:
    """Provide the image for `arch` as a root folder, and remove changes at the end.

    If the kernel or the cache's disk does not support overlays, the image is unpacked each time.
    """
    with store.scratch() as scratch:
        place = sandbox.overlay_place(scratch)
        if place is not None:
            if place == "memory":
                reporter.warn(
                    f"{store.root}: changes are kept in memory, because the disk does not "
                    "support overlays; to keep them on a disk, set IMGBUILD_CACHE to a "
                    "folder on another disk"
                )
            tree = _image_tree(layout, arch, store, reporter)
            yield sandbox.SandboxRoot(path=tree, changes=scratch / "changes")
            return
        digests = [layer.digest for layer in layout.image(arch).layers]
        reporter.warn(
            f"{store.root}: overlays cannot be mounted, so all {len(digests)} layers are "
            "unpacked for this run"
        )
        root = scratch / "image"
        with files.plain_errors(store.root), reporter.step(f"unpacking {len(digests)} layers"):
            for digest in digests:
                layout.require_intact(digest)
            unpack_layers(layout.layer_files(arch), root, reporter=reporter)
        yield sandbox.SandboxRoot(path=root)


def _image_tree(layout: Layout, arch: Arch, store: Store, reporter: Reporter) -> Path:
    with files.plain_errors(store.root), store.scratch() as scratch:
        layers = _unpacked_layers(layout, arch, store, scratch, reporter)
        names = "\n".join(layer.digest for layer in layout.image(arch).layers)
        digest = f"sha256:{sha256(names.encode())}"
        folder = store.unpacked(digest, kind="roots")
        if folder is None:
            with reporter.step(f"creating a root folder of {len(layers)} layers"):
                stack_layers(layers, scratch / "root" / TREE, reporter=reporter)
                folder = store.add_unpacked({digest: scratch / "root"}, kind="roots")[digest]
    return folder / TREE


def _unpacked_layers(
    layout: Layout, arch: Arch, store: Store, scratch: Path, reporter: Reporter
) -> list[Path]:
    """Return the folders of unpacked layers, from bottom to top."""
    digests = [layer.digest for layer in layout.image(arch).layers]
    files_of = dict(zip(digests, layout.layer_files(arch), strict=True))
    present = {digest: path for digest in files_of if (path := store.unpacked(digest)) is not None}
    missing = {digest: scratch / digest for digest in files_of if digest not in present}
    for digest in missing:  # other processes rely on these folders having the content of the digest
        layout.require_intact(digest)
    if missing:
        with reporter.step(f"unpacking {len(missing)} of {len(missing) + len(present)} layers"):
            unpack_folders(
                {files_of[digest]: path for digest, path in missing.items()}, reporter=reporter
            )
        for digest in missing:
            checked_layers.record_diff_id(store, digest, files_of[digest].diff_id)
        present |= store.add_unpacked(missing)
    checked_layers.require_image(store, layout, arch, reporter=reporter)
    return [present[digest] for digest in digests]
