"""Tests that no tag refers to an incomplete image after pushes to a faulty registry."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from imgbuild.attest.signing import forms, keys
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, ImgbuildError, IntegrityError, Interrupted
from imgbuild.oci import documents
from imgbuild.plan.plan import create_plan
from imgbuild.publish import push
from imgbuild.publish.push import BlobState
from imgbuild.publish.push_plan import CONFIG
from imgbuild.render import dockerfile
from imgbuild.values import Arch
from tests.support import registry_project
from tests.support.inprocess_project import TARGET
from tests.support.memory_registry import Answer, Fault
from tests.support.registry_project import BOTH, NAME, TAGS, Place

BLOB = "(PUT|PATCH) .*/blobs/uploads/"
MANIFEST = "PUT .*/manifests/"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from registry_project.place(tmp_path, monkeypatch)


def sent(place: Place) -> Counter[str]:
    """Return the number of uploads of each blob, by its digest."""
    done = (
        request.path.rpartition("digest=")[2]
        for request in place.registry.received_requests("PUT .*digest=")
    )
    return Counter(text.replace("%3A", ":") for text in done)


# -- plans


def test_push_plan_has_the_locked_digests(place):
    push_plan = place.both()
    assert push_plan.top.digest == push_plan.target_digests.digest
    assert push_plan.top.media_type == documents.INDEX
    assert push_plan.small_documents == (*push_plan.manifests, push_plan.top)
    assert [document.digest for document in push_plan.manifests] == [
        push_plan.target_digests.arch[arch].manifest for arch in push_plan.arches
    ]
    digests = [blob.digest for blob in push_plan.blobs]
    assert len(digests) == len(set(digests))
    shared = next(blob for blob in push_plan.blobs if blob.name == "trl")
    assert shared.arches == (Arch.ARM64, Arch.X86_64)


def test_push_plan_has_tags(place):
    whole = place.both()
    assert whole.tags == (f"{BOTH}-20261121", BOTH)
    some = place.both(Arch.ARM64)
    assert some.tags == (f"{BOTH}-arm64-20261121", f"{BOTH}-arm64")
    assert some.top == some.small_documents[0]
    assert some.top.digest == whole.target_digests.arch[Arch.ARM64].manifest
    base = place.plan(only_base=True)
    assert (base.tags[-1], base.only_base) == (f"{TARGET}-base", True)


def test_push_plan_of_the_base_matches_the_dockerfile_base(place):
    push_plan = place.plan(only_base=True)
    plans = [create_plan(place.sample.lock, Arch.X86_64)]
    assert push_plan.top.digest == dockerfile.base_digest(place.sample.target_digests, plans)
    push.push_target(place.work(), push_plan)
    assert (NAME, push_plan.top.digest) in place.registry.manifests


# -- uploads and their order


def test_push_sends_blobs_before_manifests_and_tags(place):
    push_plan = place.both()
    done = push.push_target(place.work(), push_plan)
    digests = {document.digest: number for number, document in enumerate(push_plan.small_documents)}
    kinds = []
    for request in place.registry.received_requests("PUT "):
        target = request.path.rpartition("/manifests/")[2]
        kinds.append(digests.get(target, 9) if "/manifests/" in request.path else -1)
    assert kinds == sorted(kinds)
    assert set(kinds) == {-1, 0, 1, 2, 9}
    assert place.tags() == dict.fromkeys(push_plan.tags, push_plan.target_digests.digest)
    stored_sizes = {digest: len(data) for (_, digest), data in place.registry.blobs.items()}
    assert stored_sizes == {blob.digest: blob.size for blob in push_plan.blobs}
    assert done.sent == sum(stored_sizes.values())
    assert {row.state for row in done.blobs} == {BlobState.SENT}


def test_second_push_of_an_image_writes_nothing(place):
    first = place.push()
    place.registry.requests.clear()
    again = place.push()
    assert place.writes() == []
    assert [tag.moved for tag in first.tags] == [True, True]
    assert [tag.moved for tag in again.tags] == [False, False]
    assert again.sent == 0
    assert {row.state for row in again.blobs} == {BlobState.PRESENT}


def test_push_neither_builds_nor_fetches_existing_blobs(place, monkeypatch):
    place.push()
    trl = next(blob for blob in place.plan().blobs if blob.name == "trl")
    del place.registry.blobs[NAME, trl.digest]
    place.registry.tags.clear()
    store = place.forget(monkeypatch, "trl")  # an empty cache except for one wheel, and no network
    done = place.push()
    states = {row.name: row.state for row in done.blobs}
    assert {name for name, state in states.items() if state is BlobState.SENT} == {"trl"}
    assert done.sent == trl.size
    assert set(place.tags()) == set(TAGS)
    assert [path.name for path in (store.root / "blobs/sha256").iterdir()] == [
        trl.digest.removeprefix("sha256:")
    ]


def test_push_uses_the_layers_of_a_layout(place, monkeypatch):
    work = place.work()
    push_plan = place.plan()
    folder = work.project.output(TARGET) / "blobs/sha256"
    folder.mkdir(parents=True)
    for blob in push_plan.blobs:
        path = Store.open().blob(blob.digest) if blob.name == "debian-12" else None
        if path is not None:
            (folder / path.name).write_bytes(path.read_bytes())
    place.forget(monkeypatch, *place.sample.wheels)  # the base cannot be built in this test
    assert {row.state for row in place.push().blobs} == {BlobState.SENT}


def test_damaged_layout_layer_is_not_pushed(place, monkeypatch):
    work = place.work()
    base = next(blob for blob in place.plan().blobs if blob.name == "debian-12")
    path = work.project.output(TARGET) / "blobs/sha256" / base.digest.removeprefix("sha256:")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * base.size)
    place.forget(monkeypatch, *place.sample.wheels)
    with pytest.raises(FetchFailed):  # it would have to be built, and nothing can be fetched
        place.push()
    assert sent(place) == Counter()
    assert place.tags() == {}


def test_push_dry_run_reports_uploads_and_sends_nothing(place):
    plans = [place.plan(), place.both()]
    result = push.plan_uploads(place.work(), plans)
    assert place.writes() == []
    done = [push.push_target(place.work(), each) for each in plans]
    assert [item.sent for item in result] == [item.sent for item in done]
    assert [item.digest for item in result] == [item.digest for item in done]
    assert [item.sent for item in push.plan_uploads(place.work(), plans)] == [0, 0]


def test_pushed_targets_share_layers(place):
    plans = [place.plan(), place.both()]
    for push_plan in plans:
        push.push_target(place.work(), push_plan)
    assert set(sent(place).values()) == {1}
    assert set(sent(place)) == {blob.digest for push_plan in plans for blob in push_plan.blobs}


def test_concurrent_pushes_send_each_blob_once(place):
    works = [place.work(), place.work(), place.work()]
    push_plan = place.both()
    with ThreadPoolExecutor(len(works)) as pool:
        done = list(pool.map(lambda work: push.push_target(work, push_plan), works))
    assert set(sent(place).values()) == {1}
    assert sum(item.sent for item in done) == sum(blob.size for blob in push_plan.blobs)
    assert len(done) == len(works)


def test_image_pushed_without_tags_is_found_by_digest(place):
    done = push.push_target(place.work(tag=False), place.plan())
    assert place.tags() == {}
    assert (NAME, done.digest) in place.registry.manifests


# -- other repositories


def test_push_does_not_build_layers_that_can_be_mounted(place, monkeypatch):
    push_plan = place.plan()
    push.push_target(
        msgspec.structs.replace(place.work(), repository=place.registry.repository("o")), push_plan
    )
    place.forget(monkeypatch)
    rows = push.plan_uploads(place.work("o"), [push_plan])[0].blobs
    assert {(row.state, row.source) for row in rows} == {
        (BlobState.MOUNTABLE, str(place.registry.repository("o")))
    }
    done = push.push_target(place.work("o"), push_plan)
    assert {row.state for row in done.blobs} == {BlobState.MOUNTED}
    assert done.sent == 0
    assert set(place.tags()) == set(TAGS)


def test_layers_are_uploaded_if_the_mount_fails(place):
    push_plan = place.plan()
    push.push_target(
        msgspec.structs.replace(place.work(), repository=place.registry.repository("o")), push_plan
    )
    place.registry.mounts = False
    done = push.push_target(place.work("o"), push_plan)
    assert {row.state for row in done.blobs} == {BlobState.SENT}
    assert place.registry.sessions == {}  # unused upload sessions are closed


def test_repository_that_cannot_be_read_is_skipped_for_mounts(place):
    place.registry.faults.append(Fault("HEAD /v2/private/blobs/", times=100, status=403))
    done = push.push_target(place.work("private"), place.plan())
    assert {row.state for row in done.blobs} == {BlobState.SENT}


# -- attachments


def test_attachments_are_pushed_once_and_before_tags(place):
    done = push.push_target(place.work(attach=True), place.both())
    assert len(done.attached) == len(set(done.attached)) > len(Arch)
    puts = [
        request.path.rpartition("/")[2].partition("?")[0]
        for request in place.registry.received_requests("PUT .*/manifests/")
    ]
    assert max(map(puts.index, done.attached)) < min(map(puts.index, done_tags(done)))
    place.registry.requests.clear()
    again = push.push_target(place.work(attach=True), place.both())
    assert place.writes() == []
    assert again.attached == done.attached


def test_push_sets_no_tag_if_an_attachment_fails(place):
    place.registry.faults.append(Fault("(GET|HEAD) .*/referrers/", times=100, status=500))
    with pytest.raises(FetchFailed, match="500"):
        push.push_target(place.work(attach=True), place.plan())
    assert place.tags() == {}


def test_image_is_signed_before_it_is_tagged(place, tmp_path):
    key = tmp_path / "key.pem"
    private = ec.generate_private_key(ec.SECP256R1())
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    work = msgspec.structs.replace(place.work(attach=True), key=keys.load_private(key))
    done = push.push_target(work, place.plan())
    assert done.signed == (done.digest,)
    puts = [
        request.path.rpartition("/")[2]
        for request in place.registry.received_requests("PUT .*/manifests/")
    ]
    assert puts[-2:] == list(done_tags(done))
    bundles = work.client.referrers(place.repository, done.digest, forms.BUNDLE)
    assert bundles
    assert {bundle.digest for bundle in bundles} <= set(puts)
    place.registry.requests.clear()
    assert push.push_target(work, place.plan()).signed == done.signed
    assert sent(place) == Counter()


def test_base_image_has_no_attachments(place):
    done = push.push_target(place.work(attach=True), place.plan(only_base=True))
    assert (done.attached, done.signed) == ((), ())


def done_tags(done: push.PushedTarget) -> tuple[str, ...]:
    return tuple(tag.name for tag in done.tags)


# -- failures


def refused(place: Place, kind: type[ImgbuildError], *words: str) -> None:
    """Check that a push fails without setting a tag, and that the next push succeeds."""
    with pytest.raises(kind) as caught:
        place.push()
    assert [word for word in words if word not in caught.value.message] == []
    assert caught.value.hint
    assert place.tags() == {}
    place.registry.faults.clear()
    place.push()
    assert place.tags() == dict.fromkeys(TAGS, place.sample.target_digests.digest)


@pytest.mark.parametrize("where", [BLOB, "POST .*/blobs/uploads/", MANIFEST, "HEAD .*/blobs/"])
def test_push_sets_no_tag_if_the_registry_fails(place, where):
    place.registry.faults.append(Fault(where, times=1000, status=500))
    refused(place, FetchFailed, "500")


@pytest.mark.parametrize(
    ("where", "status"),
    [(BLOB, 500), ("POST .*/blobs/uploads/", 503), (MANIFEST, 429), ("HEAD .*/blobs/", 503)],
)
def test_push_is_retried_after_a_transient_registry_error(place, where, status):
    place.registry.faults.append(Fault(where, status=status, headers={"Retry-After": "0"}))
    place.push()
    assert place.tags() == dict.fromkeys(TAGS, place.sample.target_digests.digest)


def test_dropped_connection_in_blob_upload_is_resumed(place):
    place.registry.faults += [Fault(BLOB, times=3, cut_request=100), Fault(BLOB, mute=True)]
    place.push()
    assert place.tags() == dict.fromkeys(TAGS, place.sample.target_digests.digest)


@pytest.mark.parametrize("number", [1, 4, 7])
def test_interrupted_push_is_resumed(place, number, monkeypatch):
    """Ctrl-C stops the push after some blobs. The next push sends only the remaining blobs."""
    upload, lock, count = push._upload_blob, threading.Lock(), itertools.count(1)

    def _stopped(*arguments):
        with lock:
            if next(count) > number:
                raise Interrupted("stopped")
            return upload(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(push, "_upload_blob", _stopped)
        with pytest.raises(Interrupted):
            place.push()
    assert place.tags() == {}
    arrived = set(sent(place))
    assert 0 < len(arrived) < len(place.plan().blobs)
    done = place.push()
    assert {row.digest for row in done.blobs if row.state is BlobState.PRESENT} == arrived
    assert set(sent(place).values()) == {1}
    assert place.tags() == dict.fromkeys(TAGS, place.sample.target_digests.digest)


def test_push_refuses_a_blob_of_the_wrong_size(place):
    trl = next(blob for blob in place.plan().blobs if blob.name == "trl")
    place.registry.blobs[NAME, trl.digest] = b"half of it"
    with pytest.raises(IntegrityError, match=r"has trl .* with 10 bytes, but digests.json has"):
        place.push()
    assert place.tags() == {}


def test_blob_lost_by_the_registry_is_an_error(place):
    lost = next(blob.digest for blob in place.plan().blobs if blob.name == CONFIG)

    def _lose(answer: Answer) -> None:
        place.registry.blobs.pop((NAME, lost), None)

    where = f"PUT .*digest={lost.replace(':', '%3A')}"
    place.registry.faults.append(Fault(where, times=50, edit=_lose))
    refused(place, IntegrityError, lost)


def test_wrong_digest_header_for_a_manifest_is_an_error(place):
    def _lie(answer: Answer) -> None:
        answer.headers["Docker-Content-Digest"] = "sha256:" + "0" * 64

    place.registry.faults.append(Fault(MANIFEST, times=50, edit=_lie))
    refused(place, IntegrityError, "0" * 64)


def test_manifest_modified_by_the_registry_is_an_error(place):
    def _lie(answer: Answer) -> None:
        answer.body = b'{"schemaVersion":2}'

    place.registry.faults.append(
        Fault(f"GET .*/manifests/{place.sample.target_digests.digest}", times=50, edit=_lie)
    )
    refused(place, IntegrityError, "returned sha256:")


def test_push_reports_a_moved_tag(place):
    place.push()
    place.registry.tags[NAME, TARGET] = other = "sha256:" + "1" * 64
    place.registry.manifests[NAME, other] = (b"{}", documents.MANIFEST)
    done = place.push()
    assert {tag.name: tag.before for tag in done.tags} == {TARGET: other, TAGS[1]: done.digest}
    assert str(done.tags[-1]) == f"{TARGET} (was {other})"
    assert place.tags()[TARGET] == done.digest
