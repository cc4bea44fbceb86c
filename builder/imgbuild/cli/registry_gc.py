"""`imgbuild registry gc`: what a registry holds that no lock of the last revisions names."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import _options
from imgbuild.cli.cache import size_text
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
        message = f"{str(text)!r} is no span of time; write 90d, 12w or 48h"
        raise typer.BadParameter(message)
    return int(found[1]) * SPANS[found[2]]


Place = Annotated[
    str,
    typer.Argument(
        metavar="HOST[/REPOSITORY]",
        help="A repository of images or of a mirror; of a host all of them are looked at.",
    ),
]
Revisions = Annotated[
    int,
    typer.Option(
        "--revisions",
        metavar="N",
        min=1,
        help="How many of the last revisions that changed a lock name what is kept.",
        rich_help_panel=_options.WORK,
    ),
]
Refs = Annotated[
    list[str] | None,
    typer.Option(
        "--ref",
        metavar="REV",
        help="A branch or tag whose revisions are meant; repeatable. Default: HEAD. What images of"
        " other branches are pushed for must be named here.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
KeepTags = Annotated[
    list[str] | None,
    typer.Option(
        "--keep-tags",
        metavar="PATTERN",
        help="Keep what has a tag of this shell pattern, such as 'cu124-vllm-2026*'; repeatable."
        " Of locked targets TARGET, TARGET-ARCH, TARGET-base and TARGET-ARCH-inputs are kept.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
OlderThan = Annotated[
    int | None,
    typer.Option(
        "--older-than",
        metavar="SPAN",
        parser=_span,
        help="Only what has no younger dated tag and was named by no seal for so long: 90d, 12w."
        " What has a tag and no date is kept then.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Delete = Annotated[
    bool,
    typer.Option(
        "--delete", help="Delete what is listed, tags and all.", rich_help_panel=_options.WORK
    ),
]


def gc(
    place: Place,
    revisions: Revisions = 20,
    ref: Refs = None,
    keep_tags: KeepTags = None,
    older_than: OlderThan = None,
    delete: Delete = False,
    plain_http: _options.PlainHttp = None,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """List what a registry holds and no lock or seal of the last revisions names.

    Nothing is deleted without --delete. Kept are also what a kept index lists, what is attached to
    kept images (signatures, bills, locks), and all that was not made for this project's targets.

    Columns: kind, target, bytes that nothing kept holds, the day since when no seal names it
    (never: none ever did), tags, digest.

    Examples:

        imgbuild registry gc registry.example/rl

        imgbuild registry gc registry.example/rl --revisions 50 --ref main --older-than 90d

        imgbuild registry gc registry.example/rl/inputs --delete
    """
    from imgbuild import project
    from imgbuild.publish import gc, gc_roots, scan
    from imgbuild.registry.client import Client

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    refs = ref or ["HEAD"]
    _refuse(place, refs, delete=delete)
    known = gc_roots.named(project.find(matrix), revisions, refs, strict=delete, reporter=console)
    now = datetime.datetime.now(datetime.UTC).timestamp()
    since = None if older_than is None else int(now) - older_than
    policy = gc.Policy(keep_tags=tuple(keep_tags or ()), since=since)
    client = Client(plain_http=plain_http or (), origin=True, reporter=console)
    sweeps = []
    for repository in _repositories(place, client):
        held = scan.scan(repository, client, known.ever)
        sweep = gc.judge(repository, held, known, policy)
        if delete:
            sweep = gc.delete(sweep, held, repository, client)
        _tell(sweep)
        sweeps.append(sweep)
    if any(sweep.deleted and sweep.garbage for sweep in sweeps):
        console.info(gc.AFTER)
    found = [entry for sweep in sweeps for entry in sweep.garbage]
    rows: list[Sequence[str]] = [HEAD, *(_row(entry) for entry in found)]
    lines = _options.aligned(rows, right=NUMBERS) if found else []
    _options.answer(sweeps, lines, json=json)


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
            message = f"--ref needs a git revision, {ref or 'an empty word'} is none"
            raise InputError(message, hint="name a commit, a branch or a tag: --ref main")
    if delete and "/" not in place:
        message = f"--delete wants one repository, {place} is a host"
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


def _tell(sweep: Sweep) -> None:
    """What it came to, for people."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(sweep.kept.items()))
    gone = sum(len(entry.manifests) for entry in sweep.garbage)
    word = "deleted" if sweep.deleted else "can go: --delete"
    console.info(
        f"{sweep.repository}: {sweep.manifests} manifests are known there;"
        f" kept: {reasons or 'none'}"
    )
    console.info(
        f"{sweep.repository}: {gone} manifests, {size_text(sweep.size)} that nothing else holds,"
        f" {word if gone else 'nothing to do'}"
    )
