"""Tests that an image that differs from its description is refused."""

from __future__ import annotations

import base64
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imgbuild.cache.store import Store
from imgbuild.errors import ImgbuildError, InputError, IntegrityError
from imgbuild.oci import image, layout
from imgbuild.oci.documents import INDEX, LAYER, LAYER_GZIP, LAYER_ZSTD
from imgbuild.oci.reader import LayerFile
from imgbuild.oci.unpack import unpack_folders, unpack_layers
from imgbuild.publish import pull
from imgbuild.registry import base_image
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image import RegistrySource
from imgbuild.show.compare import compare_images
from imgbuild.sif.flat import FlatTree, LayerSource
from imgbuild.solve import base as bases
from imgbuild.values import Arch
from imgbuild.verify import image as verified
from imgbuild.verify.checks import Checklist, CheckOutcome
from tests.support import memory_registry, rewritten_image
from tests.support.layer_files import FALSE_DIGEST
from tests.support.memory_registry import Registry
from tests.support.rewritten_image import Change

ARCH = Arch.X86_64
CLIENT = RegistryClient(first_wait=0.001, attempts=1)
DOCKER = "application/vnd.docker.image.rootfs"


@pytest.fixture(name="registry")
def _registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    memory_registry.isolate_logins(monkeypatch, tmp_path)
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    with memory_registry.serve(Registry()) as registry:
        yield registry


Reader = Callable[[Path, Registry], object]


def _verify(source: image.ImageSource) -> None:
    """The checks of `verify --blobs` without a lock. Raises IntegrityError if checks fail."""
    checklist = Checklist()
    verified.check_alone(source, checklist)
    failed = [each.detail for each in checklist.checks if each.outcome is CheckOutcome.FAILED]
    if failed:
        raise IntegrityError("; ".join(failed))


def _sif(folder: Path, _: Registry) -> None:
    source = layout.read_layout(folder)
    flat = FlatTree()
    layers = zip(source.image(ARCH).layers, source.layer_files(ARCH), strict=True)
    flat.add(
        [
            LayerSource(path=file.path, digest=layer.digest, diff_id=file.diff_id)
            for layer, file in layers
        ]
    )
    for _piece in flat.chunks():
        pass


def _saved(folder: Path, _: Registry) -> None:
    archive = folder.with_suffix(".tar")
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, ".")
    summary = image.read_image(archive)
    compare_images(summary, summary, names=("left", "right"))


def _compare(folder: Path, _: Registry) -> None:
    summary = image.read_image(folder)
    compare_images(summary, summary, names=("left", "right"))


def _keep(folder: Path, _: Registry) -> None:
    layers = layout.read_layout(folder).layer_files(ARCH)
    unpack_folders({layer: folder / f"kept-{number}" for number, layer in enumerate(layers)})


def _base(folder: Path, registry: Registry) -> None:
    text = str(rewritten_image.store_in_registry(folder, registry))
    base = base_image.read_base_image(text, ARCH, CLIENT)
    blobs = (rewritten_image.blob_path(folder, layer.digest) for layer in base.layers)
    bases.merge_contents(
        [
            LayerFile(path=path, diff_id=layer.diff_id)
            for path, layer in zip(blobs, base.layers, strict=True)
        ]
    )


READERS: dict[str, Reader] = {
    "unpack": lambda folder, _: unpack_layers(
        layout.read_layout(folder).layer_files(ARCH), folder / "root"
    ),
    "keep": _keep,
    "SIF": _sif,
    "diff of layouts": _compare,
    "diff of archives": _saved,
    "pull": lambda folder, registry: pull.pull_image(
        CLIENT,
        rewritten_image.store_in_registry(folder, registry),
        folder.parent / "out",
        Store.open(),
    ),
    "verify a layout": lambda folder, _: _verify(layout.layout_source(folder)),
    "verify in a registry": lambda folder, registry: _verify(
        RegistrySource(CLIENT, rewritten_image.store_in_registry(folder, registry))
    ),
    "base": _base,
}


