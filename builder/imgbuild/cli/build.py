"""`imgbuild build`, `plan`, `digest`: from a lock to an image."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from imgbuild.cli import options
from imgbuild.values import Arch, Digest

if TYPE_CHECKING:
    from imgbuild.lock import Lock
    from imgbuild.seal import Seal


class Format(enum.StrEnum):
    """What is left on disk."""

    OCI = "oci"
    OCI_ARCHIVE = "oci-archive"
    DOCKER_ARCHIVE = "docker-archive"


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


def build(
    names: options.Names = None,
    target: options.Targets = None,
    everything: options.Everything = False,
    arch: options.Arches = None,
    output: Output = None,
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="A folder (oci), or one file that docker, podman or skopeo read.",
            rich_help_panel=options.WORK,
        ),
    ] = Format.OCI,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="base",
            help="Build only the base's layers, as an image of their own.",
            rich_help_panel=options.WORK,
            show_default=False,
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Assemble every layer anew, inflating and checking every file.",
            rich_help_panel=options.WORK,
        ),
    ] = False,
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
    """
    from imgbuild import pipeline

    options.configure(json=json, quiet=quiet, verbose=verbose)
    session = pipeline.open_session(
        matrix, pipeline.Options(jobs=options.processes(jobs), offline=offline, verify=verify)
    )
    selected = session.select(
        options.wanted(names, target), everything=everything, arches=arch or []
    )
    made = pipeline.build_all(
        session, selected, output, form=form.value, only_base=_only_base(only)
    )
    lines = [f"{item.target} {item.digest} {item.output}" for item in made]
    options.answer(made, lines, json=json)


def _only_base(only: str | None) -> bool:
    if only not in (None, "base"):
        message = f"--only {only}: only 'base' can be built on its own"
        raise typer.BadParameter(message)
    return only == "base"


def plan(
    name: options.One,
    arch: options.Arches = None,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show the layers of an image, in order, with what is in each. Nothing is fetched or built.

    Example:

        imgbuild plan cu124-vllm --json
    """
    from imgbuild import lock, project, seal
    from imgbuild import plan as plans
    from imgbuild.console import console

    options.configure(json=json, quiet=quiet, verbose=verbose)
    found = project.find(matrix)
    locked = lock.read_lock(found.images, name)
    planned = [plans.plan(locked, each) for each in _present(locked, arch)]
    if json:
        options.answer(planned, [], json=True)
        return
    sealed = seal.read_seal(found.images, locked)
    for item in planned:
        rows = [
            (
                str(number),
                layer.name,
                f"{layer.size / 1e6:,.1f}",
                f"{layer.unpacked / 1e6:,.1f}",
                layer.digest[:19],
            )
            for number, layer in enumerate(sealed.arch[item.arch].layers, 1)
        ]
        console.table(f"{name} {item.arch}", ("", "layer", "MB", "MB unpacked", "digest"), rows)


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
    import fnmatch

    from imgbuild import lock, project, seal
    from imgbuild.errors import NothingSelected

    options.configure(json=json, quiet=quiet, verbose=verbose)
    found = project.find(matrix)
    have = found.sealed()
    patterns = ["*"] if everything else options.wanted(names, target)
    chosen = [name for name in have if any(fnmatch.fnmatchcase(name, each) for each in patterns)]
    if not chosen:
        message = f"no locked target matches {' '.join(patterns) or 'nothing'}"
        raise NothingSelected(message, hint=f"locked are: {', '.join(have) or 'none'}")
    answers = []
    for name in chosen:
        locked = lock.read_lock(found.images, name)
        answers.append(_digests(seal.read_seal(found.images, locked), _present(locked, arch)))
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


def _present(locked: Lock, arch: Sequence[Arch] | None) -> list[Arch]:
    from imgbuild.errors import NothingSelected

    chosen = [each for each in locked.arch if not arch or each in arch]
    if not chosen:
        message = f"{locked.target} has no {', '.join(arch or ())}; it has {', '.join(locked.arch)}"
        raise NothingSelected(message)
    return chosen
