#!/usr/bin/env python3
"""Prints the sizes of all images and of shared layers, computed from the committed digests.

Nothing is built or downloaded. In the Markdown table, `packed` is the download size, `unpacked` the
size on disk, and `own` the size of layers that are in no other image. The last lines compare the
size of a registry with all images to the sum of their sizes.

With --registry HOST/REPOSITORY, the sizes of the tagged targets are compared with the registry: the
layers in the manifests, and the size that the registry reports for each layer. --storage FOLDER
also compares the sizes with the files in the registry's storage. The exit status is 1 if anything
differs.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from imgbuild import codec
from imgbuild.plan.image_digests import ImageDigests, TargetDigests
from imgbuild.publish import listing
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image import read_registry_image
from imgbuild.registry.image_reference import ImageReference, parse_repository
from imgbuild.system.console import console
from imgbuild.values import Arch, Digest

ROOT = Path(__file__).resolve().parent.parent


TargetImage = tuple[str, Arch, ImageDigests]


def list_images(folder: Path) -> list[TargetImage]:
    """List (target, architecture, image) for each image whose digests are below `folder`."""
    all_digests = [
        codec.read_document(path, TargetDigests) for path in sorted(folder.glob("*/digests.json"))
    ]
    return [
        (target_digests.target, arch, image)
        for target_digests in all_digests
        for arch, image in target_digests.arch.items()
    ]


def image_table(locked_images: Sequence[TargetImage]) -> list[str]:
    """Return the lines of the table, and the sums below the table."""
    holders = Counter(digest for _, _, image in locked_images for digest in sizes_by_digest(image))
    lines = [
        "| image | layers | packed | unpacked | own | shared |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for target, arch, image in locked_images:
        packed = sum(sizes_by_digest(image).values())
        unique = sum(
            size for digest, size in sizes_by_digest(image).items() if holders[digest] == 1
        )
        unpacked = sum(layer.unpacked for layer in image.layers)
        lines.append(
            f"| {target} {arch} | {len(image.layers)} | {packed / 1e9:.2f} GB "
            f"| {unpacked / 1e9:.2f} GB | {unique / 1e9:.2f} GB | {1 - unique / packed:.0%} |"
        )
    return [*lines, "", *sum_lines("both architectures", locked_images)] + [
        line
        for selected_arch in Arch
        for line in sum_lines(
            str(selected_arch), [item for item in locked_images if item[1] is selected_arch]
        )
    ]


def sum_lines(title: str, locked_images: Sequence[TargetImage]) -> list[str]:
    """Return a line that compares the size of a registry with the sum of the image sizes."""
    if not locked_images:
        return []
    total = sum(size for _, _, image in locked_images for size in sizes_by_digest(image).values())
    layer_sizes = {
        digest: size
        for _, _, image in locked_images
        for digest, size in sizes_by_digest(image).items()
    }
    once = sum(layer_sizes.values())
    images_ = f"{len(locked_images)} images of {total / 1e9:.1f} GB"
    layers = f"{len(layer_sizes)} distinct layers of {once / 1e9:.1f} GB"
    return [f"- {title}: {images_} in {layers}: **{once / total:.1%}**"]


def sizes_by_digest(image: ImageDigests) -> dict[str, int]:
    """Return the packed size in bytes of each layer of an image, by digest."""
    return {layer.digest: layer.size for layer in image.layers}


def pushed_lines(
    locked_images: Sequence[TargetImage], place: str, storage: Path | None
) -> tuple[list[str], bool]:
    """Return lines with computed and actual sizes of targets, and whether these are equal."""
    repository, client = parse_repository(place), RegistryClient()
    entries = listing.list_images(client, [repository]).entries
    there = {manifest.digest for entry in entries for manifest in entry.arch.values()}
    tagged = [item for item in locked_images if item[2].manifest in there]
    computed = {
        digest: size for _, _, image in tagged for digest, size in sizes_by_digest(image).items()
    }
    listed: dict[Digest, int | None] = {}
    for digest in sorted(there & {image.manifest for _, _, image in tagged}):
        reference = ImageReference(repository.host, repository.name, digest=digest)
        for remote in read_registry_image(client, reference).images.values():
            listed |= {layer.digest: layer.size for layer in remote.layers}
    answered = {digest: client.has(repository, digest) for digest in computed}
    stored: dict[str, dict[Digest, int | None]] = {
        "its manifests": listed,
        "the sizes from requests for each layer": answered,
    }
    if storage is not None:
        files = {f"sha256:{path.parent.name}": path for path in storage.rglob("sha256/*/*/data")}
        stored["its files"] = {
            digest: files[digest].stat().st_size for digest in computed if digest in files
        }
    lines = sum_lines(f"computed for the images in {place}", tagged)
    for name, sizes in stored.items():
        once = sum(size or 0 for size in sizes.values())
        equal = "equal" if sizes == computed else "**not equal**"
        lines.append(f"- {name}: {len(sizes)} distinct layers of {once / 1e9:.1f} GB: {equal}")
    return lines, bool(tagged) and all(sizes == computed for sizes in stored.values())


def main() -> int:
    """Print the table or the comparison. Exits with status 2 if no target has digests."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--images", type=Path, default=ROOT / "images", help="folder with locks and digests"
    )
    parser.add_argument(
        "--registry", metavar="HOST/REPOSITORY", help="registry and repository to compare with"
    )
    parser.add_argument(
        "--storage", type=Path, metavar="FOLDER", help="storage folder of the registry"
    )
    options = parser.parse_args()
    folder = options.images
    locked_images = list_images(folder)
    if not locked_images:
        console.error(f"{folder}: no target has a lock", hint="imgbuild lock --all")
        return 2
    if options.registry is None:
        console.data("\n".join(image_table(locked_images)))
        return 0
    lines, equal = pushed_lines(locked_images, options.registry, options.storage)
    console.data("\n".join(lines))
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
