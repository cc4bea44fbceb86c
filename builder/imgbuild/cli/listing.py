"""`imgbuild ls`: what a registry holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import options
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.publish.listing import Entry, Listing

HEAD = ("image", "architectures", "MB", "target", "versions", "digest")
NUMBERS = frozenset({2})


def ls(
    place: Annotated[
        str, typer.Argument(metavar="HOST[/REPOSITORY]", help="A registry, or one repository.")
    ],
    plain_http: options.PlainHttp = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """List the images of a registry: targets, digests, architectures, versions, sizes, tags.

    Columns: image with its tags, architectures, MB to pull (all architectures), target, pinned
    versions, digest. No layer is fetched. Tags by which signatures and the like are attached are
    left out.

    Examples:

        imgbuild ls registry.example/rl

        imgbuild ls localhost:5000 --json
    """
    from imgbuild.publish import listing as listings
    from imgbuild.registry.client import Client
    from imgbuild.registry.reference import parse_repository

    options.configure(json=json, quiet=quiet, verbose=verbose)
    client = Client(plain_http=plain_http or ())
    host, slash, name = place.partition("/")
    places = [parse_repository(place)] if slash and name else listings.repositories(client, host)
    found = listings.listing(client, places)
    console.info(
        f"{len(found.entries)} images of {found.sum / 1e9:.2f} GB, in blobs of"
        f" {found.size / 1e9:.2f} GB"
    )
    options.answer(found, _table(found), json=json)


def _table(found: Listing) -> list[str]:
    rows = [_row(entry) for entry in found.entries]
    return options.aligned([HEAD, *rows], right=NUMBERS) if rows else []


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
