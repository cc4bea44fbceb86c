"""Implements `imgbuild smoke`, which runs smoke tests in images."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Annotated

import msgspec
import typer

from imgbuild.cache.store import Store
from imgbuild.cli import _smoke_import
from imgbuild.cli._array import add_slurm_options
from imgbuild.cli._cause import report_cause
from imgbuild.cli._help import create_command
from imgbuild.cli._options import (
    LOCK,
    SIF_FILE,
    THROUGH,
    Jobs,
    JUnit,
    LayoutFolder,
    Record,
    ThroughName,
    Tier,
    TimeoutFactor,
    process_count,
)
from imgbuild.cli._output import align_columns, fold_lines, format_count, print_result
from imgbuild.cli._sessions import refuse_shared_layout, single_arch
from imgbuild.cli._targets import SelectionOptions
from imgbuild.cli._verb import create_verb, option
from imgbuild.codec import write_bytes
from imgbuild.container import driver
from imgbuild.errors import ImgbuildError, InputError, Interrupted, SomeFailed
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.project_paths import Project
from imgbuild.oci.layout import MARKER, Layout, read_layout
from imgbuild.pipeline.session import find_built_layout, open_session
from imgbuild.report import Report, TierName, case_counts, has_passed
from imgbuild.sif import container
from imgbuild.smoke import junit_report, recording, reports, runner, sif
from imgbuild.smoke.result import RunSettings, SmokeRun, stopped_run
from imgbuild.smoke.runner import ImageUnderTest
from imgbuild.system import boundary, files
from imgbuild.system.console import console
from imgbuild.values import Arch


class SmokeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for running smoke tests."""

    tiers: tuple[TierName, ...]
    through: ThroughName | None
    how: RunSettings
    arbitrary: bool
    sif: Path | None
    record: bool
    document: bool  # JUnit is written in any case


class TestSubject(msgspec.Struct, frozen=True, kw_only=True):
    """A target to test. `project` is None if lock and layout were specified directly."""

    name: str
    lock: Callable[[], Lock]
    layout: Callable[[], Layout]
    project: Project | None = None


def chosen_images(
    selection: SelectionOptions, layout: Path | None, lock: Path | None, sif: Path | None
) -> list[TestSubject]:
    """Return the images to test: targets of the matrix, or a single image and its lock.

    If `lock` is specified, or an argument is the folder of an OCI layout, a single image is tested
    and the matrix is not read. By default, `lock` is the lock.json in that folder.
    """
    words, everything = selection.named_targets, selection.everything
    if lock is not None or any((Path(word) / MARKER).is_file() for word in words):
        return [_single_image(words, layout, lock, sif, everything=everything)]
    session = open_session(selection.matrix, names=words)
    selected = session.select_targets(words, everything=everything, arches=[])
    refuse_shared_layout(selected, layout or sif)
    return [
        TestSubject(
            name=item.name,
            lock=partial(lock_file.read_lock, session.project.images, item.name),
            layout=partial(find_built_layout, session, item.name, layout),
            project=session.project,
        )
        for item in selected
    ]


def _single_image(
    words: Sequence[str],
    layout: Path | None,
    lock: Path | None,
    sif: Path | None,
    *,
    everything: bool,
) -> TestSubject:
    images = [*map(Path, words), *(each for each in (layout, sif) if each is not None)]
    if everything or len(images) != 1:
        message = f"--lock requires exactly one image, not {', '.join(map(str, images)) or 'none'}"
        raise InputError(message, hint="run imgbuild smoke LAYOUT --lock images/TARGET/lock.json")
    folder = images[0]
    path = lock or folder / lock_file.FILE
    hint = (
        "copy images/TARGET/lock.json to the machine that runs the tests, and pass it with --lock"
        " FILE"
    )
    try:
        data = boundary.read_regular_file(path)
    except OSError as error:
        message = f"cannot read the lock {path}: {error.strerror}"
        raise InputError(message, hint=hint) from error
    image_lock = lock_file.decode_lock(
        data, str(path), hint=hint, remedy="use the version of imgbuild that created the lock"
    )
    return TestSubject(
        name=image_lock.target,
        lock=lambda: image_lock,
        layout=partial(read_layout, folder),
    )


