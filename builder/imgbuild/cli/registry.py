"""`imgbuild registry`: list and tag the images of a registry; `gc` and `mirror` are beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from imgbuild.cli import registry_gc, registry_mirror
from imgbuild.cli._help import VerbGroup, add, group
from imgbuild.cli._options import FORMAT, PlainHttp, Reference
from imgbuild.cli._output import aligned, answer, count, folded
from imgbuild.cli._verb import verb
from imgbuild.publish import listing as listings
from imgbuild.publish import pull_page, tag
from imgbuild.publish.listing import ListedTag, Listing
from imgbuild.registry.client import Client
from imgbuild.registry.image_reference import parse, parse_repository
from imgbuild.system.console import console

HEAD = ("image", "architectures", "MB", "target", "versions", "digest")
NUMBERS = frozenset({2})

app = typer.Typer(
    cls=VerbGroup,
    no_args_is_help=True,
    help="List, tag, clean up or mirror what is in a registry.",
)


@verb
def ls(
    place: Annotated[
        str, typer.Argument(metavar="HOST[/REPOSITORY]", help="HOST, or HOST/REPOSITORY.")
    ],
    form: Annotated[
        Literal["text", "markdown"],
        FORMAT("text; or markdown: the commands that pull each image of a target."),
    ] = "text",
    plain_http: PlainHttp = None,
) -> None:
    """List the images in a registry.

    Columns: image with its tags, architectures, MB to pull (all architectures), target, pinned
    versions, digest. No layer is fetched. Tags of signatures and other attachments are left out.

    Examples:

        imgbuild registry ls registry.example/rl

        imgbuild registry ls localhost:5000 --json

        imgbuild registry ls ghcr.io/owner/repository --format markdown > pull.md
    """
    client = Client(plain_http=plain_http or (), reporter=console)
    host, slash, name = place.partition("/")
    places = [parse_repository(place)] if slash and name else listings.repositories(client, host)
    listing = listings.listing(client, places)
    console.info(
        f"{count(len(listing.entries), 'image')} of {listing.sum / 1e9:.2f} GB, in blobs of"
        f" {listing.size / 1e9:.2f} GB"
    )
    answer(listing, list(pull_page.lines(listing)) if form == "markdown" else _table(listing))


def _table(listing: Listing) -> list[str]:
    rows = [_row(entry) for entry in listing.entries]
    return aligned([HEAD, *rows], right=NUMBERS) if rows else []


def _row(entry: ListedTag) -> Sequence[str]:
    if entry.other:
        return (f"{entry.repository}:{','.join(entry.tags)}", "-", "-", "-", "-", entry.digest)
    return (
        f"{entry.repository}:{','.join(entry.tags)}",
        "+".join(entry.arch),
        f"{entry.size / 1e6:.1f}",
        entry.target or "-",
        " ".join(f"{name}={version}" for name, version in entry.versions.items()) or "-",
        entry.digest,
    )


@verb
def tag_image(
    reference: Reference,
    names: Annotated[list[str], typer.Argument(metavar="TAG...", help="The tags to add.")],
    plain_http: PlainHttp = None,
) -> None:
    """Tag an image in a registry.

    Refused if a part of the image is missing from the registry.

    For a CI that pushes with --digest-only, tests the image by its digest, and tags it then.

    Example:

        imgbuild registry tag registry.example/rl@sha256:0123… cu124-vllm-20261121 cu124-vllm
    """
    client = Client(plain_http=plain_http or (), origin=True, reporter=console)
    parsed = parse(reference, default_tag="latest")
    tagged = tag.tag(client, parsed, names)
    for item in tagged:
        console.info(str(item))
    answer(tagged, folded(f"{parsed.repository}:{item.name} {item.digest}" for item in tagged))


add(app, "ls", ls)
add(app, "tag", tag_image)
add(app, "gc", registry_gc.gc)
app.add_typer(registry_mirror.app, name="mirror")
COMMAND = group(app)
