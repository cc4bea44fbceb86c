"""`imgbuild doctor`: which target fits this machine; whether an image can work where it runs."""

from __future__ import annotations

import enum
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import _options
from imgbuild.cli._options import LayoutFolder
from imgbuild.cli._selection import one_arch
from imgbuild.errors import InputError, WorkFailed
from imgbuild.system.console import console
from imgbuild.values import Arch

if TYPE_CHECKING:
    from imgbuild.doctor.host import Host
    from imgbuild.doctor.image import Asked
    from imgbuild.doctor.targets import Diagnosis


class Way(enum.StrEnum):
    """What an image is looked at from within."""

    DOCKER = "docker"
    PODMAN = "podman"
    APPTAINER = "apptainer"
    ROOT = "root"


Through = Annotated[
    Way | None,
    typer.Option(
        "--through",
        help="Look from within the built image of one target instead: packages of the home or of"
        " PYTHONPATH, folders, limits, shared memory, driver. apptainer: as a user runs it, with"
        " this machine's home and environment.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Sif = Annotated[
    Path | None,
    typer.Option(
        "--sif",
        metavar="FILE",
        help="With --through apptainer: this SIF, instead of one made for the purpose.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Gpus = Annotated[
    int,
    typer.Option(
        "--gpus",
        metavar="N",
        min=0,
        help="With --through: GPUs that must be seen.",
        rich_help_panel=_options.WORK,
    ),
]
Shared = Annotated[
    int,
    typer.Option(
        "--shared",
        metavar="MB",
        min=0,
        help="With --through: shared memory that must be free; 0: 1 GB is advised.",
        rich_help_panel=_options.WORK,
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Option(
        "--apptainer",
        metavar="OPTION",
        help="With --through apptainer: an option for it, such as --apptainer=--cleanenv;"
        " repeatable.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]


def doctor(
    names: _options.Names = None,
    target: _options.Targets = None,
    through: Through = None,
    sif: Sif = None,
    gpus: Gpus = 0,
    shared: Shared = 0,
    apptainer: Words = None,
    layout: LayoutFolder = None,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Say which locked targets this machine can run: by its driver, GPUs and architecture.

    Reads nvidia-smi where there is one, /proc, and what docker, podman and apptainer say of
    themselves; needs no GPU and changes nothing. With names, only those targets are judged, and the
    exit status is 1 if one of them does not fit. An image brings its own glibc: that of the machine
    counts where its wheels are installed without it, and is only remarked on.

    With --through, looks from within an image at what surrounds it, in seconds: exit status 1 if
    something there would break its stack.

    Examples:

        imgbuild doctor

        imgbuild doctor cu130-vllm

        imgbuild doctor --json

        imgbuild doctor cu124-vllm --through apptainer --sif build/cu124-vllm.sif --gpus 1
    """
    from imgbuild.cli._selection import choose
    from imgbuild.doctor import image
    from imgbuild.doctor import targets as judging
    from imgbuild.project import find

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    wanted = _options.wanted(names, target)
    if through is not None:
        needs = image.Asked(gpus=gpus, shared=shared, words=tuple(apptainer or ()))
        _look(wanted, matrix, layout, sif, through, needs, json=json)
        return
    if sif is not None or layout is not None or apptainer or gpus or shared:
        message = "--sif, --layout, --apptainer, --gpus and --shared go with --through"
        raise InputError(message, hint="add --through apptainer")
    project = find(matrix)
    chosen = choose(project, wanted, everything=not wanted, arches=[])
    every = choose(project, [], everything=True, arches=[]) if wanted else chosen
    host = _read()
    asked = {one.lock.target for one in chosen}
    all_of = judging.diagnose(host, [judging.offer(project.images, one.lock) for one in every])
    found = judging.only(all_of, asked)
    _options.answer(found, list(_lines(found)), json=json)
    unfit = [one.target for one in found.verdicts if not one.fits] if wanted else []
    if unfit and json:  # the answer has been given; an error of its own would be a second one
        raise typer.Exit(WorkFailed.exit_code)
    if unfit:
        message = f"{', '.join(unfit)} does not fit this machine"
        hint = f"the newest target that does is {found.best}" if found.best else None
        raise WorkFailed(message, hint=hint)


def _look(
    wanted: list[str],
    matrix: Path | None,
    layout: Path | None,
    sif: Path | None,
    through: Way,
    asked: Asked,
    *,
    json: bool,
) -> None:
    """Tell what is found from within the image of the one target; Exit 1 if an error is."""
    from imgbuild.cache.store import Store
    from imgbuild.cli._selection import single
    from imgbuild.doctor import image
    from imgbuild.lock import lock
    from imgbuild.pipeline import targets

    if through is not Way.APPTAINER and (sif is not None or asked.words):
        message = f"--sif and --apptainer do not go with --through {through}"
        raise InputError(message, hint="leave them out, or say --through apptainer")
    if sif is not None and not sif.exists():
        message = f"--sif {sif}: it is not there"
        raise InputError(message, hint="make one with: imgbuild sif")
    session = targets.open_session(matrix, targets.Options())
    name = single(session.select(wanted))
    locked = lock.read_lock(session.project.images, name)
    if sif is not None:
        report = image.in_sif(locked, Arch.parse(platform.machine()), sif, asked, console)
    else:
        built = targets.built_layout(session, name, layout)
        report = image.in_image(
            locked,
            built,
            one_arch(built, None),
            asked,
            through=through.value,
            store=Store.open(),
            reporter=console,
        )
    _options.answer(report, image.lines(report), json=json)
    if not report.ok:
        raise typer.Exit(WorkFailed.exit_code)


def _read() -> Host:
    from imgbuild.doctor.host import read_host

    return read_host()


def _lines(found: Diagnosis) -> Iterable[str]:
    yield from _machine(found.host)
    yield from (f"note: {remark}" for remark in found.remarks)
    yield ""
    from imgbuild.doctor.targets import tells

    fits = "fits" if tells(found.host) else "cannot be told"
    for verdict in found.verdicts:
        yield f"{verdict.target}: {fits if verdict.fits else 'does not fit'}"
        yield from (f"  {text}" for text in (*verdict.reasons, *verdict.remarks))
    yield ""
    if found.best:
        yield f"use: {found.best}"
    elif not tells(found.host):
        yield "which target to use cannot be told without a GPU and its driver"
    else:
        yield "no target fits this machine"


def _machine(host: Host) -> Iterable[str]:
    rows = [
        ("machine", f"{host.arch or 'unknown'}, Linux {host.kernel}, glibc {host.glibc or '?'}"),
        ("driver", host.driver or "none"),
    ]
    rows += [
        ("GPU", f"{gpu.name}, {gpu.memory >> 30} GB, compute capability {gpu.capability or '?'}")
        for gpu in host.gpus
    ]
    rows += [
        (one.name, one.version + (", GPUs" if one.gpus else ", no GPUs")) for one in host.engines
    ]
    rows.append(("shared memory", f"{host.shared_memory >> 20} MB"))
    yield from _options.aligned(rows)