def image_reports(
    image: TestSubject, arch: Sequence[Arch] | None, options: SmokeOptions, store: Store
) -> Iterator[SmokeRun]:
    """Run the tiers, and yield the report of each tier when the tier has ended."""
    tiers, how = options.tiers, options.how

    def _test_image(only: Arch) -> ImageUnderTest:
        return ImageUnderTest(lock=image.lock(), arch=only, store=store, reporter=console)

    if options.through == "here":
        return runner.run_tiers_here(_test_image(_environment_arch(arch)), tiers, how=how)
    if options.sif is not None:
        test_image = _test_image(container.read_arch(options.sif))
        return sif.smoke_file(test_image, options.sif, tiers, how=how)
    built = image.layout()
    test_image = _test_image(single_arch(built, arch))
    if options.record and image.project is not None:
        config = built.image(test_image.arch).config.digest
        recording.require_locked(
            image.project, test_image.lock, test_image.arch, config, str(built.path)
        )
    if options.through == "apptainer":
        return sif.smoke_sif(test_image, built, tiers, how=how)
    return runner.run_tiers(
        test_image, built, tiers, through=options.through, how=how,
        arbitrary_user=options.arbitrary,
    )  # fmt: skip


def _environment_arch(arches: Sequence[Arch] | None) -> Arch:
    machine = Arch.parse(platform.machine())
    if arches and set(arches) != {machine}:
        message = f"--arch {' --arch '.join(arches)}: the active environment is {machine}"
        raise InputError(message, hint="omit --arch, or test an image")
    return machine


QUICK_SECONDS = 1.0  # seconds
TAIL = 30  # lines of a failed case's log
INDENT = "  "
COLUMNS = ("case", "outcome", "seconds")


def print_report(report: Report) -> None:
    """Print a table of cases, the skipped cases with reasons, and the failed cases.

    Without `-v`, quick passed cases share one row, and only the end of the logs of failed cases is
    printed.
    """
    title = f"{report.target} {report.arch}, tier {report.tier}"
    whole = console.verbosity > 0
    quick = [
        case.seconds
        for case in report.cases
        if not whole and case.outcome == "passed" and case.seconds < QUICK_SECONDS
    ]
    rows = [
        (case.name, case.outcome, f"{case.seconds:.1f}")
        for case in report.cases
        if whole or case.outcome != "passed" or case.seconds >= QUICK_SECONDS
    ]
    if quick:
        rows.append(
            (f"{len(quick)} more, under {QUICK_SECONDS:.0f} s each", "passed", f"{sum(quick):.1f}")
        )
    width = shutil.get_terminal_size().columns - len(INDENT)
    table = align_columns([COLUMNS, *rows], right=frozenset({2}), width=width)
    console.info("\n".join((title, *(f"{INDENT}{line}" for line in table))))
    console.info(f"{title}: {case_counts(report.cases)}")
    for case in report.cases:
        if case.outcome == "skipped":
            console.info(f"skipped: {case.name}: {case.message}")
        for note in case.notes:
            console.info(f"note: {case.name}: {note}")
    for case in report.cases:
        if case.outcome == "failed":
            console.error(f"{case.name}: {case.message}")
            lines = case.log.splitlines()
            if len(lines) > TAIL and not whole:
                console.info(f"last {TAIL} of {len(lines)} log lines (to show all, add -v):")
                lines = lines[-TAIL:]
            console.info(indent("\n".join(lines), "  "))
            report_cause(case.log)


