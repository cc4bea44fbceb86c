from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from imgbuild.assemble.inputs import Inputs
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, InputError, IntegrityError
from imgbuild.http.client import HttpClient
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import Wheel
from imgbuild.render import contexts
from imgbuild.values import Arch
from tests.support import samples

PACKAGES = ("alpha", "pip", "torch")


class Sample:
    """A lock with all wheels in the cache, and a folder for the wheels."""

    def __init__(self, folder: Path) -> None:
        store = Store.open(folder / "cache")
        self.inputs = Inputs(samples.matrix(), Context(store, HttpClient(offline=True)))
        self.folder = folder / "wheels"
        self.wheels = tuple(
            samples.add_to_store(store, samples.write_wheel(folder, name), name)
            for name in PACKAGES
        )
        self.lock = self.of(*self.wheels)

    def of(self, *wheels: Wheel) -> Lock:
        """The lock of these wheels."""
        lock = samples.lock()
        resolution = msgspec.structs.replace(lock.arch[Arch.X86_64], wheels=wheels)
        return msgspec.structs.replace(lock, arch={Arch.X86_64: resolution})

    def put(self, lock: Lock | None = None) -> contexts.WheelFolder:
        """Put the wheels into the folder."""
        return contexts.write_wheels_context(
            lock or self.lock, [Arch.X86_64], self.folder, self.inputs
        )

    def names(self) -> list[str]:
        """The files in the folder, except for the lock file."""
        return sorted(path.name for path in self.folder.iterdir() if path.name != contexts.LOCK)


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return Sample(tmp_path)


def test_wheels_are_hard_linked_into_the_build_context(sample):
    summary = sample.put()
    assert (summary.files, summary.made, summary.size) == (
        3,
        3,
        sum(each.size for each in sample.wheels),
    )
    for wheel in sample.wheels:
        stored = sample.inputs.store.file(wheel.sha256)
        assert stored is not None
        assert (sample.folder / wheel.file).samefile(stored)


def test_second_render_of_a_build_context_changes_no_files(sample):
    sample.put()
    assert sample.put().made == 0


def test_wheels_of_another_lock_are_removed_from_the_build_context(sample):
    sample.put()
    summary = sample.put(sample.of(*sample.wheels[:1]))
    assert (summary.files, sample.names()) == (1, [sample.wheels[0].file])


def test_different_file_with_the_name_of_a_wheel_is_replaced(sample):
    sample.put()
    place = sample.folder / sample.wheels[0].file
    place.unlink()
    place.write_bytes(b"other")
    assert sample.put().made == 1
    assert place.stat().st_size == sample.wheels[0].size


def test_wheels_are_copied_once_to_a_context_on_another_disk(sample, monkeypatch):
    def _refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("imgbuild.system.folder.os.link", _refuse)
    assert sample.put().made == 3
    for wheel in sample.wheels:
        stored = sample.inputs.store.file(wheel.sha256)
        assert stored is not None
        assert (sample.folder / wheel.file).read_bytes() == stored.read_bytes()
    assert all(not name.startswith(".") for name in sample.names())


@pytest.mark.parametrize("name", ["notes.txt", "folder.whl/x", "sub/x.whl"])
def test_files_of_other_programs_in_a_context_are_left_unchanged(sample, name):
    foreign = sample.folder / name
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    with pytest.raises(InputError, match="is not a folder of wheels"):
        sample.put()
    assert foreign.read_text() == "mine"


@pytest.mark.parametrize("name", ["../evil-1.0-py3-none-any.whl", ".hidden.whl", "a b.whl", "x"])
def test_invalid_wheel_name_is_refused(sample, name):
    bad = msgspec.structs.replace(sample.wheels[0], file=name)
    with pytest.raises(IntegrityError, match="not a wheel name"):
        sample.put(sample.of(bad, *sample.wheels[1:]))


def test_two_wheels_with_the_same_name_are_refused(sample):
    bad = msgspec.structs.replace(sample.wheels[0], file=sample.wheels[1].file)
    with pytest.raises(IntegrityError, match="two different wheels"):
        sample.put(sample.of(bad, *sample.wheels[1:]))


def test_wheels_missing_in_the_cache_are_reported_in_offline_mode(sample):
    with pytest.raises(FetchFailed):
        sample.put(sample.of(*sample.wheels, samples.wheel("absent")))
