"""From targets to the jobs that prove and publish their images: pure values.

Comes in: a target's architectures and seal, the settings. Goes out: its `Jobs`, each with its
steps, the machine that it wants and the jobs whose results it rests on.

    TARGET@x86_64, TARGET@arm64    check → audit → size → build → smoke (→ push, by digest)
    TARGET@x86_64-gpu, …           gate → pull → smoke
    TARGET@publish                 gate → sign → tag
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from imgbuild.ci.settings import FILE, Runner, Settings, without_gpu
from imgbuild.errors import InputError
from imgbuild.seal import Seal
from imgbuild.smoke import GPU_TIERS, Tier
from imgbuild.values import Arch

Step = Literal["check", "audit", "size", "build", "smoke", "push", "gate", "pull", "sign", "tag"]
PUBLISH = "publish"
AGAIN = "again"
ROOM = 2.0  # GB beside the image: the checkout, an environment, logs
SMALL = 1  # GB that a job without an image fills


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What one machine does for one target. `digest` is the seal's, "" where there is none.

    `runner` are labels, none where the machine is not asked for; `disk` is in GB. `needs` are the
    jobs whose steps must have passed for the same digest.
    """

    id: str
    target: str
    digest: str
    arch: Arch
    runner: tuple[str, ...] = ()
    disk: int = SMALL
    gpus: int = 0
    tiers: tuple[Tier, ...] = ()
    steps: tuple[Step, ...]
    needs: tuple[str, ...] = ()


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of one target, in the order in which they can be done; `again` prove nothing new."""

    target: str
    digest: str
    image: tuple[Job, ...]
    again: tuple[Job, ...] = ()
    gpu: tuple[Job, ...] = ()
    publish: tuple[Job, ...]

    @property
    def all(self) -> tuple[Job, ...]:
        """All jobs; each stands after those that it needs."""
        return (*self.image, *self.again, *self.gpu, *self.publish)


def jobs(
    target: str,
    arches: Sequence[Arch],
    sealed: Seal | None,
    settings: Settings,
    *,
    again: bool = False,
) -> Jobs:
    """The jobs of `target`, proven on `arches`; with `again`, built on a second kind of machine."""
    digest = sealed.digest if sealed is not None else ""

    def _job(place: str, arch: Arch, steps: tuple[Step, ...], **more: object) -> Job:
        fixed = {"id": f"{target}@{place}", "target": target, "digest": digest}
        return Job(**fixed, arch=arch, steps=steps, **more)  # type: ignore[arg-type]

    image = tuple(
        _job(
            arch,
            arch,
            ("check", "audit", "size", "build", "smoke", *(("push",) if first else ())),
            tiers=without_gpu(settings.gate),
            disk=_disk(sealed, arch),
        )
        for arch, first in zip(arches, (True, *(False for _ in arches)), strict=False)
    )
    others = tuple(
        _job(f"{arch}-{AGAIN}", arch, ("check", "build"), disk=_disk(sealed, arch))
        for arch in Arch
        if again and arch not in arches and any(one.arch is arch for one in settings.runners)
    )
    gpu = tuple(
        _job(
            f"{arch}-{tier}",
            arch,
            ("gate", "pull", "smoke"),
            tiers=(tier,),
            gpus=GPU_TIERS[tier],
            disk=_disk(sealed, arch),
            needs=(image[0].id,),
        )
        for tier in settings.gate
        if tier in GPU_TIERS
        for arch in _gpu_arches(target, tier, arches, settings)
    )
    publish = _job(
        PUBLISH,
        arches[0],
        ("gate", "sign", "tag"),
        needs=tuple(job.id for job in (*image, *gpu)),
    )
    return Jobs(
        target=target, digest=digest, image=image, again=others, gpu=gpu, publish=(publish,)
    )


def _gpu_arches(
    target: str, tier: Tier, arches: Sequence[Arch], settings: Settings
) -> tuple[Arch, ...]:
    found = tuple(arch for arch in arches if arch in settings.gpu_arches)
    if not found:
        message = f"{target} must pass tier {tier}, and no machine with a GPU is named for it"
        hint = f"name one under runners: in {FILE}, or take {tier} out of gate: (--gate)"
        raise InputError(message, hint=hint)
    return found


def _disk(sealed: Seal | None, arch: Arch) -> int:
    """GB that building and testing fills: inputs, layers of all architectures, one unpacked."""
    if sealed is None:
        return SMALL
    own = sealed.arch.get(arch, next(iter(sealed.arch.values())))
    moved = sum(image.size for image in sealed.arch.values())
    unpacked = sum(layer.unpacked for layer in own.layers)
    return math.ceil((2 * moved + unpacked) / 1e9 + ROOM)


def labelled(found: Jobs, settings: Settings) -> Jobs:
    """`found` with the labels of the machines that are to do them; InputError where none fits."""

    def _with(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
        return tuple(
            msgspec.structs.replace(job, runner=_runner(job, settings).labels) for job in jobs
        )

    return msgspec.structs.replace(
        found,
        image=_with(found.image),
        again=_with(found.again),
        gpu=_with(found.gpu),
        publish=_with(found.publish),
    )


def _runner(job: Job, settings: Settings) -> Runner:
    fitting = [
        runner
        for runner in settings.runners
        if runner.arch is job.arch and runner.gpus >= job.gpus and runner.disk >= job.disk
    ]
    if not fitting:
        gpus = f" and {job.gpus} GPUs" if job.gpus else ""
        wanted = f"{job.arch} with {job.disk} GB of disk{gpus}"
        message = f"{job.id} wants a machine of {wanted}, and none is named"
        raise InputError(message, hint=f"name one under runners: in {FILE}")
    return min(fitting, key=lambda runner: runner.gpus)