def typed(media_type: str) -> Change:
    return lambda manifest, _: manifest["layers"][1].update(mediaType=media_type)


def false_diff_id(_: object, config: dict[str, dict[str, list[str]]]) -> None:
    config["rootfs"]["diff_ids"][1] = FALSE_DIGEST


def swapped_diff_ids(_: object, config: dict[str, dict[str, list[str]]]) -> None:
    config["rootfs"]["diff_ids"].reverse()


FALSE_IMAGES: dict[str, tuple[Change, str]] = {
    "encrypted": (typed(f"{LAYER_GZIP}+encrypted"), r"tar\+gzip\+encrypted"),
    "not distributable": (
        typed("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"),
        "nondistributable",
    ),
    "foreign": (typed(f"{DOCKER}.foreign.diff.tar.gzip"), "foreign"),
    "zstd": (typed(LAYER_ZSTD), "zstd"),
    "schema 1": (typed("application/vnd.docker.container.image.rootfs.diff+x-gtar"), "x-gtar"),
    "unknown": (typed("application/octet-stream"), "octet-stream"),
    "no type": (typed(""), "layer 2"),
    "with a parameter": (typed(f"{LAYER_GZIP}; x=y"), "x=y"),
    "in capitals": (typed(LAYER_GZIP.upper()), "TAR"),
    "elsewhere": (
        lambda manifest, _: manifest["layers"][1].update(urls=["https://x.example/layer"]),
        "x.example",
    ),
    "other embedded content": (
        lambda manifest, _: manifest["layers"][1].update(data=base64.b64encode(b"x").decode()),
        "does not match the digest",
    ),
    "a false diff id": (false_diff_id, FALSE_DIGEST),
    "the diff id of another layer": (swapped_diff_ids, "diff ID"),
    "a diff id too many": (
        lambda _, config: config["rootfs"]["diff_ids"].append(FALSE_DIGEST),
        "3 diff IDs",
    ),
    "a diff id too few": (lambda _, config: config["rootfs"]["diff_ids"].pop(), "1 diff IDs"),
    "no diff ids": (lambda _, config: config.pop("rootfs"), "0 diff IDs"),
    "an artifact": (
        lambda manifest, _: manifest["config"].update(mediaType="application/vnd.x.config"),
        "not an image",
    ),
    "index and image": (lambda manifest, _: manifest.update(manifests=[]), "both an index"),
    "a manifest that says it is an index": (
        lambda manifest, _: manifest.update(mediaType=INDEX),
        "type",
    ),
    "a manifest of Docker under OCI's type": (
        lambda manifest, _: manifest.update(
            mediaType="application/vnd.docker.distribution.manifest.v2+json"
        ),
        "type",
    ),
}
CONSISTENT: dict[str, Change] = {
    "unchanged": lambda *_: None,
    "types of Docker": typed(f"{DOCKER}.diff.tar.gzip"),
    "no type of the manifest": lambda manifest, _: manifest.pop("mediaType"),
    "the type of a plain tar for a gzip": typed(LAYER),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(("change", "text"), FALSE_IMAGES.values(), ids=FALSE_IMAGES)
def test_image_that_differs_from_its_description_is_refused(tmp_path, registry, change, text, read):
    folder = rewritten_image.write_changed_layout(tmp_path, change)
    with pytest.raises(ImgbuildError) as error:
        read(folder, registry)
    shown = "; ".join([error.value.message, *map(str, getattr(error.value, "problems", ()))])
    assert re.search(text, shown), shown
    assert isinstance(error.value, InputError | IntegrityError)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("change", CONSISTENT.values(), ids=CONSISTENT)
def test_image_that_matches_its_description_is_accepted(tmp_path, registry, change, read):
    read(rewritten_image.write_changed_layout(tmp_path, change), registry)
