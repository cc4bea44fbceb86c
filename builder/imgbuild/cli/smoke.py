"""`imgbuild smoke`: test images from the inside."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import _options, _smoke_image, _smoke_import
from imgbuild.cli._options import LayoutFolder
from imgbuild.cli._smoke_image import Asked, Place, Subject
from imgbuild.errors import ImgbuildError, InputError, Interrupted, SomeFailed
from imgbuild.smoke.result import How, stopped
from imgbuild.system.console import console
from imgbuild.values import Arch

if TYPE_CHECKING:
    from imgbuild.cache.store import Store
    from imgbuild.project import Project
    from imgbuild.smoke import run as smoke_tests
    from imgbuild.smoke.result import Tested


class Tier(enum.StrEnum):
    """How much is tested."""

    STATIC = "static"
    CPU = "cpu"
    GPU = "gpu"
    MULTI_GPU = "multi-gpu"


def _factor(value: object) -> float:
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
        rich_help_panel=_options.WORK,
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
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
ArbitraryUser = Annotated[
    bool,
    typer.Option(
        "--arbitrary-user",
        help="The image's files are read-only and the user is none of the image's, as clusters run"
        " it; so it is through apptainer in any case.",
        rich_help_panel=_options.WORK,
    ),
]
Model = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="FOLDER",
        help="A real model for the gpu tiers' cases of vLLM, its servers and SGLang; by default a"
        " tiny one with random weights.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Sif = Annotated[
    Path | None,
    typer.Option(
        "--sif",
        metavar="FILE",
        help="A SIF of the target, tested through apptainer; no layout is needed then.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
LockFile = Annotated[
    Path | None,
    typer.Option(
        "--lock",
        metavar="FILE",
        help="The lock.json of a LAYOUT or SIF that is tested without a checkout; by default"
        " LAYOUT/lock.json.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Record = Annotated[
    bool,
    typer.Option(
        "--record",
        help="Put the runs into images/TARGET/smoke.json, passed or failed:  of the sealed"
        " image, which `imgbuild list` shows.",
        rich_help_panel=_options.TALK,
    ),
]
JUnit = Annotated[
    Path | None,
    typer.Option(
        "--junit",
        metavar="FILE",
        help="Write the report as JUnit XML too.",
        rich_help_panel=_options.TALK,
        show_default=False,
    ),
]
TimeoutFactor = Annotated[
    float,
    typer.Option(
        "--timeout-factor",
        metavar="N",
        parser=_factor,
        help="Multiply the time limits: for emulated or loaded machines.",
        rich_help_panel=_options.WORK,
    ),
]


Jobs = Annotated[
    int,
    typer.Option(
        "--jobs",
        metavar="N",
        min=1,
        help="Cases at a time: they import at once, and take turns at the GPU.",
        rich_help_panel=_options.WORK,
    ),
]
Share = Annotated[
    int,
    typer.Option(
        "--share",
        metavar="N",
        min=1,
        help="Of these, cases that use the gpu tier's GPUs at once: one of 80 GB has room for all.",
        rich_help_panel=_options.WORK,
    ),
]
Only = Annotated[
    str,
    typer.Option(
        "--only",
        metavar="PATTERNS",
        help="Cases of the named --tier by shell patterns of their names, such as nccl|vllm*.",
        rich_help_panel=_options.WORK,
    ),
]

Imports = Annotated[
    list[Path] | None,
    typer.Option(
        "--import",
        metavar="PATH",
        help="Run nothing: add tests that ran elsewhere to images/TARGET/smoke.json, passed or"
        " failed. A file that `imgbuild smoke --json` wrote, or the folder of a job of"
        " `imgbuild ci run`; repeatable.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]


def smoke(
    names: _options.Names = None,
    target: _options.Targets = None,
    everything: _options.Everything = False,
    tier: Tiers = None,
    arch: _options.OneArch = None,
    layout: LayoutFolder = None,
    lock: LockFile = None,
    sif: Sif = None,
    through: Way = None,
    arbitrary_user: ArbitraryUser = False,
    model: Model = None,
    junit: JUnit = None,
    record: Record = False,
    timeout_factor: TimeoutFactor = 1.0,
    jobs: Jobs = 1,
    share: Share = 1,
    only: Only = "*",
    imports: Imports = None,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Test built images from the inside, without a network.

    Exit status 1 if a test fails. A test that is skipped is said to be skipped, never passed, and
    a tier for GPUs fails where there is none.

    Examples:

        imgbuild smoke cu124-vllm

        imgbuild smoke cu124-vllm --tier static --through root --junit report.xml

        imgbuild smoke cu124-vllm --tier gpu --record

        imgbuild smoke ./layout --lock ./lock.json --through root --json > smoke.json
    """
    from imgbuild.codec import write_bytes
    from imgbuild.smoke import junit as junits
    from imgbuild.smoke import run as tests

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    wanted = _options.wanted(names, target)
    if imports:
        if wanted or everything:
            message = "--import takes the target from the files that it reads"
            raise InputError(message, hint="leave targets and --all out")
        _smoke_import.record(imports, matrix, json=json)
        return
    _refuse(sif, layout, through, tier, model, only, arbitrary=arbitrary_user, record=record)
    if record and lock is not None:
        message = f"--record: {lock} is tested outside a project"
        raise InputError(
            message, hint="write the results with --json, and add them there with --import"
        )
    through = Place.APPTAINER if sif is not None else through
    asked = Asked(
        tiers=_tiers(tier, through),
        through=through,
        how=How(
            patience=timeout_factor,
            model=_model(model),
            jobs=jobs,
            share=min(share, jobs),
            only=only,
        ),
        arbitrary=arbitrary_user,
        sif=sif,
        record=record,
        document=junit is not None,
    )
    reports: list[Tested] = []
    try:
        images = _smoke_image.chosen(wanted, matrix, layout, lock, sif, everything=everything)
        failures = _smoke(reports, images, arch, asked)
    finally:  # what is known, also where the user stops it
        if junit is not None and reports:
            write_bytes(junit, junits.document(reports))
    words = [f"{each.target} {each.arch} {each.tier} {tests.verdict(each)}" for each in reports]
    _options.answer(reports, words, json=json)
    if failures:
        raise typer.Exit(SomeFailed(failures).exit_code)
    if not all(tests.succeeded(report) for report in reports):
        raise typer.Exit(1)


