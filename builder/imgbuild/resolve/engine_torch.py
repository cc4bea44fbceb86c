"""The torch for which a pinned engine is built, where the project leaves it open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from packaging.requirements import Requirement

from imgbuild.index import cuda_releases
from imgbuild.resolve.demands import PackageDemand
from imgbuild.values import normalize

TORCH = "torch"
# Each release of these is built for one torch; the first of them that is pinned decides.
ENGINES = ("vllm", "sglang", "torchvision", "xformers")


def with_torch(
    demands: Sequence[PackageDemand],
    markers: Mapping[str, str],
    metadata: Callable[[PackageDemand], bytes],
) -> tuple[PackageDemand, ...]:
    """`demands` with the only torch that an engine accepts which they pin.

    `metadata` gives METADATA of what a demand pins, empty if there is none.
    """
    by_name = {demand.package: demand for demand in demands}
    torch = by_name.get(TORCH, PackageDemand(package=TORCH, installed=False))
    engines = (by_name[name] for name in ENGINES if name in by_name)
    pinned = [each for each in engines if each.pin and each.installed and not each.source]
    if torch.pin or torch.source or not pinned:
        return tuple(demands)
    bound = next(filter(None, (_torch(each, markers, metadata) for each in pinned)), None)
    if bound is None:
        return tuple(demands)
    joined = f"{torch.spec},{bound.spec}" if torch.spec else bound.spec
    places = torch.places or bound.places
    torch = msgspec.structs.replace(torch, spec=joined, places=places)
    return (*(each for each in demands if each.package != TORCH), torch)


def required(
    demand: PackageDemand, metadata: bytes, markers: Mapping[str, str]
) -> list[Requirement]:
    """What METADATA of a package requires with its extras, and with those that they require."""
    extras: set[str] = set()
    more = set(demand.extras)
    while more - extras:
        extras |= more
        own = cuda_releases.active(metadata, markers, extras)
        more = {extra for each in own for extra in each.extras
                if normalize(each.name) == demand.package}  # fmt: skip
    return cuda_releases.active(metadata, markers, extras)


def _torch(
    engine: PackageDemand,
    markers: Mapping[str, str],
    metadata: Callable[[PackageDemand], bytes],
) -> PackageDemand | None:
    """The torch that an engine pins."""
    for needed in required(engine, metadata(engine), markers):
        bound = PackageDemand(package=TORCH, spec=str(needed.specifier), places=engine.places)
        if normalize(needed.name) == TORCH and bound.pin:
            return bound
    return None
