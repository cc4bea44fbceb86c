"""Tests that a lock reveals changes of any document or layer of an image.

A change in the registry either has consistent new digests, as its owner could make it, or flips a
byte of the stored data.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from imgbuild.assemble import image_layout
from imgbuild.oci import layout as layouts
from imgbuild.oci.documents import INDEX, MANIFEST
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image import RegistrySource
from imgbuild.values import Arch
from imgbuild.verify import image
from imgbuild.verify.checks import Checklist, CheckOutcome
from imgbuild.verify.image import ExpectedImage
from tests.support import registry_project
from tests.support.memory_registry import sha256_digest
from tests.support.registry_project import BOTH, NAME, Place
from tests.support.signed_image import Sample

QUIET = {"layer bytes": CheckOutcome.UNCHECKED}


@pytest.fixture(name="place")
def _place(sample: Sample) -> Place:
    return sample.place


@pytest.fixture(name="expected")
def _expected(sample: Sample) -> ExpectedImage:
    return image.expected_image(sample.lock, sample.target_digests)


def check(place: Place, expected: ExpectedImage, *, whole: bool = False, tag: str = BOTH):
    """The outcome and detail of each check that did not pass, by name and architecture."""
    checklist = Checklist()
    client = RegistryClient(first_wait=0.001, attempts=2)
    source = RegistrySource(client, place.reference(tag))
    image.check_image(source, expected, checklist, whole=whole)
    return {
        (entry.name, entry.arch): (entry.outcome, entry.detail)
        for entry in checklist.checks
        if entry.outcome is not CheckOutcome.PASSED
    }


def failed(checks) -> dict[tuple[str, Arch | None], str]:
    return {
        place: text for place, (outcome, text) in checks.items() if outcome is CheckOutcome.FAILED
    }


def rewrite(place: Place, digest: str, change: Callable[[Any], None]) -> tuple[str, int]:
    """Apply `change` to a manifest and upload it; returns the new digest and size."""
    data, kind = place.registry.manifests[NAME, digest]
    document = json.loads(data)
    change(document)
    rewritten = json.dumps(document).encode()
    place.registry.manifests[NAME, sha256_digest(rewritten)] = (rewritten, kind)
    return sha256_digest(rewritten), len(rewritten)


def rewrite_one(place: Place, change: Callable[[Any], None]) -> None:
    """Change the manifest for arm64, and update the index and the tag."""
    top = place.registry.tags[NAME, BOTH]

    def _index(document: Any) -> None:
        entry = next(
            manifest
            for manifest in document["manifests"]
            if manifest["platform"]["architecture"] == "arm64"
        )
        entry["digest"], entry["size"] = rewrite(place, entry["digest"], change)

    place.registry.tags[NAME, BOTH] = rewrite(place, top, _index)[0]


def test_pushed_image_passes_verification(place, expected):
    assert set(check(place, expected)) == {("layer bytes", None)}
    assert check(place, expected, whole=True) == {}


def test_verification_detects_another_image_under_the_tag(place, expected):
    place.push()
    place.registry.tags[NAME, BOTH] = place.tags()[registry_project.TAGS[0]]
    failures = failed(check(place, expected))
    assert expected.digest in failures["image", None]
    assert {"image", "manifest", "config"} <= {name for name, _ in failures}


def test_verification_detects_a_replaced_layer(place, expected):
    def _other(document):
        document["layers"][1]["digest"] = document["layers"][0]["digest"]
        document["layers"][1]["size"] = document["layers"][0]["size"]

    rewrite_one(place, _other)
    failures = failed(check(place, expected))
    assert "layer 2 (" in failures["layers", Arch.ARM64]
    assert ("manifest", Arch.ARM64) in failures
    assert ("layers", Arch.X86_64) not in failures


def test_verification_detects_an_additional_layer(place, expected):
    rewrite_one(place, lambda document: document["layers"].append(document["layers"][0]))
    failures = failed(check(place, expected))
    assert f"{len(expected.layers[Arch.ARM64]) + 1} layers" in failures["manifest", None]


def test_verification_detects_a_replaced_configuration(place, expected):
    def _other(document):
        config = json.loads(place.registry.blobs[(NAME, document["config"]["digest"])])
        config["config"]["Entrypoint"] = ["/bin/sh"]
        data = json.dumps(config).encode()
        place.registry.blobs[NAME, sha256_digest(data)] = data
        document["config"] |= {"digest": sha256_digest(data), "size": len(data)}

    rewrite_one(place, _other)
    failures = failed(check(place, expected))
    assert {name for name, _ in failures} == {"image", "manifest", "config"}


def test_verification_detects_a_changed_manifest_annotation(place, expected):
    rewrite_one(place, lambda document: document.update(annotations={"a": "b"}))
    assert {name for name, _ in failed(check(place, expected))} == {"image", "manifest"}


def test_verification_detects_a_missing_architecture(place, expected):
    top = place.registry.tags[NAME, BOTH]
    place.registry.tags[NAME, BOTH] = rewrite(
        place, top, lambda document: document["manifests"].pop()
    )[0]
    assert set(failed(check(place, expected))) == {("image", None)}


def _flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_verification_detects_a_missing_or_truncated_layer(place, expected):
    layer = expected.layers[Arch.ARM64][1].digest
    whole = place.registry.blobs[NAME, layer]
    place.registry.blobs[NAME, layer] = whole[:-1]
    assert f"has {len(whole) - 1} bytes" in failed(check(place, expected))["layer sizes", None]
    del place.registry.blobs[NAME, layer]
    assert "is missing" in failed(check(place, expected))["layer sizes", None]


def test_verification_detects_an_invalid_document(place, expected):
    data = b'{"manifests": 7}'
    place.registry.manifests[NAME, sha256_digest(data)] = (data, INDEX)
    place.registry.tags[NAME, BOTH] = sha256_digest(data)
    assert "manifests" in failed(check(place, expected))["index", None]
    data = b'{"layers": []}'
    place.registry.manifests[NAME, sha256_digest(data)] = (data, MANIFEST)
    place.registry.tags[NAME, BOTH] = sha256_digest(data)
    assert "config" in failed(check(place, expected))["manifest", None]


def test_layout_is_verified_like_an_image_in_a_registry(sample, place, expected, tmp_path):
    plan = sample.plan
    out = tmp_path / "layout"
    inputs = place.work().inputs
    image_layout.build_layout(
        plan.lock, plan.target_digests, tuple(Arch), out, inputs, processes=1, verify=False
    )

    def _failed_names(*, whole):
        checklist = Checklist()
        image.check_image(layouts.layout_source(out), expected, checklist, whole=whole)
        return [entry.name for entry in checklist.checks if entry.outcome is CheckOutcome.FAILED]

    assert _failed_names(whole=True) == []
    layer = out / "blobs/sha256" / expected.layers[Arch.ARM64][1].digest.removeprefix("sha256:")
    data = layer.read_bytes()
    layer.unlink()  # it is a link to the cache's
    layer.write_bytes(_flip(data))
    assert _failed_names(whole=False) == []
    assert _failed_names(whole=True) == ["layer bytes"]
    layer.unlink()
    assert _failed_names(whole=True) == ["layer sizes", "layer bytes"]


def test_index_with_a_duplicate_platform_fails_verification_without_a_lock(place):
    def _repeat(document: Any) -> None:
        first, second = document["manifests"]
        document["manifests"].append({**second, "platform": first["platform"]})

    top = place.registry.tags[NAME, BOTH]
    place.registry.tags[NAME, BOTH] = rewrite(place, top, _repeat)[0]
    checklist = Checklist()
    client = RegistryClient(first_wait=0.001, attempts=2)
    image.check_alone(RegistrySource(client, place.reference(BOTH)), checklist)
    (problem,) = [check for check in checklist.checks if check.name == "index"]
    assert problem.outcome is CheckOutcome.FAILED
    assert "has two images for" in problem.detail
