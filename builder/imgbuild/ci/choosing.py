"""Selects the targets that need CI jobs because their digest is new or unpublished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from imgbuild import codec
from imgbuild.ci.jobs import TargetJobs, add_labels, create_jobs, sif_jobs
from imgbuild.ci.published import TaggedImage
from imgbuild.ci.settings import CiSettings
from imgbuild.errors import ImgbuildError, InputError
from imgbuild.matrix.project_paths import Project
from imgbuild.matrix.select import Selected
from imgbuild.plan.image_digests import TargetDigests, digests_path
from imgbuild.show import revisions
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Arch

ExclusionReason = Literal["unchanged", "published", "impossible"]


class SkippedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target without jobs, and the reason.

    A target is impossible if no machine can run one of its jobs.
    """

    target: str
    digest: str
    outcome: ExclusionReason
    reason: str


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The targets with jobs, and the skipped targets."""

    targets: tuple[TargetJobs, ...]
    passed: tuple[SkippedTarget, ...] = ()


class JobQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Selects jobs of `ci.yaml`.

    `revision` selects targets whose digest has changed since this git revision. `arches` lists the
    architectures to test. If it is empty, all are tested. `shard` is part I of N, starting at 1.
    `again` adds builds on another kind of machine. `labels` adds the labels of machines.
    """

    revision: str | None = None
    arches: tuple[Arch, ...] = ()
    shard: tuple[int, int] = (1, 1)
    again: bool = False
    labels: bool = True

    def tested(self, item: Selected) -> tuple[Arch, ...]:
        """Return the architectures for which to test `item`."""
        return tuple(arch for arch in item.arches if not self.arches or arch in self.arches)


def choose_jobs(
    project: Project,
    selected: Sequence[Selected],
    settings: CiSettings,
    query: JobQuery,
    published: Mapping[str, TaggedImage],
    reporter: Reporter = SILENT_REPORTER,
) -> JobPlan:
    """Return the jobs of the `selected` targets. `published` is the state of the registry.

    A published target without a SIF has only the job that creates the SIF, if ci.yaml requests
    SIFs. A target is skipped with a warning if no machine can run one of its jobs. InputError is
    raised instead if no other target is selected.
    """
    before = revisions.digests_at(project, query.revision) if query.revision else {}
    choices: list[TargetJobs | SkippedTarget] = []
    part, parts = query.shard
    for item in list(selected)[part - 1 :: parts]:
        target_digests = read_digests(project, item.name)
        digest = target_digests.digest if target_digests is not None else ""
        if digest and before.get(item.name) == digest:
            choices.append(
                _skipped_target(item, digest, "unchanged", f"unchanged since {query.revision}")
            )
            continue
        try:
            choices.append(
                _target_jobs(item, target_digests, settings, query, published.get(item.name))
            )
        except InputError as error:
            if len(selected) == 1:
                raise
            reporter.warn(f"skipping {item.name}: {error.message}; {error.hint}")
            choices.append(_skipped_target(item, digest, "impossible", error.message))
    return JobPlan(
        targets=tuple(choice for choice in choices if isinstance(choice, TargetJobs)),
        passed=tuple(choice for choice in choices if isinstance(choice, SkippedTarget)),
    )


def _skipped_target(
    item: Selected, digest: str, outcome: ExclusionReason, reason: str
) -> SkippedTarget:
    return SkippedTarget(target=item.name, digest=digest, outcome=outcome, reason=reason)


def _target_jobs(
    item: Selected,
    target_digests: TargetDigests | None,
    settings: CiSettings,
    query: JobQuery,
    there: TaggedImage | None,
) -> TargetJobs | SkippedTarget:
    """Return the jobs of a target with the registry state `there`.

    Raises InputError if no machine can run one of the jobs.
    """
    arches = query.tested(item)
    if target_digests is not None and there is not None and there.digest == target_digests.digest:
        lacking = [
            arch
            for arch in arches
            if arch in target_digests.arch
            and there.sifs.get(arch) != target_digests.arch[arch].manifest
        ]
        if not (settings.sif and lacking):
            return _skipped_target(
                item, target_digests.digest, "published", "the tag has the locked digest"
            )
        target_jobs = sif_jobs(item.name, lacking, target_digests, settings)
    else:
        target_jobs = create_jobs(item.name, arches, target_digests, settings, again=query.again)
    return add_labels(target_jobs, settings) if query.labels else target_jobs


def read_digests(project: Project, target: str) -> TargetDigests | None:
    """Return the digests of `target`, or None if the file is missing or damaged.

    The digests are not compared with the matrix, because the first step of each job checks the
    lock.
    """
    try:
        return codec.read_document(
            digests_path(project.images, target), TargetDigests, what="digests"
        )
    except ImgbuildError:
        return None
