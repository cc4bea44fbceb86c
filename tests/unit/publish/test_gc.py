"""Tests which images of a repository are old, and the result of their deletion."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping

import pytest

from imgbuild.errors import FetchFailed
from imgbuild.oci.documents import MANIFEST
from imgbuild.publish import gc
from imgbuild.registry.client import RegistryClient, bytes_source
from imgbuild.system.console import console
from imgbuild.values import sha256
from tests.support import memory_registry
from tests.support.memory_registry import Registry

BEFORE = datetime.date(2026, 3, 1)
TARGETS = ("small", "cu124-vllm")


@pytest.fixture(params=[True, False], ids=["referrers", "tagged referrers"])
def registry(request: pytest.FixtureRequest) -> Iterator[Registry]:
    with memory_registry.serve(Registry()) as served:
        served.referrers_api = request.param
        yield served


class Place:
    """A repository of `registry` that a test fills."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.client = RegistryClient(first_wait=0.001, attempts=2, reporter=console)
        self.repository = registry.repository("team/rl")

    def blob(self, data: bytes, kind: str) -> dict[str, object]:
        self.client.upload_blob(self.repository, bytes_source(data))
        return {"mediaType": kind, "digest": f"sha256:{sha256(data)}", "size": len(data)}

    def put(self, document: Mapping[str, object], *tags: str) -> str:
        data = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, **document}).encode()
        for tag in tags or (None,):
            self.client.put_manifest(self.repository, data, MANIFEST, tag=tag)
        return f"sha256:{sha256(data)}"

    def image(self, word: str, *tags: str) -> str:
        layers = [self.blob(word.encode(), "application/vnd.oci.image.layer.v1.tar+gzip")]
        config = self.blob(
            json.dumps({"architecture": "amd64", "word": word}).encode(),
            "application/vnd.oci.image.config.v1+json",
        )
        return self.put({"config": config, "layers": layers}, *tags)

    def attach(self, subject: str) -> str:
        size = len(self.registry.manifests["team/rl", subject][0])
        config = self.blob(b"{}", "application/vnd.oci.empty.v1+json")
        described = {"mediaType": MANIFEST, "digest": subject, "size": size}
        document = {"artifactType": "application/x", "config": config, "layers": []}
        return self.put({**document, "subject": described})

    def find(self, *locked: str) -> gc.OldImages:
        return gc.find_old_images(self.client, self.repository, TARGETS, locked, BEFORE)


def _tags(sweep: gc.OldImages) -> list[tuple[str, ...]]:
    return [image.tags for image in sweep.old]


@pytest.mark.parametrize(
    ("tags", "old"),
    [
        (("small-20260228",), True),
        (("small-20250101", "small-x86_64-20260228"), True),
        (("small-base-20260101",), True),
        (("small-base-arm64-20260101",), True),
        (("cu124-vllm-20260101",), True),
        (("small-20260301",), False),  # the first date that is kept
        (("small-20260101", "small-20260301"), False),
        (("small", "small-20260101"), False),
        (("small-20260101", "release-1"), False),
        (("other-20260101",), False),
        (("small-test-20260101",), False),
        (("small-20260231",), False),  # not a calendar date
        (("small-2026",), False),
    ],
)
def test_image_is_old_if_all_its_tags_have_old_dates(registry, tags, old):
    place = Place(registry)
    place.image("kept", "small")
    place.image("image", *tags)
    sweep = place.find()
    if "small" in tags:  # it has the tag of the first image now
        assert sweep == gc.OldImages(repository=str(place.repository), kept=1, old=())
    else:
        assert _tags(sweep) == ([tuple(sorted(tags))] if old else [])
        assert sweep.kept == 2 - old


def test_image_of_the_current_lock_is_kept(registry):
    place = Place(registry)
    locked = place.image("locked", "small-20250101")
    place.image("old", "small-20250102")
    sweep = place.find(locked)
    assert _tags(sweep) == [("small-20250102",)]
    assert sweep.kept == 1


def test_deletion_keeps_other_images_and_attachments(registry):
    place = Place(registry)
    new, old = place.image("new", "small"), place.image("old", "small-20260101")
    attached = place.attach(new), place.attach(old)
    signature = f"sha256-{old.removeprefix('sha256:')}.sig"
    place.image("a signature", signature)
    sweep = place.find()
    assert signature in sweep.old[0].attached
    done = gc.delete_old_images(place.client, place.repository, sweep)
    assert (done.deleted, done.old) == (True, sweep.old)
    left = {digest for _, digest in registry.manifests}
    assert {new, attached[0]} <= left
    assert old not in left
    tags = ("small", "small-20260101", *sweep.old[0].attached)
    resolved = [tag for tag in tags if place.client.resolve(place.repository.tagged(tag))]
    assert resolved == ["small"]
    assert [referrer.digest for referrer in place.client.referrers(place.repository, new)] == [
        attached[0]
    ]
    assert place.find().old == ()


def test_image_that_gets_a_new_tag_during_deletion_is_kept(registry, capsys):
    place = Place(registry)
    old = place.image("old", "small-20260101")
    place.image("older", "small-20250101")
    sweep = place.find()
    place.image("old", "small")
    done = gc.delete_old_images(place.client, place.repository, sweep)
    assert _tags(done) == [("small-20250101",)]
    assert old in {digest for _, digest in registry.manifests}
    assert f"keeping {old}, which now has another tag" in capsys.readouterr().err


def test_error_from_a_registry_without_deletion_has_a_hint(registry):
    registry.deletes = False
    place = Place(registry)
    place.image("old", "small-20260101")
    with pytest.raises(FetchFailed) as caught:
        gc.delete_old_images(place.client, place.repository, place.find())
    assert "storage.delete.enabled" in (caught.value.hint or "")
