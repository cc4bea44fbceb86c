"""Tests listing and tagging images of a registry, and the arguments of diff."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from imgbuild.attest import bundle
from imgbuild.errors import FetchFailed, InputError, IntegrityError, LockStale
from imgbuild.oci import documents
from imgbuild.publish import listing, pull_page, push, tag
from imgbuild.registry import artifact_store, manifests
from imgbuild.registry.client import NotFound, RegistryClient
from imgbuild.registry.image_reference import ImageReference
from imgbuild.show import diff_sides, image_diff
from imgbuild.values import Arch
from tests.support import registry_project
from tests.support.inprocess_project import TARGET, Command, read_json
from tests.support.memory_registry import Fault
from tests.support.memory_registry_values import sha256_digest
from tests.support.registry_project import BOTH, NAME, TAGS, Place

CLIENT = RegistryClient(first_wait=0.001, attempts=2)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from registry_project.place(tmp_path, monkeypatch)


# -- ls


def test_registry_images_are_listed_with_all_tags(place):
    place.push()
    push.push_target(place.work(), place.both())
    place.registry.page = 2
    image_listing = listing.list_images(CLIENT, [place.repository])
    first, two = image_listing.entries
    assert (first.tags, first.dates, first.target) == (TAGS, ("20261121",), TARGET)
    assert first.versions == {"torch": "2.6.0", "trl": "0.18.2", "vllm": "0.8.5.post1"}
    assert (first.digest, first.size) == (
        place.sample.target_digests.digest,
        place.sample.target_digests.arch["x86_64"].size,
    )
    assert (list(two.arch), two.target) == ([Arch.ARM64, Arch.X86_64], BOTH)
    assert image_listing.sum == first.size + two.size
    stored_size = sum(len(data) for data in place.registry.blobs.values())
    stored_size += sum(
        len(data) for data, kind in place.registry.manifests.values() if kind == documents.MANIFEST
    )
    assert image_listing.size == stored_size


def test_page_lists_the_pull_command_of_each_image(place: Place, imgbuild: Command) -> None:
    place.push()
    push.push_target(place.work(), place.both())
    page = imgbuild("registry", "ls", str(place.repository), "--format", "markdown").stdout
    digest = place.sample.target_digests.digest
    assert f"$ docker pull {place.repository}:{TARGET}\n" in page
    assert f"$ docker pull {place.repository}@{digest}\n" in page
    assert f"$ apptainer pull {TARGET}.sif docker://{place.repository}@{digest}\n" in page
    assert re.findall("^### (.*)$", page, re.MULTILINE) == sorted([TARGET, BOTH])
    assert "torch 2.6.0, vllm 0.8.5.post1, trl 0.18.2" in page


def test_page_quotes_labels_and_omits_unsafe_names(place: Place) -> None:
    platform = listing.ListedPlatform(digest="sha256:1", size=1, layers=1)
    entry = listing.ListedTag(
        repository="registry.example/rl",
        digest="sha256:1",
        tags=("a",),
        target="<b>; rm *",
        arch={Arch.X86_64: platform},
    )
    pages = [
        "\n".join(pull_page.page_lines(listing.RegistryListing(entries=(each,), size=1, sum=1)))
        for each in (entry, msgspec.structs.replace(entry, tags=("a;b",)))
    ]
    assert "<b>" not in pages[0]
    assert "-b---rm--.sif docker://registry.example/rl@sha256:1" in pages[0]
    assert pages[1] == "No image of a target is published yet."


def test_attachment_tags_are_omitted_and_unknown_tags_are_reported(place):
    place.push()
    digest = place.registry.tags[NAME, TARGET]
    for suffix in ("", ".sig", ".att"):
        place.registry.tags[NAME, digest.replace(":", "-") + suffix] = digest
    config = {"mediaType": "x/y", "digest": f"sha256:{'0' * 64}", "size": 2}
    data = json.dumps({"schemaVersion": 2, "config": config, "layers": []}).encode()
    place.registry.manifests[NAME, sha256_digest(data)] = (data, documents.MANIFEST)
    place.registry.tags[NAME, "artifact"] = sha256_digest(data)
    entries = listing.list_images(CLIENT, [place.repository]).entries
    assert [entry.tags for entry in entries] == [("artifact",), TAGS]
    assert "is not an image" in entries[0].other


def test_damaged_image_does_not_hide_other_images(place):
    place.push()
    push.push_target(place.work(), place.both())
    registry = place.registry
    digest = registry.tags[NAME, TARGET]
    data, kind = registry.manifests[NAME, digest]
    config = (NAME, json.loads(data)["config"]["digest"])
    blob = registry.blobs.pop(config)

    def _other() -> str:
        entries = listing.list_images(CLIENT, [place.repository]).entries
        assert [(entry.tags, bool(entry.other)) for entry in entries] == [
            (TAGS, True), (entries[1].tags, False)
        ]  # fmt: skip
        assert entries[1].target == BOTH
        return entries[0].other

    assert "404" in _other()
    registry.blobs[config] = blob[:-1] + b" "
    assert f"expected {len(blob)} bytes with the digest {config[1]}" in _other()
    registry.blobs[config] = blob
    registry.manifests[NAME, digest] = (data[:-1], kind)
    assert f"for {NAME}@{digest}" in _other()
    registry.manifests[NAME, digest] = (data, kind)
    registry.faults.append(Fault(f"GET .*/manifests/{digest}", status=404))
    assert str(place.repository) in _other()
    registry.faults.append(Fault("GET .*/blobs/", times=9, status=403))
    with pytest.raises(FetchFailed, match="403"):
        listing.list_images(CLIENT, [place.repository])


def test_all_repositories_are_listed(place):
    assert listing.list_repositories(CLIENT, place.registry.host) == []
    place.push()
    assert listing.list_repositories(CLIENT, place.registry.host) == [place.repository]
    place.registry.faults.append(Fault("GET /v2/_catalog", times=9, status=404))
    with pytest.raises(InputError, match="does not list its repositories") as caught:
        listing.list_repositories(CLIENT, place.registry.host)
    assert f"imgbuild registry ls {place.registry.host}/NAME" in (caught.value.hint or "")


# -- tag


def test_tag_command_tags_a_complete_image(place):
    done = push.push_target(place.work(tag=False), place.both())
    reference = ImageReference(place.registry.host, NAME, digest=done.digest)
    tag_changes = tag.tag_image(CLIENT, reference, ["good", "2026"])
    assert [(tag.name, tag.before, tag.moved) for tag in tag_changes] == [
        ("good", "", True), ("2026", "", True)
    ]  # fmt: skip
    assert place.tags() == dict.fromkeys(("good", "2026"), done.digest)
    place.registry.requests.clear()
    assert not tag.tag_image(CLIENT, place.reference("good"), ["2026"])[0].moved
    assert place.writes() == []


@pytest.mark.parametrize("half", [True, False])
def test_tag_command_refuses_an_incomplete_image(place, half):
    done = push.push_target(place.work(tag=False), place.both())
    lost = next(row.digest for row in done.blobs if row.arches == (Arch.ARM64,))
    data = place.registry.blobs.pop((NAME, lost))
    if half:
        place.registry.blobs[NAME, lost] = data[:10]
    reference = ImageReference(place.registry.host, NAME, digest=done.digest)
    with pytest.raises(IntegrityError, match=f"is incomplete: {lost}"):
        tag.tag_image(CLIENT, reference, ["good"])
    place.registry.blobs[NAME, lost] = data
    del place.registry.manifests[NAME, done.arch[Arch.X86_64]]
    with pytest.raises(NotFound):
        tag.tag_image(CLIENT, reference, ["good"])
    assert place.tags() == {}


def test_push_sets_no_tag_if_a_blob_is_deleted_meanwhile(place):
    """Garbage collection of the registry during the push deletes an existing blob."""
    place.push()
    place.registry.tags.clear()
    sent, gone = [blob.digest for blob in place.plan().blobs][:2]
    del place.registry.blobs[NAME, sent]
    where = f"PUT .*digest={sent.replace(':', '%3A')}"
    place.registry.faults.append(
        Fault(where, edit=lambda _: place.registry.blobs.pop((NAME, gone), None))
    )
    with pytest.raises(IntegrityError, match=f"is incomplete: {gone}") as caught:
        place.push()
    assert "push the image again" in str(caught.value.hint)
    assert place.tags() == {}
    place.push()
    assert place.tags() == dict.fromkeys(TAGS, place.sample.target_digests.digest)


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "-x", "x" * 129])
def test_invalid_tag_is_refused(place, name):
    place.push()
    with pytest.raises(InputError, match="is not a valid tag"):
        tag.tag_image(CLIENT, place.reference(TARGET), ["right", name])
    assert "right" not in place.tags()


# -- diff


def test_diff_accepts_targets_locks_folders_and_references(place):
    place.push()
    matrix, folder = place.sample.matrix, place.sample.folder / "images" / TARGET
    sides = [
        diff_sides.read_side(str(name), CLIENT, matrix)
        for name in (TARGET, folder, folder / "lock.json", place.reference(TARGET))
    ]
    assert [side.complete for side in sides] == [True, True, True, False]
    assert [side.arch[Arch.X86_64].layers for side in sides] == [
        sides[0].arch[Arch.X86_64].layers
    ] * 4
    for side in sides:
        difference = image_diff.diff_sides(sides[0], side)
        assert (difference.arch[Arch.X86_64].changes, difference.arch[Arch.X86_64].pull) == ((), 0)


def test_diff_uses_the_lock_attached_to_an_image(place):
    push.push_target(place.work(attach=True), place.both())
    registry_side = diff_sides.read_side(str(place.reference(BOTH)), CLIENT, place.sample.matrix)
    project_side = diff_sides.read_side(BOTH, CLIENT, place.sample.matrix)
    assert registry_side.complete
    assert registry_side.arch == project_side.arch
    digest = place.registry.tags[NAME, BOTH]
    image_digest = json.loads(place.registry.manifests[NAME, digest][0])["manifests"][0]["digest"]
    by_digest = diff_sides.read_side(
        f"{place.repository}@{image_digest}", CLIENT, place.sample.matrix
    )
    assert (by_digest.complete, list(by_digest.arch)) == (True, [Arch.ARM64])


def test_diff_ignores_an_attached_lock_of_another_image(place):
    """Any user with write access to a repository can attach documents to its images."""
    push.push_target(place.work(attach=True), place.both())
    target = place.push()
    here = manifests.fetch_manifest(CLIENT.http, place.reference(TARGET)).descriptor
    (lock, *_) = artifact_store.find_artifacts(
        CLIENT, place.repository, place.registry.tags[NAME, BOTH], bundle.ARTIFACT_TYPE
    )
    artifact_store.attach_artifact(
        CLIENT, place.repository, here, bundle.ARTIFACT_TYPE, lock.files, {}
    )
    assert here.digest == target.digest
    side = diff_sides.read_side(str(place.reference(TARGET)), CLIENT, place.sample.matrix)
    assert not side.complete


def test_invalid_diff_argument_is_reported(place, tmp_path):
    place.push()
    matrix = place.sample.matrix
    alone = tmp_path / "alone"
    alone.mkdir()
    with pytest.raises(InputError, match=r"has no lock\.json"):
        diff_sides.read_side(str(alone), CLIENT, matrix)
    shutil.copy(place.sample.folder / "images" / TARGET / "lock.json", alone)
    with pytest.raises(InputError, match=r"digests\.json is missing"):
        diff_sides.read_side(str(alone), CLIENT, matrix)
    with pytest.raises(LockStale, match="no lock for target absent"):
        diff_sides.read_side("absent", CLIENT, matrix)
    with pytest.raises(NotFound):
        diff_sides.read_side(str(place.reference("absent")), CLIENT, matrix)


# -- commands


def test_push_listing_diff_pull_and_tag_work_together(place, imgbuild, tmp_path):
    where = f"{place.registry.host}/{NAME}"
    note = tmp_path / "digests"
    words = ("push", TARGET, where, "--jobs", "1", "--offline", "--no-attach")
    dry = imgbuild(*words, "--dry-run", "--digest-file", str(note), status=0)
    assert "lacking" in dry.stdout
    assert not note.exists()
    done = imgbuild(*words, "--digest-file", str(note))
    line = f"{TARGET} {where}@{place.sample.target_digests.digest}\n"
    assert (done.status, done.stdout, note.read_text()) == (0, line, line)
    (again,) = read_json(imgbuild(*words, "--json"))
    assert again["sent"] == 0
    dated, plain = (tag["name"] for tag in again["tags"])
    assert plain == TARGET
    assert re.fullmatch(rf"{TARGET}-20[0-9]{{6}}", dated)
    assert imgbuild("registry", "tag", f"{where}:{TARGET}", "good").stdout == (
        f"{where}:good {place.sample.target_digests.digest}\n"
    )
    assert f"{where}:{TARGET},{dated},good" in imgbuild("registry", "ls", where).stdout
    assert [
        entry["target"]
        for entry in read_json(imgbuild("registry", "ls", where, "--json"))["entries"]
    ] == [TARGET]
    compared = read_json(imgbuild("diff", TARGET, f"{where}:good", "--json"))
    assert compared["arch"]["x86_64"]["pull"] == 0
    out = tmp_path / "pulled"
    pulled = imgbuild("pull", f"{where}:good", "--output", str(out))
    assert pulled.stdout == f"{place.sample.target_digests.digest} {out}\n"


def test_push_to_an_invalid_destination_is_refused(place, imgbuild):
    where = place.registry.host
    for words, result in (
        ((TARGET,), "no repository is specified"),
        ((TARGET, f"{where}/a", f"{where}/b"), "only one repository can be specified"),
        ((TARGET, f"{where}/a:tag"), "but a repository is expected"),
        (
            (TARGET, f"{where}/a", "--mount-from", "other.example/b"),
            "layers can be mounted only from the same registry",
        ),
    ):
        done = imgbuild("push", *words)
        assert (done.status, done.stdout) == (2, ""), done.stderr
        assert result in done.stderr
        assert "hint: " in done.stderr
    assert place.registry.requests == []


def test_registry_of_the_matrix_is_the_default_destination(place, imgbuild):
    text = place.sample.matrix.read_text()
    place.sample.matrix.write_text(f"registry: {place.registry.host}/{NAME}\n{text}")
    done = imgbuild("push", "--target", TARGET, "--jobs", "1", "--offline", status=0)
    assert done.stdout.startswith(f"{TARGET} {place.registry.host}/{NAME}@sha256:")
