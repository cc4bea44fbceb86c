"""`imgbuild registry gc`: delete old dated images from a registry (separate: a verb)."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from imgbuild.cli._options import PlainHttp
from imgbuild.cli._output import aligned, answer, count
from imgbuild.cli._targets import MatrixFile
from imgbuild.cli._verb import option, verb
from imgbuild.errors import InputError
from imgbuild.pipeline.opened import open_project
from imgbuild.project_paths import MATRIX
from imgbuild.publish import gc as old_images
from imgbuild.registry.client import Client
from imgbuild.registry.image_reference import parse_repository
from imgbuild.system.console import console

HEAD = ("tags", "digest")


@verb
def gc(
    place: Annotated[
        str, typer.Argument(metavar="HOST/REPOSITORY", help="A repository of images.")
    ],
    keep_days: Annotated[
        int,
        option(
            "--keep-days",
            "Keep dated tags of the last DAYS days.",
            metavar="DAYS",
            min=0,
            often=True,
            setting=True,
        ),
    ] = 90,
    delete: Annotated[
        bool, option("--delete", "Delete the listed images, with their tags.", often=True)
    ] = False,
    plain_http: PlainHttp = None,
    matrix: MatrixFile = None,
) -> None:
    """List or delete old dated images of this project's targets.

    An image is old if each of its tags has the form TARGET-YYYYMMDD, with a day before the last
    --keep-days days. Images that a current lock names, images with any other tag, and images of
    other projects are kept. Nothing is deleted without --delete; the blobs are deleted by the
    registry's own garbage collection.

    Examples:

        imgbuild registry gc registry.example/rl

        imgbuild registry gc registry.example/rl --keep-days 30 --delete
    """
    repository = parse_repository(place)
    project = open_project(matrix)
    if not project.writable:
        message = f"no {MATRIX} in {Path.cwd()} or any parent folder: what to keep is not known"
        hint = "run it in the repository whose locks name the images, or pass --matrix FILE"
        raise InputError(message, hint=hint)
    today = datetime.datetime.now(datetime.UTC).date()
    client = Client(plain_http=plain_http or (), origin=True, reporter=console)
    before = today - datetime.timedelta(days=keep_days)
    locked = old_images.locked(project)
    sweep = old_images.find(client, repository, project.locked_targets(), locked, before)
    if delete:
        sweep = old_images.delete(client, repository, sweep)
    number = count(len(sweep.old), "old image")
    state = "deleted" if sweep.deleted else "to be deleted with --delete"
    console.info(f"{repository}: {sweep.kept} kept, {number} {state if sweep.old else ''}".rstrip())
    if sweep.deleted and sweep.old:
        console.info(old_images.AFTER)
    rows = [HEAD, *((",".join(image.tags), image.digest) for image in sweep.old)]
    answer(sweep, aligned(rows) if sweep.old else [])
