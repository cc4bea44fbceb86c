"""The parts of `imgbuild build` and `diff --builders` for builders other than imgbuild's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from imgbuild.cli._options import BUILDER, Builder
from imgbuild.cli._verb import Group, option
from imgbuild.errors import InputError
from imgbuild.plan import current

if TYPE_CHECKING:
    from imgbuild.assemble.layout import BuiltImage
    from imgbuild.matrix.select import Selected
    from imgbuild.pipeline.dockerfile_builders import BuilderChoice, Name
    from imgbuild.pipeline.targets import Session
    from imgbuild.render.contexts import Wheels

PANEL = "With --builder docker, podman or buildah"


class DockerfileBuild(Group, frozen=True, kw_only=True):
    """The builder, and the options of builders other than imgbuild's own."""

    builder: Annotated[
        Builder,
        BUILDER(
            "embedded needs no engine and gives the locked digest. docker (buildx), podman and"
            " buildah build images/TARGET/Dockerfile into build/BUILDER/TARGET: the same files"
            " with another digest, for this machine's architecture."
        ),
    ] = Builder.EMBEDDED
    buildx_builder: Annotated[
        str | None,
        option(
            "--buildx-builder",
            "A builder of buildx (see docker buildx ls); then every architecture is built.",
            panel=PANEL,
            metavar="NAME",
        ),
    ] = None
    cache_from: Annotated[
        list[str] | None,
        option(
            "--cache-from",
            "A cache to read, as for buildx: type=registry,ref=HOST/NAME; repeatable.",
            panel=PANEL,
            metavar="PLACE",
        ),
    ] = None
    cache_to: Annotated[
        list[str] | None,
        option("--cache-to", "A cache to write, as for buildx.", panel=PANEL, metavar="PLACE"),
    ] = None
    build_secret: Annotated[
        list[str] | None,
        option(
            "--build-secret",
            "A secret file, which build steps mount by its id; it is in no layer; repeatable.",
            panel=PANEL,
            metavar="ID=FILE",
        ),
    ] = None
    ca: Annotated[
        Path | None,
        option(
            "--ca",
            "Certificates of a proxy, for build steps that use the network (the secret `ca`).",
            panel=PANEL,
            metavar="FILE",
        ),
    ] = None


def choice(options: DockerfileBuild) -> BuilderChoice | None:
    """How another builder is to work; None for the embedded one, which has no such options."""
    given = [*(options.build_secret or []), *([] if options.ca is None else [f"ca={options.ca}"])]
    if options.builder is Builder.EMBEDDED:
        if options.buildx_builder or options.cache_from or options.cache_to or given:
            message = "secrets, caches and builders of buildx need another --builder"
            raise InputError(message, hint="add --builder docker, or leave these options out")
        return None
    from imgbuild.pipeline.dockerfile_builders import BuilderChoice

    files = {}
    for item in given:
        name, _, place = item.partition("=")
        if not name or not Path(place).is_file():
            message = f"--build-secret {item}: {place or 'the file'} does not exist"
            raise InputError(message, hint="write --build-secret ID=FILE")
        files[name] = Path(place).absolute()
    return BuilderChoice(
        name=cast("Name", options.builder.value),
        builder=options.buildx_builder,
        cache_from=tuple(options.cache_from or ()),
        cache_to=tuple(options.cache_to or ()),
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
        default = contexts.wheels_folder(session.project, item.name)
        several = len(selected) > 1
        folder = targets.placed(default, item.name, output, several=several, form="oci")
        made.append(contexts.wheels(lock, item.arches, folder, inputs))
    return made
