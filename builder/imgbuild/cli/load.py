"""`imgbuild load`: hand an image that was built to Docker or podman."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from imgbuild.cli import _options
from imgbuild.cli._options import LayoutFolder, Through
from imgbuild.cli._selection import one_arch, same_image
from imgbuild.errors import InputError
from imgbuild.system.console import console


class LoadedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that an engine has now."""

    target: str
    engine: str
    reference: str
    id: str


def load(
    names: _options.Names = None,
    target: _options.Targets = None,
    everything: _options.Everything = False,
    arch: _options.OneArch = None,
    layout: LayoutFolder = None,
    engine: Annotated[
        Through | None,
        typer.Option(
            "--engine",
            help="docker or podman; by default the one that answers.",
            rich_help_panel=_options.WORK,
            show_default=False,
        ),
    ] = None,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Load built images into Docker or podman, and check that they arrived as they are.

    Exit status 6 if no engine answers.

    Example:

        imgbuild load cu124-vllm
    """
    from imgbuild.container import engine as engines
    from imgbuild.pipeline import targets

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    if engine is Through.ROOT:
        message = "--engine root: a root folder is no engine"
        raise InputError(message, hint="name docker or podman; imgbuild run needs no engine")
    session = targets.open_session(matrix, targets.Options())
    selected = session.select(_options.wanted(names, target), everything=everything, arches=[])
    same_image(selected, layout)
    found = engines.require(engine.value if engine else None, reporter=console)
    done = []
    for item in selected:
        built = targets.built_layout(session, item.name, layout)
        with console.step(f"loading {item.name} into {found.kind}"):
            only = one_arch(built, arch)
            loaded = engines.load(found, built, only, item.name, reporter=console)
        done.append(
            LoadedImage(
                target=item.name, engine=found.kind, reference=loaded.reference, id=loaded.id
            )
        )
    _options.answer(done, [f"{item.reference} {item.id}" for item in done], json=json)
