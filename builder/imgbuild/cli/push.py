"""Implements `imgbuild push`, which pushes images from locks to a registry."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from imgbuild import codec
from imgbuild.attest.signing import keys
from imgbuild.attest.signing.keys import PrivateKey
from imgbuild.cache import prune
from imgbuild.cli import _sif
from imgbuild.cli._help import create_command
from imgbuild.cli._options import (
    DRY_RUN,
    PART,
    ImagePart,
    Jobs,
    LayoutFolder,
    Offline,
    PlainHttp,
    SignKey,
    process_count,
)
from imgbuild.cli._output import align_columns, fold_lines, print_result
from imgbuild.cli._selection import require_no_host, split_places
from imgbuild.cli._sessions import select_targets
from imgbuild.cli._targets import FilterOptions
from imgbuild.cli._verb import create_verb, option
from imgbuild.errors import InputError
from imgbuild.pipeline.session import Session, SessionOptions, open_session
from imgbuild.publish import push as pushes
from imgbuild.publish.push import PushedTarget
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import Repository, parse_repository
from imgbuild.system import files
from imgbuild.system.console import console

HEAD = ("target", "arch", "layer", "MB", "in the registry", "digest")
NUMBERS = frozenset({3})

Places = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TARGET... HOST/REPOSITORY",
        help="The targets to push, and the repository to push to. Default repository: `registry` "
        "in the matrix.",
        show_default=False,
    ),
]
MountFrom = Annotated[
    list[str] | None,
    option(
        "--mount-from",
        "Mount layers from this repository of the same registry instead of sending them. Can be "
        "repeated. Layers are always mounted from `registry` in the matrix and from the "
        "repositories of extended targets and of bases.",
        metavar="HOST/REPOSITORY",
    ),
]
DigestOnly = Annotated[
    bool,
    option(
        "--digest-only",
        "Push without a tag. Add tags later with `imgbuild registry tag`, for example after tests.",
        often=True,
    ),
]
DigestFile = Annotated[
    Path | None,
    option(
        "--digest-file",
        "Write a line to this file for each pushed target: TARGET HOST/REPOSITORY@DIGEST.",
        metavar="FILE",
    ),
]
Attach = Annotated[
    bool,
    option(
        "--attach/--no-attach", "Also push the SBOMs, the provenance and the lock of the image."
    ),
]
Sif = Annotated[
    bool,
    option(
        "--sif",
        "Push a SIF file of the image in build/TARGET to the same repository, with the tag "
        "TARGET-ARCH-sif. To pull the file, use `apptainer pull oras://...`.",
        often=True,
    ),
]


PartOption = Annotated[
    ImagePart | None,
    PART("Only base can be pushed. Dockerfiles of `render --online` use the pushed base."),
]
DryRunOption = Annotated[
    bool, DRY_RUN("For each layer, print whether it would be sent, mounted or skipped.")
]


@create_verb
def push(
    selection: FilterOptions,
    places: Places = None,
    part: PartOption = None,
    sif: Sif = False,
    compress: _sif.CompressOption = "zstd",
    layout: LayoutFolder = None,
    dry_run: DryRunOption = False,
    digest_only: DigestOnly = False,
    digest_file: DigestFile = None,
    mount_from: MountFrom = None,
    attach: Attach = True,
    sign_key: SignKey = None,
    plain_http: PlainHttp = None,
    jobs: Jobs = 0,
    offline: Offline = False,
) -> None:
    """Push images to a registry.

    Layers that the registry already has are neither built nor downloaded. Pushes blobs first, then
    manifests, then the tags TARGET and TARGET-YYYYMMDD, so that a tag always refers to a complete
    image. To continue an interrupted push, run the command again. If only some architectures of a
    target are pushed, the tags include the architectures.

    Examples:

        imgbuild push cu124-vllm registry.example/rl

        imgbuild push 'cu130-*' registry.example/rl --dry-run

        imgbuild push cu124-vllm registry.example/rl --digest-only --digest-file pushed.txt

        imgbuild push cu124-vllm registry.example/rl --sif
    """
    names, place = split_places(places)
    how = SessionOptions(jobs=process_count(jobs), offline=offline)
    if part == "wheels":
        message = "--only wheels: wheels cannot be pushed"
        raise InputError(message, hint="use --only base, or omit --only")
    if sif:
        given = [part, dry_run, digest_only, digest_file, mount_from, sign_key]
        if any(given):
            message = "--sif cannot be combined with options that apply only to images"
            raise InputError(message, hint="push the image first, then the SIF file")
        client = RegistryClient(plain_http=plain_http or (), origin=True, reporter=console)
        repository = _repository(place, None if place else open_session(selection.matrix, how))
        _sif.push_sifs(selection, names, repository, client, layout, compress, how)
        return
    if layout is not None or compress != "zstd":
        message = "--layout and --compress require --sif"
        raise InputError(message, hint="add --sif, or omit these options")
    if digest_file is not None:
        files.require_writable([digest_file], hint="choose another path with --digest-file")
    session = open_session(selection.matrix, how, [*names, *selection.named_targets])
    if place is None:
        require_no_host(names, session.matrix.targets)
    repository = _repository(place, session)
    key = _read_signing_key(sign_key)
    day = datetime.datetime.now(datetime.UTC).date()
    chosen = select_targets(selection, session, names)
    plans = pushes.plan_pushes(session, chosen, date=day, only_base=part == "base")
    work = pushes.push_context(
        session, repository, mount_from or [], plain_http or [],
        tag=not digest_only, attach=attach, key=key,
    )  # fmt: skip
    if dry_run:
        _plan(pushes.plan_uploads(work, plans))
    else:
        pushed = [pushes.push_target(work, plan) for plan in plans]
        prune.trim_cache(work.inputs.store)
        _report_pushed(pushed, digest_file)


def _plan(planned: Sequence[PushedTarget]) -> None:
    _report(planned)
    print_result(planned, _table(planned))


def _report_pushed(pushed: Sequence[PushedTarget], file: Path | None) -> None:
    lines = [f"{item.target} {item.reference}" for item in pushed]
    if file is not None:
        codec.write_bytes(file, "".join(f"{line}\n" for line in lines).encode())
    print_result(pushed, fold_lines(lines))


def _read_signing_key(path: Path | None) -> PrivateKey | None:
    if path is None:
        return None

    return keys.load_private(path)


def _repository(place: str | None, session: Session | None) -> Repository:
    named = place or (session.matrix.registry if session else None)
    if named is None:
        message = "no repository is specified"
        hint = (
            "run imgbuild push TARGET HOST/REPOSITORY, or set registry: HOST/REPOSITORY in the"
            " matrix"
        )
        raise InputError(message, hint=hint)
    return parse_repository(named)


def _table(pushed: Sequence[PushedTarget]) -> list[str]:
    rows = [
        (
            item.target,
            "+".join(row.arches),
            row.name,
            f"{row.size / 1e6:.1f}",
            f"mountable from {row.source}" if row.source else row.state.value,
            row.digest,
        )
        for item in pushed
        for row in item.blobs
    ]
    return align_columns([HEAD, *rows], right=NUMBERS)


def _report(pushed: Sequence[PushedTarget]) -> None:
    for item in pushed:
        console.info(f"{item.target}: {item.sent / 1e6:,.1f} MB to send for {item.reference}")
    console.info(f"{sum(item.sent for item in pushed) / 1e6:,.1f} MB in total")


COMMAND = create_command(push)
