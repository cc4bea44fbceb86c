"""Defines the CI jobs of a target with steps, runners, GPUs and dependencies.

    TARGET@x86_64, TARGET@arm64    check → audit (→ cves) → size → build → smoke (→ push, by digest)
    TARGET@x86_64-gpu, …           gate → pull → smoke
    TARGET@publish                 gate → sign → tag
    TARGET@x86_64-sif, …           gate → pull → sif, if ci.yaml requests it

A published target without a SIF has only the SIF job.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from imgbuild.ci.settings import FILE, CiSettings, Runner, tiers_without_gpu
from imgbuild.errors import InputError
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.report import TierName
from imgbuild.smoke.runner import GPU_TIERS
from imgbuild.values import Arch

JobStep = Literal[
    "check", "audit", "cves", "size", "build", "smoke", "push", "gate", "pull", "sign", "tag", "sif"
]  # fmt: skip
PUBLISH = "publish"
SIF = "sif"
AGAIN_JOB = "again"
ROOM = 2.0  # GB in addition to the image: the checkout, an environment, logs
SMALL_DISK = 1  # GB for a job without an image


class CiJob(msgspec.Struct, frozen=True, kw_only=True):
    """The CI steps for a target on a machine. `digest` is the locked digest, or "" without a lock.

    `runner` contains the labels of the machine, if any. `disk` is in GB. `needs` lists the jobs
    that must pass first for the same digest.
    """

    id: str
    target: str
    digest: str
    arch: Arch
    runner: tuple[str, ...] = ()
    disk: int = SMALL_DISK
    gpus: int = 0
    tiers: tuple[TierName, ...] = ()
    steps: tuple[JobStep, ...]
    needs: tuple[str, ...] = ()


class TargetJobs(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a target by kind."""

    target: str
    digest: str
    image: tuple[CiJob, ...]
    again: tuple[CiJob, ...] = ()
    gpu: tuple[CiJob, ...] = ()
    publish: tuple[CiJob, ...]
    sif: tuple[CiJob, ...] = ()

    @property
    def all_jobs(self) -> tuple[CiJob, ...]:
        """All jobs in dependency order."""
        return (*self.image, *self.again, *self.gpu, *self.publish, *self.sif)


class _JobFactory(msgspec.Struct, frozen=True):
    target: str
    target_digests: TargetDigests | None
    settings: CiSettings

    @property
    def digest(self) -> str:
        return self.target_digests.digest if self.target_digests is not None else ""

    def job(self, place: str, arch: Arch, steps: tuple[JobStep, ...]) -> CiJob:
        return CiJob(
            id=f"{self.target}@{place}",
            target=self.target,
            digest=self.digest,
            arch=arch,
            steps=steps,
            disk=_disk(self.target_digests, arch),
        )

    def image(self, arches: Sequence[Arch]) -> tuple[CiJob, ...]:
        """Return the jobs without GPUs, one for each architecture.

        The first job also pushes the image.
        """
        tiers = tiers_without_gpu(self.settings.gate)
        smoke: tuple[JobStep, ...] = ("smoke",) if tiers else ()
        cves: tuple[JobStep, ...] = ("cves",) if self.settings.cves is not None else ()
        steps: tuple[JobStep, ...] = ("check", "audit", *cves, "size", "build", *smoke)
        return tuple(
            msgspec.structs.replace(
                self.job(arch, arch, (*steps, "push") if arch is arches[0] else steps),
                tiers=tiers,
            )
            for arch in arches
        )

    def rebuild_jobs(self, arches: Sequence[Arch]) -> tuple[CiJob, ...]:
        """Return the jobs that build the image again on machines of other architectures, if any."""
        there = {runner.arch for runner in self.settings.runners}
        others = (arch for arch in Arch if arch in there and arch not in arches)
        return tuple(self.job(f"{arch}-{AGAIN_JOB}", arch, ("check", "build")) for arch in others)

    def gpu_jobs(self, arches: Sequence[Arch], pushed: CiJob) -> tuple[CiJob, ...]:
        return tuple(
            msgspec.structs.replace(
                self.job(f"{arch}-{tier}", arch, ("gate", "pull", "smoke")),
                tiers=(tier,),
                gpus=GPU_TIERS[tier],
                needs=(pushed.id,),
            )
            for tier in self.settings.gate
            if tier in GPU_TIERS
            for arch in _gpu_arches(self.target, tier, arches, self.settings)
        )

    def sif_jobs(self, arches: Sequence[Arch]) -> tuple[CiJob, ...]:
        selected = arches if self.settings.sif else ()
        return tuple(self.job(f"{arch}-{SIF}", arch, ("gate", "pull", "sif")) for arch in selected)


