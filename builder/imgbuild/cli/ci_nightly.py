"""`imgbuild ci nightly`: build, test and publish targets on your own machines."""

from __future__ import annotations

from typing import Annotated

import msgspec

from imgbuild.cli import _allocation, _ci_options
from imgbuild.cli._allocation import ON, AllocationOptions
from imgbuild.cli._ci_options import ExecutionOptions, Strict
from imgbuild.cli._options import ALL, KEEP, TARGET, ExecutionPlace, Record
from imgbuild.cli._targets import Names
from imgbuild.cli._verb import SELECT, option, verb


@verb
def nightly(
    how: ExecutionOptions,
    request: AllocationOptions,
    names: Names = None,
    target: Annotated[list[str] | None, TARGET()] = None,
    everything: Annotated[bool, ALL()] = False,
    on: Annotated[
        ExecutionPlace,
        ON(
            "local: this machine. slurm: jobs with a GPU on nodes of Slurm, which must have the"
            " folder of the matrix and imgbuild at the same paths; others on this machine."
        ),
    ] = ExecutionPlace.LOCAL,
    all_published: Annotated[
        bool,
        option(
            "--all-published", "Also targets whose tag has the locked digest already.", panel=SELECT
        ),
    ] = False,
    keep: Annotated[
        bool | None,
        KEEP("Applies to images in build/. Default: keep for one target, remove for several."),
    ] = None,
    record: Record = False,
    strict: Strict = False,
) -> None:
    """Build, test and publish targets: all CI jobs in order, without a CI.

    A target whose tag has the locked digest is skipped. The others are checked, audited, built,
    tested, pushed by digest, tested on GPUs, and then tagged. If one fails, the others continue. An
    interrupted run continues where it stopped: steps that have passed for a digest are not
    repeated. Exit status 1 if a target failed or is not finished.

    Examples:

        imgbuild ci nightly --all --registry registry.example/rl

        imgbuild ci nightly 'cu130-*' --registry registry.example/rl --on slurm --partition gpu
    """
    from imgbuild import codec
    from imgbuild.ci import running
    from imgbuild.ci.choosing import JobQuery

    way = _ci_options.way(how, no_push=False)
    if record:
        way.project.require_writable("imgbuild ci nightly --record")
    if on is ExecutionPlace.SLURM:
        way = msgspec.structs.replace(way, slurm=_allocation.requested(request).options)
    chosen = _ci_options.chosen(
        [*(names or []), *(target or [])], how.matrix, how.gate or [],
        JobQuery(arches=way.arches, labels=False),
        None if all_published else way.registry, way.plain_http, everything=everything,
    )  # fmt: skip
    codec.write(way.results / _ci_options.JOBS, chosen)  # for `ci report`
    drop = len(chosen.targets) > 1 if keep is None else not keep
    found = running.run_targets(way, chosen, drop=drop)
    _ci_options.finish(found, chosen, way.results, way.project, record=record, strict=strict)
