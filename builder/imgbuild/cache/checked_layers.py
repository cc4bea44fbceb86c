"""Layers whose content was compared with the diff id, remembered so that it is done once."""

from __future__ import annotations

from collections.abc import Callable

from imgbuild.cache.store import Store
from imgbuild.oci.layout import Layout
from imgbuild.oci.reader import LayerFile, check
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Arch, Digest

FACT = "diff-id"


def is_noted(store: Store, digest: Digest, diff_id: Digest) -> bool:
    """Whether the tar of the layer `digest` had the digest `diff_id` when it was read here."""
    return store.fact(FACT, digest) == diff_id.encode()


def note(store: Store, digest: Digest, diff_id: Digest) -> None:
    """Note that the tar of the layer `digest` has the digest `diff_id`. Both were checked."""
    store.put_fact(FACT, digest, diff_id.encode())


def require(
    store: Store,
    digest: Digest,
    layer: LayerFile,
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Read `layer`, a file with the checked `digest`, unless that is noted.

    IntegrityError if its tar is not what its diff id names. `advance` gets the bytes of
    each piece.
    """
    if not is_noted(store, digest, layer.diff_id):
        check(layer, digest, advance)
        note(store, digest, layer.diff_id)


def require_image(store: Store, layout: Layout, arch: Arch, *, reporter: Reporter = SILENT) -> None:
    """Read the layers of the image of `layout` on `arch` of which nothing is noted.

    IntegrityError if one is damaged, or its tar is not what its diff id names.
    """
    layers = zip(layout.image(arch).layers, layout.layer_files(arch), strict=True)
    unread = [
        (layer, file) for layer, file in layers if not is_noted(store, layer.digest, file.diff_id)
    ]
    total = sum(layer.size for layer, _ in unread)
    if not unread:
        return
    with reporter.progress("checking the content of layers", total) as bar:
        for layer, file in unread:
            layout.require_intact(layer.digest)
            require(store, layer.digest, file, bar.advance)
