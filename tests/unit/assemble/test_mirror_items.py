"""Tests how the inputs of a lock are listed as files of a mirror and referenced by its artifact."""

from __future__ import annotations

import json

import msgspec

from imgbuild.assemble import mirror_items
from imgbuild.lock.lock_file import AddedFile, Extends, Lock, make_lock
from imgbuild.lock.resolution import BuiltWheel, LockedFile, RegistryLayer
from imgbuild.values import Arch, sha256
from tests.support import samples, standalone_matrix

X86 = Arch.X86_64


def locked(file: str) -> LockedFile:
    return LockedFile(file=file, size=len(file), sha256=sha256(file.encode()))


BUILT = BuiltWheel(
    package="antlr",
    version="4.9",
    index="pypi",
    sdist=locked("antlr-4.9.tar.gz"),
    env={},
    requires=(samples.wheel("setuptools"),),
    wheel=locked("antlr-4.9-py3-none-any.whl"),
)
LAYER = RegistryLayer(
    digest=f"sha256:{'a' * 64}", size=77, diff_id=f"sha256:{'b' * 64}",
    media_type="application/vnd.oci.image.layer.v1.tar",
)  # fmt: skip


def lock_of_everything() -> Lock:
    """A lock with an input of every kind, including a repeated and a built wheel."""
    sample_lock = samples.lock()
    resolution = msgspec.structs.replace(
        sample_lock.arch[X86], built=(BUILT,), base_layers=(LAYER,),
        wheels=(*sample_lock.arch[X86].wheels, samples.wheel("setuptools")),
    )  # fmt: skip
    added = AddedFile(**msgspec.structs.asdict(locked("conf/train.yaml")), mode="0644")
    extends = Extends(
        target="published", lock="0" * 64, digest=LAYER.digest, packages=(),
        files={"/etc/train.yaml": added}, links={}, arch={},
    )  # fmt: skip
    return msgspec.structs.replace(sample_lock, arch={X86: resolution}, extends=extends)


def test_mirror_lists_every_kind_of_input_once_with_its_hash():
    lock = lock_of_everything()
    inputs = mirror_items.collect_inputs(lock, X86)
    assert [item.file for item in inputs] == sorted(item.file for item in inputs)
    by_file = {item.file: item for item in inputs}
    assert len(by_file) == len(inputs)
    kinds = {name: item.media_type for name, item in by_file.items()}
    assert kinds == {
        "antlr-4.9-py3-none-any.whl": mirror_items.WHEEL_TYPE,
        "antlr-4.9.tar.gz": mirror_items.SDIST_TYPE,
        "files/conf/train.yaml": mirror_items.OTHER_TYPE,
        f"layers/{'a' * 64}": LAYER.media_type,
        "pip-1.0-py3-none-any.whl": mirror_items.WHEEL_TYPE,
        "pool/main/b/bash/bash_1.0-1_amd64.deb": mirror_items.DEB_TYPE,
        "pool/main/p/python3/python3_1.0-1_amd64.deb": mirror_items.DEB_TYPE,
        "setuptools-1.0-py3-none-any.whl": mirror_items.WHEEL_TYPE,
        "torch-2.6.0-py3-none-any.whl": mirror_items.WHEEL_TYPE,
    }
    assert [item.file for item in inputs if item.layer] == [f"layers/{'a' * 64}"]
    assert by_file["antlr-4.9.tar.gz"].sha256 == BUILT.sdist.sha256
    assert by_file["antlr-4.9.tar.gz"].size == BUILT.sdist.size
    assert mirror_items.inputs_by_hash(lock).keys() == {item.sha256 for item in inputs}


def test_archive_of_a_standalone_python_is_a_mirrored_input():
    archive = standalone_matrix.archive()
    (item,) = (
        item
        for item in mirror_items.collect_inputs(standalone_matrix.lock(), X86)
        if item.sha256 == archive.sha256
    )
    assert (item.file, item.media_type) == (archive.file, mirror_items.SDIST_TYPE)


def test_sdist_in_zip_format_has_the_zip_media_type():
    sdist = locked("antlr-4.9.zip")
    lock = samples.lock()
    built = msgspec.structs.replace(BUILT, sdist=sdist)
    resolution = msgspec.structs.replace(lock.arch[X86], built=(built,))
    lock = msgspec.structs.replace(lock, arch={X86: resolution})
    (item,) = [item for item in mirror_items.collect_inputs(lock, X86) if item.file == sdist.file]
    assert item.media_type == "application/zip"


def test_mirror_artifact_depends_only_on_the_lock():
    """A change of the golden digest would change the artifacts of every mirror."""
    data = mirror_items.artifact_manifest(lock_of_everything(), X86)
    assert sha256(data) == "23ac891d794d3f1f2b9e384204c8e19cec108b27403d3d9a9ee3a170532d51cf"
    document = json.loads(data)
    assert document["artifactType"] == "application/vnd.imgbuild.inputs.v1+json"
    assert document["annotations"] == {
        "dev.imgbuild.target": "small", "dev.imgbuild.arch": "x86_64"
    }  # fmt: skip
    assert "subject" not in document
    layer = document["layers"][0]
    assert layer == {
        "mediaType": "application/zip",
        "digest": f"sha256:{BUILT.wheel.sha256}",
        "size": BUILT.wheel.size,
        "annotations": {"org.opencontainers.image.title": BUILT.wheel.file},
    }


def test_each_architecture_has_a_separate_mirror_artifact_and_tags():
    matrix = samples.matrix(arch=(X86, Arch.ARM64))
    arches = {arch: samples.resolution(arch=arch) for arch in (X86, Arch.ARM64)}
    lock = make_lock(matrix, "small", arches)
    artifacts = {arch: mirror_items.artifact_manifest(lock, arch) for arch in lock.arch}
    assert artifacts[X86] != artifacts[Arch.ARM64]
    stays, newest = mirror_items.artifact_tags(lock, Arch.ARM64, artifacts[Arch.ARM64])
    assert newest == "small-arm64-inputs"
    assert stays == f"small-arm64-inputs-{sha256(artifacts[Arch.ARM64])[:12]}"


def test_settings_that_do_not_affect_inputs_do_not_change_the_artifact():
    lock = samples.lock()
    other = msgspec.structs.replace(lock, as_of="2030-01-01", requirements={})
    assert mirror_items.artifact_manifest(lock, X86) == mirror_items.artifact_manifest(other, X86)
