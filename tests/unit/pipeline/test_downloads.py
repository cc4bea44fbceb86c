"""Which layers `lock` has to read, given what the project and the cache know."""

import msgspec

from imgbuild.assemble import layer_contents
from imgbuild.assemble.inputs import Inputs
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.http.client import Http
from imgbuild.oci.layer import LayerRecord
from imgbuild.pipeline import downloads
from imgbuild.plan.plan import plan
from imgbuild.project_paths import Project
from imgbuild.values import Arch
from tests.support import samples

RECORD = LayerRecord(digest=f"sha256:{1:064}", size=1, diff_id=f"sha256:{2:064}", unpacked=2)


def test_a_base_that_the_cache_has_recorded_is_not_made_for_another_project(tmp_path):
    store, project = Store.open(tmp_path / "cache"), Project(matrix=tmp_path / "matrix.yaml")
    lock = samples.lock(samples.wheel("trl"))
    inputs = Inputs(samples.matrix(), Context(store, Http(offline=True)))
    base, *others = plan(lock, Arch.X86_64).layers
    assert downloads.layers_to_read(project, lock, inputs)[0] == [base, *others]
    store.put_fact(layer_contents.FACT, base.id, msgspec.json.encode(RECORD))
    assert downloads.layers_to_read(project, lock, inputs)[0] == others
    assert downloads.recorded_layers(project, lock, inputs).layers == {base.id: RECORD}