Tiers = Annotated[
    list[Tier] | None,
    option(
        "--tier",
        "Run this tier: static (versions, files, imports and compilers), cpu (a GRPO step), gpu"
        " (vLLM, a GRPO step with vLLM, servers and kernels), or multi-gpu (two GPUs at the same"
        " time). Can be repeated. Default: all tiers that the GPUs of this machine allow.",
        often=True,
    ),
]
ArbitraryUser = Annotated[
    bool,
    option(
        "--arbitrary-user",
        "Run the tests with a read-only file system and as a user that the image does not define, "
        "as on many clusters. Always enabled with apptainer.",
    ),
]
Model = Annotated[
    Path | None,
    option(
        "--model",
        "The folder of the model for the gpu tiers. Used by the tests of vLLM and SGLang, by "
        "their servers, and by the GRPO step of TRL. Default: a tiny model with random weights.",
        metavar="FOLDER",
    ),
]
Share = Annotated[
    int,
    option(
        "--share",
        "The maximum number of cases that use the GPUs at the same time.",
        metavar="N",
        min=1,
        setting=True,
    ),
]
Case = Annotated[
    str,
    option(
        "--case",
        "Run only the cases of --tier whose names match these shell patterns, such as nccl|vllm*.",
        metavar="PATTERNS",
    ),
]
Imports = Annotated[
    list[Path] | None,
    option(
        "--import",
        "Instead of running tests, add the results of another machine, passed or failed, to "
        "images/TARGET/smoke.json. Accepts a file written by `imgbuild smoke --json`, or the "
        "folder of an `imgbuild ci script` job. Can be repeated.",
        metavar="PATH",
        often=True,
    ),
]


LockOption = Annotated[
    Path | None,
    LOCK("Required to test a layout or SIF file outside of a checkout. Default: LAYOUT/lock.json."),
]
SifOption = Annotated[Path | None, SIF_FILE("Test this file with apptainer instead of a layout.")]
ThroughOption = Annotated[
    ThroughName | None,
    THROUGH(
        "Choices: docker, podman, root (an unpacked root folder, without an engine), apptainer (a "
        "read-only SIF file, run as a user that the image does not define), or here (the active "
        "Python environment, without an image). Default: the running engine, else root."
    ),
]


