"""What changed between two locks of a target, in packages and in bytes to pull."""

from __future__ import annotations

import msgspec

from imgbuild.lock import Lock
from imgbuild.plan import installed_wheels
from imgbuild.seal import Seal
from imgbuild.values import Arch


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One package that came, went or moved; `before` or `after` is empty if it was not there."""

    kind: str  # "wheel" or "deb"
    package: str
    before: str
    after: str


class ArchDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What changed on one architecture. `pull` is the bytes of layers that the old image lacks."""

    changes: tuple[Change, ...]
    layers: tuple[str, ...]
    pull: int
    total: int


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """What changed in one target."""

    target: str
    arch: dict[Arch, ArchDiff]


def diff(old: tuple[Lock, Seal] | None, new: tuple[Lock, Seal]) -> Diff:
    """Compare two sealed locks of a target; `old` None means that there was none."""
    lock, seal = new
    return Diff(target=lock.target, arch={arch: _arch(old, lock, seal, arch) for arch in lock.arch})


def _arch(old: tuple[Lock, Seal] | None, lock: Lock, seal: Seal, arch: Arch) -> ArchDiff:
    before: dict[tuple[str, str], str] = {}
    held: set[str] = set()
    if old and arch in old[0].arch:
        before = _versions(old[0], arch)
        held = {layer.digest for layer in old[1].arch[arch].layers}
    after = _versions(lock, arch)
    changes = tuple(
        Change(kind=key[0], package=key[1], before=before.get(key, ""), after=after.get(key, ""))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    )
    image = seal.arch[arch]
    fresh = [layer for layer in image.layers if layer.digest not in held]
    return ArchDiff(
        changes=changes,
        layers=tuple(layer.name for layer in fresh),
        pull=sum(layer.size for layer in fresh),
        total=image.size,
    )


def _versions(lock: Lock, arch: Arch) -> dict[tuple[str, str], str]:
    wheels = {
        ("wheel", wheel.package): wheel.version for wheel in installed_wheels(lock.arch[arch])
    }
    return wheels | {("deb", deb.package): deb.version for deb in lock.arch[arch].debs}


def words(found: Diff) -> list[str]:
    """The difference as lines for people."""
    lines = []
    for arch, part in found.arch.items():
        if not part.changes and not part.layers:
            lines.append(f"{found.target} {arch}: no change")
            continue
        lines.append(
            f"{found.target} {arch}: {len(part.changes)} packages changed;"
            f" {part.pull / 1e6:,.1f} MB of {part.total / 1e6:,.1f} MB to pull"
            f" ({len(part.layers)} layers: {', '.join(part.layers)})"
        )
        lines.extend(
            f"  {change.package} {change.before or '(new)'} → {change.after or '(gone)'}"
            for change in part.changes
        )
    return lines
