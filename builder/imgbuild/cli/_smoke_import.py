"""`imgbuild smoke --import`: add smoke tests that ran elsewhere to the test records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from imgbuild.cli import _options
from imgbuild.system.console import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imgbuild.smoke.proofs import Recorded


def record(paths: Sequence[Path], matrix: Path | None, *, json: bool) -> None:
    """Add the runs in `paths` to images/TARGET/smoke.json; none of them if one is refused."""
    from imgbuild.cache.store import Store
    from imgbuild.project import find
    from imgbuild.smoke import proofs, reports

    project = find(matrix)
    found = [claim for path in paths for claim in reports.image_runs(path, project)]
    recorded = proofs.prove(project, found, Store.open())
    tell(recorded)
    lines = [f"{each.target} {each.arch} {each.tier} {each.result}" for each in recorded]
    _options.answer(recorded, lines, json=json)


def tell(recorded: Sequence[Recorded]) -> None:
    """Say which test records have changed, and what is made from them."""
    for path in dict.fromkeys(each.ledger for each in recorded):
        own = [each for each in recorded if each.ledger == path]
        fresh = sum(each.new for each in own)
        console.info(f"{path}: {fresh} new, {len(own) - fresh} known before")
    if any(each.new for each in recorded):
        console.info("commit it; to update tables of images: imgbuild list --into README.md")
