"""Finds the most similar targets, and the differences (separate: rule of similarity)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from imgbuild.site.model import Difference, Neighbours, SiteTarget
from imgbuild.smoke.records import LISTED
from imgbuild.values import Arch, Bytes

MOST = 2
NONE = "-"


def neighbours(target: SiteTarget, targets: Sequence[SiteTarget]) -> Neighbours:
    """The `MOST` targets that share the most packages with `target`, except retired targets."""
    if target.lock is None:
        return Neighbours()
    own = _versions(target)
    others = [
        other
        for other in targets
        if other.lock is not None and other.name != target.name and not other.row.retired
    ]
    others.sort(
        key=lambda other: (
            not _shared(target, other),  # a pull of it needs every layer
            _apart(own, _versions(other)),
            other.name,
        )
    )
    nearest = others[:MOST]
    if not nearest:
        return Neighbours()
    facts = [_facts(each) for each in (target, *nearest)]
    names = list(dict.fromkeys(name for fact in facts for name in fact))
    lines = ([fact.get(name, NONE) for fact in facts] for name in names)
    return Neighbours(
        names=tuple(other.name for other in nearest),
        differences=tuple(
            Difference(name=name, own=line[0], others=tuple(line[1:]))
            for name, line in zip(names, lines, strict=True)
            if len({*line}) > 1
        ),
        packages=tuple(_differing(target, other) for other in nearest),
        arches=tuple(_compared(target, other) for other in nearest),
        shared=tuple(_shared(target, other) for other in nearest),
    )


def _versions(target: SiteTarget) -> Mapping[str, str]:
    return {package.name: package.versions[0] for package in target.packages}


def _apart(own: Mapping[str, str], other: Mapping[str, str]) -> int:
    """The number of packages whose versions differ, or that only one of two targets has."""
    return sum(own.get(name) != other.get(name) for name in own.keys() | other.keys())


def _compared(target: SiteTarget, other: SiteTarget) -> tuple[Arch, Arch]:
    """The architectures to compare two targets on, which are the same if possible."""
    arch = common_arch(target, other)
    return (arch, arch) if arch else (target.row.arch[0], other.row.arch[0])


def _differing(target: SiteTarget, other: SiteTarget) -> int:
    """The number of differing packages on one architecture, as shown in `compare.html`."""
    if target.lock is None or other.lock is None:
        return 0
    own, there = _compared(target, other)
    return _apart(target.lock.arch[own].versions, other.lock.arch[there].versions)


def common_arch(target: SiteTarget, other: SiteTarget) -> Arch | None:
    """The first architecture that two targets have in common."""
    there = other.lock.arch if other.lock else {}
    return next((arch for arch in target.row.arch if arch in there), None)


def _facts(target: SiteTarget) -> dict[str, str]:
    row, versions = target.row, _versions(target)
    named = (*row.pins, *(name for name in LISTED if name in versions))
    return {
        "CUDA": row.cuda,
        "oldest driver": next((image.driver for image in target.page.images if image.driver), ""),
        "Python": row.python,
        "base": row.base,
        "architectures": ", ".join(row.arch),
        **{name: versions.get(name, row.pins.get(name, NONE)) for name in dict.fromkeys(named)},
    }


def _shared(target: SiteTarget, other: SiteTarget) -> Bytes:
    """The size of common layers in bytes on the first common architecture."""
    if target.digests is None or other.digests is None:
        return 0
    arch = common_arch(target, other)
    if arch is None:
        return 0
    there = {layer.digest for layer in other.digests.arch[arch].layers}
    return sum(layer.size for layer in target.digests.arch[arch].layers if layer.digest in there)
