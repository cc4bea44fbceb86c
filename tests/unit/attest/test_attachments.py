"""Tests the attachments of a push, and rebuilding an image from them without a checkout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.attest import attachments, bundle, in_toto, provenance
from imgbuild.attest.sbom import cyclonedx, spdx
from imgbuild.oci import layout
from imgbuild.publish import push
from imgbuild.publish.push_plan import PushPlan
from imgbuild.registry import artifact_store
from imgbuild.registry.client import RegistryClient
from imgbuild.values import Arch, Digest
from tests.support import registry_project
from tests.support.inprocess_project import TARGET, Command, read_json
from tests.support.registry_project import BOTH, NAME, Place

SBOM_TYPES = {cyclonedx.MEDIA_TYPE, spdx.MEDIA_TYPE}
ABOUT = {in_toto.PAYLOAD_TYPE, bundle.ARTIFACT_TYPE}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)  # environment variables of CI
    yield from registry_project.place(tmp_path, monkeypatch)


def client() -> RegistryClient:
    return RegistryClient(first_wait=0.001, origin=True)


def pushed(place: Place, plan: PushPlan) -> tuple[Digest, ...]:
    push.push_target(place.work(), plan)
    return attached(place, plan)


def attached(place: Place, plan: PushPlan) -> tuple[Digest, ...]:
    project = place.work().project
    return attachments.attach_all(
        client(),
        place.repository,
        bundle.create_lock_bundle(plan.lock, plan.target_digests, project),
        project,
        plan.arches,
    )


def kinds(place: Place, digest: str) -> list[str]:
    return sorted(
        artifact.artifact_type
        for artifact in artifact_store.find_artifacts(client(), place.repository, digest)
    )


def test_attachments_are_found_by_the_index_digest_and_by_each_manifest_digest(place: Place):
    plan = place.both()
    pushed(place, plan)
    assert kinds(place, plan.top.digest) == sorted(ABOUT)
    for document in plan.manifests:
        assert kinds(place, document.digest) == sorted(SBOM_TYPES | ABOUT)


def test_attachments_of_a_single_architecture_image_refer_to_its_manifest(place: Place):
    plan = place.both(Arch.ARM64)
    assert len(pushed(place, plan)) == 4
    assert kinds(place, plan.top.digest) == sorted(SBOM_TYPES | ABOUT)
    (provenance_artifact,) = artifact_store.find_artifacts(
        client(), place.repository, plan.top.digest, in_toto.PAYLOAD_TYPE
    )
    (subject,) = json.loads(provenance_artifact.files["provenance.json"].data)["subject"]
    assert f"sha256:{subject['digest']['sha256']}" == plan.top.digest


def test_attached_sboms_match_the_output_of_the_show_command(
    place: Place, imgbuild: Command, tmp_path: Path
):
    plan = place.both()
    pushed(place, plan)
    for form, kind, name in (
        ("cyclonedx", cyclonedx.MEDIA_TYPE, "sbom.cdx.json"),
        ("spdx", spdx.MEDIA_TYPE, "sbom.spdx.json"),
    ):
        sbom_files = read_json(
            imgbuild("show", BOTH, "--sbom", form, "--output", "bills", "--json")
        )
        for item, document in zip(sbom_files, plan.manifests, strict=True):
            (artifact,) = artifact_store.find_artifacts(
                client(), place.repository, document.digest, kind
            )
            assert artifact.files[name].data == Path(item["output"]).read_bytes()
            assert item["image"] == document.digest
            assert artifact.annotations["dev.imgbuild.arch"] == item["arch"]


def test_second_push_does_not_change_the_attachments(place: Place, monkeypatch: pytest.MonkeyPatch):
    plan = place.both()
    first = pushed(place, plan)
    before = len(place.writes())
    assert attached(place, plan) == first
    # Nor when another run of the same workflow, or another commit, pushes the same image.
    monkeypatch.setattr(provenance, "_github_run_url", lambda _: "https://ci.example/runs/8")
    assert attached(place, plan) == first
    assert len(place.writes()) == before


def test_lost_attachment_is_attached_again(place: Place):
    """The attached blob was lost, for example by garbage collection of the registry."""
    plan = place.both()
    first = pushed(place, plan)
    whole = dict(place.registry.blobs)
    lost = [
        key
        for key, data in whole.items()
        if b'"predicateType"' in data or b'"bomFormat"' in data or b'"requirements"' in data
    ]
    assert len(lost) == 4  # the provenance, two SBOMs, the lock
    for key in lost:
        del place.registry.blobs[key]
    assert attached(place, plan) == first
    assert place.registry.blobs == whole


def test_each_builder_adds_its_own_provenance(place: Place, monkeypatch: pytest.MonkeyPatch):
    plan = place.plan()
    pushed(place, plan)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://host.example")
    monkeypatch.setenv("GITHUB_REPOSITORY", "me/it")
    monkeypatch.setenv("GITHUB_WORKFLOW_REF", "me/it/.github/workflows/a.yml@refs/heads/main")
    attached(place, plan)
    attached_artifacts = artifact_store.find_artifacts(
        client(), place.repository, plan.top.digest, in_toto.PAYLOAD_TYPE
    )
    bases = {
        provenance.comparable_fields(artifact.files["provenance.json"].data)
        for artifact in attached_artifacts
    }
    assert {basis.builder for basis in bases if basis} == {
        provenance.LOCAL_BUILDER,
        "https://host.example/me/it/.github/workflows/a.yml@refs/heads/main",
    }


# -- rebuilds


def elsewhere(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Change to a folder outside of projects, with a cache that has only the inputs."""
    store = place.forget(monkeypatch, *place.sample.wheels)
    # The base layer of this sample has no real packages, so it counts as an input.
    old = tmp_path / "cache/blobs/sha256"
    base = place.sample.target_digests.arch[Arch.X86_64].layers[0].digest
    with store.scratch() as scratch:
        copied = shutil.copy(old / base.removeprefix("sha256:"), scratch / "base")
        store.add_blob(Path(copied), base)
    store.release()
    shutil.rmtree(place.sample.folder)
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_image_is_rebuilt_from_its_reference(
    place: Place, imgbuild: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    plan = place.plan()
    pushed(place, plan)
    here = elsewhere(place, monkeypatch, tmp_path)
    reference = f"{place.registry.host}/{NAME}:{TARGET}"
    (built_image,) = read_json(imgbuild("build", "--from", reference, "--json"))
    assert built_image["digest"] == plan.top.digest == place.sample.target_digests.digest
    assert built_image["output"] == str(here / "build" / TARGET)
    assert layout.read_layout(here / "build" / TARGET).digest == plan.top.digest
    assert built_image["made"] > 1


def test_two_architecture_image_is_rebuilt_from_either_digest(
    place: Place, imgbuild: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    plan = place.both()
    pushed(place, plan)
    where = f"{place.registry.host}/{NAME}"
    elsewhere(place, monkeypatch, tmp_path)
    (built_image,) = read_json(
        imgbuild("build", "--from", f"{where}@{plan.top.digest}", "--arch", "all", "--json")
    )
    assert built_image["digest"] == plan.top.digest
    arm, _ = plan.manifests
    (arm_image,) = read_json(
        imgbuild("build", "--from", f"{where}@{arm.digest}", "-o", "arm", "--json")
    )
    assert (arm_image["digest"], list(arm_image["arch"])) == (arm.digest, ["arm64"])
    result = imgbuild("build", "--from", f"{where}@{arm.digest}", "--arch", "x86_64", status=3)
    assert "is not available for x86_64, only for arm64" in result.stderr


def test_image_is_rebuilt_from_folder(
    place: Place, imgbuild: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    plan = place.plan()
    pushed(place, plan)
    (artifact,) = artifact_store.find_artifacts(
        client(), place.repository, plan.top.digest, bundle.ARTIFACT_TYPE
    )
    here = elsewhere(place, monkeypatch, tmp_path)
    for name, part in artifact.files.items():
        (here / name).write_bytes(part.data)
    (built_image,) = read_json(imgbuild("build", "--from", ".", "--offline", "--json"))
    assert built_image["digest"] == plan.top.digest


def test_lock_of_another_image_is_refused(
    place: Place, imgbuild: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    plan, other = place.plan(), place.both()
    push.push_target(place.work(), plan)
    lock_bundle = bundle.create_lock_bundle(other.lock, other.target_digests, place.work().project)
    artifact_store.attach_artifact(
        client(),
        place.repository,
        plan.top.descriptor,
        bundle.ARTIFACT_TYPE,
        bundle.bundle_files(lock_bundle),
    )
    reference = f"{place.registry.host}/{NAME}:{TARGET}"
    elsewhere(place, monkeypatch, tmp_path)
    result = imgbuild("build", "--from", reference, status=9)
    assert f"attached to {plan.top.digest}" in result.stderr
    assert not (tmp_path / "empty/build").exists()


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--from", "HOST/me/rl:absent"], 7, "no such image"),
        (["--from", f"HOST/me/rl:{TARGET}"], 3, "has no lock attached"),
        (["--from", "HOST/me/rl"], 2, "has no tag or digest"),
        (["--from", "./nowhere"], 2, "no such folder"),
        (["--from", "x", TARGET], 2, "--from x cannot be combined"),
        (["--from", "x", "--builder", "docker"], 2, "--from x cannot be combined"),
    ],
)
def test_invalid_attachments_are_refused(
    place: Place, imgbuild: Command, words: list[str], status: int, message: str
):
    push.push_target(place.work(), place.plan())
    result = imgbuild("build", *(word.replace("HOST", place.registry.host) for word in words))
    assert (result.status, result.stdout) == (status, "")
    assert message in result.stderr
    assert "hint" in result.stderr
