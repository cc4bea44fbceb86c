"""`imgbuild build`, `plan`, `digest`: from a lock to an image."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from imgbuild.cli import elsewhere, options
from imgbuild.errors import InputError
from imgbuild.values import Arch, Digest

if TYPE_CHECKING:
    from imgbuild.pipeline.dockerfile_builders import BuilderChoice
    from imgbuild.pipeline.targets import Options
    from imgbuild.plan.plan import Plan, Recipe
    from imgbuild.plan.seal import Seal, SealedImage

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
        rich_help_panel=options.WORK,
        show_default=False,
    ),
]
Form = Annotated[
    Format,
    typer.Option(
        "--format",
        help="A folder (oci), or one file that docker, podman or skopeo read.",
        rich_help_panel=options.WORK,
    ),
]
OnlyPart = Annotated[
    Only | None,
    typer.Option(
        "--only",
        help="What a Dockerfile starts from. base: the base's layers as an image of their own,"
        " by default in build/base/TARGET; wheels: a folder of them, by default in"
        " build/wheels/TARGET.",
        rich_help_panel=options.WORK,
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
        rich_help_panel=options.SELECT,
        show_default=False,
    ),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="Assemble every layer anew, inflating and checking every file.",
        rich_help_panel=options.WORK,
    ),
]


def build(
    names: options.Names = None,
    target: options.Targets = None,
    everything: options.Everything = False,
    arch: options.Arches = None,
    origin: From = None,
    output: Output = None,
    form: Form = Format.OCI,
    only: OnlyPart = None,
    builder: elsewhere.Who = elsewhere.Builder.EMBEDDED,
    buildx_builder: elsewhere.BuildxBuilder = None,
    cache_from: elsewhere.CacheFrom = None,
    cache_to: elsewhere.CacheTo = None,
    secret: elsewhere.Secrets = None,
    ca: elsewhere.Ca = None,
    verify: Verify = False,
    mirror: options.Mirror = None,
    mirror_only: options.MirrorOnly = False,
    plain_http: options.PlainHttp = None,
    jobs: options.Jobs = 0,
    offline: options.Offline = False,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
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

    options.configure(json=json, quiet=quiet, verbose=verbose)
    how = targets.Options(
        jobs=options.processes(jobs),
        offline=offline,
        verify=verify,
        mirror=mirror,
        mirror_only=mirror_only,
        plain_http=tuple(plain_http or ()),
    )
    choice = elsewhere.choice(builder, buildx_builder, cache_from, cache_to, secret, ca)
    if origin is not None:
        _refuse_beside(origin, [names, target, everything, matrix, only, choice])
        _again(origin, arch or [], output, form, how, plain_http or [], json=json)
        return
    session = targets.open_session(matrix, how)
    selected = session.select(
        options.wanted(names, target), everything=everything, arches=arch or []
    )
    _refuse_only(only, choice, form)
    if only is Only.WHEELS:
        folders = elsewhere.wheels(session, selected, output)
        lines = [f"{item.target} {item.files} {item.output}" for item in folders]
        options.answer(folders, lines, json=json)
        return
    if choice is not None:
        made = elsewhere.build(session, selected, output, choice, form.value, named=bool(arch))
    else:
        made = targets.build_all(
            session, selected, output, form=form.value, only_base=only is Only.BASE
        )
    lines = [f"{item.target} {item.digest} {item.output}" for item in made]
    options.answer(made, lines, json=json)


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
    options.answer([made], [f"{made.target} {made.digest} {made.output}"], json=json)


def plan(
    names: options.Names = None,
    target: options.Targets = None,
    everything: options.Everything = False,
    arch: options.Arches = None,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show the layers of images, in order, with what is in each. Nothing is fetched or built.

    Columns: target, architecture, place, name, MB to pull, MB unpacked (- where a registry does not
    say), contents, digest. --json has every file of each layer.

    Examples:

        imgbuild plan cu124-vllm

        imgbuild plan cu130-vllm --arch arm64 --json
    """
    from imgbuild import project
    from imgbuild.cli import locked
    from imgbuild.plan import plan as plans
    from imgbuild.plan import seal

    options.configure(json=json, quiet=quiet, verbose=verbose)
    found = project.find(matrix)
    wanted = options.wanted(names, target)
    chosen = locked.choose(found, wanted, everything=everything, arches=arch or [])
    planned = [plans.plan(item.lock, each) for item in chosen for each in item.arches]
    if json:
        options.answer(planned, [], json=True)
        return
    seals = {item.lock.target: seal.read_seal(found.images, item.lock) for item in chosen}
    rows: list[Sequence[str]] = [PLAN_HEAD]
    for item in planned:
        rows += _plan_rows(item, seals[item.target].arch[item.arch])
    options.answer(planned, options.aligned(rows, right=PLAN_NUMBERS), json=False)


