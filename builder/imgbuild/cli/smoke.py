"""`imgbuild smoke`: test images from the inside."""

from __future__ import annotations

import enum
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from imgbuild.cli import options, prove, smoke_report
from imgbuild.cli.image import LayoutFolder, one_arch, same_image
from imgbuild.errors import ImgbuildError, InputError, Interrupted, SomeFailed
from imgbuild.smoke.result import How, stopped
from imgbuild.system.console import console
from imgbuild.values import Arch

if TYPE_CHECKING:
    from imgbuild.cache.store import Store
    from imgbuild.pipeline.targets import Session
    from imgbuild.smoke import run as smoke_tests
    from imgbuild.smoke.result import Tested


class Tier(enum.StrEnum):
    """How much is tested."""

    STATIC = "static"
    CPU = "cpu"
    GPU = "gpu"
    MULTI_GPU = "multi-gpu"


class Place(enum.StrEnum):
    """What smoke tests run in."""

    DOCKER = "docker"
    PODMAN = "podman"
    APPTAINER = "apptainer"
    ROOT = "root"
    HERE = "here"


def _patience(value: object) -> float:
    text = str(value)  # typer hands the default over too
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.1 <= number < float("inf"):
        message = f"{text!r} is no factor; give a number from 0.1 on"
        raise typer.BadParameter(message)
    return number


Tiers = Annotated[
    list[Tier] | None,
    typer.Option(
        "--tier",
        help="static: versions, files, imports, compilers. cpu: a GRPO step. gpu: vLLM, a GRPO"
        " step with it, servers, kernels. multi-gpu: two GPUs at once. By default all that this"
        " machine's GPUs allow.",
        rich_help_panel=options.WORK,
        show_default=False,
    ),
]
Way = Annotated[
    Place | None,
    typer.Option(
        "--through",
        help="By default the engine that answers, else a root folder, which needs no engine."
        " apptainer: a SIF, with a read-only root and an unknown user. here: the environment that"
        " is active, no image.",
        rich_help_panel=options.WORK,
        show_default=False,
    ),
]
Stranger = Annotated[
    bool,
    typer.Option(
        "--stranger",
        help="The image's files are read-only and the user is none of the image's, as clusters run"
        " it; so it is through apptainer in any case.",
        rich_help_panel=options.WORK,
    ),
]
Model = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="FOLDER",
        help="A real model for the gpu tiers' cases of vLLM, its servers and SGLang; by default a"
        " tiny one with random weights.",
        rich_help_panel=options.WORK,
        show_default=False,
    ),
]
Sif = Annotated[
    Path | None,
    typer.Option(
        "--sif",
        metavar="FILE",
        help="A SIF of the target, tested through apptainer; no layout is needed then.",
        rich_help_panel=options.WORK,
        show_default=False,
    ),
]
Record = Annotated[
    bool,
    typer.Option(
        "--record",
        help="Put the runs into images/TARGET/smoke.json, passed or failed: proofs of the sealed"
        " image, which `imgbuild matrix` shows.",
        rich_help_panel=options.TALK,
    ),
]
JUnit = Annotated[
    Path | None,
    typer.Option(
        "--junit",
        metavar="FILE",
        help="Write the report as JUnit XML too.",
        rich_help_panel=options.TALK,
        show_default=False,
    ),
]
Patience = Annotated[
    float,
    typer.Option(
        "--patience",
        metavar="N",
        parser=_patience,
        help="Multiply the time limits: for emulated or loaded machines.",
        rich_help_panel=options.WORK,
    ),
]


Jobs = Annotated[
    int,
    typer.Option(
        "--jobs",
        metavar="N",
        min=1,
        help="Cases at a time: they import at once, and take turns at the GPU.",
        rich_help_panel=options.WORK,
    ),
]
Share = Annotated[
    int,
    typer.Option(
        "--share",
        metavar="N",
        min=1,
        help="Of these, cases that use the gpu tier's GPUs at once: one of 80 GB has room for all.",
        rich_help_panel=options.WORK,
    ),
]
Only = Annotated[
    str,
    typer.Option(
        "--only",
        metavar="PATTERNS",
        help="Cases of the named --tier by shell patterns of their names, such as nccl|vllm*.",
        rich_help_panel=options.WORK,
    ),
]


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """How smoke tests are to be run."""

    tiers: tuple[smoke_tests.Tier, ...]
    through: Place | None
    how: How
    stranger: bool
    sif: Path | None
    record: bool
    document: bool  # JUnit is written whatever happens


