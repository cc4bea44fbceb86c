"""Tests which layers `lock` reads if records exist in the project or the cache."""

import msgspec

from imgbuild.assemble import layer_contents
from imgbuild.assemble.inputs import Inputs
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.http.client import HttpClient
from imgbuild.lock import extension
from imgbuild.matrix.project_paths import Project
from imgbuild.oci.layer import LayerRecord
from imgbuild.pipeline import downloads
from imgbuild.plan.plan import create_plan, published_layers
from imgbuild.values import Arch
from tests.support import extended, samples

RECORD = LayerRecord(digest=f"sha256:{1:064}", size=1, diff_id=f"sha256:{2:064}", unpacked=2)


def test_cached_record_of_a_base_layer_is_reused_for_another_project(tmp_path):
    store, project = Store.open(tmp_path / "cache"), Project(matrix=tmp_path / "matrix.yaml")
    lock = samples.lock(samples.wheel("trl"))
    inputs = Inputs(samples.matrix(), Context(store, HttpClient(offline=True)))
    base, *others = create_plan(lock, Arch.X86_64).layers
    assert downloads.layers_to_read(project, lock, inputs)[0] == [base, *others]
    store.put_fact(layer_contents.FACT, base.id, msgspec.json.encode(RECORD))
    assert downloads.layers_to_read(project, lock, inputs)[0] == others
    assert downloads.recorded_layers(project, lock, inputs).layers == {base.id: RECORD}


def test_record_of_a_published_base_is_not_copied_into_an_extension_project(tmp_path):
    path = extended.create_repository(tmp_path)
    matrix = extended.read_extended(path)
    lock = extension.make_lock(matrix, extended.OWN_TARGET, extended.resolve_additions(matrix))
    store, project = Store.open(tmp_path / "cache"), Project(matrix=path)
    base = create_plan(extended.published_lock(), Arch.X86_64).layers[0]
    assert base.id in published_layers(lock)
    store.put_fact(layer_contents.FACT, base.id, msgspec.json.encode(RECORD))
    inputs = Inputs(matrix, Context(store, HttpClient(offline=True)))
    assert downloads.recorded_layers(project, lock, inputs).layers == {}
