"""Checks that the documents and layers of an image match its lock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from imgbuild.errors import IntegrityError
from imgbuild.lock.lock_file import Lock
from imgbuild.oci import image
from imgbuild.oci.documents import Descriptor
from imgbuild.oci.image import ImageSource, PlatformImage
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import ImageDocuments, LayerDigests, TargetDigests
from imgbuild.plan.plan import create_plan
from imgbuild.system import threads
from imgbuild.system.reporter import Reporter
from imgbuild.system.threads import StopFlag
from imgbuild.values import Arch, Digest, digest_of
from imgbuild.verify.checks import CheckFailed, CheckImpossible, Checklist, SubjectMissing

NO_LAYERS_DETAIL = "no readable manifest lists a layer"


class ExpectedImage(msgspec.Struct, frozen=True, kw_only=True):
    """The expected image of a lock: its digest, and its documents and layers by architecture.

    `as_of` is the cut-off day of the lock (YYYY-MM-DD). No image of the lock is older.
    """

    target: str
    as_of: str
    digest: Digest
    documents: dict[Arch, ImageDocuments]
    layers: dict[Arch, tuple[LayerDigests, ...]]

    def manifest_digest(self, arch: Arch) -> Digest:
        """Return the digest of the image for `arch`."""
        return digest_of(self.documents[arch].manifest)

    def arches(self, digest: Digest) -> tuple[Arch, ...]:
        """Return the architectures of the image `digest`, or () for an image of another lock."""
        if digest == self.digest:
            return tuple(self.documents)
        return tuple(arch for arch in self.documents if self.manifest_digest(arch) == digest)


def expected_image(lock: Lock, target_digests: TargetDigests) -> ExpectedImage:
    """Return the expected image of `lock`. `target_digests` contains the digests of layers."""
    records = image_digests.layer_records(target_digests)
    documents = {
        arch: image_digests.create_documents(create_plan(lock, arch), records, item.floors)
        for arch, item in target_digests.arch.items()
    }
    layers = {arch: item.layers for arch, item in target_digests.arch.items()}
    return ExpectedImage(
        target=lock.target,
        as_of=lock.as_of,
        digest=target_digests.digest,
        documents=documents,
        layers=layers,
    )


def check_image(
    place: ImageSource, expected: ExpectedImage, checklist: Checklist, *, whole: bool
) -> None:
    """Check documents and layers of the image at `place`. With `whole`, layers are hashed."""
    checklist.run("image", partial(_check_digest, place.top.digest, expected))
    layers: list[tuple[Descriptor, Digest | None]] = []
    for descriptor in checklist.read("index", partial(image.list_manifests, place)) or ():
        summary = checklist.read("manifest", partial(image.platform_image, place, descriptor))
        if summary is None:
            continue
        arch = summary.arch
        checklist.run("manifest", partial(_check_manifest, summary, expected), arch)
        checklist.run("config", partial(_config, summary, expected), arch)
        checklist.run("layers", partial(_layers, summary, expected), arch)
        layers += [(layer, None) for layer in summary.layers]  # the lock has the diff ids
    _check_layers(place, layers, checklist, whole=whole)


def check_alone(place: ImageSource, checklist: Checklist) -> None:
    """Check the image at `place` against the digests in its documents, without a lock."""
    layers: list[tuple[Descriptor, Digest | None]] = []
    for descriptor in checklist.read("index", partial(image.list_manifests, place)) or ():
        layers += checklist.read("manifest", partial(_contents, place, descriptor)) or ()
    _check_layers(place, layers, checklist, whole=True)


def _contents(place: ImageSource, descriptor: Descriptor) -> list[tuple[Descriptor, Digest | None]]:
    """Return the layers of a manifest with diff IDs, which are None for BuildKit's attestations."""
    manifest = image.read_manifest(place, descriptor)
    if descriptor.platform.get("os") == image.UNKNOWN_PLATFORM:
        return [(layer, None) for layer in manifest.layers]
    _, configuration = image.image_configuration(place, descriptor, manifest)
    return list(zip(manifest.layers, configuration.rootfs.diff_ids, strict=True))


