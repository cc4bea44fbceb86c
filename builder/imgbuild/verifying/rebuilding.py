"""The proof that needs nobody's word: the lock is built again, and the digests are compared.

Comes in: a lock with what it needs to be built, from a repository or from an image. Goes out: what
was built, in words. Inputs come from the cache or are downloaded by the lock's hashes; every layer
is made anew and none is taken from the image that is verified.
"""

from __future__ import annotations

from collections.abc import Sequence

from imgbuild import building, carried, mirror
from imgbuild.fetch import Http
from imgbuild.inputs import Inputs
from imgbuild.mirror import Mirror
from imgbuild.store import Store
from imgbuild.values import Arch
from imgbuild.verifying.checks import Failed
from imgbuild.verifying.known import Known


def rebuild(held: Known, arches: Sequence[Arch], *, processes: int, offline: bool) -> str:
    """Build the image on `arches` again; IntegrityError or Failed if another one comes out."""
    store = Store.open()
    carried.bring(held.carried, store)
    inputs = Inputs(
        carried.matrix(held.carried, held.root),
        store,
        Http(offline=offline),
        offline=offline,
        mirror=Mirror.of(mirror.find(held.root)),
    )
    with store.scratch() as folder:
        built = building.build(
            held.carried.lock,
            held.carried.sealed,
            arches,
            folder / "layout",
            inputs,
            processes=processes,
            verify=True,
        )
    for arch in arches:
        due = held.due.manifest(arch)
        if built.arch[arch] != due:
            message = f"{arch}: {built.arch[arch]} was built; the lock seals {due}"
            raise Failed(message)
    return f"{built.made} layers made again for {', '.join(arches)}: {built.digest}"