def smoke(
    names: options.Names = None,
    target: options.Targets = None,
    everything: options.Everything = False,
    tier: Tiers = None,
    arch: options.OneArch = None,
    layout: LayoutFolder = None,
    sif: Sif = None,
    through: Way = None,
    stranger: Stranger = False,
    model: Model = None,
    junit: JUnit = None,
    record: Record = False,
    patience: Patience = 1.0,
    jobs: Jobs = 1,
    share: Share = 1,
    only: Only = "*",
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Test built images from the inside, without a network.

    Exit status 1 if a test fails. A test that is skipped is said to be skipped, never passed, and
    a tier for GPUs fails where there is none.

    Examples:

        imgbuild smoke cu124-vllm

        imgbuild smoke cu124-vllm --tier static --through root --junit report.xml

        imgbuild smoke cu124-vllm --tier gpu --record
    """
    from imgbuild.codec import write_bytes
    from imgbuild.smoke import junit as junits
    from imgbuild.smoke import run as tests

    options.configure(json=json, quiet=quiet, verbose=verbose)
    wanted = options.wanted(names, target)
    _refuse(sif, layout, through, tier, model, only, stranger=stranger, record=record)
    through = Place.APPTAINER if sif is not None else through
    asked = _Asked(
        tiers=_tiers(tier, through),
        through=through,
        how=How(
            patience=patience, model=_model(model), jobs=jobs, share=min(share, jobs), only=only
        ),
        stranger=stranger,
        sif=sif,
        record=record,
        document=junit is not None,
    )
    reports: list[Tested] = []
    try:
        failures = _smoke(reports, wanted, matrix, layout, arch, asked, everything=everything)
    finally:  # what is known, also where the user stops it
        if junit is not None and reports:
            write_bytes(junit, junits.document(reports))
    words = [f"{each.target} {each.arch} {each.tier} {tests.verdict(each)}" for each in reports]
    options.answer(reports, words, json=json)
    if failures:
        raise typer.Exit(SomeFailed(failures).exit_code)
    if not all(tests.succeeded(report) for report in reports):
        raise typer.Exit(1)


def _refuse(
    sif: Path | None, layout: Path | None, through: Place | None, tier: list[Tier] | None,
    model: Path | None, only: str, *, stranger: bool, record: bool,
) -> None:  # fmt: skip
    """InputError for options that do not go together."""
    if stranger and through is Place.HERE:
        message = "--stranger: the active environment is no image, and its user is you"
        raise InputError(message, hint="leave --stranger out, or test an image")
    if sif is not None and (layout is not None or through not in (None, Place.APPTAINER)):
        message = f"--sif {sif}: a SIF is tested through apptainer, and needs no layout"
        raise InputError(message, hint="leave --layout and --through out")
    if record and (model is not None or only != "*"):
        message = "--record: a proof is of a whole tier, with the tests' own models"
        raise InputError(message, hint="leave --model and --only out")
    if record and (sif is not None or through is Place.HERE):
        message = "--record: neither a SIF nor the active environment says which image it is of"
        raise InputError(message, hint="test the image's layout; --through apptainer makes its SIF")
    if only != "*" and not tier:
        message = f"--only {only}: no tier is named, and each has cases of its own"
        raise InputError(message, hint="name it: --tier static, cpu, gpu or multi-gpu")


def _tiers(named: Sequence[Tier] | None, through: Place | None) -> tuple[smoke_tests.Tier, ...]:
    """The tiers that are named, else all that this machine's GPUs allow, which it says."""
    from imgbuild.container import driver
    from imgbuild.smoke import run as tests

    if named:
        return tuple(each.value for each in named)
    found = driver.gpus()
    tiers = tests.fitting(found, through)
    console.info(f"this machine has {found or 'no'} GPU(s): tiers {', '.join(tiers)}")
    return tiers


def _model(folder: Path | None) -> Path | None:
    """The model's folder, absolute; InputError if it holds none."""
    if folder is not None and not (folder / "config.json").is_file():
        message = f"--model {folder}: it holds no config.json"
        raise InputError(message, hint="name the folder of a model, as from_pretrained reads it")
    return folder.resolve() if folder else None


def _smoke(
    reports: list[Tested],
    wanted: list[str],
    matrix: Path | None,
    layout: Path | None,
    arch: Sequence[Arch] | None,
    asked: _Asked,
    *,
    everything: bool,
) -> dict[str, ImgbuildError]:
    """Add to `reports` that of each target and tier, each shown as soon as it is there.

    One that could not be tested has a report that says so. By target: what stopped a test, or the
    record of one. If nothing at all was tested and no JUnit is asked for, that is raised.
    """
    from imgbuild.cache.store import Store
    from imgbuild.pipeline import targets

    session = targets.open_session(matrix, targets.Options())
    store = Store.open()
    selected = session.select(wanted, everything=everything, arches=[])
    same_image(selected, layout or asked.sif)
    failed: dict[str, ImgbuildError] = {}
    lacking: list[Tested] = []
    for item in selected:
        left: list[str] = list(asked.tiers)
        try:
            for report in _tested(session, item.name, layout, arch, asked, store):
                smoke_report.print_report(report)
                reports.append(report)
                left.remove(report.tier)
                if asked.record and (wrong := _record(session, report, store)):
                    failed[item.name] = wrong
        except Interrupted:
            raise
        except ImgbuildError as error:
            failed[item.name] = error
            lacking += [stopped(item.name, each, error) for each in left]
    if failed and not reports and not asked.document:
        raise next(iter(failed.values())) if len(failed) == 1 else SomeFailed(failed)
    for each in failed.values():
        console.error(each.message, hint=each.hint)
        for problem in each.problems if isinstance(each, InputError) else ():
            console.info(f"  {problem}")
    reports += lacking
    return failed


def _tested(
    session: Session,
    name: str,
    layout: Path | None,
    arch: Sequence[Arch] | None,
    asked: _Asked,
    store: Store,
) -> Iterator[Tested]:
    """The reports of a target's tiers, as they come."""
    from imgbuild.lock import lock
    from imgbuild.pipeline import targets
    from imgbuild.sif import container
    from imgbuild.smoke import proofs, sif
    from imgbuild.smoke import run as tests

    images, how, tiers = session.project.images, asked.how, asked.tiers
    if asked.through is Place.HERE:
        locked = lock.read_lock(images, name)
        return tests.smoke_here(locked, _here(arch), tiers, store=store, how=how, reporter=console)
    if asked.sif is not None:
        locked, own = lock.read_lock(images, name), container.arch_of(asked.sif)
        return sif.smoke_file(locked, asked.sif, own, tiers, store=store, how=how, reporter=console)
    built = targets.built_layout(session, name, layout)
    locked = lock.read_lock(images, name)
    only = one_arch(built, arch)
    if asked.record:
        config = built.image(only).config.digest
        proofs.require_sealed(session.project, locked, only, config, str(built.path))
    if asked.through is Place.APPTAINER:
        return sif.smoke_sif(locked, built, only, tiers, store=store, how=how, reporter=console)
    return tests.smoke(
        locked, built, only, tiers, through=asked.through and asked.through.value, store=store,
        how=how, stranger=asked.stranger, reporter=console,
    )  # fmt: skip


def _record(session: Session, report: Tested, store: Store) -> ImgbuildError | None:
    """Put the run into its ledger; what was wrong if it is no proof."""
    from imgbuild.smoke import proofs, reports

    try:
        prove.tell(proofs.prove(session.project, reports.of_reports([report]), store))
    except Interrupted:
        raise
    except ImgbuildError as error:
        return error
    return None


def _here(arches: Sequence[Arch] | None) -> Arch:
    """This machine's architecture, which alone can be tested in the active environment."""
    own = Arch.parse(platform.machine())
    if arches and set(arches) != {own}:
        message = f"--arch {' --arch '.join(arches)}: the active environment is {own}"
        raise InputError(message, hint="leave --arch out, or test an image")
    return own
