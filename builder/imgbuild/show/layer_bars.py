"""Draws the layers of an image as bars whose lengths are relative to the largest layer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild.system.amounts import size_text
from imgbuild.values import Bytes

EIGHTHS = " ▏▎▍▌▋▊▉█"
GAP = "  "
LEAST, MOST = 8, 60  # columns of the longest bar
NAME = 30  # columns of a name at most


class LayerBar(msgspec.Struct, frozen=True, kw_only=True):
    """A layer: name, contents in one or two words, and download size."""

    name: str
    contents: str
    size: Bytes


def bar_lines(layers: Sequence[LayerBar], width: int, *, blocks: bool = True) -> list[str]:
    """Format a line for each layer: number, name, size, bar, share of the image, and contents.

    Names and contents are cut to fit `width` columns (at least 60). Without `blocks`, bars consist
    of "#", for terminals without UTF-8.
    """
    largest = max((layer.size for layer in layers), default=0) or 1
    total = sum(layer.size for layer in layers) or 1
    numbers = len(str(len(layers)))
    names = min(max((len(layer.name) for layer in layers), default=0), NAME)
    sizes = [size_text(layer.size) for layer in layers]
    amounts = max(map(len, sizes), default=0)
    contents = max((len(layer.contents) for layer in layers), default=0)
    left = width - numbers - names - amounts - len("100 %") - 5 * len(GAP)
    contents = min(contents, max(left - LEAST, 0))
    bar = max(min(left - contents, MOST), LEAST)
    rows = []
    for number, (layer, size) in enumerate(zip(layers, sizes, strict=True), start=1):
        cells = (
            f"{number:>{numbers}}",
            _cut_text(layer.name, names).ljust(names),
            size.rjust(amounts),
            _bar(layer.size / largest, bar, blocks=blocks).ljust(bar),
            f"{layer.size / total * 100:3.0f} %",
            _cut_text(layer.contents, contents),
        )
        rows.append(GAP.join(cells).rstrip())
    return rows


def _bar(share: float, width: int, *, blocks: bool) -> str:
    """Draw a bar over `share` (0 to 1) of `width` columns, but at least an eighth of a column."""
    if not blocks:
        return "#" * (round(share * width) or (share > 0))
    eighths = round(share * width * 8) or int(share > 0)
    return EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _cut_text(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"[:width]
