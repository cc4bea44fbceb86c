"""Adds runs of smoke tests to the test records of targets.

A run is recorded only if its configuration digest and its diff IDs, if known, match the target's
current image.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import msgspec

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.project_paths import Project
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import ImageDigests
from imgbuild.report import OUTCOMES, TierName
from imgbuild.smoke import records, runner
from imgbuild.smoke.records import ImageContent, RecordedRun
from imgbuild.smoke.reports import ImageRun, refuse_content
from imgbuild.smoke.result import RunOutcome
from imgbuild.system import decoding
from imgbuild.values import Arch, Digest


class RecordedResult(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was added to a test record. `new` is whether the file was changed."""

    target: str
    arch: Arch
    tier: TierName
    result: RunOutcome
    digest: Digest
    file: Path
    new: bool


def record_runs(
    project: Project, image_runs: Iterable[ImageRun], store: Store
) -> tuple[RecordedResult, ...]:
    """Add `image_runs` to the test records of their targets.

    Raises LockStale if a target has no lock or no matching digests. Raises InputError, without
    changing files, if a run is invalid.
    """
    locked_targets: dict[str, tuple[Lock, image_digests.TargetDigests]] = {}
    checked: list[tuple[str, RecordedRun, ImageDigests]] = []
    for each in image_runs:
        target, recorded_run = each.run.target, _recorded_run(each)
        if target not in locked_targets:
            locked_targets[target] = _locked_digests(project, target, each.place)
        lock, target_digests = locked_targets[target]
        image = _tested_image(project, each, target_digests)
        versions = records.listed_versions(lock.arch[recorded_run.arch].versions)
        checked.append((target, msgspec.structs.replace(recorded_run, versions=versions), image))
    for target in locked_targets:  # damaged records stop all of it
        records.read_records(project.images, target)
    recorded = []
    for target, recorded_run, image in checked:
        contents = {recorded_run.config: ImageContent(diff_ids=diff_ids(image))}
        new = records.add_runs(project.images, target, [recorded_run], contents, store)
        recorded.append(
            RecordedResult(
                target=target,
                arch=recorded_run.arch,
                tier=recorded_run.tier,
                result=recorded_run.result,
                digest=recorded_run.digest,
                file=records.records_path(project.images, target),
                new=new,
            )
        )
    return tuple(recorded)


def diff_ids(image: ImageDigests) -> tuple[Digest, ...]:
    """Return the diff IDs of a locked image, bottom layer first."""
    return tuple(layer.diff_id for layer in image.layers)


def counted_runs(
    project: Project, target_digests: image_digests.TargetDigests
) -> dict[Arch, tuple[RecordedRun, ...]]:
    """Return the valid runs for a target's images, by architecture.

    Raises the same errors as `read_records`.
    """
    smoke_records = records.read_records(project.images, target_digests.target)
    return {
        arch: records.counted_runs(smoke_records, arch, image.config, diff_ids(image))
        for arch, image in target_digests.arch.items()
    }


def highest_passed_tier(project: Project, lock: Lock, arches: Iterable[Arch]) -> TierName | None:
    """Return the highest tier that the image of `lock` has passed on one of `arches`, or None.

    Returns None if the lock has no digests. Raises InputError for a file that cannot be read.
    """
    path = image_digests.digests_path(project.images, lock.target)
    if not path.exists():
        return None
    target_digests = codec.read_document(
        path,
        image_digests.TargetDigests,
        what="list of digests",
        hint=lock_file.damaged_lock_remedy(lock.target),
    )
    runs = counted_runs(project, target_digests)
    passed = [run.tier for arch in arches for run in runs.get(arch, ()) if run.good]
    return max(passed, key=records.TIERS.index, default=None)


def require_locked(project: Project, lock: Lock, arch: Arch, config: Digest, place: str) -> None:
    """Raise InputError if the image in `place` does not have the locked configuration.

    Call this function before the tests run, because runs of other images cannot be recorded.
    """
    target_digests = image_digests.read_digests(project.images, lock)
    image = target_digests.arch.get(arch)
    if image is None or image.config != config:
        _refuse_other_image(project, lock.target, arch, place, config, image)


def _locked_digests(
    project: Project, target: str, place: str
) -> tuple[Lock, image_digests.TargetDigests]:
    if target not in project.locked_targets():
        refuse_content(
            place,
            f"the run belongs to the target {target!r}, which has no lock in this project",
            hint="select another project with --matrix FILE; locked in this project: "
            f"{', '.join(project.locked_targets())}",
        )
    lock = lock_file.read_lock(project.images, target)
    return lock, image_digests.read_digests(project.images, lock)


def _tested_image(
    project: Project, image_run: ImageRun, target_digests: image_digests.TargetDigests
) -> ImageDigests:
    """Return the tested locked image. Raises InputError if a different image was tested."""
    run = image_run.run
    arch = Arch(run.arch)
    image = target_digests.arch.get(arch)
    if image is None or image.config != run.config:
        _refuse_other_image(project, run.target, arch, image_run.place, run.config, image)
    return image


def _refuse_other_image(
    project: Project,
    target: str,
    arch: Arch,
    place: str,
    config: Digest,
    image: ImageDigests | None,
) -> NoReturn:
    path = image_digests.digests_path(project.images, target)
    has = f"configuration {image.config}" if image is not None else "no image"
    refuse_content(
        place,
        f"the run belongs to {target} on {arch} with configuration {config}, but {path} has {has}",
        hint="record the run at the git revision that has the digest of the tested image, or test "
        "the current image",
    )


def _recorded_run(image_run: ImageRun) -> RecordedRun:
    """Convert a run to a record, without versions. Raises InputError if it is inconsistent."""
    run = image_run.run
    try:
        recorded_run = decoding.convert(run, RecordedRun, from_attributes=True)
    except msgspec.ValidationError as error:
        refuse_content(image_run.place, str(error))
    if run.passed + run.failed + run.skipped != len(run.cases) or not run.cases:
        others = sorted({case.outcome for case in run.cases} - set(OUTCOMES))
        refuse_content(image_run.place, f"no cases, or unknown outcomes: {', '.join(others)}")
    # Also refused if it failed: without its GPUs nothing of the image was tested.
    needed = runner.GPU_TIERS.get(recorded_run.tier, 0)
    if len(recorded_run.gpu) < needed:
        named = ", ".join(recorded_run.gpu) or "none"
        refuse_content(
            image_run.place,
            f"tier {recorded_run.tier} requires {needed} GPU(s), but the run lists {named}",
        )
    return recorded_run
