"""Compares the packages of two images, and computes the bytes to pull.

The inputs are two locks of a target, or two images from any source. The output is an `ImageDiff`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from imgbuild import codec
from imgbuild.audit.binaries import gpu_models
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import installed_wheels
from imgbuild.plan.image_digests import ImageDigests, TargetDigests
from imgbuild.show import lock_changes
from imgbuild.smoke.records import LISTED_PACKAGES
from imgbuild.system.amounts import format_count, join_first, size_text
from imgbuild.values import Arch, Bytes, Digest

NAMED_CHANGES = 5  # layers in a line of text
WHEEL = "wheel"  # packages of this kind come first
MAIN_PACKAGES = (
    *LISTED_PACKAGES,
    *("peft", "accelerate", "datasets", "huggingface-hub", "numpy"),
)
KINDS = {WHEEL: "wheels", "deb": "Debian packages", "interpreter": "interpreter"}
# Settings that `image_properties` also has, and architectures, which have lines of their own.
PROPERTIES = ("CUDA: ", "Python: ", "compute capabilities: ", *(f"{arch} " for arch in Arch))
GPUS = "GPUs"  # the property with a list of GPUs
_GPU_END = re.compile(r"(?<=\)), ")  # between "A100, A30 (8.0)" and the next capability
FEW_CHANGES = 20  # packages of a kind that a summary lists


class PackageChange(msgspec.Struct, frozen=True, kw_only=True):
    """A package that was added (`before` is empty), removed (`after` is empty) or changed."""

    kind: str  # "wheel", "deb" or "interpreter"
    package: str
    before: str
    after: str


class HostChange(msgspec.Struct, frozen=True, kw_only=True):
    """A property that differs between two images, such as "CUDA" or "unpacked" (size)."""

    what: str
    before: str
    after: str


class ArchDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The changes on one architecture. `pull` is the size in bytes of new layers.

    `hosts` lists the properties that are known for both images and differ.
    """

    changes: tuple[PackageChange, ...]
    layers: tuple[str, ...]
    pull: int
    total: int
    hosts: tuple[HostChange, ...] = ()


class ImageDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to a target, or between the image `before` and the image `target`.

    `absent` lists architectures that only the old image has. `new` lists architectures that only
    the new image has. `settings` has a line for each change of the base or of settings.
    """

    target: str
    before: str
    arch: dict[Arch, ArchDiff]
    absent: tuple[Arch, ...] = ()
    new: tuple[Arch, ...] = ()
    settings: tuple[str, ...] = ()


class DiffLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer of an image: display name, digest, and download size."""

    name: str
    digest: Digest
    size: Bytes


class SideContent(msgspec.Struct, frozen=True, kw_only=True):
    """An image on one architecture: package versions by kind and name, layers, and total size.

    `properties` are CUDA, Python, GPUs, the oldest driver and the unpacked size, or "" if unknown.
    Without a lock, `properties` is empty.
    """

    packages: Mapping[tuple[str, str], str]
    layers: tuple[DiffLayer, ...]
    size: Bytes
    properties: Mapping[str, str] = {}


class DiffSide(msgspec.Struct, frozen=True, kw_only=True):
    """An image in a comparison. Unless `complete` is set, only packages in its labels are known.

    `lock` is None if there is no lock.
    """

    name: str
    arch: Mapping[Arch, SideContent]
    complete: bool = True
    lock: Lock | None = None


def diff_locked_targets(
    old: tuple[Lock, TargetDigests] | None, new: tuple[Lock, TargetDigests]
) -> ImageDiff:
    """Compare two locks of a target. `old` is None if the target was not locked."""
    return diff_sides(lock_side(*old) if old else None, lock_side(*new))


def lock_side(lock: Lock, target_digests: TargetDigests, name: str = "") -> DiffSide:
    """Return the side for a lock. The default `name` is the target."""
    return DiffSide(
        name=name or lock.target,
        arch={
            arch: SideContent(
                packages=package_versions(lock, arch),
                layers=tuple(
                    DiffLayer(name=layer.name, digest=layer.digest, size=layer.size)
                    for layer in image.layers
                ),
                size=image.size,
                properties=image_properties(lock, arch, image),
            )
            for arch, image in target_digests.arch.items()
        },
        lock=lock,
    )


