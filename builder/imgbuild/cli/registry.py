"""`imgbuild registry`: list and tag the images of a registry; `gc` and `mirror` are beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import _options, registry_gc, registry_mirror
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.publish.listing import Entry, Listing

HEAD = ("image", "architectures", "MB", "target", "versions", "digest")
NUMBERS = frozenset({2})


app = typer.Typer(
    no_args_is_help=True, help="List, tag, mirror and clean up what is in a registry."
)


@app.command("ls")
def ls(
    place: Annotated[
        str, typer.Argument(metavar="HOST[/REPOSITORY]", help="A registry, or one repository.")
    ],
    plain_http: _options.PlainHttp = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """List the images of a registry: targets, digests, architectures, versions, sizes, tags.

    Columns: image with its tags, architectures, MB to pull (all architectures), target, pinned
    versions, digest. No layer is fetched. Tags by which signatures and the like are attached are
    left out.

    Examples:

        imgbuild registry ls registry.example/rl

        imgbuild registry ls localhost:5000 --json
    """
    from imgbuild.publish import listing as listings
    from imgbuild.registry.client import Client
    from imgbuild.registry.reference import parse_repository

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    client = Client(plain_http=plain_http or (), reporter=console)
    host, slash, name = place.partition("/")
    places = [parse_repository(place)] if slash and name else listings.repositories(client, host)
    found = listings.listing(client, places)
    console.info(
        f"{len(found.entries)} images of {found.sum / 1e9:.2f} GB, in blobs of"
        f" {found.size / 1e9:.2f} GB"
    )
    _options.answer(found, _table(found), json=json)


def _table(found: Listing) -> list[str]:
    rows = [_row(entry) for entry in found.entries]
    return _options.aligned([HEAD, *rows], right=NUMBERS) if rows else []


def _row(entry: Entry) -> Sequence[str]:
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


@app.command("tag")
def tag(
    reference: Annotated[
        str, typer.Argument(metavar="REF", help="An image in a registry, by tag or digest.")
    ],
    names: Annotated[
        list[str], typer.Argument(metavar="TAG...", help="The tags that are to name it.")
    ],
    plain_http: _options.PlainHttp = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Tag an image in a registry; refused unless every part of it is there.

    For a CI that pushes with --digest-only, tests the image by its digest, and tags it then.

    Example:

        imgbuild registry tag registry.example/rl@sha256:0123… cu124-vllm-20261121 cu124-vllm
    """
    from imgbuild.publish import tag
    from imgbuild.registry.client import Client
    from imgbuild.registry.reference import parse

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    client = Client(plain_http=plain_http or (), origin=True, reporter=console)
    found = parse(reference, default_tag="latest")
    made = tag.tag(client, found, names)
    for item in made:
        console.info(str(item))
    _options.answer(made, [f"{found.repository}:{item.name} {item.digest}" for item in made],
                   json=json)  # fmt: skip


app.command("gc")(registry_gc.gc)
app.add_typer(registry_mirror.app, name="mirror")
