"""`imgbuild prove`: runs of the smoke tests that were made elsewhere, put into the ledgers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import options
from imgbuild.system.console import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imgbuild.smoke.proofs import Recorded

Paths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH...",
        help="A file that `imgbuild smoke --json` wrote, or the folder of a job of"
        " `imgbuild ci run`.",
    ),
]


def prove(
    paths: Paths,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Record runs of the smoke tests that other machines made, passed or failed.

    Each goes into images/TARGET/smoke.json, from which `imgbuild matrix` says which digests were
    proven where. A run is refused, and then none of all is recorded, if it is not of the image that
    the target's seal has (by its configuration and the diff ids of its layers), not of the whole
    tier, without an end, or damaged. On this machine `imgbuild smoke --record` does it at once.

    Examples:

        imgbuild prove out/

        imgbuild prove build/ci/cu124-vllm@x86_64 answer.json
    """
    from imgbuild.cache.store import Store
    from imgbuild.project import find
    from imgbuild.smoke import proofs, reports

    options.configure(json=json, quiet=quiet, verbose=verbose)
    project = find(matrix)
    found = [claim for path in paths for claim in reports.claims(path, project)]
    recorded = proofs.prove(project, found, Store.open())
    tell(recorded)
    lines = [f"{each.target} {each.arch} {each.tier} {each.result}" for each in recorded]
    options.answer(recorded, lines, json=json)


def tell(recorded: Sequence[Recorded]) -> None:
    """Say where runs were put, and what is made from it."""
    for path in dict.fromkeys(each.ledger for each in recorded):
        own = [each for each in recorded if each.ledger == path]
        fresh = sum(each.new for each in own)
        console.info(f"{path}: {fresh} new, {len(own) - fresh} known before")
    if any(each.new for each in recorded):
        console.info("commit it; tables of images show it after: imgbuild matrix --into README.md")