def image_properties(lock: Lock, arch: Arch, image: ImageDigests | None) -> dict[str, str]:
    """The properties of an image: CUDA, Python, requirements on the host, and unpacked size."""
    floors = image.floors if image is not None else None
    return {
        "CUDA": lock.cuda,
        "Python": lock.base.python,
        "oldest driver": floors.driver if floors is not None else "",
        GPUS: gpu_models.gpu_list((*floors.gpu, *floors.gpu_ptx), (), arch) if floors else "",
        "GPUs for which the driver compiles code at first use": (
            gpu_models.gpu_list(floors.gpu_ptx, (), arch) or "none" if floors else ""
        ),
        "unpacked": size_text(sum(layer.unpacked for layer in image.layers)) if image else "",
    }


def diff_sides(old: DiffSide | None, new: DiffSide) -> ImageDiff:
    """Compare two images. On an architecture that `old` lacks, all packages and layers are new.

    If only some packages of an image are known, only these packages are compared. x86_64 is first,
    and wheels precede Debian packages.
    """
    before = old.arch if old else {}
    return ImageDiff(
        target=new.name,
        before=old.name if old else "",
        arch={
            arch: _arch(before.get(arch), new.arch[arch], _compared_packages(old, new, arch))
            for arch in sorted(new.arch, reverse=True)
        },
        absent=tuple(arch for arch in before if arch not in new.arch),
        new=tuple(arch for arch in new.arch if old and arch not in before),
        settings=tuple(_settings(old.lock, new.lock)) if old else (),
    )


def _settings(old: Lock | None, new: Lock | None) -> Iterator[str]:
    """Yield the changed settings, except properties that depend on the architecture."""
    before, after = (
        lock_changes.decode_lock(codec.encode(lock) if lock else None) for lock in (old, new)
    )
    if before and after:
        for line in lock_changes.lock_changes(before, after).settings:
            if not line.startswith(PROPERTIES):
                yield line


def _compared_packages(old: DiffSide | None, new: DiffSide, arch: Arch) -> set[tuple[str, str]]:
    """Return the packages to compare. For a side without a lock, these are listed in labels."""
    compared = [
        (side.complete, side.arch[arch].packages)
        for side in (old, new)
        if side and arch in side.arch
    ]
    return {
        key
        for complete, packages in compared
        if not complete or all(whole for whole, _ in compared)
        for key in packages
    }


def _arch(old: SideContent | None, new: SideContent, keys: Iterable[tuple[str, str]]) -> ArchDiff:
    before = old.packages if old else {}
    digests = {layer.digest for layer in old.layers} if old else set()
    fresh = {layer.digest: layer for layer in new.layers if layer.digest not in digests}
    return ArchDiff(
        changes=tuple(
            PackageChange(
                kind=key[0],
                package=key[1],
                before=before.get(key, ""),
                after=new.packages.get(key, ""),
            )
            for key in sorted(keys, key=lambda key: (key[0] != WHEEL, key))
            if before.get(key) != new.packages.get(key)
        ),
        layers=tuple(layer.name for layer in fresh.values()),
        pull=sum(layer.size for layer in fresh.values()),
        total=new.size,
        hosts=tuple(
            HostChange(what=what, before=old.properties[what], after=value)
            for what, value in new.properties.items()
            if old and what in old.properties and old.properties[what] != value
        ),
    )


def package_versions(lock: Lock, arch: Arch) -> dict[tuple[str, str], str]:
    """Return the versions of all packages of `lock` on `arch` by kind and name."""
    wheels = {
        ("wheel", wheel.package): wheel.version for wheel in installed_wheels(lock.arch[arch])
    }
    python = lock.arch[arch].python
    interpreter = {("interpreter", "cpython"): python.version} if python else {}
    debs = {("deb", deb.package): deb.version for deb in lock.arch[arch].debs}
    return wheels | interpreter | debs


def _layers(names: Sequence[str]) -> str:
    count = format_count(len(names), "layer")
    return f"{count}: {join_first(names, NAMED_CHANGES)}" if names else count


def diff_lines(diff: ImageDiff) -> list[str]:
    """Return the differences as lines of text, with all packages."""
    return _lines(diff, _changes)


