"""Tests that `digests.json` is computed from the lock and its layer records."""

import hashlib
import json

import msgspec
import pytest

from imgbuild import codec
from imgbuild.errors import InputError, LockStale
from imgbuild.oci.layer import LayerRecord
from imgbuild.plan import image_digests
from imgbuild.plan.plan import create_plan
from imgbuild.report import Floors
from imgbuild.values import Arch, digest_of
from tests.support import samples

BOTH = (Arch.X86_64, Arch.ARM64)


def records(lock):
    """A record for each layer of `lock`, with digests derived from the layer's id."""
    return {
        layer.id: LayerRecord(
            digest="sha256:" + hashlib.sha256(layer.id.encode()).hexdigest(),
            size=10,
            diff_id="sha256:" + hashlib.sha256(layer.id.encode() * 2).hexdigest(),
            unpacked=100,
        )
        for arch in lock.arch
        for layer in create_plan(lock, arch).layers
    }


def write(folder, lock):
    target_digests = image_digests.compute_digests(lock, records(lock))
    codec.write_document(image_digests.digests_path(folder, lock.target), target_digests)
    return target_digests


def test_digests_file_is_read_back_unchanged(tmp_path):
    lock = samples.lock(of=samples.matrix(arch=BOTH))
    target_digests = write(tmp_path, lock)
    assert image_digests.read_digests(tmp_path, lock) == target_digests
    assert list(target_digests.arch) == [Arch.ARM64, Arch.X86_64]


def test_digest_of_an_image_with_one_architecture_is_its_manifest_digest():
    lock = samples.lock()
    target_digests = image_digests.compute_digests(lock, records(lock))
    assert target_digests.digest == target_digests.arch[Arch.X86_64].manifest


def test_digest_of_an_image_with_several_architectures_is_its_index_digest():
    lock = samples.lock(of=samples.matrix(arch=BOTH))
    target_digests = image_digests.compute_digests(lock, records(lock))
    assert target_digests.digest not in {image.manifest for image in target_digests.arch.values()}
    assert (
        target_digests.digest != image_digests.compute_digests(samples.lock(), records(lock)).digest
    )


def test_manifest_has_digests_of_config_and_layers():
    lock = samples.lock()
    document = image_digests.create_documents(create_plan(lock, Arch.X86_64), records(lock))
    manifest = json.loads(document.manifest)
    assert manifest["config"]["digest"] == digest_of(document.config)
    config = json.loads(document.config)
    assert config["rootfs"]["diff_ids"] == [layer.diff_id for layer in document.layers]
    assert [layer["digest"] for layer in manifest["layers"]] == [
        layer.digest for layer in document.layers
    ]


def test_digests_file_of_another_lock_is_an_error(tmp_path):
    write(tmp_path, samples.lock())
    with pytest.raises(LockStale, match="does not match the lock of small"):
        image_digests.read_digests(tmp_path, samples.lock(samples.wheel("trl")))


def test_edited_digests_file_is_an_error(tmp_path):
    lock = samples.lock()
    target_digests = write(tmp_path, lock)
    codec.write_document(
        image_digests.digests_path(tmp_path, "small"),
        msgspec.structs.replace(target_digests, digest="sha256:" + "0" * 64),
    )
    with pytest.raises(LockStale):
        image_digests.read_digests(tmp_path, lock)


def test_error_for_a_damaged_digests_file_has_a_hint(tmp_path):
    lock = samples.lock()
    codec.write_document(image_digests.digests_path(tmp_path, lock.target), {"format": 1})
    with pytest.raises(InputError, match=r"digests\.json is not a valid list of") as caught:
        image_digests.read_digests(tmp_path, lock)
    remedy = "restore it from git, or create it again with: imgbuild lock small"
    assert caught.value.hint == remedy


def test_error_for_a_lock_without_digests_has_a_hint(tmp_path):
    with pytest.raises(LockStale, match="is missing, although small has a lock") as caught:
        image_digests.read_digests(tmp_path, samples.lock())
    assert caught.value.hint == "to create the file, run: imgbuild lock small"


def test_host_requirements_are_stored_in_digests_and_annotations(tmp_path):
    lock = samples.lock()
    needs = Floors(cuda="12.4", driver="525.60.13", gpu=("8.0", "9.0"), glibc="2.31")
    (arch,) = lock.arch
    target_digests = image_digests.compute_digests(lock, records(lock), {arch: needs})
    document = image_digests.create_documents(create_plan(lock, arch), records(lock), needs)
    assert json.loads(document.manifest)["annotations"] == {
        "dev.imgbuild.needs.cuda": "12.4",
        "dev.imgbuild.needs.driver": "525.60.13",
        "dev.imgbuild.needs.glibc": "2.31",
        "dev.imgbuild.needs.gpu": "8.0 9.0",
    }
    assert target_digests.arch[arch].manifest == digest_of(document.manifest)
    codec.write_document(image_digests.digests_path(tmp_path, lock.target), target_digests)
    assert image_digests.read_digests(tmp_path, lock) == target_digests
