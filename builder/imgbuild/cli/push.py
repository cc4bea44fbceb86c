"""`imgbuild push`, `tag`: from locks into a registry, and the names that images have there."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import _options
from imgbuild.errors import InputError
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.attest.signing.keys import PrivateKey
    from imgbuild.pipeline.targets import Session
    from imgbuild.publish.push import Pushed
    from imgbuild.registry.reference import Repository

HEAD = ("target", "arch", "layer", "MB", "in the registry", "digest")
NUMBERS = frozenset({3})


class Only(enum.StrEnum):
    """What of an image is pushed."""

    BASE = "base"


def _day(text: object) -> datetime.date:
    try:
        return datetime.date.fromisoformat(str(text))
    except ValueError as error:
        message = f"{str(text)!r} is no day; write 2026-11-21 or 20261121"
        raise typer.BadParameter(message) from error


Places = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TARGET]... [HOST/REPOSITORY]",
        help="Targets, and where they go; by default the `registry` of the matrix.",
        show_default=False,
    ),
]
OnlyPart = Annotated[
    Only | None,
    typer.Option(
        "--only",
        help="base: the base's layers as an image of their own, for Dockerfiles of"
        " `render --online`.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
MountFrom = Annotated[
    list[str] | None,
    typer.Option(
        "--mount-from",
        metavar="HOST/REPOSITORY",
        help="Another repository of the same registry that may have layers: they are mounted, not"
        " sent; repeatable. Known by themselves: the matrix's `registry`, published targets that"
        " are extended, registry bases.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Date = Annotated[
    datetime.date | None,
    typer.Option(
        "--date",
        metavar="DAY",
        parser=_day,
        help="The day of the second tag, TARGET-YYYYMMDD; by default today in UTC.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
DigestOnly = Annotated[
    bool,
    typer.Option(
        "--digest-only",
        help="Put no tag: `imgbuild registry tag` does that once the image has passed its tests.",
        rich_help_panel=_options.WORK,
    ),
]
DigestFile = Annotated[
    Path | None,
    typer.Option(
        "--digest-file",
        metavar="FILE",
        help="When all is pushed, write a line for each target: TARGET HOST/REPOSITORY@DIGEST.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Say what each layer would move, what is there and what can be mounted. Nothing is"
        " sent, built or downloaded.",
        rich_help_panel=_options.WORK,
    ),
]
Attach = Annotated[
    bool,
    typer.Option(
        "--attach/--no-attach",
        help="Put bills of materials, provenance and the lock beside the image.",
        rich_help_panel=_options.WORK,
    ),
]
SignKey = Annotated[
    Path | None,
    typer.Option(
        "--sign-key",
        metavar="FILE",
        help="Sign the image and what is attached with this private key, as cosign does, before"
        " any tag is put.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]


def push(
    places: Places = None,
    target: _options.Targets = None,
    everything: _options.Everything = False,
    arch: _options.Arches = None,
    only: OnlyPart = None,
    dry_run: DryRun = False,
    digest_only: DigestOnly = False,
    digest_file: DigestFile = None,
    date: Date = None,
    mount_from: MountFrom = None,
    attach: Attach = True,
    sign_key: SignKey = None,
    plain_http: _options.PlainHttp = None,
    jobs: _options.Jobs = 0,
    offline: _options.Offline = False,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Push images to a registry: only what it lacks is built and sent.

    Digests come from the lock, so a layer that the registry has is neither built nor downloaded.
    Blobs go first, then manifests, then the tags TARGET and TARGET-YYYYMMDD: no tag ever names an
    image that is not whole. A second run goes on where an interrupted one stopped. An image of
    fewer architectures than the target has gets tags that say so.

    Examples:

        imgbuild push --target cu124-vllm registry.example/rl

        imgbuild push 'cu130-*' registry.example/rl --dry-run

        imgbuild push cu124-vllm registry.example/rl --digest-only --digest-file pushed.txt
    """
    from imgbuild.cache import prune
    from imgbuild.pipeline import targets
    from imgbuild.publish import push as pushes

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    names, place = _split(places or [])
    key = _key(sign_key)
    session = targets.open_session(
        matrix, targets.Options(jobs=_options.processes(jobs), offline=offline)
    )
    repository = _repository(session, place)
    selected = session.select(
        _options.wanted(names, target), everything=everything, arches=arch or []
    )
    day = date or datetime.datetime.now(datetime.UTC).date()
    plans = pushes.plans(session, selected, date=day, only_base=only is Only.BASE)
    work = pushes.work(
        session,
        repository,
        mount_from or [],
        plain_http or [],
        tag=not digest_only,
        attach=attach,
        key=key,
        reporter=console,
    )
    if dry_run:
        made = pushes.dry_run(work, plans)
        _told(made)
        _options.answer(made, _table(made), json=json)
        return
    made = [pushes.push(work, plan) for plan in plans]
    prune.trim(work.inputs.store)
    lines = [f"{item.target} {item.reference}" for item in made]
    if digest_file is not None:
        from imgbuild import codec

        codec.write_bytes(digest_file, "".join(f"{line}\n" for line in lines).encode())
    _options.answer(made, lines, json=json)


def _key(path: Path | None) -> PrivateKey | None:
    """The key to sign with, read before anything is sent: its password may be asked for."""
    if path is None:
        return None
    from imgbuild.attest.signing import keys

    return keys.load_private(path)


def _split(places: Sequence[str]) -> tuple[list[str], str | None]:
    """Names of targets, and the repository: the one word with a slash, which no target has."""
    slashed = [word for word in places if "/" in word]
    if len(slashed) > 1:
        message = f"{' and '.join(slashed)}: images are pushed to one repository at a time"
        raise InputError(message, hint="name one HOST/REPOSITORY")
    return [word for word in places if "/" not in word], slashed[0] if slashed else None


def _repository(session: Session, place: str | None) -> Repository:
    from imgbuild.registry.reference import parse_repository

    named = place or session.matrix.registry
    if named is None:
        message = "no registry is named"
        hint = (
            "imgbuild push TARGET HOST/REPOSITORY, or write registry: HOST/REPOSITORY in the matrix"
        )
        raise InputError(message, hint=hint)
    return parse_repository(named)


def _table(made: Sequence[Pushed]) -> list[str]:
    rows = [
        (
            item.target,
            "+".join(row.arches),
            row.name,
            f"{row.size / 1e6:.1f}",
            f"mountable from {row.source}" if row.source else row.state.value,
            row.digest,
        )
        for item in made
        for row in item.blobs
    ]
    return _options.aligned([HEAD, *rows], right=NUMBERS)


def _told(made: Sequence[Pushed]) -> None:
    for item in made:
        console.info(f"{item.target}: {item.sent / 1e6:,.1f} MB to send for {item.reference}")
    console.info(f"{sum(item.sent for item in made) / 1e6:,.1f} MB in all")
