"""`imgbuild init`: start a repository of your own from a published target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imgbuild.cli._options import LOCK
from imgbuild.cli._output import answer
from imgbuild.cli._verb import SELECT, option, verb
from imgbuild.errors import InputError
from imgbuild.system.console import console

ADD = "Additions"
MATRIX = "matrix.yaml"


NameOption = Annotated[str, typer.Argument(metavar="NAME", help="The name of your image.")]
ExtendsOption = Annotated[
    str | None,
    option(
        "--extends",
        "The published target to extend.",
        metavar="TARGET",
        panel=SELECT,
        often=True,
    ),
]
LockOption = Annotated[
    str | None,
    LOCK("Here: a folder or URL with lock.json and digests.json, or a checkout of imgbuild."),
]
ImageOption = Annotated[
    str,
    option(
        "--image",
        "Where the layers are: HOST/REPOSITORY, or oci:FOLDER. Default: they are built from"
        " the lock.",
        metavar="PLACE",
        panel=SELECT,
        often=True,
    ),
]
AddOption = Annotated[
    list[str] | None,
    option(
        "--add",
        "A Python package: wandb, 'peft>=0.15', einops==0.8.1; repeatable.",
        metavar="PACKAGE",
        panel=ADD,
        often=True,
    ),
]
SystemOption = Annotated[
    list[str] | None,
    option("--system", "A Debian package; repeatable.", metavar="PACKAGE", panel=ADD, often=True),
]
FileOption = Annotated[
    list[str] | None,
    option(
        "--file",
        "A file and its path in the image; repeatable.",
        metavar="HERE:THERE",
        panel=ADD,
        often=True,
    ),
]
RefreshOption = Annotated[
    bool,
    option("--refresh", "Copy the locks of published targets again, from where the matrix says."),
]


@verb
def init(
    name: NameOption = ("my-image"),
    extends: ExtendsOption = None,
    lock: LockOption = None,
    image: ImageOption = "",
    add: AddOption = None,
    system: SystemOption = None,
    file: FileOption = None,
    refresh: RefreshOption = False,
) -> None:
    """Start a repository that extends a published target.

    Writes matrix.yaml and published/TARGET/ into this folder, and replaces nothing. docs/extend.md
    explains each step.

    Examples:

        imgbuild init my-image --extends cu124-vllm --lock ~/imgbuild --add wandb --system rsync

        imgbuild init --refresh
    """
    if refresh:
        _refresh()
        return
    if extends is None or lock is None:
        message = "--extends and --lock are needed"
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
    console.info(f"{name} extends {extends} {below.digest}")
    console.info(f"next: imgbuild lock {name} && imgbuild build {name} && imgbuild run {name}")
    paths = [path, below.folder / "lock.json", below.folder / "digests.json"]
    answer({"wrote": paths}, [str(each) for each in paths])


def _refresh() -> None:
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
    answer(found, lines)
