#!/usr/bin/env python3
"""Sizes of all images and what they share, computed from the committed digests: a Markdown table.

Nothing is built or fetched. `packed` is what a pull moves, `unpacked` what it becomes on disk;
`own` are layers that no other image has. The last lines are what one registry holds if all images
are pushed to it, against the sum of the images.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from imgbuild import codec
from imgbuild.console import console
from imgbuild.seal import Seal, SealedImage
from imgbuild.values import Arch

ROOT = Path(__file__).resolve().parent.parent


def images(folder: Path) -> list[tuple[str, Arch, SealedImage]]:
    """Every sealed image below `folder`: target, architecture, image."""
    seals = [codec.read(path, Seal) for path in sorted(folder.glob("*/digests.json"))]
    return [(seal.target, arch, image) for seal in seals for arch, image in seal.arch.items()]


def table(found: Sequence[tuple[str, Arch, SealedImage]]) -> list[str]:
    """The table's lines, and the sums below it."""
    holders = Counter(digest for _, _, image in found for digest in digests(image))
    lines = [
        "| image | layers | packed | unpacked | own | shared |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for target, arch, image in found:
        packed = sum(digests(image).values())
        own = sum(size for digest, size in digests(image).items() if holders[digest] == 1)
        unpacked = sum(layer.unpacked for layer in image.layers)
        lines.append(
            f"| {target} {arch} | {len(image.layers)} | {packed / 1e9:.2f} GB "
            f"| {unpacked / 1e9:.2f} GB | {own / 1e9:.2f} GB | {1 - own / packed:.0%} |"
        )
    return [*lines, "", *sums("both architectures", found)] + [
        line
        for wanted in Arch
        for line in sums(str(wanted), [item for item in found if item[1] is wanted])
    ]


def sums(title: str, found: Sequence[tuple[str, Arch, SealedImage]]) -> list[str]:
    """One line: the bytes of a registry that holds all of `found`, against their sum."""
    if not found:
        return []
    total = sum(size for _, _, image in found for size in digests(image).values())
    held = {digest: size for _, _, image in found for digest, size in digests(image).items()}
    once = sum(held.values())
    images_ = f"{len(found)} images of {total / 1e9:.1f} GB"
    layers = f"{len(held)} distinct layers of {once / 1e9:.1f} GB"
    return [f"- {title}: {images_} in {layers}: **{once / total:.1%}**"]


def digests(image: SealedImage) -> dict[str, int]:
    """The image's layers: digest and packed size in bytes."""
    return {layer.digest: layer.size for layer in image.layers}


def main() -> int:
    """Print the table; exit status 2 if nothing is sealed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--images", type=Path, default=ROOT / "images", help="the folder of locks and seals"
    )
    folder = parser.parse_args().images
    found = images(folder)
    if not found:
        console.error(f"{folder}: no image is sealed", hint="imgbuild lock --all")
        return 2
    console.data("\n".join(table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
