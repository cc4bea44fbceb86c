"""Finds the most similar targets, and the differences."""

# A separate module: rule of similarity.
from __future__ import annotations

from collections.abc import Mapping, Sequence

from imgbuild.site.model import NeighbourDifference, SiteTarget, TargetNeighbours
from imgbuild.smoke.records import LISTED_PACKAGES
from imgbuild.values import Arch, Bytes

NEIGHBOUR_COUNT = 2
NO_VALUE = "-"


def find_neighbours(target: SiteTarget, targets: Sequence[SiteTarget]) -> TargetNeighbours:
    """Return the targets, except retired ones, that share the most packages with `target`."""
    if target.lock is None:
        return TargetNeighbours()
    own = _versions(target)
    others = [
        other
        for other in targets
        if other.lock is not None and other.name != target.name and not other.row.retired
    ]
    others.sort(
        key=lambda other: (
            not _shared_bytes(target, other),  # a pull of it needs every layer
            _version_distance(own, _versions(other)),
            other.name,
        )
    )
    nearest = others[:NEIGHBOUR_COUNT]
    if not nearest:
        return TargetNeighbours()
    facts = [_facts(each) for each in (target, *nearest)]
    names = list(dict.fromkeys(name for fact in facts for name in fact))
    lines = ([fact.get(name, NO_VALUE) for fact in facts] for name in names)
    return TargetNeighbours(
        names=tuple(other.name for other in nearest),
        differences=tuple(
            NeighbourDifference(name=name, own=line[0], others=tuple(line[1:]))
            for name, line in zip(names, lines, strict=True)
            if len({*line}) > 1
        ),
        packages=tuple(_count_differing(target, other) for other in nearest),
        arches=tuple(_compared_arches(target, other) for other in nearest),
        missing=tuple(
            _layer_bytes(target, _compared_arches(target, other)[0]) - _shared_bytes(target, other)
            for other in nearest
        ),
    )


def _versions(target: SiteTarget) -> Mapping[str, str]:
    return {package.name: package.versions[0] for package in target.packages}


def _version_distance(own: Mapping[str, str], other: Mapping[str, str]) -> int:
    """The number of packages with different versions, and of packages that only one target has."""
    return sum(own.get(name) != other.get(name) for name in own.keys() | other.keys())


def _compared_arches(target: SiteTarget, other: SiteTarget) -> tuple[Arch, Arch]:
    """Return the architectures on which two targets are compared, the same for both if possible."""
    arch = common_arch(target, other)
    return (arch, arch) if arch else (target.row.arch[0], other.row.arch[0])


def _count_differing(target: SiteTarget, other: SiteTarget) -> int:
    """Return the number of differing packages on one architecture, as shown in `compare.html`."""
    if target.lock is None or other.lock is None:
        return 0
    own, there = _compared_arches(target, other)
    return _version_distance(target.lock.arch[own].versions, other.lock.arch[there].versions)


def common_arch(target: SiteTarget, other: SiteTarget) -> Arch | None:
    """Return the first common architecture of two targets."""
    there = other.lock.arch if other.lock else {}
    return next((arch for arch in target.row.arch if arch in there), None)


def _facts(target: SiteTarget) -> dict[str, str]:
    row, versions = target.row, _versions(target)
    named = (*row.pins, *(name for name in LISTED_PACKAGES if name in versions))
    return {
        "CUDA": row.cuda,
        "oldest driver": next((image.driver for image in target.page.images if image.driver), ""),
        "Python": row.python,
        "base": row.base,
        "architectures": ", ".join(row.arch),
        **{name: versions.get(name, row.pins.get(name, NO_VALUE)) for name in dict.fromkeys(named)},
    }


def _layer_bytes(target: SiteTarget, arch: Arch) -> Bytes:
    layers = target.digests.arch[arch].layers if target.digests else ()
    return sum(layer.size for layer in layers)


def _shared_bytes(target: SiteTarget, other: SiteTarget) -> Bytes:
    """Return the size of common layers in bytes on the first common architecture."""
    if target.digests is None or other.digests is None:
        return 0
    arch = common_arch(target, other)
    if arch is None:
        return 0
    there = {layer.digest for layer in other.digests.arch[arch].layers}
    return sum(layer.size for layer in target.digests.arch[arch].layers if layer.digest in there)
