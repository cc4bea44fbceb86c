"""Records which layers match their diff IDs, so that each layer is checked only once."""

from __future__ import annotations

from collections.abc import Callable

from imgbuild.cache.store import Store
from imgbuild.oci.layout import Layout
from imgbuild.oci.reader import LayerFile, check_digests
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Arch, Digest

FACT = "diff-id"


def is_noted(store: Store, digest: Digest, diff_id: Digest) -> bool:
    """Return whether the tar of the layer `digest` is known to have the digest `diff_id`."""
    return store.fact(FACT, digest) == diff_id.encode()


def record_diff_id(store: Store, digest: Digest, diff_id: Digest) -> None:
    """Record that the tar of the layer `digest` has the digest `diff_id`.

    Callers must check both digests first.
    """
    store.put_fact(FACT, digest, diff_id.encode())


def require_layer(
    store: Store,
    digest: Digest,
    layer: LayerFile,
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Check the tar of `layer` against the diff ID, unless this check is recorded.

    Callers must check `digest`, the digest of the compressed layer, first. `advance` is called with
    the number of bytes in each chunk. Raises IntegrityError if the tar does not match the diff ID.
    """
    if not is_noted(store, digest, layer.diff_id):
        check_digests(layer, digest, advance)
        record_diff_id(store, digest, layer.diff_id)


def require_image(
    store: Store, layout: Layout, arch: Arch, *, reporter: Reporter = SILENT_REPORTER
) -> None:
    """Check the layers of the image in `layout` for `arch`, except those with a recorded check.

    Raises IntegrityError if a layer is damaged or does not match its diff ID.
    """
    layers = zip(layout.image(arch).layers, layout.layer_files(arch), strict=True)
    unread = [
        (layer, file) for layer, file in layers if not is_noted(store, layer.digest, file.diff_id)
    ]
    total = sum(layer.size for layer, _ in unread)
    if not unread:
        return
    with reporter.progress("checking layer contents", total) as bar:
        for layer, file in unread:
            layout.require_intact(layer.digest)
            require_layer(store, layer.digest, file, bar.advance)
