"""Which targets a CI has work with, and which it can leave alone because their digest says so.

Comes in: targets, a git revision, a registry. Goes out: `Chosen`: the jobs of each target that has
any, and why the others have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from imgbuild import codec, history
from imgbuild.ci import jobs as works
from imgbuild.ci.jobs import Jobs
from imgbuild.ci.settings import Settings
from imgbuild.console import console
from imgbuild.errors import ImgbuildError, InputError
from imgbuild.matrix.select import Selected
from imgbuild.project import Project
from imgbuild.registry.client import Client
from imgbuild.registry.reference import Reference, Repository
from imgbuild.seal import Seal, seal_path
from imgbuild.threads import Stop, each
from imgbuild.values import Arch, Digest

Without = Literal["unchanged", "published", "impossible"]
ASKING = 8  # questions to the registry at once


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """A target without jobs, and why; an impossible one should have some, and cannot."""

    target: str
    digest: str
    outcome: Without
    reason: str


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The targets that have jobs, and those that are passed over."""

    targets: tuple[Jobs, ...]
    passed: tuple[Passed, ...] = ()


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the choice.

    `revision`: only targets whose digest is another one than there. `arches`: those to be proven,
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
    settings: Settings,
    asked: Asked,
    published: Mapping[str, Digest],
) -> Chosen:
    """The jobs of the `selected` targets; `published` says which digest each target's tag names.

    A target for which there is no machine is passed over and said to be, unless it is the only one:
    then that is an InputError.
    """
    before = history.digests_at(project, asked.revision) if asked.revision else {}
    found: list[Jobs] = []
    passed: list[Passed] = []
    part, parts = asked.shard
    for item in list(selected)[part - 1 :: parts]:
        sealed = read_seal(project, item.name)
        digest = sealed.digest if sealed is not None else ""
        if digest and before.get(item.name) == digest:
            passed.append(_passed(item, digest, "unchanged", f"as at {asked.revision}"))
        elif digest and published.get(item.name) == digest:
            passed.append(_passed(item, digest, "published", "its tag names the sealed digest"))
        else:
            try:
                found.append(of_target(item, sealed, settings, asked))
            except InputError as error:
                if len(selected) == 1:
                    raise
                console.warn(f"{item.name} is passed over: {error.message}; {error.hint}")
                passed.append(_passed(item, digest, "impossible", error.message))
    return Chosen(targets=tuple(found), passed=tuple(passed))


def _passed(
    item: Selected,
    digest: str,
    outcome: Without,
    reason: str,
) -> Passed:
    return Passed(target=item.name, digest=digest, outcome=outcome, reason=reason)


def of_target(item: Selected, sealed: Seal | None, settings: Settings, asked: Asked) -> Jobs:
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
    client: Client, repository: Repository, selected: Sequence[Selected]
) -> dict[str, Digest]:
    """What the tag of each target names in `repository`; a target without a tag is absent.

    Only a job whose gate is passed puts such a tag: its digest is proven, and all of it is there.
    """

    def _ask(item: Selected, _: Stop) -> Digest:
        found = client.resolve(Reference(repository.host, repository.name, tag=item.name))
        return found.digest if found is not None else ""

    answers = each(list(selected), _ask, threads=ASKING)
    return {item.name: digest for item, digest in zip(selected, answers, strict=True) if digest}
