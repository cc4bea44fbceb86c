"""Tests provenance statements against the message types of in-toto and SLSA."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement as statements
from in_toto_attestation.v1 import statement_pb2

from imgbuild.attest import provenance
from imgbuild.attest.provenance import BuildDetails, Commit
from imgbuild.attest.sbom import cyclonedx, document
from imgbuild.values import Arch, digest_of
from tests.support import inprocess_project, memory_registry, sbom_sample, standalone_matrix
from tests.support.rows import each_row

HERE = BuildDetails(
    lock="1" * 64,
    matrix="2" * 64,
    version="9.9",
    invocation="https://ci.example/runs/7",
    commit=Commit(id="c" * 40, uri="git+https://host.example/me/it"),
)
GITHUB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "me/it",
    "GITHUB_WORKFLOW_REF": "me/it/.github/workflows/images.yml@refs/heads/main",
    "GITHUB_RUN_ID": "42",
    "GITHUB_RUN_ATTEMPT": "2",
}


def sample_statement(
    here: BuildDetails = HERE, arches: tuple[Arch, ...] = sbom_sample.ARCHES
) -> bytes:
    lock = sbom_sample.lock()
    return provenance.create_statement(lock, sbom_sample.invented_digests(lock), arches, here)


def valid(data: bytes) -> dict[str, Any]:
    """Validate a statement with the published message types, which reject unknown fields.

    Returns the predicate.
    """
    message = json_format.Parse(data, statement_pb2.Statement())
    statements.Statement.copy_from_pb(message).validate()
    value = json.loads(data)
    assert value["_type"] == "https://in-toto.io/Statement/v1"
    assert value["predicateType"] == "https://slsa.dev/provenance/v1"
    predicate = json_format.ParseDict(value["predicate"], provenance_pb2.Provenance())
    assert predicate.build_definition.build_type
    assert predicate.build_definition.HasField("external_parameters")
    assert predicate.run_details.builder.id
    predicate_fields: dict[str, Any] = value["predicate"]
    return predicate_fields


def test_provenance_statement_is_valid():
    valid(sample_statement())
    valid(sample_statement(BuildDetails(lock="1" * 64, matrix="2" * 64)))
    broken = json.loads(sample_statement())
    broken["predicate"]["runDetails"]["builder"]["name"] = "no such field"
    with pytest.raises(json_format.ParseError):
        valid(json.dumps(broken).encode())


def test_subjects_of_the_provenance_are_the_index_and_each_manifest():
    target_digests = sbom_sample.invented_digests(sbom_sample.lock())
    digests = {
        subject["name"]: subject["digest"]["sha256"]
        for subject in json.loads(sample_statement())["subject"]
    }
    assert digests == {
        "small": target_digests.digest[7:],
        "small/arm64": target_digests.arch[Arch.ARM64].manifest[7:],
        "small/x86_64": target_digests.arch[Arch.X86_64].manifest[7:],
    }
    (alone,) = json.loads(sample_statement(arches=(Arch.ARM64,)))["subject"]
    assert alone == {
        "name": "small",
        "digest": {"sha256": target_digests.arch[Arch.ARM64].manifest[7:]},
    }


def test_provenance_statement_has_the_request_and_the_builder():
    predicate = valid(sample_statement())
    assert predicate["buildDefinition"]["externalParameters"] == {
        "target": "small",
        "arch": ["arm64", "x86_64"],
        "lock": {"sha256": HERE.lock},
        "matrix": {"sha256": HERE.matrix},
    }
    assert predicate["runDetails"]["builder"] == {
        "id": provenance.LOCAL_BUILDER,
        "version": {"imgbuild": "9.9"},
    }
    assert predicate["runDetails"]["metadata"] == {"invocationId": HERE.invocation}
    needed = {
        dependency["name"]: dependency
        for dependency in predicate["buildDefinition"]["resolvedDependencies"]
    }
    assert needed["lock.json"]["digest"] == {"sha256": HERE.lock}
    assert needed["repository"] == {
        "name": "repository",
        "uri": "git+https://host.example/me/it",
        "digest": {"gitCommit": "c" * 40},
    }


def test_provenance_lists_every_input_file_once():
    lock = sbom_sample.lock()
    needed = valid(sample_statement())["buildDefinition"]["resolvedDependencies"]
    hashes = [dependency["digest"].get("sha256") for dependency in needed]
    assert len(set(hashes)) == len(hashes)
    expected = {
        item.sha256
        for resolution in lock.arch.values()
        for item in (*resolution.wheels, *resolution.debs)
    }
    expected |= {
        built.sdist.sha256 for resolution in lock.arch.values() for built in resolution.built
    }
    expected |= {
        sha for sha in (sbom_sample.TOOL.sha256, HERE.lock, HERE.matrix) if sha is not None
    }
    # the commit is not a file A wheel built during the build is not an input but a byproduct.
    assert set(hashes) == {*expected, None}
    (byproduct,) = valid(sample_statement())["runDetails"]["byproducts"]
    assert byproduct["name"] == "antlr4_runtime-4.9-py3-none-any.whl"


def test_provenance_lists_the_archive_of_a_standalone_python_as_input():
    lock = standalone_matrix.lock()
    digests = sbom_sample.invented_digests(lock)
    predicate = valid(provenance.create_statement(lock, digests, (Arch.X86_64,), HERE))
    archive = standalone_matrix.archive()
    (listed,) = (
        item
        for item in predicate["buildDefinition"]["resolvedDependencies"]
        if item["digest"].get("sha256") == archive.sha256
    )
    assert listed["uri"].startswith(f"pkg:generic/cpython@{archive.version}?checksum=sha256:")
    assert standalone_matrix.ARCHIVES[Arch.X86_64].rpartition("/")[2] in unquote(listed["uri"])


def test_package_names_in_the_provenance_match_the_sbom():
    lock = sbom_sample.lock()
    sbom_file = document.create_sbom(
        lock, sbom_sample.invented_digests(lock), Arch.X86_64, sbom_sample.package_metadata(lock)
    )
    listed = {
        part.get("purl", "")
        for part in json.loads(cyclonedx.cyclonedx_document(sbom_file))["components"]
    }
    needed = {
        item.get("uri", "")
        for item in valid(sample_statement())["buildDefinition"]["resolvedDependencies"]
    }
    assert {item for item in listed if item.startswith("pkg:pypi/")} <= needed | {
        valid(sample_statement())["runDetails"]["byproducts"][0]["uri"]
    }


def test_provenance_statement_is_deterministic():
    assert sample_statement() == sample_statement()
    other = msgspec.structs.replace(HERE, invocation="", commit=None)
    assert sample_statement(other) != sample_statement()
    assert provenance.comparable_fields(sample_statement(other)) == provenance.comparable_fields(
        sample_statement()
    )


@pytest.mark.parametrize(
    "change", [{"lock": "3" * 64}, {"builder": "https://other.example"}, {"version": "10"}]
)
def test_different_provenance_statements_have_different_comparable_fields(change: dict[str, str]):
    other = msgspec.structs.replace(HERE, **change)
    assert provenance.comparable_fields(sample_statement(other)) != provenance.comparable_fields(
        sample_statement()
    )


@each_row(
    "data", [b"", b"[]", b"{}", b"\xff", sample_statement().replace(b"slsa.dev", b"slsa.example")]
)
def test_unrecognized_provenance_statements_have_no_comparable_fields(data: bytes):
    assert provenance.comparable_fields(data) is None


def test_builder_in_the_provenance_is_the_running_workflow():
    name = "https://github.com/me/it/.github/workflows/images.yml@refs/heads/main"
    assert provenance.builder_id(GITHUB) == name
    assert provenance.builder_id({}) == provenance.LOCAL_BUILDER


def test_provenance_has_the_run_url_and_input_digests_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    memory_registry.isolate_logins(monkeypatch, tmp_path)  # not in a git checkout
    sample = inprocess_project.write_project(tmp_path)
    from imgbuild.matrix.project_paths import find_project

    details = provenance.build_details(find_project(tmp_path), inprocess_project.TARGET, GITHUB)
    assert details.invocation == "https://github.com/me/it/actions/runs/42/attempts/2"
    assert details.commit is None
    text = (tmp_path / "images" / inprocess_project.TARGET / "lock.json").read_bytes()
    assert details.lock == digest_of(text)[7:]
    assert details.matrix == digest_of(sample.matrix.read_bytes())[7:]
    assert (
        provenance.build_details(find_project(tmp_path), inprocess_project.TARGET, {}).invocation
        == ""
    )


@each_row(
    ("remote", "expected"),
    [
        ("https://host.example/me/it.git", "git+https://host.example/me/it.git"),
        ("https://me:secret@host.example/me/it", "git+https://host.example/me/it"),
        ("https://host.example:8443/me/it?token=secret", "git+https://host.example:8443/me/it"),
        ("git@host.example:me/it.git", "git+ssh://host.example/me/it.git"),
        ("ssh://git@host.example/me/it", "git+ssh://host.example/me/it"),
        ("/home/me/it", ""),
        ("../it", ""),
        ("file:///home/me/it", ""),
        ("", ""),
    ],
)
def test_git_remote_in_the_provenance_has_no_credentials_or_local_path(remote: str, expected: str):
    assert provenance.public_url(remote) == expected