def create_jobs(
    target: str,
    arches: Sequence[Arch],
    target_digests: TargetDigests | None,
    settings: CiSettings,
    *,
    again: bool = False,
) -> TargetJobs:
    """Return the jobs that build `target` and test it for `arches`.

    With `again`, machines of other architectures build the image again. Raises InputError if a tier
    needs a GPU and no machine has one.
    """
    maker = _JobFactory(target, target_digests, settings)
    image = maker.image(arches)
    gpu = maker.gpu_jobs(arches, image[0])
    publish = msgspec.structs.replace(
        maker.job(PUBLISH, arches[0], ("gate", "sign", "tag")),
        disk=SMALL_DISK,
        needs=tuple(job.id for job in (*image, *gpu)),
    )
    return TargetJobs(
        target=target,
        digest=maker.digest,
        image=image,
        again=maker.rebuild_jobs(arches) if again else (),
        gpu=gpu,
        publish=(publish,),
        sif=maker.sif_jobs(arches),
    )


def sif_jobs(
    target: str, arches: Sequence[Arch], target_digests: TargetDigests, settings: CiSettings
) -> TargetJobs:
    """Return the jobs that create SIFs of a published `target` for `arches`."""
    maker = _JobFactory(target, target_digests, settings)
    return TargetJobs(
        target=target, digest=maker.digest, image=(), publish=(), sif=maker.sif_jobs(arches)
    )


def _gpu_arches(
    target: str, tier: TierName, arches: Sequence[Arch], settings: CiSettings
) -> tuple[Arch, ...]:
    fitting = tuple(arch for arch in arches if arch in settings.gpu_arches(GPU_TIERS[tier]))
    if not fitting:
        message = f"{target} must pass tier {tier}, but no machine in {FILE} has enough GPUs"
        hint = f"add a machine under `runners:` in {FILE}, or remove {tier} from `gate:` (--gate)"
        raise InputError(message, hint=hint)
    return fitting


def _disk(target_digests: TargetDigests | None, arch: Arch) -> int:
    """Return the disk space in GB for inputs, layers, and an unpacked image."""
    if target_digests is None:
        return SMALL_DISK
    locked_image = target_digests.arch.get(arch, next(iter(target_digests.arch.values())))
    moved = sum(image.size for image in target_digests.arch.values())
    unpacked = sum(layer.unpacked for layer in locked_image.layers)
    return math.ceil((2 * moved + unpacked) / 1e9 + ROOM)


def add_labels(target_jobs: TargetJobs, settings: CiSettings) -> TargetJobs:
    """Add the labels of suitable machines to jobs. Raises InputError if a job has no machine."""
    groups = {
        name: tuple(
            msgspec.structs.replace(job, runner=_runner(job, settings).labels)
            for job in getattr(target_jobs, name)
        )
        for name in ("image", "again", "gpu", "publish", "sif")
    }
    return msgspec.structs.replace(target_jobs, **groups)


def _runner(job: CiJob, settings: CiSettings) -> Runner:
    fitting = [
        runner
        for runner in settings.runners
        if runner.arch is job.arch and runner.gpus >= job.gpus and runner.disk >= job.disk
    ]
    if not fitting:
        gpus = f" and {job.gpus} GPUs" if job.gpus else ""
        requirement = f"{job.arch} with {job.disk} GB of disk{gpus}"
        message = f"{job.id} requires a machine with {requirement}, but {FILE} has none"
        raise InputError(message, hint=f"add a machine under `runners:` in {FILE}")
    return min(fitting, key=lambda runner: runner.gpus)
