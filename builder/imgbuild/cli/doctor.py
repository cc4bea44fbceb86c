"""Implements `imgbuild doctor`, which checks machines for targets, and images on this machine."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from imgbuild.cache.store import Store
from imgbuild.cli import _doctor_lines, _machine
from imgbuild.cli._help import create_command
from imgbuild.cli._options import (
    ARCH,
    DRIVER,
    GPU,
    GPUS,
    SIF_FILE,
    THROUGH,
    Apptainer,
    EngineName,
    LayoutFolder,
    SharedMemory,
)
from imgbuild.cli._output import align_columns, fold_lines, print_result
from imgbuild.cli._selection import SelectedLock, at_most_one_arch, choose_locks, single_target
from imgbuild.cli._sessions import single_arch
from imgbuild.cli._targets import WholeTargets
from imgbuild.cli._verb import OptionGroup, create_verb, option
from imgbuild.container import driver
from imgbuild.doctor import collect, image
from imgbuild.doctor.collect import CollectedMachine
from imgbuild.doctor.host import Host, read_host
from imgbuild.doctor.image import InspectOptions
from imgbuild.doctor.targets import (
    HostDiagnosis,
    TargetNeeds,
    diagnose_host,
    limit_diagnosis,
    target_needs,
)
from imgbuild.errors import InputError, WorkFailed
from imgbuild.lock import lock_file, published
from imgbuild.matrix.project_paths import Project
from imgbuild.matrix.select import select_targets
from imgbuild.pipeline.session import find_built_layout, open_session
from imgbuild.show import table
from imgbuild.show.table import TableRow
from imgbuild.smoke.runner import ImageUnderTest
from imgbuild.system import quoting
from imgbuild.system.console import console
from imgbuild.values import Arch


class AnotherMachine(OptionGroup, frozen=True, kw_only=True):
    """Options that describe a machine to check instead of this machine."""

    driver: Annotated[
        str | None, DRIVER("Check a machine with this driver instead of this machine.")
    ] = None
    gpu: Annotated[
        list[str] | None,
        GPU("Check a machine with this GPU instead of this machine. Can be repeated."),
    ] = None
    arch: Annotated[
        list[Arch] | None,
        ARCH("Applies to --driver and --gpu. Default: the architecture of the GPU, else x86_64."),
    ] = None

    def list_filters(self) -> str:
        """Return the same options for `imgbuild list`."""
        words = ["--driver", self.driver] if self.driver else []
        words += [word for gpu in self.gpu or () for word in ("--gpu", gpu)]
        words += [word for arch in self.arch or () for word in ("--arch", arch)]
        return "".join(f" {quoting.quote_word(word)}" for word in words)

    @property
    def has_several_machines(self) -> bool:
        """Whether the GPUs can be in machines of different architectures."""
        return not self.arch and len({_machine.parse_gpu(gpu).arch for gpu in self.gpu or ()}) > 1

    def host(self, *, inside: bool) -> Host | None:
        """Return the machine that the options describe, or None if no option is given.

        Raises InputError if --through is also given, because images are checked on this machine.
        """
        if self.driver is None and not self.gpu and not self.arch:
            return None
        if inside:
            message = "--driver, --gpu and --arch cannot be combined with --through"
            raise InputError(message, hint="images are always checked on this machine")
        arch = at_most_one_arch(self.arch, "a machine can have only one architecture")
        return _machine.described_host(self.driver, self.gpu or [], arch)


@create_verb
def doctor(
    selection: WholeTargets,
    another: AnotherMachine,
    through: Annotated[
        EngineName | None,
        THROUGH(
            "Run the check inside the image of one target. Choices: docker, podman, root, or "
            "apptainer (uses the home folder and environment of the user)."
        ),
    ] = None,
    sif: Annotated[
        Path | None,
        SIF_FILE("Requires --through apptainer. By default, a SIF file is built for the check."),
    ] = None,
    gpus: Annotated[str, GPUS("Fail if the container has fewer GPUs. Requires --through.")] = "0",
    shared: SharedMemory = 0,
    apptainer: Apptainer = None,
    layout: LayoutFolder = None,
    gather: Annotated[
        bool,
        option(
            "--collect",
            "Print information for a bug report: the machine, packages, and environment variables"
            " without secrets.",
        ),
    ] = False,
) -> None:
    """Show which targets this machine can run, and why.

    Compares the driver, GPUs and architecture with the requirements of each locked target. Reads
    /proc, the versions of docker, podman and apptainer, and the output of nvidia-smi if it is
    installed. Needs no GPU and changes nothing. If targets are specified, checks only these
    targets, and exits with status 1 if a target cannot run. The glibc version of the machine is
    shown only for information, because images contain glibc.

    Targets whose CUDA release the driver fully supports are listed before targets that the driver
    supports by minor version compatibility. In each group, recommended targets are listed first.
    General targets (vLLM, TRL) are preferred to targets with other frameworks. Retired targets are
    marked, and suggested only if no other target can run. --driver, --gpu and --arch describe
    another machine.

    With --through, checks from inside an image for problems on this machine: packages in the home
    folder or in PYTHONPATH, and problems with folders, limits, shared memory and the driver. Exits
    with status 1 if the check finds an error.

    Examples:

        imgbuild doctor

        imgbuild doctor cu130-vllm

        imgbuild doctor --driver 535 --gpu A100

        imgbuild doctor cu124-vllm --through apptainer --sif-file build/cu124-vllm.sif --gpus 1
    """
    if gather:
        _print_collected()
        return
    patterns = selection.named_targets
    host = another.host(inside=through is not None)
    number = driver.count_gpus() if gpus == "all" else int(gpus)
    if through is not None:
        needs = image.InspectOptions(gpus=number, shared=shared, words=tuple(apptainer or ()))
        _check_image(selection, layout, sif, through, needs)
        return
    _require_through(
        {
            "--sif-file": sif, "--layout": layout, "--apptainer": apptainer, "--gpus": number,
            "--shared": shared,
        }
    )  # fmt: skip
    project = selection.project()
    chosen = choose_locks(project, patterns, everything=not patterns, arches=[])
    every = choose_locks(project, [], everything=True, arches=[]) if patterns else chosen
    host = host or read_host()
    names = {item.lock.target for item in chosen}
    all_of = diagnose_host(host, _needs_of_targets(project, every))
    diagnosis = limit_diagnosis(all_of, names)
    rows = {} if console.json else _rows(project, host)
    print_result(diagnosis, fold_lines(_lines(diagnosis, rows)), _line_style)
    if not console.json:
        _print_commands(quoting.quote_word(diagnosis.best) if diagnosis.best else "", another)
    if patterns:
        _require_fits(diagnosis)


def _print_commands(best: str, another: AnotherMachine) -> None:
    """Print the commands that show the targets and run the best one, if there is one."""
    if another.has_several_machines:
        console.info(
            "the GPUs were checked in one machine; to find the targets for machines of different "
            f"architectures, run: imgbuild list{another.list_filters()}"
        )
    elif best:
        console.info(
            "to show the versions in these targets, run: imgbuild "
            f"list{another.list_filters() or ' --fits'}"
        )
    if best:
        console.info(
            f"to use {best}, run: imgbuild run {best} -- COMMAND; with Apptainer: imgbuild build "
            f"{best} --format sif; then, with Slurm: imgbuild slurm {best} --gpus 8 -- COMMAND"
        )


def _require_fits(diagnosis: HostDiagnosis) -> None:
    unfit = [verdict.target for verdict in diagnosis.verdicts if not verdict.fits]
    if unfit and console.json:
        raise typer.Exit(WorkFailed.exit_code)
    if unfit:
        message = f"not compatible with {diagnosis.host.host_phrase}: {', '.join(unfit)}"
        hint = f"{diagnosis.best} is compatible" if diagnosis.best else None
        raise WorkFailed(message, hint=hint)


def _needs_of_targets(project: Project, selected: Sequence[SelectedLock]) -> list[TargetNeeds]:
    targets = published.load_matrix(project.matrix).targets
    rows = [(item.lock, targets.get(item.lock.target)) for item in selected]
    return [
        target_needs(
            project.images,
            lock,
            " ".join(target.retired.split()) if target else "",
            recommended=target is not None and bool(target.recommended),
        )
        for lock, target in rows
    ]


def _require_through(inside: Mapping[str, object]) -> None:
    for flag, value in inside.items():
        if value:
            message = f"{flag} requires --through, because it applies only inside an image"
            raise InputError(message, hint="specify --through docker, podman, root or apptainer")


def _check_image(
    selection: WholeTargets,
    layout: Path | None,
    sif: Path | None,
    through: str,
    options: InspectOptions,
) -> None:
    if through != "apptainer" and (sif is not None or options.words):
        message = f"--sif-file and --apptainer cannot be combined with --through {through}"
        raise InputError(message, hint="omit these options, or use --through apptainer")
    if sif is not None and not sif.exists():
        message = f"--sif-file {sif}: no such file"
        raise InputError(message, hint="run imgbuild build TARGET --format sif")
    session = open_session(selection.matrix, names=selection.named_targets)
    name = single_target([item.name for item in session.select_targets(selection.named_targets)])
    locked = lock_file.read_lock(session.project.images, name)
    if sif is not None:
        report = image.check_sif(locked, Arch.parse(platform.machine()), sif, options, console)
    else:
        built = find_built_layout(session, name, layout)
        store = Store.open(reporter=console)
        test_image = ImageUnderTest(lock=locked, arch=single_arch(built, None), store=store)
        report = image.check_image(test_image, built, options, through=through)
    print_result(report, fold_lines(image.finding_lines(report)))
    if not report.ok:
        raise typer.Exit(WorkFailed.exit_code)


def _lines(diagnosis: HostDiagnosis, rows: Mapping[str, TableRow]) -> Iterable[str]:
    yield from _machine_rows(diagnosis.host)
    yield from (f"note: {remark}" for remark in diagnosis.remarks)
    yield ""
    yield from _doctor_lines.doctor_lines(diagnosis, rows)


def _rows(project: Project, host: Host) -> dict[str, TableRow]:
    matrix = published.load_matrix(project.matrix)
    selected = select_targets(matrix, [], everything=True, arches=[])
    return {
        row.target: table.add_images(
            project, msgspec.structs.replace(row, arch=tuple({*row.arch} & {host.arch}))
        )
        for row in table.create_rows(matrix, published.shown_targets(matrix, selected))
    }


def _line_style(line: str) -> list[tuple[str, str]]:
    for word, style in (("fits:", "green"), ("does not fit:", "red"), ("use:", "bold green")):
        if line.startswith(word):
            return [(word, style), (line.removeprefix(word), "")]
    return [(line, "")]


def _print_collected() -> None:
    collected = collect.collect_machine()
    print_result(collected, list(_collected_lines(collected)))


def _collected_lines(collected: CollectedMachine) -> Iterable[str]:
    yield from _machine_rows(collected.host)
    yield f"Python {collected.python}"
    yield from (f"{name}=={version}" for name, version in collected.packages.items())
    yield from (f"{name}={value}" for name, value in collected.variables.items())


def _machine_rows(host: Host) -> Iterable[str]:
    if host.described:
        yield from align_columns(
            [
                ("machine", f"{host.arch}, described by options"),
                ("driver", host.driver or "not given"),
                *(
                    ("GPU", f"{gpu.name}, compute capability {gpu.capability}")
                    for gpu in host.gpus or ()
                ),
            ]
        )
        return
    rows = [
        ("machine", f"{host.arch or 'unknown'}, Linux {host.kernel}, glibc {host.glibc or '?'}"),
        ("driver", host.driver or "none"),
    ]
    rows += [
        ("GPU", f"{gpu.name}, {gpu.memory >> 30} GB, compute capability {gpu.capability or '?'}")
        for gpu in host.gpus
    ]
    rows += [
        (
            engine.name,
            engine.version + (", with GPU support" if engine.gpus else ", without GPU support"),
        )
        for engine in host.engines
    ]
    rows.append(("shared memory", f"{host.shared_memory >> 20} MB"))
    yield from align_columns(rows)


COMMAND = create_command(doctor)
