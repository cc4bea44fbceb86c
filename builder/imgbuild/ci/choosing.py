"""Chooses the targets that need CI jobs: those whose digest changed or is not published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from imgbuild import codec
from imgbuild.ci import jobs as works
from imgbuild.ci import standing
from imgbuild.ci.jobs import TargetJobs
from imgbuild.ci.settings import CiSettings
from imgbuild.errors import ImgbuildError, InputError
from imgbuild.http.client import Refused
from imgbuild.matrix.select import Selected
from imgbuild.plan.seal import Seal, seal_path
from imgbuild.project import Project
from imgbuild.registry.client import Client
from imgbuild.registry.reference import Repository
from imgbuild.show import revisions
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.system.threads import Stop, each
from imgbuild.values import Arch, Digest

Without = Literal["unchanged", "published", "impossible"]
ASKING = 8  # questions to the registry at once


class SkippedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target without jobs, and why; an impossible one should have some, and cannot."""

    target: str
    digest: str
    outcome: Without
    reason: str


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The targets that have jobs, and those that are skipped."""

    targets: tuple[TargetJobs, ...]
    passed: tuple[SkippedTarget, ...] = ()


class TaggedImage(msgspec.Struct, frozen=True, kw_only=True):
    """What a repository has of a target: the digest that its tag names, and SIFs beside it.

    `sifs`: by architecture the manifest that each SIF says that it was made of.
    """

    digest: Digest
    sifs: dict[Arch, Digest] = {}


class JobQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the choice.

    `revision`: only targets whose digest is another one than there. `arches`: those to be tested,
    of those that a target has. `shard` is the part I of N, from 1 on. `labels`: name machines.
    """

    revision: str | None = None
    arches: tuple[Arch, ...] = ()
    shard: tuple[int, int] = (1, 1)
    again: bool = False
    labels: bool = True


def choose(
    project: Project,
    selected: Sequence[Selected],
    settings: CiSettings,
    asked: JobQuery,
    published: Mapping[str, TaggedImage],
    reporter: Reporter = SILENT,
) -> JobPlan:
    """The jobs of the `selected` targets; `published` says what the registry has.

    A published target that lacks a SIF has the jobs that make it, where ci.yaml asks for one. A
    target for which there is no machine is skipped and said to be, unless it is the only one:
    then that is an InputError.
    """
    before = revisions.digests_at(project, asked.revision) if asked.revision else {}
    found: list[TargetJobs] = []
    passed: list[SkippedTarget] = []
    part, parts = asked.shard
    for item in list(selected)[part - 1 :: parts]:
        sealed = read_seal(project, item.name)
        digest = sealed.digest if sealed is not None else ""
        if digest and before.get(item.name) == digest:
            passed.append(_passed(item, digest, "unchanged", f"as at {asked.revision}"))
        else:
            lacking: tuple[Arch, ...] = ()
            there = published.get(item.name)
            if sealed is not None and there is not None and there.digest == digest:
                lacking = _lacking(item, sealed, settings, asked, there)
                if not lacking:
                    why = "its tag names the sealed digest"
                    passed.append(_passed(item, digest, "published", why))
                    continue
            try:
                if lacking:
                    found.append(_sifs(item, sealed, settings, asked, lacking))
                else:
                    found.append(of_target(item, sealed, settings, asked))
            except InputError as error:
                if len(selected) == 1:
                    raise
                reporter.warn(f"{item.name} is skipped: {error.message}; {error.hint}")
                passed.append(_passed(item, digest, "impossible", error.message))
    return JobPlan(targets=tuple(found), passed=tuple(passed))


def _passed(
    item: Selected,
    digest: str,
    outcome: Without,
    reason: str,
) -> SkippedTarget:
    return SkippedTarget(target=item.name, digest=digest, outcome=outcome, reason=reason)


def _lacking(
    item: Selected, sealed: Seal, settings: CiSettings, asked: JobQuery, there: TaggedImage
) -> tuple[Arch, ...]:
    """The architectures of a published target whose SIF is asked for and is not there."""
    if not settings.sif:
        return ()
    return tuple(
        arch
        for arch in item.arches
        if arch in sealed.arch
        and (not asked.arches or arch in asked.arches)
        and there.sifs.get(arch) != sealed.arch[arch].manifest
    )


def _sifs(
    item: Selected,
    sealed: Seal | None,
    settings: CiSettings,
    asked: JobQuery,
    arches: Sequence[Arch],
) -> TargetJobs:
    """The jobs that make the SIFs of a published target for `arches`."""
    told = bare(settings)
    every = of_target(item, sealed, told, msgspec.structs.replace(asked, labels=False))
    made = works.only_sifs(every, arches)
    return works.labelled(made, settings) if asked.labels else made


def bare(settings: CiSettings) -> CiSettings:
    """`settings` for the SIF of a published target: it is not tested again, so no GPU is needed."""
    return msgspec.structs.replace(settings, gate=("static",))


def is_sif(place: str) -> bool:
    """Whether a job at `place`, as in TARGET@PLACE, makes a SIF."""
    return place.endswith(f"-{works.SIF}")


def of_target(
    item: Selected, sealed: Seal | None, settings: CiSettings, asked: JobQuery
) -> TargetJobs:
    """The jobs of one target; InputError if a machine for one is not named."""
    arches = tuple(arch for arch in item.arches if not asked.arches or arch in asked.arches)
    made = works.jobs(item.name, arches, sealed, settings, again=asked.again)
    return works.labelled(made, settings) if asked.labels else made


def read_seal(project: Project, target: str) -> Seal | None:
    """The seal of `target` as it lies there; None if there is none that can be read.

    Whether it follows from the matrix is the first step of a job, so that one stale lock stops one
    target alone.
    """
    try:
        return codec.read(seal_path(project.images, target), Seal, what="seal")
    except ImgbuildError:
        return None


def published(
    client: Client, repository: Repository, selected: Sequence[Selected], *, sifs: bool = False
) -> dict[str, TaggedImage]:
    """What `repository` has of each target; a target without a tag is absent.

    `sifs`: also which SIFs lie there. The target's own tag is the last that a job puts, after its
    gate; `imgbuild push` puts it without one. A registry that refuses to say (401, 403) has
    nothing, with a warning.
    """
    refused: list[Refused] = []

    def _ask(item: Selected, _: Stop) -> TaggedImage | None:
        try:
            found = client.resolve(repository.tagged(item.name))
        except Refused as error:
            # So some registries answer for a repository that does not exist yet: the first night.
            if not error.denied:
                raise
            refused.append(error)
            return None
        if found is None:
            return None
        made = {
            arch: standing.sif_of(client, repository, item.name, arch)
            for arch in item.arches
            if sifs
        }
        there = {arch: digest for arch, digest in made.items() if digest}
        return TaggedImage(digest=found.digest, sifs=there)

    answers = each(list(selected), _ask, threads=ASKING)
    if refused:
        client.reporter.warn(
            f"{repository} does not say what it has ({refused[0].status}), so nothing is taken to"
            " be published there: that is right if it is new; else log in with what may read it"
        )
    return {item.name: one for item, one in zip(selected, answers, strict=True) if one is not None}
