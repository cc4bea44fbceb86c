"""`imgbuild show --layers`: the layers of images, in order, with what is in each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from imgbuild.cli import _options
from imgbuild.values import Arch

if TYPE_CHECKING:
    from imgbuild.plan.plan import Plan, Recipe
    from imgbuild.plan.seal import SealedImage

PLAN_HEAD = ("target", "arch", "#", "layer", "MB", "unpacked", "contents", "digest")
PLAN_NUMBERS = frozenset({2, 4, 5})


def show(
    wanted: list[str], arches: Sequence[Arch], matrix: Path | None, *, everything: bool, json: bool
) -> None:
    """The layers of each image as a table, or as JSON with every file of each layer."""
    from imgbuild import project
    from imgbuild.cli import _selection
    from imgbuild.plan import plan as plans
    from imgbuild.plan import seal

    found = project.find(matrix)
    chosen = _selection.choose(found, wanted, everything=everything, arches=arches)
    planned = [plans.plan(item.lock, each) for item in chosen for each in item.arches]
    if json:
        _options.answer(planned, [], json=True)
        return
    seals = {item.lock.target: seal.read_seal(found.images, item.lock) for item in chosen}
    rows: list[Sequence[str]] = [PLAN_HEAD]
    for item in planned:
        rows += _plan_rows(item, seals[item.target].arch[item.arch])
    _options.answer(planned, _options.aligned(rows, right=PLAN_NUMBERS), json=False)


def _plan_rows(planned: Plan, sealed: SealedImage) -> list[tuple[str, ...]]:
    """A row for each layer, and the sums said to people."""
    from imgbuild.system.console import console

    pulled, unpacked = sealed.size / 1e9, sum(layer.unpacked for layer in sealed.layers) / 1e9
    console.info(
        f"{planned.target} {planned.arch}: {len(planned.layers)} layers,"
        f" {pulled:.2f} GB to pull, {unpacked:.2f} GB unpacked"
    )
    return [
        (
            planned.target,
            planned.arch,
            str(number),
            layer.name,
            f"{made.size / 1e6:.1f}",
            f"{made.unpacked / 1e6:.1f}" if made.unpacked else "-",
            _contents(layer.recipe),
            made.digest,
        )
        for number, (layer, made) in enumerate(
            zip(planned.layers, sealed.layers, strict=True), start=1
        )
    ]


def _contents(recipe: Recipe) -> str:
    """What is in a layer, in a word or two."""
    from imgbuild.plan.plan import AddedDebsRecipe, AddedFilesRecipe, DebianRecipe, WheelsRecipe

    match recipe:
        case DebianRecipe() | AddedDebsRecipe():
            return f"{len(recipe.debs)} packages"
        case AddedFilesRecipe():
            return f"{len(recipe.files)} files"
        case WheelsRecipe() if len(recipe.wheels) > 1:
            return f"{len(recipe.wheels)} wheels"
        case WheelsRecipe():
            return recipe.wheels[0].version
        case _:
            return "-"
