"""How a Slurm job runs the image: a SIF with Apptainer, or an image that pyxis accepts."""

from __future__ import annotations

from pathlib import Path

import msgspec

from imgbuild.errors import InputError
from imgbuild.plan.seal import Seal
from imgbuild.project import Project
from imgbuild.sif import files
from imgbuild.slurm.jobs import Container
from imgbuild.smoke import run
from imgbuild.system.console import console


class Runtime(msgspec.Struct, frozen=True):
    """How to run the image: a SIF or a name for pyxis, folders, and options for Apptainer."""

    sif: Path | None
    pyxis: str | None
    binds: tuple[str, ...]
    words: tuple[str, ...]


def container(
    found: Project, sealed: Seal, runtime: Runtime, *, check: bool, submit: bool
) -> Container:
    """How to run the sealed image; for a check, with the folder of its scripts mounted.

    InputError if the job is submitted and the image's file does not exist.
    """
    if runtime.sif is not None and runtime.pyxis is not None:
        message = "--sif-file and --pyxis cannot be combined"
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
    """Warn if the SIF is not of the locked image, whose digest the script names.

    A SIF that another tool made cannot be compared.
    """
    try:
        config = files.config_of(sif) if sif.is_file() else None
    except InputError as error:  # Apptainer runs other kinds of files, too
        console.warn(error.message)
        return
    if config and config not in {image.config for image in sealed.arch.values()}:
        made = f"imgbuild build {sealed.target} --format sif"
        console.warn(f"{sif} is not the image of the current lock; make that one with: {made}")


def imported(image: str) -> Path | str:
    """The image as pyxis accepts it: a file by its absolute path; other names are a registry's."""
    path = Path(image)
    return path.absolute() if path.exists() or path.suffix in (".sqsh", ".squashfs") else image
