"""Adds runs of the smoke tests to the test records of their targets.

A run is recorded only if it is of the image that the target's digests name now: its configuration
and, where the run says which layers it had, their diff ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import msgspec

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.lock import lock as locks
from imgbuild.lock.lock import Lock
from imgbuild.plan import seal as seals
from imgbuild.plan.seal import SealedImage
from imgbuild.project import Project
from imgbuild.report import OUTCOMES, Tier
from imgbuild.smoke import records
from imgbuild.smoke import run as tests
from imgbuild.smoke.records import ImageContent, RecordedRun
from imgbuild.smoke.reports import ImageRun, refuse
from imgbuild.smoke.result import Outcome
from imgbuild.values import Arch, Digest


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was added to a test record; `new` if it changed the file."""

    target: str
    arch: Arch
    tier: Tier
    result: Outcome
    digest: Digest
    file: Path
    new: bool


def record(project: Project, found: Iterable[ImageRun], store: Store) -> tuple[Recorded, ...]:
    """Add all runs of `found` to the test records, or none: InputError for one that does not fit.

    LockStale if a target has no lock, or no digests for it.
    """
    known: dict[str, tuple[Lock, seals.Seal]] = {}
    checked: list[tuple[str, RecordedRun, SealedImage]] = []
    for each in found:
        target, kept = each.run.target, _recorded_run(each)
        if target not in known:
            known[target] = _sealed(project, target, each.place)
        lock, sealed = known[target]
        image = _fitting(project, each, sealed)
        versions = records.listed(lock.arch[kept.arch].versions)
        checked.append((target, msgspec.structs.replace(kept, versions=versions), image))
    for target in known:  # damaged records stop all of it
        records.read_records(project.images, target)
    recorded = []
    for target, kept, image in checked:
        contents = {kept.config: ImageContent(diff_ids=diff_ids(image))}
        new = records.add(project.images, target, [kept], contents, store)
        recorded.append(
            Recorded(
                target=target,
                arch=kept.arch,
                tier=kept.tier,
                result=kept.result,
                digest=kept.digest,
                file=records.records_path(project.images, target),
                new=new,
            )
        )
    return tuple(recorded)


def diff_ids(image: SealedImage) -> tuple[Digest, ...]:
    """The diff ids of a sealed image, bottom first."""
    return tuple(layer.diff_id for layer in image.layers)


def counting(project: Project, sealed: seals.Seal) -> dict[Arch, tuple[RecordedRun, ...]]:
    """The runs that count for a seal's images, by architecture; InputError as `read_records`."""
    known = records.read_records(project.images, sealed.target)
    return {
        arch: records.counting(known, arch, image.config, diff_ids(image))
        for arch, image in sealed.arch.items()
    }


def tested(project: Project, lock: Lock, arches: Iterable[Arch]) -> Tier | None:
    """The highest tier that passed for the image of `lock` on one of `arches`; None if none did.

    None also if the lock has no digests. InputError for a file that cannot be read.
    """
    path = seals.seal_path(project.images, lock.target)
    if not path.exists():
        return None
    sealed = codec.read(path, seals.Seal, what="list of digests", hint=locks.damaged(lock.target))
    runs = counting(project, sealed)
    passed = [run.tier for arch in arches for run in runs.get(arch, ()) if run.good]
    return max(passed, key=records.TIERS.index, default=None)


def require_sealed(project: Project, lock: Lock, arch: Arch, config: Digest, place: str) -> None:
    """InputError unless the image in `place`, by its configuration, is the sealed one.

    Checked before the tests run, so that no test runs for nothing.
    """
    sealed = seals.read_seal(project.images, lock)
    image = sealed.arch.get(arch)
    if image is None or image.config != config:
        _other(project, lock.target, arch, place, config, image)


def _sealed(project: Project, target: str, place: str) -> tuple[Lock, seals.Seal]:
    if target not in project.sealed():
        refuse(
            place,
            f"it is of the target {target!r}, which has no lock here",
            hint=f"name its project: --matrix FILE; locked here: {', '.join(project.sealed())}",
        )
    lock = locks.read_lock(project.images, target)
    return lock, seals.read_seal(project.images, lock)


def _fitting(project: Project, found: ImageRun, sealed: seals.Seal) -> SealedImage:
    """The sealed image that was tested; InputError if it was another one."""
    run = found.run
    arch = Arch(run.arch)
    image = sealed.arch.get(arch)
    if image is None or image.config != run.config:
        _other(project, run.target, arch, found.place, run.config, image)
    return image


def _other(
    project: Project, target: str, arch: Arch, place: str, config: Digest, image: SealedImage | None
) -> NoReturn:
    path = seals.seal_path(project.images, target)
    has = f"configuration {image.config}" if image is not None else "no image"
    refuse(
        place,
        f"it is of {target} on {arch} with configuration {config}; {path} has {has} there",
        hint="record it at the git revision that has that image's digest, or test the"
        " current image",
    )


def _recorded_run(found: ImageRun) -> RecordedRun:
    """The recorded form of a run, without versions; InputError if it contradicts itself."""
    run = found.run
    try:
        kept = msgspec.convert(run, RecordedRun, from_attributes=True)
    except msgspec.ValidationError as error:
        refuse(found.place, str(error))
    if run.passed + run.failed + run.skipped != len(run.cases) or not run.cases:
        others = sorted({case.outcome for case in run.cases} - set(OUTCOMES))
        refuse(found.place, f"no cases, or unknown outcomes: {', '.join(others)}")
    # Also refused if it failed: without its GPUs nothing of the image was tested.
    needed = tests.GPU_TIERS.get(kept.tier, 0)
    if len(kept.gpu) < needed:
        named = ", ".join(kept.gpu) or "none"
        refuse(found.place, f"tier {kept.tier} needs {needed} GPU(s); it names {named}")
    return kept
