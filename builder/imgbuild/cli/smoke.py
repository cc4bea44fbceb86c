"""`imgbuild smoke`: test images from the inside."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from imgbuild.cli import _smoke_import
from imgbuild.cli._options import (
    SIF_FILE,
    THROUGH,
    Jobs,
    JUnit,
    LayoutFolder,
    Record,
    Through,
    Tier,
    TimeoutFactor,
    processes,
)
from imgbuild.cli._output import answer, count
from imgbuild.cli._selection import one_arch, same_image
from imgbuild.cli._targets import Selection
from imgbuild.cli._verb import option, verb
from imgbuild.errors import ImgbuildError, InputError, Interrupted, SomeFailed
from imgbuild.smoke.result import How, stopped
from imgbuild.system.console import console
from imgbuild.values import Arch

if TYPE_CHECKING:
    from imgbuild.cache.store import Store
    from imgbuild.pipeline.targets import Session
    from imgbuild.smoke import run as smoke_tests
    from imgbuild.smoke.result import Tested

Tiers = Annotated[
    list[Tier] | None,
    option(
        "--tier",
        "static: versions, files, imports, compilers. cpu: a GRPO step. gpu: vLLM, a GRPO step with"
        " it, servers, kernels. multi-gpu: two GPUs at once. Repeatable. Default: all that this"
        " machine's GPUs allow.",
        often=True,
    ),
]
ArbitraryUser = Annotated[
    bool,
    option(
        "--arbitrary-user",
        "Run with read-only files and a user that the image does not know, as on clusters;"
        " apptainer always does.",
    ),
]
Model = Annotated[
    Path | None,
    option(
        "--model",
        "A real model for the cases of vLLM, its servers and SGLang in the gpu tiers. Default: a"
        " tiny one with random weights.",
        metavar="FOLDER",
    ),
]
Share = Annotated[
    int,
    option("--share", "Of the cases that run at once, how many use the GPUs.", metavar="N", min=1),
]
Case = Annotated[
    str,
    option(
        "--case",
        "Only cases of --tier whose names match these shell patterns, such as nccl|vllm*.",
        metavar="PATTERNS",
    ),
]
Imports = Annotated[
    list[Path] | None,
    option(
        "--import",
        "Run nothing: add tests that ran elsewhere to images/TARGET/smoke.json, passed or failed."
        " An out/ folder of tools/gpu_proof.py, the folder of a job of `imgbuild ci run`, or a file"
        " that `imgbuild smoke --json` wrote; repeatable.",
        metavar="PATH",
        often=True,
    ),
]


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """How smoke tests are run."""

    tiers: tuple[smoke_tests.Tier, ...]
    through: Through | None
    how: How
    arbitrary: bool
    sif: Path | None
    record: bool
    document: bool  # JUnit is written in any case


SifOption = Annotated[Path | None, SIF_FILE("Tested through apptainer, without a layout.")]
ThroughOption = Annotated[
    Through | None,
    THROUGH(
        "docker, podman, root (a root folder, without an engine), apptainer (a SIF, read-only,"
        " as an unknown user), or here (the active Python environment, no image). Default: the"
        " engine that is running, else root."
    ),
]


@verb
def smoke(
    selection: Selection,
    tier: Tiers = None,
    layout: LayoutFolder = None,
    sif: SifOption = None,
    through: ThroughOption = None,
    arbitrary_user: ArbitraryUser = False,
    model: Model = None,
    junit: JUnit = None,
    record: Record = False,
    timeout_factor: TimeoutFactor = 1.0,
    jobs: Jobs = 1,
    share: Share = 1,
    case: Case = "*",
    imports: Imports = None,
) -> None:
    """Test built images from the inside, without a network.

    Exit status 1 if a test fails. A skipped test is reported as skipped, never as passed, and the
    gpu tiers fail on a machine without a GPU.

    Test records are kept in images/TARGET/smoke.json: --record adds the runs of this machine,
    --import those of other machines. `imgbuild list` and `show` print them. A run is refused, and
    then none is added, if it is not of the locked image (by its configuration and the diff IDs of
    its layers), not of a whole tier, without an end, or damaged.

    Examples:

        imgbuild smoke cu124-vllm

        imgbuild smoke cu124-vllm --tier static --through root --junit report.xml

        imgbuild smoke cu124-vllm --tier gpu --record

        imgbuild smoke --import out --import build/ci/cu124-vllm@x86_64
    """
    from imgbuild.codec import write_bytes
    from imgbuild.smoke import junit as junits
    from imgbuild.smoke import run as tests

    if imports:
        if selection.named or selection.everything:
            message = "--import and targets cannot be combined"
            raise InputError(message, hint="leave the targets out: the files name them")
        _smoke_import.record(imports, selection.project())
        return
    _refuse(sif, layout, through, tier, model, case, arbitrary=arbitrary_user, record=record)
    through = Through.APPTAINER if sif is not None else through
    asked = _Asked(
        tiers=_tiers(tier, through),
        through=through,
        how=How(
            patience=timeout_factor,
            model=_model(model),
            jobs=processes(jobs),
            share=min(share, processes(jobs)),
            only=case,
        ),
        arbitrary=arbitrary_user,
        sif=sif,
        record=record,
        document=junit is not None,
    )
    reports: list[Tested] = []
    try:
        failures = _smoke(reports, selection, layout, asked)
    finally:  # what is known, also where the user stops it
        if junit is not None and reports:
            write_bytes(junit, junits.document(reports))
    words = [f"{each.target} {each.arch} {each.tier} {tests.verdict(each)}" for each in reports]
    answer(reports, words)
    if failures:
        raise typer.Exit(SomeFailed(failures).exit_code)
    if not all(tests.succeeded(report) for report in reports):
        raise typer.Exit(1)


def _refuse(
    sif: Path | None, layout: Path | None, through: Through | None, tier: list[Tier] | None,
    model: Path | None, case: str, *, arbitrary: bool, record: bool,
) -> None:  # fmt: skip
    """InputError for options that cannot be combined."""
    if arbitrary and through is Through.HERE:
        message = "--arbitrary-user and --through here cannot be combined"
        raise InputError(message, hint="leave --arbitrary-user out, or test an image")
    if sif is not None and (layout is not None or through not in (None, Through.APPTAINER)):
        message = f"--sif {sif} cannot be combined with --layout or another --through"
        raise InputError(message, hint="leave --layout and --through out")
    if record and (model is not None or case != "*"):
        message = "--record needs a whole tier with the models of the tests"
        raise InputError(message, hint="leave --model and --case out")
    if record and (sif is not None or through is Through.HERE):
        message = "--record cannot be combined with --sif or --through here"
        raise InputError(
            message, hint="test the layout of the image; --through apptainer makes its SIF"
        )
    if case != "*" and not tier:
        message = f"--case {case} needs --tier"
        raise InputError(message, hint="add --tier static, cpu, gpu or multi-gpu")


def _tiers(named: Sequence[Tier] | None, through: Through | None) -> tuple[smoke_tests.Tier, ...]:
    """The tiers that are named, else all that this machine's GPUs allow, which it says."""
    from imgbuild.container import driver
    from imgbuild.smoke import run as tests

    if named:
        return tuple(each.value for each in named)
    found = driver.gpus()
    tiers = tests.fitting(found, through)
    console.info(f"{count(found, 'GPU')} on this machine: tiers {', '.join(tiers)}")
    return tiers