def _plan_rows(planned: Plan, sealed: SealedImage) -> list[tuple[str, ...]]:
    """A row for each layer, and the sums said to people."""
    from imgbuild.system.console import console

    pulled, unpacked = sealed.size / 1e9, sum(layer.unpacked for layer in sealed.layers) / 1e9
    console.info(
        f"{planned.target} {planned.arch}: {len(planned.layers)} layers,"
        f" {pulled:.2f} GB to pull, {unpacked:.2f} GB unpacked"
    )
    return [
        (
            planned.target,
            planned.arch,
            str(number),
            layer.name,
            f"{made.size / 1e6:.1f}",
            f"{made.unpacked / 1e6:.1f}" if made.unpacked else "-",
            _contents(layer.recipe),
            made.digest,
        )
        for number, (layer, made) in enumerate(
            zip(planned.layers, sealed.layers, strict=True), start=1
        )
    ]


def _contents(recipe: Recipe) -> str:
    """What is in a layer, in a word or two."""
    from imgbuild.plan.plan import AddedDebsRecipe, AddedFilesRecipe, DebianRecipe, WheelsRecipe

    match recipe:
        case DebianRecipe() | AddedDebsRecipe():
            return f"{len(recipe.debs)} packages"
        case AddedFilesRecipe():
            return f"{len(recipe.files)} files"
        case WheelsRecipe() if len(recipe.wheels) > 1:
            return f"{len(recipe.wheels)} wheels"
        case WheelsRecipe():
            return recipe.wheels[0].version
        case _:
            return "-"


class Digests(msgspec.Struct, frozen=True, kw_only=True):
    """The digests of a target: of the whole, and of the manifest on each architecture."""

    target: str
    digest: Digest
    arch: dict[Arch, Digest]


def digest(
    names: options.Names = None,
    target: options.Targets = None,
    everything: options.Everything = False,
    arch: options.Arches = None,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Print the digest of an image from its lock alone: nothing is read but two files.

    One architecture: its manifest's digest. Several: the index's.

    Example:

        docker pull "registry.example/rl@$(imgbuild digest cu124-vllm)"
    """
    from imgbuild import project
    from imgbuild.cli import locked
    from imgbuild.plan import seal

    options.configure(json=json, quiet=quiet, verbose=verbose)
    found = project.find(matrix)
    wanted = options.wanted(names, target)
    chosen = locked.choose(found, wanted, everything=everything, arches=arch or [])
    answers = [_digests(seal.read_seal(found.images, item.lock), item.arches) for item in chosen]
    one = len(answers) == 1
    lines = [item.digest if one else f"{item.target} {item.digest}" for item in answers]
    options.answer(answers, lines, json=json)


def _digests(sealed: Seal, arches: Sequence[Arch]) -> Digests:
    every = set(arches) == set(sealed.arch)
    return Digests(
        target=sealed.target,
        digest=sealed.digest if every else sealed.arch[arches[0]].manifest,
        arch={each: sealed.arch[each].manifest for each in arches},
    )