def _check_layers(
    place: ImageSource,
    layers: Sequence[tuple[Descriptor, Digest | None]],
    checklist: Checklist,
    *,
    whole: bool,
) -> None:
    """Check that the distinct `layers` exist at `place`.

    If a diff ID is known, the content of the layer is checked against it.
    """
    each = tuple(
        {(layer.digest, layer.size, diff): (layer, diff) for layer, diff in layers}.values()
    )
    option = "--blobs" if whole else ""
    checklist.run(
        "layer sizes", partial(_sizes, place, [layer for layer, _ in each]), option=option
    )
    checklist.run(
        "layer bytes", partial(_bytes, place, each, checklist.reporter, whole=whole), option=option
    )


def _check_digest(digest: Digest, expected: ExpectedImage) -> str:
    arches = expected.arches(digest)
    if not arches:
        message = (
            f"the digest is {digest}, but digests.json of {expected.target} has {expected.digest}"
        )
        raise CheckFailed(message)
    return f"{digest} is {expected.target} for {', '.join(arches)}"


def _document(summary: PlatformImage, expected: ExpectedImage) -> ImageDocuments:
    if summary.arch not in expected.documents:
        message = f"{expected.target} is not locked for {summary.arch}"
        raise CheckFailed(message)
    return expected.documents[summary.arch]


def _check_manifest(summary: PlatformImage, expected: ExpectedImage) -> str:
    target_digests = digest_of(_document(summary, expected).manifest)
    if summary.manifest.digest != target_digests:
        message = f"the digest is {summary.manifest.digest}, but digests.json has {target_digests}"
        raise CheckFailed(message)
    return target_digests


def _config(summary: PlatformImage, expected: ExpectedImage) -> str:
    target_digests = _document(summary, expected).config
    if summary.config_data != target_digests:
        actual = summary.config.digest
        message = f"the digest is {actual}, but digests.json has {digest_of(target_digests)}"
        raise CheckFailed(message)
    return digest_of(target_digests)


def _layers(summary: PlatformImage, expected: ExpectedImage) -> str:
    _document(summary, expected)
    target_digests, layers = expected.layers[summary.arch], summary.layers
    for number, (layer, other) in enumerate(zip(layers, target_digests, strict=False), start=1):
        if (layer.digest, layer.size) != (other.digest, other.size):
            message = (
                f"layer {number} ({other.name}) has digest {layer.digest} ({layer.size} bytes);"
                f" digests.json has {other.digest} ({other.size} bytes)"
            )
            raise CheckFailed(message)
    if len(layers) != len(target_digests):
        message = f"{len(layers)} layers, but digests.json has {len(target_digests)}"
        raise CheckFailed(message)
    return f"{len(layers)} layers with the digests and sizes of digests.json"


def _sizes(place: ImageSource, layers: Sequence[Descriptor]) -> str:
    if not layers:
        raise SubjectMissing(NO_LAYERS_DETAIL)
    for layer in layers:
        size = place.size(layer)
        if size != layer.size:
            there = "is missing" if size is None else f"has {size} bytes"
            message = f"layer {layer.digest} {there}; expected {layer.size} bytes"
            raise CheckFailed(message)
    return f"{len(layers)} layers exist with the expected sizes"


def _bytes(
    place: ImageSource,
    layers: Sequence[tuple[Descriptor, Digest | None]],
    reporter: Reporter,
    *,
    whole: bool,
) -> str:
    total = sum(layer.size for layer, _ in layers)
    if not whole:
        message = f"--blobs reads and hashes {total / 1e9:.2f} GB, as engines do on pull"
        raise CheckImpossible(message)
    if not layers:
        raise SubjectMissing(NO_LAYERS_DETAIL)
    with reporter.progress(f"reading layers of {place.name}", total) as bar:

        def _read(item: tuple[Descriptor, Digest | None], stop: StopFlag) -> str:
            layer, diff_id = item
            try:
                place.read(layer, stop.with_check(bar.advance), diff_id)
            except IntegrityError as error:
                return error.message
            return ""

        wrong = [text for text in threads.run_for_each(layers, _read) if text]
    if wrong:
        raise CheckFailed("; ".join(wrong))
    return f"{len(layers)} layers of {total} bytes match their digests"
