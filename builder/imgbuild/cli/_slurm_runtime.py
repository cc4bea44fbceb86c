"""What runs the image in a job of Slurm's: a SIF with Apptainer, or what pyxis takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from imgbuild.errors import InputError
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.plan.seal import Seal
    from imgbuild.project import Project
    from imgbuild.slurm.jobs import Container


class Runtime(msgspec.Struct, frozen=True):
    """What is to run the image: a SIF or what pyxis takes, folders, and options for Apptainer."""

    sif: Path | None
    pyxis: str | None
    binds: tuple[str, ...]
    words: tuple[str, ...]


def container(
    found: Project, sealed: Seal, runtime: Runtime, *, check: bool, submit: bool
) -> Container:
    """What runs the sealed image; a check is shown the scripts that it runs.

    InputError for a file that is not there and is to run now.
    """
    from imgbuild.slurm.jobs import Container
    from imgbuild.smoke import run

    if runtime.sif is not None and runtime.pyxis is not None:
        message = "--sif and --pyxis cannot be combined"
        raise InputError(message, hint="leave one of them out")
    binds, words, target = runtime.binds, runtime.words, sealed.target
    if check:
        binds = (*binds, f"{run.TESTS.resolve()}:/smoke_tests:ro")
    if runtime.pyxis is not None:
        image = imported(runtime.pyxis)
        make = f"imgbuild build {target} --format squashfs"
    else:
        image = (runtime.sif or found.output(target).with_name(f"{target}.sif")).absolute()
        same_image(image, sealed)
        make = f"imgbuild build {target} --format sif"
    if isinstance(image, Path) and not image.exists():
        if submit:
            message = f"{image}: no such file"
            raise InputError(message, hint=f"make it with: {make}")
        console.warn(f"{image} does not exist yet; make it with: {make}")
    return Container(image=str(image), pyxis=runtime.pyxis is not None, binds=binds, words=words)


def same_image(sif: Path, sealed: Seal) -> None:
    """Warn of a SIF of another image than the lock's, whose digest the script names.

    Nothing is known of one that another tool made.
    """
    from imgbuild.sif import files

    try:
        config = files.config_of(sif) if sif.is_file() else None
    except InputError as error:  # Apptainer runs other kinds of files, too
        console.warn(error.message)
        return
    if config and config not in {image.config for image in sealed.arch.values()}:
        made = f"imgbuild build {sealed.target} --format sif"
        console.warn(f"{sif} is not the image of the current lock; make that one with: {made}")


def imported(image: str) -> Path | str:
    """What pyxis takes: a file by its whole path, since it takes another name for a registry's."""
    path = Path(image)
    return path.absolute() if path.exists() or path.suffix in (".sqsh", ".squashfs") else image
