"""Tests the content of lock bundles, and that invalid bundles are refused."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
import pytest

from imgbuild import codec
from imgbuild.assemble.inputs import Inputs
from imgbuild.attest import bundle
from imgbuild.attest.bundle import BundleSources, LockBundle
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, InputError, IntegrityError, LockStale
from imgbuild.http.client import HttpClient
from imgbuild.index.pages import index_addresses
from imgbuild.lock import extension, published
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix import project_paths
from imgbuild.matrix.model import DebianBase, PackageIndex
from imgbuild.plan import current, image_digests
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.plan.plan import AddedFilesRecipe, create_plan
from imgbuild.values import Arch, sha256
from tests.support import extended, inprocess_project, samples
from tests.support.inprocess_project import TARGET, SampleProject


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SampleProject:
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "project"
    folder.mkdir()
    return inprocess_project.write_project(folder)


def of(sample: SampleProject) -> LockBundle:
    return bundle.create_lock_bundle(
        sample.lock, sample.target_digests, project_paths.find_project(sample.folder)
    )


def ours(folder: Path) -> tuple[Path, Lock, TargetDigests]:
    """A locked repository that extends a published target."""
    folder.mkdir()
    path = extended.create_repository(folder)
    matrix = extended.read_extended(path)
    lock = extension.make_lock(matrix, extended.OWN_TARGET, extended.resolve_additions(matrix))
    target_digests = image_digests.compute_digests(
        lock, extended.invented_records(create_plan(lock, arch) for arch in lock.arch)
    )
    current.write_locked(project_paths.find_project(path), lock, target_digests)
    return path, lock, target_digests


def test_written_bundle_is_read_back_unchanged(sample: SampleProject):
    lock_bundle = of(sample)
    assert set(lock_bundle.data) == {"lock.json", "digests.json", "packages.json", "sources.json"}
    images = sample.folder / "images" / TARGET
    assert lock_bundle.data["lock.json"] == (images / "lock.json").read_bytes()
    assert lock_bundle.data["digests.json"] == (images / "digests.json").read_bytes()
    assert bundle.read_lock_bundle(lock_bundle.data, "there") == lock_bundle
    assert of(sample).data == lock_bundle.data
    assert lock_bundle.sources == BundleSources(
        default_index="main",
        indexes={
            "main": PackageIndex(),
            "torch": PackageIndex(
                url="https://example.org/whl/{cuda_tag}/torch{torch}", upload_times="none"
            ),
        },
    )


def test_bundle_contains_no_credentials(sample: SampleProject, monkeypatch: pytest.MonkeyPatch):
    """A matrix with credentials is refused earlier, so this is a second safeguard."""
    matrix = published.load_matrix(sample.matrix)
    base = msgspec.structs.replace(
        matrix.bases["debian-12"], mirrors=("https://robot:S3CRET@deb.example/debian",)
    )
    torch = PackageIndex(url="https://robot:S3CRET@wheels.example/{cuda_tag}")
    changed = msgspec.structs.replace(
        matrix,
        bases={**matrix.bases, "debian-12": base},
        indexes={**matrix.indexes, "torch": torch},
    )
    monkeypatch.setattr(published, "load_matrix", lambda _: changed)
    lock_bundle = of(sample)
    assert not any(b"S3CRET" in data for data in lock_bundle.data.values())
    assert lock_bundle.sources.mirrors == ("https://deb.example/debian",)
    assert lock_bundle.sources.indexes["torch"].url == "https://wheels.example/{cuda_tag}"


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "a/b", "", ".."])
def test_target_name_with_path_traversal_is_refused(sample: SampleProject, name: str):
    """The image of such a target would be written outside of build."""
    lock = msgspec.structs.replace(sample.lock, target=name)
    target_digests = image_digests.compute_digests(
        lock, image_digests.layer_records(sample.target_digests)
    )
    data = of(sample).data | {
        "lock.json": codec.encode(lock),
        "digests.json": codec.encode(target_digests),
    }
    with pytest.raises(InputError, match="is not a valid lock") as caught:
        bundle.read_lock_bundle(data, "there")
    (problem,) = caught.value.problems
    assert (problem.file, problem.path, problem.value) == ("there/lock.json", "target", name)


def test_matrix_in_a_bundle_resolves_to_the_same_index_urls(sample: SampleProject, tmp_path: Path):
    bundle_matrix = bundle.single_target_matrix(of(sample), tmp_path)
    real = published.load_matrix(sample.matrix)
    addresses = index_addresses(
        bundle_matrix, bundle_matrix.targets[TARGET], lambda: "the machine's own"
    )
    assert addresses == index_addresses(real, real.targets[TARGET], lambda: "the machine's own")
    assert addresses["torch"].address == "https://example.org/whl/cu124/torch2.6"
    assert bundle_matrix.bases["debian-12"] == DebianBase(
        suite="bookworm", python_source="3.11", glibc="2.36", packages=("g++", "python3")
    )
    assert bundle_matrix.targets[TARGET].as_of == datetime.date(2025, 6, 20)


def test_wheel_folder_of_a_bundle_is_relative_to_the_lock(sample: SampleProject, tmp_path: Path):
    sample.edit(
        "torch: {url: 'https://example.org/whl/{cuda_tag}/torch{torch}', upload_times: none}",
        "torch: {url: 'file:my wheels', upload_times: none, flat: true}",
    )
    lock_bundle = of(sample)
    assert lock_bundle.sources.indexes["torch"].url == "file:my wheels"
    assert str(sample.folder).encode() not in lock_bundle.data["sources.json"]
    there = bundle.single_target_matrix(lock_bundle, tmp_path / "there").indexes["torch"]
    assert there.url == f"file://{tmp_path}/there/my%20wheels/"


def test_target_folder_is_a_complete_bundle_if_the_lock_has_a_single_index(
    sample: SampleProject, tmp_path: Path
):
    folder = sample.folder / "images" / TARGET
    with pytest.raises(InputError, match=r"does not contain the URL of the index torch$") as caught:
        bundle.read_folder(folder)
    assert "sources.json" in (caught.value.hint or "")
    plain = msgspec.structs.replace(sample.lock, indexes={})
    codec.write_document(tmp_path / "own/lock.json", plain)
    codec.write_document(tmp_path / "own/digests.json", sample.target_digests)
    lock_bundle = bundle.read_folder(tmp_path / "own")
    assert (lock_bundle.lock, lock_bundle.sources) == (plain, BundleSources(default_index="pypi"))


def test_lock_that_is_modified_while_it_is_read_is_refused(sample: SampleProject):
    changed = msgspec.structs.replace(sample.lock, as_of="2025-06-21")
    with pytest.raises(LockStale, match="changed while they were read"):
        bundle.create_lock_bundle(
            changed, sample.target_digests, project_paths.find_project(sample.folder)
        )


@pytest.mark.parametrize("name", ["lock.json", "digests.json"])
def test_missing_file_of_bundle_is_refused(sample: SampleProject, name: str):
    data = {key: content for key, content in of(sample).data.items() if key != name}
    with pytest.raises(InputError, match=f"there has no {name}"):
        bundle.read_lock_bundle(data, "there")


def test_bundle_with_the_digests_of_another_lock_is_refused(sample: SampleProject):
    lock_bundle = of(sample)
    other = samples.with_current_labels(msgspec.structs.replace(sample.lock, as_of="2025-06-21"))
    changed = codec.encode(other)
    with pytest.raises(LockStale, match=f"there/digests.json does not match the lock of {TARGET}"):
        bundle.read_lock_bundle({**lock_bundle.data, "lock.json": changed}, "there")


def test_damaged_documents_and_documents_of_other_tools_are_refused(sample: SampleProject):
    lock_bundle = of(sample)
    with pytest.raises(InputError, match=r"there/lock\.json is not a valid lock"):
        bundle.read_lock_bundle({**lock_bundle.data, "lock.json": b"{"}, "there")
    newer = codec.encode(msgspec.structs.replace(sample.lock, format=99))
    with pytest.raises(
        LockStale,
        match=(
            r"there/lock\.json: lock format 99 is not supported; this version of imgbuild supports"
            r" 1"
        ),
    ):
        bundle.read_lock_bundle({**lock_bundle.data, "lock.json": newer}, "there")
    with pytest.raises(LockStale, match=r"there/packages\.json: unsupported format 99"):
        bundle.read_lock_bundle({**lock_bundle.data, "packages.json": b'{"format": 99}'}, "there")


def test_added_files_are_bundled_and_stored_in_cache(sample: SampleProject, tmp_path: Path):
    path, lock, target_digests = ours(tmp_path / "ours")
    lock_bundle = bundle.create_lock_bundle(lock, target_digests, project_paths.find_project(path))
    key = sha256(extended.SCRIPT)
    assert lock_bundle.added_contents == {key: extended.SCRIPT}
    # `oras pull` writes them into a folder; other files there are ignored.
    for name, data in {**lock_bundle.data, "files/README": b"words"}.items():
        codec.write_bytes(tmp_path / "pulled" / name, data)
    pulled_bundle = bundle.read_folder(tmp_path / "pulled")
    assert pulled_bundle == lock_bundle
    store = Store.open()
    bundle.store_added_files(pulled_bundle, store)
    stored_file = store.file(key)
    assert stored_file is not None
    assert stored_file.read_bytes() == extended.SCRIPT
    # Therefore a build needs neither the user's repository nor the published target's files.
    bundle_matrix = bundle.single_target_matrix(pulled_bundle, tmp_path)
    inputs = Inputs(bundle_matrix, Context(store, HttpClient(offline=True)))
    added_layers = [
        layer
        for layer in create_plan(lock, Arch.X86_64).layers
        if isinstance(layer.recipe, AddedFilesRecipe)
    ]
    assert len(added_layers) == 1
    assert inputs.fetch_inputs(lock, added_layers) == []
    store.release()
    store.drop_file(key)
    with pytest.raises(FetchFailed):
        inputs.fetch_inputs(lock, added_layers)


@pytest.mark.parametrize(
    ("data", "what"), [(b"other", "differs from the locked file"), (None, "is missing")]
)
def test_modified_added_file_is_refused(
    sample: SampleProject, tmp_path: Path, data: bytes | None, what: str
):
    path, lock, target_digests = ours(tmp_path / "ours")
    lock_bundle = bundle.create_lock_bundle(lock, target_digests, project_paths.find_project(path))
    name = f"files/{sha256(extended.SCRIPT)}"
    files = {key: content for key, content in lock_bundle.data.items() if key != name}
    files |= {name: data} if data is not None else {}
    with pytest.raises(IntegrityError, match=rf"{what}; ours adds this file as train\.sh"):
        bundle.read_lock_bundle(files, "there")
