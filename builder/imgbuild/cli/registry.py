"""Implements `imgbuild registry`, which lists, tags and deletes images in a registry."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from imgbuild.cli import registry_mirror
from imgbuild.cli._help import HELP, VerbGroup, create_group, register_verb
from imgbuild.cli._options import FORMAT, PlainHttp, Reference
from imgbuild.cli._output import align_columns, fold_lines, format_count, print_result
from imgbuild.cli._targets import MatrixFile
from imgbuild.cli._verb import create_verb, option
from imgbuild.errors import InputError
from imgbuild.matrix.project_paths import MATRIX
from imgbuild.pipeline.opened import open_project
from imgbuild.publish import gc as old_images
from imgbuild.publish import listing as listings
from imgbuild.publish import pull_page, tag
from imgbuild.publish.listing import ListedTag, RegistryListing
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import parse_reference, parse_repository
from imgbuild.system.console import console

HEAD = ("image", "architectures", "MB", "target", "versions", "digest")
NUMBERS = frozenset({2})

app = typer.Typer(
    cls=VerbGroup,
    context_settings=HELP,
    no_args_is_help=True,
    help="List, tag, clean up or mirror images in a registry.",
)


@create_verb
def list_images(
    place: Annotated[
        str,
        typer.Argument(
            metavar="HOST[/REPOSITORY]", help="A registry, or a repository in a registry."
        ),
    ],
    form: Annotated[
        Literal["text", "markdown"],
        FORMAT("Choices: text, or markdown (with the commands to pull images)."),
    ] = "text",
    plain_http: PlainHttp = None,
) -> None:
    """List the images in a registry.

    Columns: the image with its tags, architectures, MB to pull (all architectures), target, pinned
    versions, digest. Layers are not downloaded. Tags of signatures and other attachments are
    omitted.

    Examples:

        imgbuild registry ls registry.example/rl

        imgbuild registry ls localhost:5000 --json

        imgbuild registry ls ghcr.io/owner/repository --format markdown > pull.md
    """
    client = RegistryClient(plain_http=plain_http or (), reporter=console)
    host, slash, name = place.partition("/")
    places = (
        [parse_repository(place)] if slash and name else listings.list_repositories(client, host)
    )
    listing = listings.list_images(client, places)
    console.info(
        f"{format_count(len(listing.entries), 'image')} of {listing.sum / 1e9:.2f} GB, stored in"
        " blobs "
        f"of {listing.size / 1e9:.2f} GB"
    )
    print_result(
        listing, list(pull_page.page_lines(listing)) if form == "markdown" else _table(listing)
    )


def _table(listing: RegistryListing) -> list[str]:
    rows = [_row(entry) for entry in listing.entries]
    return align_columns([HEAD, *rows], right=NUMBERS) if rows else []


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


@create_verb
def tag_image(
    reference: Reference,
    names: Annotated[list[str], typer.Argument(metavar="TAG...", help="The tags to add.")],
    plain_http: PlainHttp = None,
) -> None:
    """Tag an image in a registry.

    Fails if a part of the image is missing from the registry. Use this command to tag an image that
    was pushed with `imgbuild push --digest-only` and tested by digest.

    Example:

        imgbuild registry tag registry.example/rl@sha256:0123… cu124-vllm-20261121 cu124-vllm
    """
    client = RegistryClient(plain_http=plain_http or (), origin=True, reporter=console)
    parsed = parse_reference(reference, default_tag="latest")
    tagged = tag.tag_image(client, parsed, names)
    for item in tagged:
        console.info(str(item))
    print_result(
        tagged, fold_lines(f"{parsed.repository}:{item.name} {item.digest}" for item in tagged)
    )


@create_verb
def delete_old_images(
    place: Annotated[
        str,
        typer.Argument(metavar="HOST/REPOSITORY", help="The repository to clean up."),
    ],
    keep_days: Annotated[
        int,
        option(
            "--keep-days",
            "Keep images with a tag that is at most this many days old.",
            metavar="DAYS",
            min=0,
            often=True,
            setting=True,
        ),
    ] = 90,
    delete: Annotated[
        bool, option("--delete", "Delete the listed images and their tags.", often=True)
    ] = False,
    plain_http: PlainHttp = None,
    matrix: MatrixFile = None,
) -> None:
    """List or delete old images of this project's targets.

    An image is old if all of its tags have the form TARGET-YYYYMMDD, with dates more than
    --keep-days days ago. Images that a current lock refers to, images with any other tag, and
    images of other projects are kept. Nothing is deleted without --delete. To free the space of
    deleted images, run the garbage collection of the registry.

    Examples:

        imgbuild registry gc registry.example/rl

        imgbuild registry gc registry.example/rl --keep-days 30 --delete
    """
    repository = parse_repository(place)
    project = open_project(matrix)
    if not project.writable:
        message = (
            f"no {MATRIX} in {Path.cwd()} or any parent folder: the images to keep are unknown"
        )
        hint = (
            "run the command in the repository with the locks of the images, or pass --matrix FILE"
        )
        raise InputError(message, hint=hint)
    today = datetime.datetime.now(datetime.UTC).date()
    client = RegistryClient(plain_http=plain_http or (), origin=True, reporter=console)
    before = today - datetime.timedelta(days=keep_days)
    locked = old_images.locked_digests(project)
    sweep = old_images.find_old_images(client, repository, project.locked_targets(), locked, before)
    if delete:
        sweep = old_images.delete_old_images(client, repository, sweep)
    number = format_count(len(sweep.old), "old image")
    state = "deleted" if sweep.deleted else "to be deleted with --delete"
    console.info(f"{repository}: {sweep.kept} kept, {number} {state if sweep.old else ''}".rstrip())
    if sweep.deleted and sweep.old:
        console.info(old_images.COLLECTION_NOTE)
    rows = [("tags", "digest"), *((",".join(image.tags), image.digest) for image in sweep.old)]
    print_result(sweep, align_columns(rows) if sweep.old else [])


register_verb(app, "ls", list_images)
register_verb(app, "tag", tag_image)
register_verb(app, "gc", delete_old_images)
app.add_typer(registry_mirror.app, name="mirror")
COMMAND = create_group(app)