@create_verb
def smoke(
    selection: SelectionOptions,
    tier: Tiers = None,
    layout: LayoutFolder = None,
    lock: LockOption = None,
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
    """Run smoke tests in built images, without network access.

    Exits with status 1 if a test failed or no test passed. A test is skipped if the image lacks the
    packages that it tests. The gpu tiers fail on a machine without a GPU.

    Test records are kept in images/TARGET/smoke.json, and printed by `imgbuild list` and `imgbuild
    show`. --record adds the runs of this machine, and --import adds runs of other machines. A run
    is rejected if it did not test the locked image (compared by configuration and diff IDs of the
    layers), did not run a whole tier, did not end, or is damaged. If a run is rejected, no run is
    added.

    Examples:

        imgbuild smoke cu124-vllm

        imgbuild smoke cu124-vllm --tier static --through root --junit report.xml

        imgbuild smoke cu124-vllm --tier gpu --record

        imgbuild smoke ./layout --lock ./lock.json --through root --json > smoke.json

        imgbuild smoke --import smoke.json --import build/ci/cu124-vllm@x86_64
    """
    if imports:
        if selection.named_targets or selection.everything:
            message = "--import and targets cannot be combined"
            raise InputError(message, hint="omit the targets, because they are read from the files")
        project = selection.project()
        project.require_writable("imgbuild smoke --import")
        _smoke_import.record_runs(imports, project)
        return
    _refuse_options(
        sif, layout, through, tier, model, case, arbitrary=arbitrary_user, record=record
    )
    if junit is not None:
        files.require_writable([junit], hint="choose another path with --junit")
    through = "apptainer" if sif is not None else through
    options = SmokeOptions(
        tiers=_tiers_to_run(tier, through),
        through=through,
        how=_run_settings(timeout_factor, model, jobs, share, case),
        arbitrary=arbitrary_user,
        sif=sif,
        record=record,
        document=junit is not None,
    )
    reports: list[SmokeRun] = []
    try:
        images = chosen_images(selection, layout, lock, sif)
        failures = _test_images(reports, images, selection.arch, options)
    finally:  # the results so far, also after an interrupt
        if junit is not None and reports:
            write_bytes(junit, junit_report.junit_document(reports))
    words = [
        f"{each.target} {each.arch} {each.tier} {runner.report_verdict(each)}" for each in reports
    ]
    print_result(reports, fold_lines(words))
    if failures:
        raise typer.Exit(SomeFailed(failures).exit_code)
    cases = [case for report in reports for case in report.cases]
    if not has_passed(cases):
        raise typer.Exit(1)


def _run_settings(
    factor: float, model: Path | None, jobs: int, share: int, case: str
) -> RunSettings:
    jobs = process_count(jobs)
    return RunSettings(
        timeout_factor=factor,
        model=_model_folder(model),
        jobs=jobs,
        share=min(share, jobs),
        only=case,
    )


def _refuse_options(
    sif: Path | None, layout: Path | None, through: ThroughName | None, tier: list[Tier] | None,
    model: Path | None, case: str, *, arbitrary: bool, record: bool,
) -> None:  # fmt: skip
    if arbitrary and through == "here":
        message = "--arbitrary-user and --through here cannot be combined"
        raise InputError(message, hint="omit --arbitrary-user, or test an image")
    if sif is not None and (layout is not None or through not in (None, "apptainer")):
        message = f"--sif-file {sif} cannot be combined with --layout or another --through"
        raise InputError(message, hint="omit --layout and --through")
    if record and (model is not None or case != "*"):
        message = "--record requires all cases of a tier and the default model"
        raise InputError(message, hint="omit --model and --case")
    if record and (sif is not None or through == "here"):
        message = "--record cannot be combined with --sif-file or --through here"
        raise InputError(
            message,
            hint="test the layout of the image with --through apptainer, which creates a SIF file",
        )
    if case != "*" and not tier:
        message = f"--case {case} requires --tier"
        raise InputError(message, hint="add --tier static, cpu, gpu or multi-gpu")


def _tiers_to_run(
    named: Sequence[Tier] | None, through: ThroughName | None
) -> tuple[TierName, ...]:
    if named:
        return tuple(each.value for each in named)
    gpu_count = driver.count_gpus()
    tiers = runner.fitting_tiers(gpu_count, through)
    console.info(f"{format_count(gpu_count, 'GPU')} on this machine: tiers {', '.join(tiers)}")
    return tiers


def _model_folder(folder: Path | None) -> Path | None:
    if folder is not None and not (folder / "config.json").is_file():
        message = f"--model {folder}: config.json is missing"
        raise InputError(
            message, hint="specify a folder with a model that from_pretrained can load"
        )
    return folder.resolve() if folder else None


def _test_images(
    reports: list[SmokeRun],
    images: Sequence[TestSubject],
    arch: Sequence[Arch] | None,
    options: SmokeOptions,
) -> dict[str, ImgbuildError]:
    """Test each target and tier, print the reports, and add them to `reports`.

    The report of a tier that cannot be tested contains the reason. Returns the errors of tests and
    test records by target. An error is raised if nothing was tested and no JUnit report is
    requested.
    """
    if options.record and any(image.project is None for image in images):
        message = (
            "--record cannot be combined with --lock, because test records are part of a project"
        )
        hint = "write the results with --json, and add them to the project with --import"
        raise InputError(message, hint=hint)
    for image in images if options.record else ():
        if image.project is not None:
            image.project.require_writable("imgbuild smoke --record")
    store = Store.open(reporter=console)
    failed: dict[str, ImgbuildError] = {}
    lacking: list[SmokeRun] = []
    for image in images:
        left: list[str] = list(options.tiers)
        try:
            for report in image_reports(image, arch, options, store):
                print_report(report)
                reports.append(report)
                left.remove(report.tier)
                if options.record and image.project is not None:
                    failed |= _record(image.project, report, store)
        except Interrupted:
            raise
        except ImgbuildError as error:
            failed[image.name] = error
            lacking += [stopped_run(image.name, each, error) for each in left]
    if failed and not reports and not options.document:
        raise next(iter(failed.values())) if len(failed) == 1 else SomeFailed(failed)
    for each in failed.values():
        console.error(each.message, hint=each.hint)
        for problem in each.problems if isinstance(each, InputError) else ():
            console.info(f"  {problem}")
    reports += lacking
    return failed


def _record(project: Project, report: SmokeRun, store: Store) -> dict[str, ImgbuildError]:
    """Add the run to the test record. If it is rejected, return the target with the error."""
    try:
        _smoke_import.report_changes(
            recording.record_runs(project, [reports.check_image_run(report)], store)
        )
    except Interrupted:
        raise
    except ImgbuildError as error:
        return {report.target: error}
    return {}


COMMAND = create_command(add_slurm_options("smoke", smoke))
