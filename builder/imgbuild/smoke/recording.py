"""Runs of the smoke tests, held against the seal and put into the target's test records.

Input: what runs report about themselves. Output: a run in `images/TARGET/smoke.json`
for each, or an InputError that says what of it does not fit; and which of them count for the images
of a seal. A run is taken only if it is of the image that the target's seal has now: of its
configuration and, where it says which layers it ran, of their diff ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import msgspec

from imgbuild.cache.store import Store
from imgbuild.lock import lock as locks
from imgbuild.lock.lock import Lock
from imgbuild.plan import seal as seals
from imgbuild.plan.seal import SealedImage
from imgbuild.project import Project
from imgbuild.report import OUTCOMES, Tier, count, passed
from imgbuild.smoke import records, run
from imgbuild.smoke.records import FirstFailure, ImageContent, Result, Run
from imgbuild.smoke.reports import ImageRun, pairs, refuse
from imgbuild.values import Arch, Digest

LONGEST = 500  # characters of an error that a test record keeps; the report has all of it


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is recorded now; `new` if it, or something of it, was not there before."""

    target: str
    arch: Arch
    tier: Tier
    result: Result
    digest: Digest
    file: Path
    new: bool


def record(project: Project, found: Iterable[ImageRun], store: Store) -> tuple[Recorded, ...]:
    """Add all runs of `found` to the test records, or none: InputError for one that does not fit.

    LockStale if a target has no lock, or no seal of it.
    """
    known: dict[str, tuple[Lock, seals.Seal]] = {}
    runs: list[tuple[ImageRun, Run, SealedImage]] = []
    for claim in found:
        if claim.target not in known:
            known[claim.target] = _sealed(project, claim)
        lock, sealed = known[claim.target]
        image = _fitting(project, claim, sealed)
        runs.append((claim, _run(claim, lock), image))
    for target in known:  # damaged records stop all of it
        records.read_records(project.images, target)
    recorded = []
    for claim, made, image in runs:
        contents = {made.config: ImageContent(diff_ids=diff_ids(image))}
        new = records.add(project.images, claim.target, [made], contents, store)
        recorded.append(
            Recorded(
                target=claim.target,
                arch=claim.arch,
                tier=claim.tier,
                result=made.result,
                digest=made.digest,
                file=records.records_path(project.images, claim.target),
                new=new,
            )
        )
    return tuple(recorded)


def diff_ids(image: SealedImage) -> tuple[Digest, ...]:
    """Those of the layers of a sealed image, the lowest first."""
    return tuple(layer.diff_id for layer in image.layers)


def counting(project: Project, sealed: seals.Seal) -> dict[Arch, tuple[Run, ...]]:
    """The runs that count for a seal's images, by architecture; InputError as `read_records`."""
    known = records.read_records(project.images, sealed.target)
    return {
        arch: records.counting(known, arch, image.config, diff_ids(image))
        for arch, image in sealed.arch.items()
    }


def require_sealed(project: Project, lock: Lock, arch: Arch, config: Digest, place: str) -> None:
    """InputError unless the image in `place`, by its configuration, is the sealed one.

    What is to be recorded is looked at before the tests run, not after.
    """
    sealed = seals.read_seal(project.images, lock)
    image = sealed.arch.get(arch)
    if image is None or image.config != config:
        _other(project, lock.target, arch, place, config, image)


def _sealed(project: Project, claim: ImageRun) -> tuple[Lock, seals.Seal]:
    if claim.target not in project.sealed():
        refuse(
            claim.place,
            f"it is of the target {claim.target!r}, which has no lock here",
            hint=f"name its project: --matrix FILE; locked here: {', '.join(project.sealed())}",
        )
    lock = locks.read_lock(project.images, claim.target)
    return lock, seals.read_seal(project.images, lock)


def _fitting(project: Project, claim: ImageRun, sealed: seals.Seal) -> SealedImage:
    """The sealed image that `claim` is of."""
    image = sealed.arch.get(claim.arch)
    if image is None or image.config != claim.config:
        _other(project, claim.target, claim.arch, claim.place, claim.config, image)
    for number, (ran, is_) in enumerate(
        pairs(claim.diff_ids or diff_ids(image), diff_ids(image)), start=1
    ):
        if ran != is_:
            path = seals.seal_path(project.images, claim.target)
            refuse(claim.place, f"layer {number} that it ran is {ran}; {path} has {is_}")
    return image


def _other(
    project: Project, target: str, arch: Arch, place: str, config: Digest, image: SealedImage | None
) -> NoReturn:
    path = seals.seal_path(project.images, target)
    has = f"configuration {image.config}" if image is not None else "no image"
    refuse(
        place,
        f"it is of {target} on {arch} with configuration {config}; {path} has {has} there",
        hint="record it at the revision that seals that image, or test the image of now",
    )


def _run(claim: ImageRun, lock: Lock) -> Run:
    """What a test record keeps of `claim`; InputError if it contradicts itself."""
    counts = {outcome: count(claim.cases, outcome) for outcome in OUTCOMES}
    if sum(counts.values()) != len(claim.cases) or not claim.cases:
        others = sorted({case.outcome for case in claim.cases} - set(OUTCOMES))
        refuse(claim.place, f"no cases, or outcomes that there are not: {', '.join(others)}")
    good = passed(claim.cases)
    # Failed, too: without its GPUs nothing of the image was tested.
    if len(claim.gpu) < run.GPU_TIERS.get(claim.tier, 0):
        named = ", ".join(claim.gpu) or "none"
        needed = run.GPU_TIERS[claim.tier]
        refuse(claim.place, f"tier {claim.tier} needs {needed} GPU(s); it names {named}")
    first = next((case for case in claim.cases if case.outcome == "failed"), None)
    on_gpu = claim.tier in run.GPU_TIERS
    return Run(
        date=claim.started,
        arch=claim.arch,
        tier=claim.tier,
        result="pass" if good else "fail",
        digest=claim.digest,
        config=claim.config,
        gpu=claim.gpu if on_gpu else (),
        driver=claim.driver if on_gpu else "",
        versions=_versions(lock, claim.arch),
        seconds=claim.seconds,
        **counts,
        first=FirstFailure(case=first.name, message=_cut(first.message)) if first else None,
        through=claim.through,
        sif=claim.sif,
        arbitrary_user=claim.arbitrary_user,
        jobs=claim.jobs,
        share=claim.share,
        caches=claim.caches,
        report=claim.report,
    )


def _versions(lock: Lock, arch: Arch) -> dict[str, str]:
    known = lock.arch[arch].versions
    return {name: known[name] for name in records.ASKED if name in known}


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
