"""`imgbuild init`: begin a repository of one's own on a published target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imgbuild.cli import _options
from imgbuild.errors import InputError
from imgbuild.system.console import console

ADD = "What is added"
MATRIX = "matrix.yaml"


Name = Annotated[str, typer.Argument(metavar="[NAME]", help="The name of your image.")]
Extends = Annotated[
    str | None,
    typer.Option(
        "--extends",
        metavar="TARGET",
        help="The published target to stand on.",
        rich_help_panel=_options.SELECT,
        show_default=False,
    ),
]
Lock = Annotated[
    str | None,
    typer.Option(
        "--lock",
        metavar="PLACE",
        help="Where it is published: a folder or an address with its lock.json and digests.json, or"
        " a checkout of the project.",
        rich_help_panel=_options.SELECT,
        show_default=False,
    ),
]
Image = Annotated[
    str,
    typer.Option(
        "--image",
        metavar="PLACE",
        help="Where its layers are: HOST/REPOSITORY, or oci:FOLDER. Without it they are made again"
        " from the lock.",
        rich_help_panel=_options.SELECT,
        show_default=False,
    ),
]
Add = Annotated[
    list[str] | None,
    typer.Option(
        "--add",
        metavar="PACKAGE",
        help="A Python package: wandb, 'peft>=0.15', einops==0.8.1; repeatable.",
        rich_help_panel=ADD,
        show_default=False,
    ),
]
System = Annotated[
    list[str] | None,
    typer.Option(
        "--system",
        metavar="PACKAGE",
        help="A Debian package; repeatable.",
        rich_help_panel=ADD,
        show_default=False,
    ),
]
File = Annotated[
    list[str] | None,
    typer.Option(
        "--file",
        metavar="HERE:THERE",
        help="A file of yours and its path in the image; repeatable.",
        rich_help_panel=ADD,
        show_default=False,
    ),
]
Refresh = Annotated[
    bool,
    typer.Option(
        "--refresh",
        help="Copy the locks of the published targets anew, from where the matrix says.",
        rich_help_panel=_options.WORK,
    ),
]


def init(
    name: Name = "my-image",
    extends: Extends = None,
    lock: Lock = None,
    image: Image = "",
    add: Add = None,
    system: System = None,
    file: File = None,
    refresh: Refresh = False,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Begin a repository of your own: a small matrix.yaml that adds to a published target.

    Writes matrix.yaml and published/TARGET/ into this folder; nothing that is there is replaced.
    docs/extend.md walks through it.

    Examples:

        imgbuild init my-image --extends cu124-vllm --lock ~/imgbuild --add wandb --system rsync

        imgbuild init --refresh
    """
    _options.configure(json=json, quiet=quiet, verbose=verbose)
    if refresh:
        _refresh(json=json)
        return
    if extends is None or lock is None:
        message = "--extends and --lock say on which target to stand and where it is published"
        raise InputError(message, hint="imgbuild init my-image --extends cu124-vllm --lock PLACE")
    from imgbuild.cache.download import Http
    from imgbuild.resolve import init, request

    path = Path.cwd() / MATRIX
    wanted = init.WantedExtension(
        name=name,
        packages=request.read(add, [], {})[0] if add else (),
        system=tuple(system or ()),
        files=init.files_of(file or ()),
    )
    below = init.begin(path, wanted, extends=extends, place=lock, image=image, http=Http())
    console.info(f"{name} stands on {extends} {below.digest}")
    console.info(f"next: imgbuild lock {name} && imgbuild build {name} && imgbuild run {name}")
    paths = [path, below.folder / "lock.json", below.folder / "digests.json"]
    _options.answer({"wrote": paths}, [str(each) for each in paths], json=json)


def _refresh(*, json: bool) -> None:
    from imgbuild import project
    from imgbuild.cache.download import Http
    from imgbuild.resolve import init

    found = init.refresh(project.find(None).matrix, Http())
    lines = [
        f"{item.target} {item.after}" if item.before == item.after
        else f"{item.target} {item.before or 'none'} -> {item.after}"
        for item in found
    ]  # fmt: skip
    if any(item.before != item.after for item in found):
        console.info("next: imgbuild lock --all")
    _options.answer(found, lines, json=json)
