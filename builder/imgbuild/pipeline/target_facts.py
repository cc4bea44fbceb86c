"""Reads facts about locked targets for `init`, and selects eligible targets."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild.audit.binaries import gpus
from imgbuild.doctor.host import Host
from imgbuild.doctor.targets import judge_target, target_needs
from imgbuild.errors import NothingSelected
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix import constraints
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.plan import image_digests
from imgbuild.resolve.choose import LockedFacts
from imgbuild.show import status
from imgbuild.smoke import recording
from imgbuild.solve.base import base_python
from imgbuild.values import Arch


class ChoiceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `imgbuild init` that select a target.

    If `target` is set, only this target is considered. With `extends`, its versions are kept.
    `host` is the machine whose driver and GPUs a target must support. `gpu` are required compute
    capabilities. Any version is accepted for packages in `relax`. Packages in `exclude` are
    omitted.
    """

    host: Host
    arch: Arch
    target: str | None = None
    extends: bool = False
    cuda: str | None = None
    relax: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    gpu: tuple[str, ...] = ()


def target_facts(project: Project, matrix: Matrix, request: ChoiceRequest) -> list[LockedFacts]:
    """Return the facts about each locked target on the requested architecture."""
    facts = []
    for name in project.locked_targets():
        lock = lock_file.read_lock(project.images, name)
        if request.arch in lock.arch and name in matrix.targets:
            facts.append(_facts(project, matrix, lock, request))
    return facts


def add_learned_constraints(facts: Sequence[LockedFacts], project: Project) -> list[LockedFacts]:
    """Add the constraints that earlier locks of the user's `project` learned to `facts`."""
    own = constraints.read_constraints(project.images)
    return [
        msgspec.structs.replace(each, learned=constraints.merge_constraints(each.learned, own))
        for each in facts
    ]


def _facts(project: Project, matrix: Matrix, lock: Lock, request: ChoiceRequest) -> LockedFacts:
    target, needs = matrix.targets[lock.target], target_needs(project.images, lock)
    floors, resolution = needs.floors[request.arch], lock.arch[request.arch]
    path = image_digests.digests_path(project.images, lock.target)
    size = (
        image_digests.read_digests(project.images, lock).arch[request.arch].size
        if path.exists()
        else 0
    )
    return LockedFacts(
        target=lock.target,
        arch=request.arch,
        versions=resolution.versions,
        python=base_python(matrix.bases[target.base], resolution),
        cuda=lock.cuda,
        as_of=lock.as_of,
        tested=recording.highest_passed_tier(project, lock, [request.arch]) or "",
        recommended=target.recommended,
        retired=target.retired != "",
        driver=floors.driver,
        gpu=(*floors.gpu, *floors.gpu_ptx),
        size=size,
        unfit=judge_target(request.host, needs).reasons,
        learned=constraints.read_constraints(project.images),
    )


def select_facts(
    facts: Sequence[LockedFacts], request: ChoiceRequest, matrix: Matrix
) -> list[LockedFacts]:
    """Select eligible targets.

    Raises NothingSelected, with the available targets, if no target is eligible.
    """
    if request.target is not None:
        named = [each for each in facts if each.target == request.target]
        if named:
            return named
        row = matrix.targets.get(request.target)
        if row is not None and request.arch in row.arch:
            message = f"{request.target} is not locked"
            raise NothingSelected(message, hint=status.lock_remedy(matrix, request.target))
        message = f"no locked target {request.target} for {request.arch}"
        raise NothingSelected(
            message, hint=f"available: {', '.join(each.target for each in facts)}"
        )
    of_cuda = [each for each in facts if request.cuda in (None, each.cuda)]
    if not of_cuda:
        have = sorted({each.cuda for each in facts}, key=gpus.version_numbers)
        message = f"no locked target for {request.arch} has CUDA {request.cuda}"
        raise NothingSelected(message, hint=f"available CUDA versions: {', '.join(have)}")
    fitting = [each for each in of_cuda if not each.unfit]
    if not fitting:
        message = f"no target can run on this machine: {of_cuda[0].unfit[0]}"
        raise NothingSelected(
            message, hint="to select a target for another machine, add --driver and --gpu"
        )
    return fitting
