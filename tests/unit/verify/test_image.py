"""An image against its lock: every document and layer changed, in a registry and in a layout.

What lies in the registry is changed as its owner could: consistently, with new digests, or a byte
of what is stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imgbuild.assemble import layout
from imgbuild.oci import layout as layouts
from imgbuild.oci.documents import INDEX, MANIFEST
from imgbuild.registry.client import Client
from imgbuild.registry.image import InRegistry
from imgbuild.values import Arch
from imgbuild.verify import image
from imgbuild.verify.checks import Checklist, CheckOutcome
from imgbuild.verify.image import Expected
from tests.support import registry_project, signed_image
from tests.support.memory_registry import named
from tests.support.registry_project import BOTH, NAME, Place
from tests.support.signed_image import Sample

QUIET = {"layer bytes": CheckOutcome.UNCHECKED}


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    yield from signed_image.make(tmp_path_factory.mktemp("verifying"))


@pytest.fixture(name="sample")
def _sample(whole: Sample, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sample:
    return signed_image.use(whole, monkeypatch, tmp_path)


@pytest.fixture(name="place")
def _place(sample: Sample) -> Place:
    return sample.place


@pytest.fixture(name="due")
def _due(sample: Sample) -> Expected:
    return image.expected(sample.lock, sample.sealed)


def check(place: Place, due: Expected, *, whole: bool = False, tag: str = BOTH):
    """The checks that did not pass: (name, architecture) → (outcome, detail)."""
    checklist = Checklist()
    client = Client(first_wait=0.001, attempts=2)
    found = InRegistry(client, place.reference(tag))
    image.check(found, due, checklist, whole=whole)
    return {
        (one.name, one.arch): (one.outcome, one.detail)
        for one in checklist.checks
        if one.outcome is not CheckOutcome.PASSED
    }


def failed(found) -> dict[tuple[str, Arch | None], str]:
    return {
        place: text for place, (outcome, text) in found.items() if outcome is CheckOutcome.FAILED
    }


def rewrite(place: Place, digest: str, change: Callable[[Any], None]) -> tuple[str, int]:
    """Put a manifest again after `change`: its new digest and size."""
    data, kind = place.registry.manifests[NAME, digest]
    document = json.loads(data)
    change(document)
    made = json.dumps(document).encode()
    place.registry.manifests[NAME, named(made)] = (made, kind)
    return named(made), len(made)


def rewrite_one(place: Place, change: Callable[[Any], None]) -> None:
    """Change the manifest for arm64 and let index and tag follow, as who writes there could."""
    top = place.registry.tags[NAME, BOTH]

    def _index(document: Any) -> None:
        entry = next(
            one for one in document["manifests"] if one["platform"]["architecture"] == "arm64"
        )
        entry["digest"], entry["size"] = rewrite(place, entry["digest"], change)

    place.registry.tags[NAME, BOTH] = rewrite(place, top, _index)[0]


def test_what_was_pushed_passes(place, due):
    assert set(check(place, due)) == {("layer bytes", None)}
    assert check(place, due, whole=True) == {}


def test_one_architecture_alone_passes(place, due):
    digest = due.manifest(Arch.ARM64)
    place.registry.tags[NAME, "arm"] = digest
    assert check(place, due, whole=True, tag="arm") == {}


def test_another_image_under_the_tag(place, due):
    place.push()
    place.registry.tags[NAME, BOTH] = place.tags()[registry_project.TAGS[0]]
    found = failed(check(place, due))
    assert due.digest in found["image", None]
    assert {"image", "manifest", "config"} <= {name for name, _ in found}


def test_a_layer_that_is_replaced(place, due):
    def _other(document):
        document["layers"][1]["digest"] = document["layers"][0]["digest"]
        document["layers"][1]["size"] = document["layers"][0]["size"]

    rewrite_one(place, _other)
    found = failed(check(place, due))
    assert "layer 2 (" in found["layers", Arch.ARM64]
    assert ("manifest", Arch.ARM64) in found
    assert ("layers", Arch.X86_64) not in found


def test_a_layer_more(place, due):
    rewrite_one(place, lambda document: document["layers"].append(document["layers"][0]))
    found = failed(check(place, due))
    assert f"{len(due.layers[Arch.ARM64]) + 1} layers" in found["manifest", None]


def test_a_configuration_that_is_replaced(place, due):
    def _other(document):
        key = (NAME, document["config"]["digest"])
        config = json.loads(place.registry.blobs[key])
        config["config"]["Entrypoint"] = ["/bin/sh"]
        data = json.dumps(config).encode()
        place.registry.blobs[NAME, named(data)] = data
        document["config"] |= {"digest": named(data), "size": len(data)}

    rewrite_one(place, _other)
    found = failed(check(place, due))
    assert {name for name, _ in found} == {"image", "manifest", "config"}


def test_an_annotation_of_a_manifest_that_is_changed(place, due):
    rewrite_one(place, lambda document: document.update(annotations={"a": "b"}))
    assert {name for name, _ in failed(check(place, due))} == {"image", "manifest"}


def test_an_architecture_less(place, due):
    top = place.registry.tags[NAME, BOTH]
    place.registry.tags[NAME, BOTH] = rewrite(place, top, lambda one: one["manifests"].pop())[0]
    assert set(failed(check(place, due))) == {("image", None)}


def _flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_a_flipped_byte_in_a_stored_manifest(place, due):
    """Stored under its old digest: what answers under that name is something else."""
    digest = due.manifest(Arch.ARM64)
    data, kind = place.registry.manifests[NAME, digest]
    place.registry.manifests[NAME, digest] = (_flip(data), kind)
    found = failed(check(place, due))
    assert ("manifest", None) in found
    assert digest in found["manifest", None]


def test_a_flipped_byte_in_a_stored_configuration(place, due):
    digest = named(due.documents[Arch.ARM64].config)
    place.registry.blobs[NAME, digest] = _flip(place.registry.blobs[NAME, digest])
    found = failed(check(place, due))
    assert digest in found["manifest", None]


def test_a_flipped_byte_in_a_stored_layer_is_seen_by_who_reads_it(place, due):
    layer = due.layers[Arch.ARM64][1].digest
    place.registry.blobs[NAME, layer] = _flip(place.registry.blobs[NAME, layer])
    assert failed(check(place, due)) == {}
    found = failed(check(place, due, whole=True))
    assert layer in found["layer bytes", None]


def test_a_layer_that_is_absent_or_shorter(place, due):
    layer = due.layers[Arch.ARM64][1].digest
    whole = place.registry.blobs[NAME, layer]
    place.registry.blobs[NAME, layer] = whole[:-1]
    assert f"has {len(whole) - 1} bytes" in failed(check(place, due))["layer sizes", None]
    del place.registry.blobs[NAME, layer]
    assert "is not there" in failed(check(place, due))["layer sizes", None]


def test_a_document_that_is_none(place, due):
    data = b'{"manifests": 7}'
    place.registry.manifests[NAME, named(data)] = (data, INDEX)
    place.registry.tags[NAME, BOTH] = named(data)
    assert "manifests" in failed(check(place, due))["index", None]
    data = b'{"layers": []}'
    place.registry.manifests[NAME, named(data)] = (data, MANIFEST)
    place.registry.tags[NAME, BOTH] = named(data)
    assert "config" in failed(check(place, due))["manifest", None]


def test_a_layout_is_checked_alike(sample, place, due, tmp_path):
    plan = sample.plan
    out = tmp_path / "layout"
    inputs = place.work().inputs
    layout.build(plan.lock, plan.sealed, tuple(Arch), out, inputs, processes=1, verify=False)

    def _found(*, whole):
        checklist = Checklist()
        image.check(layouts.source(out), due, checklist, whole=whole)
        return [one.name for one in checklist.checks if one.outcome is CheckOutcome.FAILED]

    assert _found(whole=True) == []
    layer = out / "blobs/sha256" / due.layers[Arch.ARM64][1].digest.removeprefix("sha256:")
    data = layer.read_bytes()
    layer.unlink()  # it is a link to the cache's
    layer.write_bytes(_flip(data))
    assert _found(whole=False) == []
    assert _found(whole=True) == ["layer bytes"]
    layer.unlink()
    assert _found(whole=True) == ["layer sizes", "layer bytes"]


def test_an_index_that_names_a_platform_twice_fails_without_a_lock(place, due):
    def _repeat(document: Any) -> None:
        first, second = document["manifests"]
        document["manifests"].append({**second, "platform": first["platform"]})

    top = place.registry.tags[NAME, BOTH]
    place.registry.tags[NAME, BOTH] = rewrite(place, top, _repeat)[0]
    checklist = Checklist()
    client = Client(first_wait=0.001, attempts=2)
    image.check_alone(InRegistry(client, place.reference(BOTH)), checklist)
    (problem,) = [check for check in checklist.checks if check.name == "index"]
    assert problem.outcome is CheckOutcome.FAILED
    assert "names two images for" in problem.detail
