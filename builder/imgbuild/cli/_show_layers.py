"""`imgbuild show --layers`: the layers of images, in order, with what is in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from imgbuild.cli._output import aligned, answer, count
from imgbuild.cli._targets import Selection
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.plan.plan import Plan, Recipe
    from imgbuild.plan.seal import SealedImage

HEAD = ("target", "arch", "#", "layer", "MB", "unpacked", "contents", "digest")
NUMBERS = frozenset({2, 4, 5})


def show(selection: Selection) -> None:
    """The layers of each image as a table, or as JSON with every file of each layer."""
    from imgbuild.plan import plan as plans
    from imgbuild.plan import seal

    project = selection.project()
    chosen = selection.locked(project)
    planned = [plans.plan(item.lock, each) for item in chosen for each in item.arches]
    if console.json:
        answer(planned, [])
        return
    seals = {item.lock.target: seal.read_seal(project.images, item.lock) for item in chosen}
    rows: list[Sequence[str]] = [HEAD]
    for item in planned:
        rows += _rows(item, seals[item.target].arch[item.arch])
    answer(planned, aligned(rows, right=NUMBERS))


def _rows(planned: Plan, sealed: SealedImage) -> list[tuple[str, ...]]:
    """A row for each layer; the sums go to stderr."""
    pulled, unpacked = sealed.size / 1e9, sum(layer.unpacked for layer in sealed.layers) / 1e9
    console.info(
        f"{planned.target} {planned.arch}: {count(len(planned.layers), 'layer')},"
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
            return count(len(recipe.debs), "package")
        case AddedFilesRecipe():
            return count(len(recipe.files), "file")
        case WheelsRecipe() if len(recipe.wheels) > 1:
            return f"{len(recipe.wheels)} wheels"
        case WheelsRecipe():
            return recipe.wheels[0].version
        case _:
            return "-"
