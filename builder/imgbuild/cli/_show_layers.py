"""`imgbuild show --layers`: the layers of images, in order, with what is in each."""

from __future__ import annotations

from collections.abc import Sequence

from imgbuild.cli._output import aligned, answer, count, size_text
from imgbuild.cli._targets import Selection
from imgbuild.plan import plan as plans
from imgbuild.plan import seal
from imgbuild.plan.plan import (
    AddedDebsRecipe,
    AddedFilesRecipe,
    DebianRecipe,
    Plan,
    Recipe,
    WheelsRecipe,
)
from imgbuild.plan.seal import SealedImage
from imgbuild.show.table import short
from imgbuild.system.console import console

HEAD = ("#", "layer", "MB", "unpacked", "contents", "digest")
NUMBERS = frozenset({0, 2, 3})
WIDTH = 80


def show(selection: Selection) -> None:
    """The layers of each image as a table, or as JSON with every file of each layer."""
    project = selection.project()
    chosen = selection.locked(project)
    planned = [plans.plan(item.lock, each) for item in chosen for each in item.arches]
    if console.json:
        answer(planned, [])
        return
    seals = {item.lock.target: seal.read_seal(project.images, item.lock) for item in chosen}
    lines: list[str] = []
    for item in planned:
        rows: list[Sequence[str]] = [HEAD, *_rows(item, seals[item.target].arch[item.arch])]
        lines += [""] if lines else []
        lines += [f"{item.target} {item.arch}"] if len(planned) > 1 else []
        lines += aligned(rows, right=NUMBERS, width=WIDTH)
    answer(planned, lines)


def _rows(planned: Plan, sealed: SealedImage) -> list[tuple[str, ...]]:
    """A row for each layer; the sums go to stderr."""
    pulled, unpacked = sealed.size, sum(layer.unpacked for layer in sealed.layers)
    console.info(
        f"{planned.target} {planned.arch}: {count(len(planned.layers), 'layer')},"
        f" {size_text(pulled)} to pull, {size_text(unpacked)} unpacked"
    )
    return [
        (
            str(number),
            layer.name,
            f"{made.size / 1e6:.1f}",
            f"{made.unpacked / 1e6:.1f}" if made.unpacked else "-",
            _contents(layer.name, layer.recipe),
            short(made.digest),
        )
        for number, (layer, made) in enumerate(
            zip(planned.layers, sealed.layers, strict=True), start=1
        )
    ]


def _contents(name: str, recipe: Recipe) -> str:
    """What is in the layer `name`, in a word or two."""
    match recipe:
        case DebianRecipe() | AddedDebsRecipe():
            return count(len(recipe.debs), "package")
        case AddedFilesRecipe():
            return count(len(recipe.files), "file")
        case WheelsRecipe() if len(recipe.wheels) > 1:
            return f"{len(recipe.wheels)} wheels"
        case WheelsRecipe() if recipe.wheels[0].package == name:
            return recipe.wheels[0].version
        case WheelsRecipe():
            return f"{recipe.wheels[0].package} {recipe.wheels[0].version}"
        case _:
            return "-"
