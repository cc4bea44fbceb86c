"""What `imgbuild build` and `compare` share: options of builders other than imgbuild's own."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from imgbuild.cli import _options
from imgbuild.errors import InputError
from imgbuild.plan import current

if TYPE_CHECKING:
    from imgbuild.assemble.layout import BuiltImage
    from imgbuild.matrix.select import Selected
    from imgbuild.pipeline.dockerfile_builders import BuilderChoice, Name
    from imgbuild.pipeline.targets import Session
    from imgbuild.render.contexts import Wheels

PANEL = "With --builder docker, podman or buildah"


class Builder(enum.StrEnum):
    """Who builds. All but `embedded` build the rendered Dockerfile."""

    EMBEDDED = "embedded"
    DOCKER = "docker"
    PODMAN = "podman"
    BUILDAH = "buildah"


Who = Annotated[
    Builder,
    typer.Option(
        "--builder",
        help="embedded gives the sealed digest and needs no engine. docker (through buildx), podman"
        " and buildah build images/TARGET/Dockerfile: the same files, other bytes, by default in"
        " build/BUILDER/TARGET, for this machine's architecture.",
        rich_help_panel=_options.WORK,
    ),
]
BuildxBuilder = Annotated[
    str | None,
    typer.Option(
        "--buildx-builder",
        metavar="NAME",
        help="A builder of buildx (docker buildx ls): a container, Kubernetes, a remote one. Then"
        " every architecture is built.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
CacheFrom = Annotated[
    list[str] | None,
    typer.Option(
        "--cache-from",
        metavar="PLACE",
        help="Steps kept elsewhere, as buildx has it: type=registry,ref=HOST/NAME; repeatable.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
CacheTo = Annotated[
    list[str] | None,
    typer.Option(
        "--cache-to",
        metavar="PLACE",
        help="Where to keep the steps, in the same words.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
Secrets = Annotated[
    list[str] | None,
    typer.Option(
        "--build-secret",
        metavar="ID=FILE",
        help="A file for the steps that mount it by its id; it is in no layer. Repeatable.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        help="The certificates of a proxy, for steps with a network: the secret ca.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]


def choice(
    builder: Builder,
    buildx: str | None,
    cache_from: list[str] | None,
    cache_to: list[str] | None,
    secrets: list[str] | None,
    ca: Path | None,
) -> BuilderChoice | None:
    """How another builder is to work; None for the embedded one, which has no such options."""
    given = [*(secrets or []), *([] if ca is None else [f"ca={ca}"])]
    if builder is Builder.EMBEDDED:
        if buildx or cache_from or cache_to or given:
            message = "the embedded builder has no use for secrets, caches and builders of buildx"
            raise InputError(message, hint="add --builder docker, or leave these options out")
        return None
    from imgbuild.pipeline.dockerfile_builders import BuilderChoice

    files = {}
    for item in given:
        name, _, place = item.partition("=")
        if not name or not Path(place).is_file():
            message = f"--build-secret {item}: {place or 'it'} is no file"
            raise InputError(message, hint="write --build-secret ID=FILE")
        files[name] = Path(place).absolute()
    return BuilderChoice(
        name=cast("Name", builder.value),
        builder=buildx,
        cache_from=tuple(cache_from or ()),
        cache_to=tuple(cache_to or ()),
        secrets=files,
    )


def build(
    session: Session,
    selected: Sequence[Selected],
    output: Path | None,
    chosen: BuilderChoice,
    form: str,
    *,
    named: bool,
) -> list[BuiltImage]:
    """Build by another builder; unless architectures are `named`, those that it runs natively."""
    from imgbuild.pipeline import dockerfile_builders

    if not named and chosen.builder is None:
        selected = [dockerfile_builders.native(item) for item in selected]
    return dockerfile_builders.build_all(session, selected, output, chosen, form=form)


def wheels(session: Session, selected: Sequence[Selected], output: Path | None) -> list[Wheels]:
    """The wheels of each target as a folder."""
    from imgbuild.pipeline import targets
    from imgbuild.render import contexts

    inputs, made = session.inputs(), []
    for item in selected:
        lock, _ = current.read_current(session.project, session.matrix, item.name)
        own = contexts.wheels_folder(session.project, item.name)
        several = len(selected) > 1
        folder = targets.placed(own, item.name, output, several=several, form="oci")
        made.append(contexts.wheels(lock, item.arches, folder, inputs))
    return made
