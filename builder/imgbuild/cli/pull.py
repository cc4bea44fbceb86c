"""Implements `imgbuild pull`, which pulls an image into an OCI layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from imgbuild.cache import prune
from imgbuild.cache.store import Store
from imgbuild.cli._help import create_command
from imgbuild.cli._options import OUTPUT_PATH, Arches, PlainHttp, Reference
from imgbuild.cli._output import fold_lines, print_result
from imgbuild.cli._selection import at_most_one_arch
from imgbuild.cli._verb import create_verb
from imgbuild.publish.pull import layout_name, pull_image
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import parse_reference
from imgbuild.system import files
from imgbuild.system.console import console
from imgbuild.system.folder import require_below


@create_verb
def pull(
    reference: Reference,
    arch: Arches = None,
    output: Annotated[
        Path | None, OUTPUT_PATH("Default: a folder named after the tag or the repository.")
    ] = None,
    plain_http: PlainHttp = None,
) -> None:
    """Pull an image from a registry into an OCI layout.

    The layout has the same digest as the image in the registry. Layers in the cache are linked, and
    other layers are downloaded to the cache. All digests are verified. To continue an interrupted
    pull, run the command again.

    Examples:

        imgbuild pull registry.example/rl:cu124-vllm

        imgbuild pull registry.example/rl:cu130-vllm --arch arm64 --output image
    """
    parsed = parse_reference(reference, default_tag="latest")
    only = at_most_one_arch(arch, "only one architecture can be selected; omit --arch to pull all")
    store = Store.open(reporter=console)
    client = RegistryClient(plain_http=plain_http or (), reporter=console)
    place = output or require_below(Path(), Path(layout_name(parsed)))
    files.require_writable([place], hint=files.OUTPUT_HINT)
    with console.step(f"pulling {parsed}"):
        pulled = pull_image(client, parsed, place, store, only)
    prune.trim_cache(store)
    work = "up to date" if pulled.unchanged else f"{pulled.moved / 1e6:,.1f} MB downloaded"
    console.info(f"{pulled.size / 1e9:.2f} GB in {pulled.output}, {work}")
    print_result(pulled, fold_lines([f"{pulled.digest} {pulled.output}"]))


COMMAND = create_command(pull)
