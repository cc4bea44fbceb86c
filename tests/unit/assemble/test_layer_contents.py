"""Tests that layers built from real wheels match their records, and the errors if they do not."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile

import msgspec
import pytest

from imgbuild.assemble import layer_contents, workers
from imgbuild.assemble.layer_contents import LayerJob
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.http.client import HttpClient
from imgbuild.lock.resolution import RegistryLayer
from imgbuild.plan.plan import (
    DebianRecipe,
    FilesRecipe,
    Layer,
    RegistryRecipe,
    VenvRecipe,
    WheelsRecipe,
    layer_id,
)
from imgbuild.values import Arch
from tests.support import debs, samples


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def layer(recipe, name="layer"):
    return Layer(name=name, id=layer_id(recipe), recipe=recipe)


def wheels_layer(store, tmp_path, *packages, files=None):
    wheels = tuple(
        samples.add_to_store(store, samples.write_wheel(tmp_path, package, files=files), package)
        for package in packages
    )
    return layer(WheelsRecipe(prefix="/opt/venv", python="3.11", wheels=wheels))


def make(store, item, **changes):
    job = LayerJob(**{"layer": item, "record": None, "keep": True, **changes})
    return layer_contents.make_layer(job, store, lambda amount: None)


def test_stored_layer_matches_record(store, tmp_path):
    assembled_layer = make(store, wheels_layer(store, tmp_path, "alpha", "beta"))
    blob = store.blob(assembled_layer.record.digest).read_bytes()
    assert "sha256:" + hashlib.sha256(blob).hexdigest() == assembled_layer.record.digest
    tar = gzip.decompress(blob)
    assert "sha256:" + hashlib.sha256(tar).hexdigest() == assembled_layer.record.diff_id
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        names = archive.getnames()
    assert "opt/venv/lib/python3.11/site-packages/alpha/__init__.py" in names
    assert {facts.file for facts in assembled_layer.wheels.values()} == {
        "alpha-1.0-py3-none-any.whl",
        "beta-1.0-py3-none-any.whl",
    }


def test_layer_built_with_a_trusted_record_has_the_same_digest(store, tmp_path):
    item = wheels_layer(store, tmp_path, "alpha")
    assembled_layer = make(store, item, keep=False)
    assert store.blob(assembled_layer.record.digest) is None
    assert make(store, item, record=assembled_layer.record).record == assembled_layer.record
    assert store.blob(assembled_layer.record.digest) is not None


def test_layer_that_differs_from_its_record_is_refused_and_not_stored(store, tmp_path):
    item = wheels_layer(store, tmp_path, "alpha")
    assembled_layer = make(store, item, keep=False)
    wrong = msgspec.structs.replace(assembled_layer.record, digest="sha256:" + "0" * 64)
    with pytest.raises(IntegrityError, match=r"layer layer: .* was built"):
        make(store, item, record=wrong)
    assert store.blob(assembled_layer.record.digest) is None


def test_error_for_a_missing_input_names_the_file_and_the_cache(store):
    wheel = samples.wheel("alpha")
    item = layer(WheelsRecipe(prefix="/opt/venv", python="3.11", wheels=(wheel,)))
    with pytest.raises(FetchFailed, match=wheel.file):
        make(store, item)


def test_wheels_with_conflicting_file_are_refused(store, tmp_path):
    first_wheel = samples.write_wheel(tmp_path, "alpha", files={"shared.py": b"1"})
    two = samples.write_wheel(tmp_path, "beta", files={"shared.py": b"2"})
    wheels = (
        samples.add_to_store(store, first_wheel, "alpha"),
        samples.add_to_store(store, two, "beta"),
    )
    item = layer(WheelsRecipe(prefix="/opt/venv", python="3.11", wheels=wheels))
    with pytest.raises(IntegrityError, match=r"shared\.py"):
        make(store, item)
    omit: dict[str, tuple[str, ...]] = {"beta": ("lib/python3.11/site-packages/shared.py",)}
    merged_layer = layer(WheelsRecipe(prefix="/opt/venv", python="3.11", wheels=wheels, omit=omit))
    make(store, merged_layer)


@pytest.mark.parametrize("worth", [0, workers.PARALLEL_MINIMUM], ids=["workers", "this process"])
def test_layers_of_the_environment_and_the_files_need_no_inputs(store, worth, monkeypatch):
    monkeypatch.setattr(workers, "PARALLEL_MINIMUM", worth)
    venv = VenvRecipe(prefix="/opt/venv", python="3.11", interpreter="/usr/bin/python3.11")
    files = FilesRecipe(user=samples.USER, workdir="/workspace", cache="/var/cache/imgbuild")
    jobs = [LayerJob(layer=layer(recipe), record=None, keep=True) for recipe in (venv, files)]
    assembled_layers = workers.assemble_all(jobs, Context(store, HttpClient()), processes=2)
    assert {item.id for item in assembled_layers} == {job.layer.id for job in jobs}
    assert all(store.blob(item.record.digest) for item in assembled_layers)


def test_registry_layer_is_copied_unchanged(store):
    digest = "sha256:" + "1" * 64
    recipe = RegistryRecipe(
        image="host/name@" + digest, layer=RegistryLayer(digest=digest, size=5, diff_id=digest)
    )
    assembled_layer = make(store, layer(recipe))
    assert (assembled_layer.record.digest, assembled_layer.record.size) == (digest, 5)
    assert recipe.input_size == 5
    assert [file.sha256 for file in recipe.inputs] == ["1" * 64]


def test_layer_record_of_a_base_is_cached_for_other_projects(store, tmp_path):
    deb = debs.write_deb(
        tmp_path / "demo.deb", "demo", [debs.folder("./"), debs.file("./demo", b"1")]
    )
    store.add_file(tmp_path / "demo.deb", deb.sha256)
    recipe = DebianRecipe(arch=Arch.X86_64, suite="bookworm", debs=(deb,), user=samples.USER)
    base = layer(recipe)
    assert layer_contents.base_record(base, store) is None
    record = make(store, base).record
    assert layer_contents.base_record(base, store) == record
    other = msgspec.structs.replace(recipe, user=msgspec.structs.replace(samples.USER, uid=7))
    assert layer_contents.base_record(layer(other), store) is None
