"""`imgbuild pull`: an image from a registry into an OCI layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imgbuild.cli import _options
from imgbuild.errors import InputError
from imgbuild.system.console import console

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="The folder of the layout; by default one here, named as the tag or the repository.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]


def pull(
    reference: Annotated[
        str, typer.Argument(metavar="REF", help="An image in a registry, by tag or digest.")
    ],
    arch: _options.OneArch = None,
    output: Output = None,
    plain_http: _options.PlainHttp = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Pull an image from a registry into an OCI layout, with the digest that it has there.

    All architectures unless --arch names one. Layers that the cache has are linked, others are
    downloaded into it; each is checked against its digest. An interrupted pull goes on from its
    last byte.

    Examples:

        imgbuild pull registry.example/rl:cu124-vllm

        imgbuild pull registry.example/rl:cu130-vllm --arch arm64 --output image
    """
    from imgbuild.cache import prune
    from imgbuild.cache.store import Store
    from imgbuild.publish import pull as pulls
    from imgbuild.registry.client import Client
    from imgbuild.registry.reference import parse

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    found = parse(reference, default_tag="latest")
    if arch and len(arch) > 1:
        message = f"--arch {' --arch '.join(arch)}: a part of an image is one architecture"
        raise InputError(message, hint="name one, or none for all")
    store = Store.open()
    client = Client(plain_http=plain_http or (), reporter=console)
    place = output or Path(pulls.name(found))
    with console.step(f"pulling {found}"):
        made = pulls.pull(client, found, place, store, arch[0] if arch else None)
    prune.trim(store)
    work = "nothing to do" if made.unchanged else f"{made.moved / 1e6:,.1f} MB downloaded"
    console.info(f"{made.size / 1e9:.2f} GB in {made.output}, {work}")
    _options.answer(made, [f"{made.digest} {made.output}"], json=json)