def _refuse(
    sif: Path | None, layout: Path | None, through: Place | None, tier: list[Tier] | None,
    model: Path | None, only: str, *, arbitrary: bool, record: bool,
) -> None:  # fmt: skip
    """InputError for options that do not go together."""
    if arbitrary and through is Place.HERE:
        message = "--arbitrary-user: the active environment is no image, and its user is you"
        raise InputError(message, hint="leave --arbitrary-user out, or test an image")
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
    images: Sequence[Subject],
    arch: Sequence[Arch] | None,
    asked: Asked,
) -> dict[str, ImgbuildError]:
    """Add to `reports` that of each target and tier, each shown as soon as it is there.

    One that could not be tested has a report that says so. By target: what stopped a test, or the
    record of one. If nothing at all was tested and no JUnit is asked for, that is raised.
    """
    from imgbuild.cache.store import Store
    from imgbuild.smoke import run as tests

    store = Store.open()
    failed: dict[str, ImgbuildError] = {}
    lacking: list[Tested] = []
    for image in images:
        left: list[str] = list(asked.tiers)
        try:
            for report in _smoke_image.reports(image, arch, asked, store):
                tests.show(report)
                reports.append(report)
                left.remove(report.tier)
                if asked.record and image.project is not None:
                    failed |= _record(image.project, report, store)
        except Interrupted:
            raise
        except ImgbuildError as error:
            failed[image.name] = error
            lacking += [stopped(image.name, each, error) for each in left]
    if failed and not reports and not asked.document:
        raise next(iter(failed.values())) if len(failed) == 1 else SomeFailed(failed)
    for each in failed.values():
        console.error(each.message, hint=each.hint)
        for problem in each.problems if isinstance(each, InputError) else ():
            console.info(f"  {problem}")
    reports += lacking
    return failed


def _record(project: Project, report: Tested, store: Store) -> dict[str, ImgbuildError]:
    """Put the run into its ledger; by target, what was wrong if it is no proof."""
    from imgbuild.smoke import proofs, reports

    try:
        _smoke_import.tell(proofs.prove(project, reports.of_reports([report]), store))
    except Interrupted:
        raise
    except ImgbuildError as error:
        return {report.target: error}
    return {}
