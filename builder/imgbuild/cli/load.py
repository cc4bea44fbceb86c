"""Implements `imgbuild load`, which loads images into Docker or podman."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from imgbuild.cli._help import create_command
from imgbuild.cli._options import THROUGH, LayoutFolder
from imgbuild.cli._output import fold_lines, print_result
from imgbuild.cli._selection import selected_arch
from imgbuild.cli._sessions import refuse_shared_layout
from imgbuild.cli._targets import SelectionOptions
from imgbuild.cli._verb import create_verb
from imgbuild.container.engine import require_engine
from imgbuild.container.load import load_image
from imgbuild.pipeline import run_target
from imgbuild.pipeline.session import open_session
from imgbuild.system.console import console


class LoadedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that was loaded into an engine."""

    target: str
    engine: str
    reference: str
    id: str


@create_verb
def load(
    selection: SelectionOptions,
    through: Annotated[
        Literal["docker", "podman"] | None,
        THROUGH("Choices: docker, podman. Default: the engine that is running."),
    ] = None,
    layout: LayoutFolder = None,
) -> None:
    """Load images into Docker or podman, and build missing images.

    Prints the name and the ID of each image in the engine. The ID is the digest of the image or of
    its configuration, depending on the engine. Verifies that the loaded image equals the built
    image. Exits with status 6 if neither Docker nor podman responds.

    Example:

        imgbuild load cu124-vllm
    """
    session = open_session(selection.matrix, names=selection.named_targets)
    selected = session.select_targets(
        selection.named_targets, everything=selection.everything, arches=[]
    )
    refuse_shared_layout(selected, layout)
    engine = require_engine(through)
    done = []
    for item in selected:
        image = run_target.find_run_target(session, item.name, layout)
        arch = selected_arch(image.arches, image.place, selection.arch)
        built = run_target.build_if_missing(session, image, arch)
        loaded = load_image(engine, built, arch, item.name, reporter=console)
        done.append(
            LoadedImage(
                target=item.name, engine=engine.kind, reference=loaded.reference, id=loaded.id
            )
        )
    print_result(done, fold_lines(f"{item.reference} {item.id}" for item in done))


COMMAND = create_command(load)