def _model(folder: Path | None) -> Path | None:
    """The model's folder, absolute; InputError if it holds none."""
    if folder is not None and not (folder / "config.json").is_file():
        message = f"--model {folder}: it has no config.json"
        raise InputError(message, hint="name a folder that from_pretrained can read")
    return folder.resolve() if folder else None


def _smoke(
    reports: list[Tested],
    selection: Selection,
    layout: Path | None,
    asked: _Asked,
) -> dict[str, ImgbuildError]:
    """Add to `reports` that of each target and tier, each printed as soon as it is complete.

    One that could not be tested has a report that says so. By target: what stopped a test, or the
    record of one. If nothing at all was tested and no JUnit is asked for, that is raised.
    """
    from imgbuild.cache.store import Store
    from imgbuild.smoke import run as tests

    session = selection.session()
    store = Store.open()
    selected = session.select(selection.named, everything=selection.everything, arches=[])
    same_image(selected, layout or asked.sif)
    failed: dict[str, ImgbuildError] = {}
    lacking: list[Tested] = []
    for item in selected:
        left: list[str] = list(asked.tiers)
        try:
            for report in _tested(session, item.name, layout, selection.arch, asked, store):
                tests.show(report)
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

    images = session.project.images
    if asked.through is Through.HERE:
        locked = lock.read_lock(images, name)
        return tests.smoke_here(locked, _here(arch), asked.tiers, store=store, how=asked.how)
    if asked.sif is not None:
        locked, own = lock.read_lock(images, name), container.arch_of(asked.sif)
        return sif.smoke_file(locked, asked.sif, own, asked.tiers, store=store, how=asked.how)
    built = targets.built_layout(session, name, layout)
    locked = lock.read_lock(images, name)
    only = one_arch(built, arch)
    if asked.record:
        config = built.image(only).config.digest
        proofs.require_sealed(session.project, locked, only, config, str(built.path))
    if asked.through is Through.APPTAINER:
        return sif.smoke_sif(locked, built, only, asked.tiers, store=store, how=asked.how)
    return tests.smoke(
        locked, built, only, asked.tiers, through=asked.through and asked.through.value,
        store=store, how=asked.how, stranger=asked.arbitrary,
    )  # fmt: skip


def _record(session: Session, report: Tested, store: Store) -> ImgbuildError | None:
    """Add the run to the test record; the error if it is refused."""
    from imgbuild.smoke import proofs, reports

    try:
        _smoke_import.report(proofs.prove(session.project, reports.of_reports([report]), store))
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
