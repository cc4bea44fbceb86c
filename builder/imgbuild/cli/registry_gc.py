"""`imgbuild registry gc`: the images in a registry that no lock of the last revisions names."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli._options import PlainHttp
from imgbuild.cli._output import aligned, answer, count, size_text
from imgbuild.cli._targets import MatrixFile
from imgbuild.cli._verb import option, verb
from imgbuild.errors import FetchFailed, InputError
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.publish.gc import Garbage, Sweep
    from imgbuild.registry.client import Client
    from imgbuild.registry.reference import Repository

HEAD = ("kind", "target", "size", "unnamed since", "tags", "digest")
NUMBERS = frozenset({2})
SPANS = {"h": 3600, "d": 86400, "w": 7 * 86400}


def _span(text: object) -> int:
    found = re.fullmatch(r"(\d+)([hdw])", str(text))
    if found is None:
        message = f"{str(text)!r} is not a time span; expected one such as 90d, 12w or 48h"
        raise typer.BadParameter(message)
    return int(found[1]) * SPANS[found[2]]


PlaceOption = Annotated[
    str,
    typer.Argument(
        metavar="HOST[/REPOSITORY]",
        help="A repository of images or of a mirror, or all repositories of a host.",
    ),
]
RevisionsOption = Annotated[
    int,
    option(
        "--revisions",
        "Keep the images named by the last N revisions that changed a lock.",
        metavar="N",
        min=1,
        often=True,
    ),
]
RefOption = Annotated[
    list[str] | None,
    option(
        "--ref",
        "A branch or tag of git whose revisions count; repeatable. Default: HEAD. Name every"
        " branch from which images are pushed.",
        metavar="REV",
        often=True,
    ),
]
KeepTagsOption = Annotated[
    list[str] | None,
    option(
        "--keep-tags",
        "Keep images with a tag that matches this shell pattern; repeatable. The"
        " tags TARGET, TARGET-ARCH, TARGET-base and TARGET-ARCH-inputs of locked"
        " targets are always kept.",
        metavar="PATTERN",
    ),
]
OlderThanOption = Annotated[
    int | None,
    option(
        "--older-than",
        "Only images without a newer dated tag or a lock for this long: 90d, 12w."
        " Images with an undated tag are kept.",
        metavar="SPAN",
        often=True,
        parser=_span,
        setting=True,
    ),
]
DeleteOption = Annotated[
    bool, option("--delete", "Delete what is listed, with its tags.", often=True)
]


@verb
def gc(
    place: PlaceOption,
    revisions: RevisionsOption = 20,
    ref: RefOption = None,
    keep_tags: KeepTagsOption = None,
    older_than: OlderThanOption = None,
    delete: DeleteOption = False,
    plain_http: PlainHttp = None,
    matrix: MatrixFile = None,
) -> None:
    """List or delete images that no lock names any more.

    Nothing is deleted without --delete. What a kept index lists, what is attached to kept images
    (signatures, SBOMs, locks), and everything that was not made for targets of this project is
    kept.

    Columns: kind, target, bytes that only this uses, the date since which no lock names it (never:
    none ever did), tags, digest.

    Examples:

        imgbuild registry gc registry.example/rl

        imgbuild registry gc registry.example/rl --revisions 50 --ref main --older-than 90d

        imgbuild registry gc registry.example/rl/inputs --delete
    """
    from imgbuild.pipeline.opened import open_project
    from imgbuild.project import MATRIX
    from imgbuild.publish import gc, gc_roots, scan
    from imgbuild.registry.client import Client

    refs = ref or ["HEAD"]
    _refuse(place, refs, delete=delete)
    project = open_project(matrix)
    if not project.writable:
        message = f"no {MATRIX} in {Path.cwd()} or any parent folder: what to keep is not known"
        hint = "run it in the git repository whose locks name the images, or pass --matrix FILE"
        raise InputError(message, hint=hint)
    known = gc_roots.named(project, revisions, refs, strict=delete, reporter=console)
    now = datetime.datetime.now(datetime.UTC).timestamp()
    since = None if older_than is None else int(now) - older_than
    policy = gc.KeepPolicy(keep_tags=tuple(keep_tags or ()), since=since)
    client = Client(plain_http=plain_http or (), origin=True, reporter=console)
    sweeps = []
    for repository in _repositories(place, client):
        held = scan.scan(repository, client, known.named_since)
        sweep = gc.judge(repository, held, known, policy)
        if delete:
            sweep = gc.delete(sweep, held, repository, client)
        _report(sweep)
        sweeps.append(sweep)
    if any(sweep.deleted and sweep.garbage for sweep in sweeps):
        console.info(gc.AFTER)
    found = [entry for sweep in sweeps for entry in sweep.garbage]
    rows: list[Sequence[str]] = [HEAD, *(_row(entry) for entry in found)]
    lines = aligned(rows, right=NUMBERS) if found else []
    answer(sweeps, lines)


def _repositories(place: str, client: Client) -> list[Repository]:
    """The repository that is named, or all of a host; FetchFailed if it does not list them."""
    from imgbuild.registry.reference import Repository, parse_repository

    if "/" in place:
        return [parse_repository(place)]
    try:
        return [Repository(place, name) for name in sorted(client.repositories(place))]
    except FetchFailed as error:
        message = f"{place} does not list its repositories: {error.message}"
        raise FetchFailed(
            message, hint=f"name one: imgbuild registry gc {place}/REPOSITORY"
        ) from error


def _refuse(place: str, refs: Sequence[str], *, delete: bool) -> None:
    for ref in refs:
        if not ref or ref.startswith("-"):
            message = f"--ref needs a git revision, not {ref or 'an empty string'}"
            raise InputError(message, hint="name a commit, a branch or a tag: --ref main")
    if delete and "/" not in place:
        message = f"--delete needs one repository, and {place} is a host"
        raise InputError(message, hint=f"name it: imgbuild registry gc {place}/REPOSITORY --delete")


def _row(entry: Garbage) -> tuple[str, ...]:
    return (
        entry.kind,
        entry.target or "-",
        size_text(entry.size),
        entry.unnamed_since or "never",
        ",".join(entry.tags) or "-",
        entry.digest,
    )


def _report(sweep: Sweep) -> None:
    """Print the totals of a repository."""
    reasons = ", ".join(f"{number} {reason}" for reason, number in sorted(sweep.kept.items()))
    gone = sum(len(entry.manifests) for entry in sweep.garbage)
    word = "deleted" if sweep.deleted else "to be deleted with --delete"
    console.info(
        f"{sweep.repository}: {count(sweep.manifests, 'manifest')}; kept: {reasons or 'none'}"
    )
    console.info(
        f"{sweep.repository}: {count(gone, 'manifest')}, {size_text(sweep.size)} of their own,"
        f" {word if gone else 'nothing to do'}"
    )
