import json

import pytest

import imgbuild
from imgbuild.oci import documents
from imgbuild.oci import documents as oci_documents
from imgbuild.oci.layer import LayerRecord
from imgbuild.plan import image_documents
from imgbuild.values import Arch, sha256
from tests.support import images

DIFF_IDS = [f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"]
RECORDS = [
    LayerRecord(digest=f"sha256:{'c' * 64}", size=10, diff_id=DIFF_IDS[0], unpacked=20),
    LayerRecord(digest=f"sha256:{'d' * 64}", size=30, diff_id=DIFF_IDS[1], unpacked=40),
]
GOLDEN = [
    "f49604f141d7bcdda704bed918d86439785c37404b3dbf89ec5bfcaa2b563209",
    "42100c476f6f786164e6d49dc04c1c3af4dc496bd2eb191135a5e5a5ebe78911",
    "fd080ccbb1c37114dcddd3e81e60e23865de526496313712a907c41b24e006a0",
]


def test_image_configuration_follows_the_oci_specification():
    config = json.loads(image_documents.image_configuration(images.create_plan(), DIFF_IDS))
    assert config == {
        "architecture": "amd64",
        "os": "linux",
        "created": images.CREATED,
        "config": {
            "User": "1000:1000",
            "Env": ["PATH=/bin", "WORD=two words"],
            "Cmd": ["cat", "/opt/hello"],
            "WorkingDir": "/opt",
            "Labels": {"org.opencontainers.image.title": "tiny"},
        },
        "rootfs": {"type": "layers", "diff_ids": DIFF_IDS},
        "history": [
            {"created": images.CREATED, "created_by": "imgbuild layer os"},
            {"created": images.CREATED, "created_by": "imgbuild layer hello"},
        ],
    }


def test_bytes_of_image_documents_match_golden_values():
    # All published digests depend on these: a failure means that digests of all images change.
    config = image_documents.image_configuration(images.create_plan(), DIFF_IDS)
    manifest = oci_documents.docker_manifest(config, RECORDS)
    index = oci_documents.create_index({Arch.X86_64: manifest, Arch.ARM64: manifest})
    assert [sha256(data) for data in (config, manifest, index)] == GOLDEN


def test_image_documents_contain_no_version_of_imgbuild():
    config = image_documents.image_configuration(images.create_plan(), DIFF_IDS)
    for data in (config, oci_documents.docker_manifest(config, RECORDS)):
        assert imgbuild.__version__.encode() not in data


def test_platform_of_an_arm64_image_has_a_variant():
    config = json.loads(
        image_documents.image_configuration(images.create_plan(Arch.ARM64), DIFF_IDS)
    )
    assert (config["architecture"], config["variant"]) == ("arm64", "v8")


def test_manifest_lists_configuration_and_layers_in_order():
    config = image_documents.image_configuration(images.create_plan(), DIFF_IDS)
    manifest = json.loads(oci_documents.docker_manifest(config, RECORDS))
    assert manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert manifest["config"] == {
        "mediaType": "application/vnd.oci.image.config.v1+json",
        "digest": f"sha256:{sha256(config)}",
        "size": len(config),
    }
    gzip = "application/vnd.oci.image.layer.v1.tar+gzip"
    assert manifest["layers"] == [
        {"mediaType": gzip, "digest": record.digest, "size": record.size} for record in RECORDS
    ]


def test_manifest_keeps_the_compression_of_base_layers():
    types = {RECORDS[0].digest: documents.LAYER_ZSTD}
    manifest = json.loads(oci_documents.docker_manifest(b"{}", RECORDS, media_types=types))
    assert [layer["mediaType"].rpartition("+")[2] for layer in manifest["layers"]] == [
        "zstd",
        "gzip",
    ]


def test_index_entries_are_sorted_and_have_a_platform():
    manifests = {Arch.X86_64: b"x86", Arch.ARM64: b"arm"}
    entries = json.loads(oci_documents.create_index(manifests))["manifests"]
    assert (
        entries
        == json.loads(oci_documents.create_index(dict(reversed(manifests.items()))))["manifests"]
    )
    assert [entry["platform"] for entry in entries] == [
        {"architecture": "arm64", "os": "linux", "variant": "v8"},
        {"architecture": "amd64", "os": "linux"},
    ]
    assert entries[0]["digest"] == f"sha256:{sha256(b'arm')}"


def test_number_of_layers_and_number_of_diff_ids_must_match():
    with pytest.raises(ValueError, match="shorter"):
        image_documents.image_configuration(images.create_plan(), DIFF_IDS[:1])
