"""`imgbuild init`: start a project of your own from a published target."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

import typer

from imgbuild import project_paths
from imgbuild.cli._help import command
from imgbuild.cli._options import LOCK
from imgbuild.cli._output import answer, folded
from imgbuild.cli._verb import SELECT, option, verb
from imgbuild.errors import InputError
from imgbuild.http.client import Http
from imgbuild.lock.published import load
from imgbuild.pipeline.opened import open_project
from imgbuild.resolve import first_matrix, init, request
from imgbuild.system.console import console
from imgbuild.values import Arch

ADD = "Additions"
MATRIX = "matrix.yaml"


NameOption = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of your image; . for that of this folder.")
]
ExtendsOption = Annotated[
    str | None,
    option(
        "--extends",
        "The published target to extend. Default: the one of the catalogue that is recommended for"
        " vLLM.",
        metavar="TARGET",
        panel=SELECT,
        often=True,
    ),
]
LockOption = Annotated[
    str | None,
    LOCK(
        "A folder or URL with lock.json and digests.json, or a checkout of imgbuild. Default:"
        " the catalogue that comes with imgbuild."
    ),
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
def init_project(
    name: NameOption = ("my-image"),
    extends: ExtendsOption = None,
    lock: LockOption = None,
    image: ImageOption = "",
    add: AddOption = None,
    system: SystemOption = None,
    file: FileOption = None,
    refresh: RefreshOption = False,
) -> None:
    """Start a project that extends a published target.

    Writes matrix.yaml, its schema for editors, published/TARGET/, .gitignore and README.md into
    this folder, and replaces nothing. docs/extend.md explains each step.

    Examples:

        imgbuild init

        imgbuild init . --add wandb

        imgbuild init my-image --extends cu124-vllm --add wandb --system rsync

        imgbuild init my-image --extends team-image --lock https://example.org/images

        imgbuild init --refresh
    """
    if refresh:
        _refresh()
        return
    if extends is None and lock is not None:
        message = f"--lock {lock} needs --extends"
        raise InputError(message, hint="imgbuild init my-image --extends TARGET --lock PLACE")
    path = Path.cwd() / MATRIX
    name = init.name_for(name)
    extension = first_matrix.WantedExtension(
        name=name,
        packages=request.read(add, [], {})[0] if add else (),
        system=tuple(system or ()),
        files=init.files_of(file or ()),
    )
    if extends is None or lock is None:
        extends, lock = _of_catalogue(extends), init.INSTALLED
    below = init.begin(path, extension, extends=extends, place=lock, image=image, http=Http())
    console.info(f"{name} extends {extends} {below.digest}")
    console.info(f"next: imgbuild lock {name} && imgbuild build {name} && imgbuild run {name}")
    paths = [path, below.folder / "lock.json", below.folder / "digests.json"]
    paths += init.write_beside(path.parent, name, extends)
    answer({"wrote": paths}, [str(each) for each in paths])


def _of_catalogue(extends: str | None) -> str:
    """The selected target of the catalogue; NothingSelected if it has no such lock."""
    catalogue = project_paths.catalogue()
    if extends is None:
        targets = load(catalogue.matrix).targets
        stacks = {name: target.recommended for name, target in targets.items()}
        return init.recommended(catalogue, stacks, Arch.parse(platform.machine()))
    init.require_target(catalogue, extends)
    return extends


def _refresh() -> None:
    project = open_project(None)
    project.require_writable("imgbuild init --refresh")
    updates = init.refresh(project.matrix, Http())
    lines = [
        f"{item.target} {item.after} (unchanged)" if item.before == item.after
        else f"{item.target} {item.before or 'none'} -> {item.after}"
        for item in updates
    ]  # fmt: skip
    changed = any(item.before != item.after for item in updates)
    console.info("next: imgbuild lock --all" if changed else "nothing has changed")
    answer(updates, folded(lines))


COMMAND = command(init_project)
