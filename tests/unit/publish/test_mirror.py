"""Tests files and order of mirror uploads, and the state after a failure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from imgbuild.assemble import mirror_items
from imgbuild.assemble.inputs import Inputs
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.http.client import HttpClient
from imgbuild.lock.lock_file import Lock, make_lock
from imgbuild.lock.resolution import Resolution
from imgbuild.publish import mirror
from imgbuild.publish.mirror import LockedInputs, MirrorPush
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import Repository
from imgbuild.system import known_hashes
from imgbuild.values import Arch
from tests.support import memory_registry, samples
from tests.support.memory_registry import Registry
from tests.support.memory_registry_values import Fault

NAME = "team/inputs"
X86 = Arch.X86_64


@dataclass
class Sample:
    """A registry, and two locks of real cached wheels that share two wheels."""

    registry: Registry
    inputs: Inputs
    lock: Lock
    other: Lock

    @property
    def repository(self) -> Repository:
        return self.registry.repository(NAME)

    def push(self, *locks: Lock, dry_run: bool = False, drop: bool = False) -> MirrorPush:
        parts = [LockedInputs(lock=lock, arch=X86) for lock in locks or (self.lock,)]
        client = RegistryClient(first_wait=0.001, attempts=2)
        return mirror.upload_missing_inputs(
            parts, self.repository, client, self.inputs, dry_run=dry_run, drop=drop
        )

    def status(self) -> list[mirror.MirrorStatus]:
        part = LockedInputs(lock=self.lock, arch=X86)
        return list(mirror.mirror_status([part], self.repository, RegistryClient(first_wait=0.001)))

    def sent(self) -> list[str]:
        return [request.path for request in self.registry.received_requests("^PUT ")]


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sample]:
    memory_registry.isolate_logins(monkeypatch, tmp_path)
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    store, matrix = Store.open(), samples.matrix()
    wheels = {
        name: samples.add_to_store(store, samples.write_wheel(tmp_path, name), name, "1.0")
        for name in ("alpha", "beta", "gamma")
    }
    store.release()
    locks = [
        make_lock(matrix, "small", {X86: Resolution(wheels=tuple(wheels[n] for n in names))})
        for names in (("alpha", "beta"), ("beta", "gamma"))
    ]
    other = msgspec.structs.replace(locks[1], target="other")
    inputs = Inputs(matrix, Context(store, HttpClient(offline=True)))
    with memory_registry.serve(Registry()) as registry:
        yield Sample(registry, inputs, locks[0], other)


def test_mirror_push_sends_files_before_the_artifact_and_the_tags(sample):
    filled = sample.push()
    assert (filled.files, filled.sent, filled.fetched) == (2, 2, 0)
    assert filled.sent_size == filled.size == sum(w.size for w in sample.lock.arch[X86].wheels)
    data = mirror_items.artifact_manifest(sample.lock, X86)
    stays, newest = mirror_items.artifact_tags(sample.lock, X86, data)
    puts = sample.sent()
    assert [path.rpartition("/")[2] for path in puts[-2:]] == [stays, newest]
    assert all("/blobs/uploads/" in path for path in puts[:-2])
    (artifact,) = filled.artifacts
    assert artifact.tagged
    assert artifact.lacking == ()
    assert (
        sample.registry.tags[NAME, newest] == sample.registry.tags[NAME, stays] == artifact.artifact
    )
    assert sample.registry.manifests[NAME, artifact.artifact][0] == data
    stored = {digest for name, digest in sample.registry.blobs if name == NAME}
    assert {layer["digest"] for layer in json.loads(data)["layers"]} <= stored


def test_second_mirror_push_sends_only_missing_files(sample):
    sample.push()
    before = sample.sent()
    assert sample.push().sent == 0
    assert sample.sent() == before
    filled = sample.push(sample.lock, sample.other)
    assert (filled.files, filled.sent) == (3, 1)
    assert {item.target for item in filled.artifacts} == {"small", "other"}


def test_mirror_push_of_a_changed_lock_moves_only_the_newest_tag(sample):
    (first,) = sample.push().artifacts
    (second,) = sample.push(msgspec.structs.replace(sample.other, target="small")).artifacts
    tags = {tag: digest for (_, tag), digest in sample.registry.tags.items()}
    assert tags == {
        "small-x86_64-inputs": second.artifact,
        first.tag: first.artifact,
        second.tag: second.artifact,
    }
    (back,) = sample.push().artifacts
    assert back == first
    assert sample.registry.tags[NAME, "small-x86_64-inputs"] == first.artifact


def test_mirror_push_keeps_the_tags_of_images(sample):
    """`push --arch` tags a part of an image with its target and architecture."""
    images = {(NAME, tag): f"sha256:{'1' * 64}" for tag in ("small", "small-x86_64", "small-base")}
    sample.registry.tags.update(images)
    sample.push()
    assert images.items() <= sample.registry.tags.items()


def test_mirror_dry_run_writes_nothing(sample):
    filled = sample.push(dry_run=True)
    assert (filled.sent, filled.dry_run) == (2, True)
    assert filled.artifacts[0].lacking_size == filled.sent_size
    assert sample.sent() == []
    assert not sample.registry.received_requests("^(POST|PATCH|DELETE) ")


def test_failed_mirror_push_sets_no_tag_and_can_be_resumed(sample):
    largest = max(sample.lock.arch[X86].wheels, key=lambda wheel: wheel.size)
    first = next(w for w in sample.lock.arch[X86].wheels if w is not largest)
    sample.registry.blobs[NAME, f"sha256:{largest.sha256}"] = b"x" * largest.size
    sample.registry.faults.append(Fault("(POST|PUT|PATCH) .*uploads", times=1000, status=500))
    with pytest.raises(FetchFailed):
        sample.push()
    assert sample.registry.tags == {}
    sample.registry.faults.clear()
    filled = sample.push()
    assert filled.sent == 1
    assert (NAME, f"sha256:{first.sha256}") in sample.registry.blobs
    assert filled.artifacts[0].tagged


@pytest.mark.parametrize("unseen", [False, True])
def test_mirror_push_does_not_upload_a_damaged_input(sample, unseen, monkeypatch):
    wheel = sample.lock.arch[X86].wheels[0]
    path = sample.inputs.store.file(wheel.sha256)
    assert path is not None
    path.chmod(0o644)
    path.write_bytes(b"x" * wheel.size)
    path.chmod(0o444)
    if unseen:  # like a flipped bit on disk, which does not change the file's times
        monkeypatch.setattr(known_hashes, "SMALL_FILE", -1)
        known_hashes.user_known_hashes().record_hash(path, wheel.sha256)
    expected = f"which does not match {wheel.file}" if unseen else "1 inputs of small are not in"
    with pytest.raises(IntegrityError if unseen else FetchFailed, match=expected):
        sample.push()
    assert not path.exists()
    assert sample.registry.tags == {}
    assert (NAME, f"sha256:{wheel.sha256}") not in sample.registry.blobs


def test_mirror_file_of_the_wrong_size_in_the_registry_is_reported(sample):
    wheel = sample.lock.arch[X86].wheels[0]
    sample.registry.blobs[NAME, f"sha256:{wheel.sha256}"] = b"short"
    with pytest.raises(IntegrityError, match=f"has 5 bytes for {wheel.file}"):
        sample.push()


def test_mirror_status_reports_missing_files_and_tag(sample):
    (artifact,) = sample.status()
    files = [wheel.file for wheel in sample.lock.arch[X86].wheels]
    assert (list(artifact.lacking), artifact.tagged, artifact.files) == (files, False, 2)
    sample.push()
    (artifact,) = sample.status()
    assert (artifact.lacking, artifact.lacking_size, artifact.tagged) == ((), 0, True)
    del sample.registry.blobs[NAME, f"sha256:{sample.lock.arch[X86].wheels[1].sha256}"]
    (artifact,) = sample.status()
    assert (list(artifact.lacking), artifact.tagged) == ([files[1]], True)


def test_drop_option_of_mirror_push_removes_only_fetched_files(sample):
    """No file was fetched, so the cache does not change."""
    sample.push(drop=True)
    assert all(sample.inputs.store.file(w.sha256) for w in sample.lock.arch[X86].wheels)
