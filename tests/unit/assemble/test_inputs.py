"""Tests batches of inputs on disk, and the sources of published layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.assemble.inputs import BATCH_BYTES, Inputs, split_into_batches
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, IntegrityError, LockStale
from imgbuild.http.client import HttpClient
from imgbuild.lock import extension, published
from imgbuild.matrix.model import Matrix
from imgbuild.plan import current, image_digests
from imgbuild.plan.plan import create_plan
from imgbuild.values import Arch
from tests.support import extended, images, samples
from tests.support.rows import each_row

GIGABYTE = 1_000_000_000


@each_row(
    ("sizes", "runs"),
    [
        ([], []),
        ([1, 2, 1], [[1, 2, 1]]),
        ([3, 2, 2, 1], [[3], [2, 2], [1]]),
        ([1, 9, 1], [[1], [9], [1]]),
    ],
)
def test_batches_stay_within_the_limit_and_larger_items_have_their_own_batch(
    sizes: list[int], runs: list[list[int]]
) -> None:
    assert BATCH_BYTES == 4 * GIGABYTE
    assert list(split_into_batches(sizes, lambda size: size * GIGABYTE, bounded=True)) == runs
    whole = list(split_into_batches(sizes, lambda size: size * GIGABYTE, bounded=False))
    assert whole == ([sizes] if sizes else [])


def inputs(matrix: Matrix, folder: Path) -> Inputs:
    return Inputs(matrix, Context(Store.open(folder / "cache"), HttpClient(offline=True)))


def test_layer_records_of_the_published_target_match_its_digests(tmp_path: Path) -> None:
    matrix = extended.read_extended(extended.create_repository(tmp_path))
    found = current.published_records(matrix.overlays[extended.OWN_TARGET])
    assert found == extended.invented_records([create_plan(extended.published_lock(), Arch.X86_64)])
    assert current.published_records(None) == {}


def test_published_digests_of_another_lock_are_refused(tmp_path: Path) -> None:
    matrix = extended.read_extended(extended.create_repository(tmp_path))
    other = extended.published_lock(samples.wheel("new"))
    target_digests = image_digests.compute_digests(
        other, extended.invented_records([create_plan(other, Arch.X86_64)])
    )
    codec.write_document(tmp_path / "published/small" / published.DIGESTS_FILE, target_digests)
    with pytest.raises(LockStale, match="does not match the lock of small") as caught:
        current.published_records(matrix.overlays[extended.OWN_TARGET])
    assert "that published them" in str(caught.value.hint)


def test_layers_are_copied_from_the_layout_and_checked(tmp_path: Path) -> None:
    image = images.write_tiny_image(tmp_path)
    planned = create_plan(extended.published_lock(), Arch.X86_64)
    known = extended.invented_records([planned])
    path = extended.create_repository(
        tmp_path / "ours",
        extended.MATRIX.replace("    from: ../project", f"    image: oci:{image}"),
    )
    matrix = extended.read_extended(path)
    lock = extension.make_lock(matrix, extended.OWN_TARGET, extended.resolve_additions(matrix))
    due = {planned.layers[0].id: known[planned.layers[0].id]}
    with pytest.raises(FetchFailed, match="lacks the layer sha256:") as caught:
        inputs(matrix, tmp_path).link_published_layers(lock, due)
    assert "remove `image` from the matrix" in str(caught.value.hint)
    blob = image / "blobs/sha256" / known[planned.layers[0].id].digest.removeprefix("sha256:")
    blob.write_bytes(b"something else")
    with pytest.raises(IntegrityError, match="is damaged: its digest is sha256:"):
        inputs(matrix, tmp_path).link_published_layers(lock, due)


def test_registry_is_not_queried_in_offline_mode(tmp_path: Path) -> None:
    path = extended.create_repository(
        tmp_path / "ours",
        extended.MATRIX.replace("    from: ../project", "    image: registry.example.org/small"),
    )
    matrix = extended.read_extended(path)
    lock = extension.make_lock(matrix, extended.OWN_TARGET, extended.resolve_additions(matrix))
    known = extended.invented_records([create_plan(extended.published_lock(), Arch.X86_64)])
    with pytest.raises(FetchFailed, match=r"layers of registry\.example\.org/small@sha256:"):
        inputs(matrix, tmp_path).link_published_layers(lock, known)
    inputs(matrix, tmp_path).link_published_layers(lock, {})
