"""`imgbuild build`, `plan`, `digest`: from a lock to an image."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import _builders, _options
from imgbuild.errors import InputError
from imgbuild.values import Arch

if TYPE_CHECKING:
    from imgbuild.pipeline.dockerfile_builders import BuilderChoice
    from imgbuild.pipeline.targets import Options

PLAN_HEAD = ("target", "arch", "#", "layer", "MB", "unpacked", "contents", "digest")
PLAN_NUMBERS = frozenset({2, 4, 5})


class Format(enum.StrEnum):
    """What is left on disk."""

    OCI = "oci"
    OCI_ARCHIVE = "oci-archive"
    DOCKER_ARCHIVE = "docker-archive"


class Only(enum.StrEnum):
    """What a build from a Dockerfile starts from."""

    BASE = "base"
    WHEELS = "wheels"


Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="Where the image goes; by default build/TARGET beside the matrix.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Form = Annotated[
    Format,
    typer.Option(
        "--format",
        help="A folder (oci), or one file that docker, podman or skopeo read.",
        rich_help_panel=_options.WORK,
    ),
]
OnlyPart = Annotated[
    Only | None,
    typer.Option(
        "--only",
        help="What a Dockerfile starts from. base: the base's layers as an image of their own,"
        " by default in build/base/TARGET; wheels: a folder of them, by default in"
        " build/wheels/TARGET.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="REF|FOLDER",
        help="Build from the lock that travels with a published image, or lies in a folder; no"
        " matrix is read, and the image goes to build/TARGET here.",
        rich_help_panel=_options.SELECT,
        show_default=False,
    ),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="Assemble every layer anew, inflating and checking every file.",
        rich_help_panel=_options.WORK,
    ),
]


def build(
    names: _options.Names = None,
    target: _options.Targets = None,
    everything: _options.Everything = False,
    arch: _options.Arches = None,
    origin: From = None,
    output: Output = None,
    form: Form = Format.OCI,
    only: OnlyPart = None,
    builder: _builders.Who = _builders.Builder.EMBEDDED,
    buildx_builder: _builders.BuildxBuilder = None,
    cache_from: _builders.CacheFrom = None,
    cache_to: _builders.CacheTo = None,
    secret: _builders.Secrets = None,
    ca: _builders.Ca = None,
    verify: Verify = False,
    mirror: _options.Mirror = None,
    mirror_only: _options.MirrorOnly = False,
    plain_http: _options.PlainHttp = None,
    jobs: _options.Jobs = 0,
    offline: _options.Offline = False,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Build images from their locks.

    Needs no Docker, no root and no GPU, and builds every architecture on any. What the cache lacks
    is downloaded; the digest must be the sealed one or nothing is left behind. A second build with
    nothing changed takes a moment.

    Examples:

        imgbuild build --target cu124-vllm

        imgbuild build 'cu130-*' --arch arm64 --output images

        imgbuild build cu124-vllm --format docker-archive --output cu124-vllm.tar

        imgbuild build cu124-vllm --builder docker

        imgbuild build cu124-vllm --mirror registry.example/rl/inputs

        imgbuild build --from registry.example/rl:cu124-vllm
    """
    from imgbuild.pipeline import targets

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    how = targets.Options(
        jobs=_options.processes(jobs),
        offline=offline,
        verify=verify,
        mirror=mirror,
        mirror_only=mirror_only,
        plain_http=tuple(plain_http or ()),
    )
    choice = _builders.choice(builder, buildx_builder, cache_from, cache_to, secret, ca)
    if origin is not None:
        _refuse_beside(origin, [names, target, everything, matrix, only, choice])
        _again(origin, arch or [], output, form, how, plain_http or [], json=json)
        return
    session = targets.open_session(matrix, how)
    selected = session.select(
        _options.wanted(names, target), everything=everything, arches=arch or []
    )
    _refuse_only(only, choice, form)
    if only is Only.WHEELS:
        folders = _builders.wheels(session, selected, output)
        lines = [f"{item.target} {item.files} {item.output}" for item in folders]
        _options.answer(folders, lines, json=json)
        return
    if choice is not None:
        made = _builders.build(session, selected, output, choice, form.value, named=bool(arch))
    else:
        made = targets.build_all(
            session, selected, output, form=form.value, only_base=only is Only.BASE
        )
    lines = [f"{item.target} {item.digest} {item.output}" for item in made]
    _options.answer(made, lines, json=json)


def _refuse_beside(origin: str, given: Sequence[object]) -> None:
    if any(given):
        message = f"--from {origin} says what is built and by what"
        raise InputError(message, hint="leave out targets, --all, --matrix, --only and --builder")


def _refuse_only(only: Only | None, choice: BuilderChoice | None, form: Format) -> None:
    if only is not None and (choice is not None or (only is Only.WHEELS and form != Format.OCI)):
        message = f"--only {only} goes with neither another builder nor, for wheels, a --format"
        raise InputError(message, hint="leave out --builder and --format")


def _again(
    origin: str,
    arches: Sequence[Arch],
    output: Path | None,
    form: Format,
    how: Options,
    plain_http: Sequence[str],
    *,
    json: bool,
) -> None:
    """Build what a published image or a folder carries."""
    from imgbuild.pipeline import rebuild

    found = rebuild.find(origin, plain_http=plain_http, offline=how.offline)
    made = rebuild.build(found, arches, output, how, form=form.value)
    _options.answer([made], [f"{made.target} {made.digest} {made.output}"], json=json)
