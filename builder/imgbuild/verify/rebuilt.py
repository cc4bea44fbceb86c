"""Verifies an image by rebuilding it from the lock and comparing digests.

Inputs are read from the cache, or downloaded and checked against their hashes. All layers are
rebuilt, except the layers of a registry base, which are downloaded by digest.
"""

from __future__ import annotations

from collections.abc import Sequence

from imgbuild.cache.store import Store
from imgbuild.pipeline.rebuild import RebuildOrigin, rebuild_image
from imgbuild.pipeline.session import SessionOptions
from imgbuild.plan.plan import RegistryRecipe, create_plan
from imgbuild.values import Arch
from imgbuild.verify.checks import CheckFailed
from imgbuild.verify.expected_lock import ExpectedLock


def rebuild_and_compare(
    expected: ExpectedLock, arches: Sequence[Arch], *, processes: int, offline: bool
) -> str:
    """Rebuild the image for `arches`, and describe the result.

    Raises IntegrityError or CheckFailed if the rebuilt image differs from the locked image.
    """
    origin = RebuildOrigin(
        lock_bundle=expected.lock_bundle,
        arches=tuple(arches),
        place=expected.place,
        folder=expected.root,
    )
    options = SessionOptions(jobs=processes, offline=offline, verify=True)
    with Store.open().scratch() as folder:
        built = rebuild_image(origin, (), folder / "layout", options)
    for arch in arches:
        manifest = expected.contents.manifest_digest(arch)
        if built.arch[arch] != manifest:
            message = (
                f"{arch}: the rebuilt digest is {built.arch[arch]}, but digests.json has {manifest}"
            )
            raise CheckFailed(message)
    return f"{_layers(expected, arches)} for {', '.join(arches)}: {built.digest}"


def _layers(expected: ExpectedLock, arches: Sequence[Arch]) -> str:
    layers = {
        layer.id: isinstance(layer.recipe, RegistryRecipe)
        for arch in arches
        for layer in create_plan(expected.lock_bundle.lock, arch).layers
    }
    had = sum(layers.values())
    text = f"{len(layers) - had} layers rebuilt"
    return f"{text}, {had} of the base fetched by digest," if had else text