def diff_summary(diff: ImageDiff) -> list[str]:
    """Format differences as lines of text. If many packages differ, lists only the main packages.

    For an architecture that only the new image has, only the size is shown. Changes that are the
    same as on an earlier architecture are not repeated.
    """

    def _body(part: ArchDiff) -> Iterator[str]:
        if part in (diff.arch[arch] for arch in diff.new):
            return
        first = next(arch for arch, other in diff.arch.items() if other.changes == part.changes)
        if part is not diff.arch[first] and part.changes:
            yield f"  packages: the same changes as on {first}"
        else:
            yield from _summary(part)

    return _lines(diff, _body)


def is_short(diff: ImageDiff) -> bool:
    """Whether the summary omits packages."""
    return any(
        len(changes) > FEW_CHANGES for part in diff.arch.values() for _, changes in _kinds(part)
    )


def _lines(diff: ImageDiff, body: Callable[[ArchDiff], Iterable[str]]) -> list[str]:
    lines = []
    name = diff.target
    if diff.before not in ("", diff.target):
        name = f"{diff.before} → {diff.target}"
    if diff.settings:
        lines = [f"{name}: base and settings", *(f"  {line}" for line in diff.settings)]
    for arch, part in diff.arch.items():
        if arch in diff.new and name != diff.target:
            size = f"{size_text(part.total)} to pull"
            lines.append(f"{name} {arch}: only in {diff.target}; {size}")
            lines += body(part)
            continue
        if not part.changes and not part.layers:
            lines.append(f"{name} {arch}: no change")
            continue
        lines.append(
            f"{name} {arch}: {format_count(len(part.changes), 'package')} changed;"
            f" {size_text(part.pull)} of {size_text(part.total)} to pull"
            f" ({_layers(part.layers)})"
        )
        for host in part.hosts:
            lines += host_lines(host)
        lines += body(part)
    where = "only before" if name == diff.target else f"only in {diff.before}"
    lines.extend(f"{name} {arch}: {where}" for arch in diff.absent)
    return lines


def host_lines(host: HostChange) -> Iterator[str]:
    """Yield the values before and after, but of known GPUs only those that are new or missing."""
    if host.what != GPUS or not (host.before and host.after):
        yield f"  {host.what}: {host.before or 'unknown'} → {host.after or 'unknown'}"
        return
    before, after = (_GPU_END.split(value) for value in (host.before, host.after))
    for what, every, others in (("added", after, before), ("removed", before, after)):
        if changed := [gpu for gpu in every if gpu not in others]:
            yield f"  {GPUS} {what}: {', '.join(changed)}"


def _changes(part: ArchDiff) -> Iterator[str]:
    for kind, changes in _kinds(part):
        yield from [] if kind == WHEEL else [f"  {KINDS[kind]}:"]
        yield from (f"  {change_text(change)}" for change in changes)


def _kinds(part: ArchDiff) -> Iterator[tuple[str, list[PackageChange]]]:
    """Yield the changes by kind of package, in the order of KINDS."""
    for kind in KINDS:
        changes = [change for change in part.changes if change.kind == kind]
        if changes:
            yield kind, changes


def change_text(change: PackageChange) -> str:
    """Return the versions of a package before and after a change."""
    return f"{change.package} {change.before or '(new)'} → {change.after or '(removed)'}"


def listed_changes(part: ArchDiff, *, whole: bool) -> list[PackageChange]:
    """Return the changes that a summary lists, or with `whole` all changes."""
    if whole:
        return [*part.changes]
    return [change for _, changes in _kinds(part) for change in _summarized(changes)]


def _summarized(changes: Sequence[PackageChange]) -> list[PackageChange]:
    """Return the changes of one kind that a summary lists."""
    if len(changes) <= FEW_CHANGES:
        return [*changes]
    named = {change.package: change for change in changes if change.kind == WHEEL}
    return [named[name] for name in MAIN_PACKAGES if name in named]


def _summary(part: ArchDiff) -> Iterator[str]:
    for kind, changes in _kinds(part):
        listed = _summarized(changes)
        if len(listed) == len(changes) and kind != WHEEL:
            yield f"  {KINDS[kind]}:"
        yield from (f"  {change_text(change)}" for change in listed)
        if len(changes) <= FEW_CHANGES:
            continue
        numbers = {
            "added": sum(not change.before for change in changes),
            "removed": sum(not change.after for change in changes),
            "changed": sum(bool(change.before and change.after) for change in changes),
        }
        counted = ", ".join(f"{number} {what}" for what, number in numbers.items() if number)
        yield f"  {KINDS[kind]}: {counted}"
