"""Layers of which the content was compared with the diff id, remembered by their digests."""

from __future__ import annotations

from collections.abc import Callable

from imgbuild.cache.store import Store
from imgbuild.oci.reader import LayerFile, check
from imgbuild.values import Digest

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

    IntegrityError if its tar is not what its diff id names. `advance`: as of `inflated`.
    """
    if not is_noted(store, digest, layer.diff_id):
        check(layer, digest, advance)
        note(store, digest, layer.diff_id)
