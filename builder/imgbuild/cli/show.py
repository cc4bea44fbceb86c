"""`imgbuild show`: what one image is, or the parts of it that an option names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imgbuild.cli import _options, _show_env, _show_layers, _show_sbom
from imgbuild.errors import InputError

Layers = Annotated[
    bool,
    typer.Option("--layers", help="The layers, in order.", rich_help_panel=_options.WORK),
]
Env = Annotated[
    bool,
    typer.Option("--env", help="The environment variables.", rich_help_panel=_options.WORK),
]
Sbom = Annotated[
    _show_sbom.Form | None,
    typer.Option(
        "--sbom",
        help="The SBOM: CycloneDX 1.6 or SPDX 2.3, in JSON.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="With --sbom: a file for one SBOM, a folder for several; by default stdout.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]


def show(
    names: _options.Names = None,
    target: _options.Targets = None,
    everything: _options.Everything = False,
    arch: _options.Arches = None,
    layers: Layers = False,
    env: Env = False,
    sbom: Sbom = None,
    output: Output = None,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Show what is in an image.

    Examples:

        imgbuild show cu124-vllm --layers

        imgbuild show cu130-vllm --env --json

        imgbuild show cu124-vllm --sbom cyclonedx > cu124-vllm.cdx.json
    """
    _options.configure(json=json, quiet=quiet, verbose=verbose)
    if sum((layers, env, sbom is not None)) != 1:
        message = "--layers, --env and --sbom cannot be combined"
        raise InputError(message, hint="give one of them")
    wanted = _options.wanted(names, target)
    if layers:
        _show_layers.show(wanted, arch or [], matrix, everything=everything, json=json)
    elif env:
        _show_env.show(wanted, arch or [], matrix, everything=everything, json=json)
    elif sbom is not None:
        _show_sbom.show(wanted, arch or [], matrix, sbom, output, everything=everything, json=json)
