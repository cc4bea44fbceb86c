"""`imgbuild diff`: two images of any kind, compared by packages and bytes."""

from __future__ import annotations

from typing import Annotated

import typer

from imgbuild.cli import options


def diff(
    left: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A target, TARGET@REVISION of git, a lock.json or its folder, or a reference.",
        ),
    ],
    right: Annotated[str, typer.Argument(metavar="B", help="The same, for the other one.")],
    plain_http: options.PlainHttp = None,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Say what differs from image A to image B: packages, and the bytes of layers a pull moves.

    Wheels and Debian packages that came, went or changed, for each architecture. An image in a
    registry is read with the lock that travels with it; no layer is fetched.

    Examples:

        imgbuild diff cu124-vllm@main cu124-vllm

        imgbuild diff registry.example/rl:cu124-vllm-20261114 registry.example/rl:cu124-vllm
    """
    from imgbuild.registry.client import Client
    from imgbuild.show import diff as diffs
    from imgbuild.show import diff_sides

    options.configure(json=json, quiet=quiet, verbose=verbose)
    client = Client(plain_http=plain_http or ())
    old, new = (diff_sides.side(name, client, matrix) for name in (left, right))
    found = diffs.between(old, new)
    options.answer(found, diffs.words(found), json=json)
