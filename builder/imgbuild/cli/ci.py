"""Implements `imgbuild ci`, which lists CI jobs and reports their results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.ci import report as reports
from imgbuild.ci.choosing import JobPlan, JobQuery
from imgbuild.ci.results import record_results
from imgbuild.cli import _ci_options, _smoke_import, ci_script
from imgbuild.cli._ci_options import Gate, NoGpu, Results
from imgbuild.cli._help import HELP, VerbGroup, create_group, register_verb
from imgbuild.cli._options import (
    PlainHttp,
    Record,
)
from imgbuild.cli._output import align_columns, fit_lines, print_result
from imgbuild.cli._targets import MatrixFile, SelectionOptions
from imgbuild.cli._verb import OUTPUT, REGISTRY, TARGETS_PANEL, create_verb, option
from imgbuild.errors import InputError
from imgbuild.pipeline.session import Session, SessionOptions, open_session
from imgbuild.system import files
from imgbuild.system.console import console
from imgbuild.values import is_number

HEAD = ("job", "machine", "GB", "steps")

app = typer.Typer(
    cls=VerbGroup,
    context_settings=HELP,
    no_args_is_help=True,
    help="List CI jobs, write them as a shell script, and report their results.\n\nJobs are "
    "derived from the matrix and the locks, and run on any machine. Their steps check the "
    "lock, audit, build, run smoke tests and push by digest. The image is tagged once all "
    "steps have passed for its digest.",
)

Strict = Annotated[
    bool,
    option(
        "--strict",
        "Exit with status 1 if no machine in ci.yaml can run a job. By default, such a job is "
        "only reported.",
    ),
]
Published = Annotated[
    str | None,
    option(
        "--skip-published",
        "Skip targets whose tag in this repository already has the locked digest.",
        metavar="HOST/REPOSITORY",
        panel=REGISTRY,
        often=True,
    ),
]
Since = Annotated[
    str | None,
    option(
        "--changed-since",
        "Select targets whose locked digest has changed since this git revision.",
        metavar="REV",
        panel=TARGETS_PANEL,
        often=True,
    ),
]
Shard = Annotated[
    str,
    option(
        "--shard",
        "Select the I-th of N parts of the targets, such as 1/3.",
        metavar="I/N",
        panel=TARGETS_PANEL,
    ),
]
CrossBuild = Annotated[
    bool,
    option(
        "--cross-build",
        "Also build each target on a machine of another architecture and compare the digests.",
    ),
]
Actions = Annotated[
    Path | None,
    option(
        "--actions",
        "Append job matrices for GitHub Actions (targets= and jobs=) to FILE, usually"
        ' "$GITHUB_OUTPUT". jobs= lists only jobs that need no registry.',
        metavar="FILE",
        panel=OUTPUT,
    ),
]
JobsFile = Annotated[
    Path | None,
    option(
        "--jobs-file",
        "The output of `imgbuild ci jobs --json`. Default: the jobs of all targets that have"
        " results.",
        metavar="FILE",
        panel=TARGETS_PANEL,
        often=True,
    ),
]
Expected = Annotated[
    bool,
    option(
        "--expect-published",
        "Report a target as unfinished if publishing its tags or SIF files has not started.",
        panel=TARGETS_PANEL,
    ),
]
Summary = Annotated[
    Path | None,
    option(
        "--summary",
        'Append the report to this file as Markdown, for example to "$GITHUB_STEP_SUMMARY".',
        metavar="FILE",
        panel=OUTPUT,
    ),
]
Issues = Annotated[
    Path | None,
    option(
        "--issues",
        "Write a file TARGET.md to this folder for each target that needs attention.",
        metavar="FOLDER",
        panel=OUTPUT,
    ),
]


@create_verb
def jobs(
    selection: SelectionOptions,
    changed_since: Since = None,
    skip_published: Published = None,
    shard: Shard = "1/1",
    gate: Gate = None,
    no_gpu: NoGpu = False,
    cross_build: CrossBuild = False,
    actions: Actions = None,
    plain_http: PlainHttp = None,
) -> None:
    """List the CI jobs of targets.

    Nothing is built, downloaded or solved. ci.yaml next to the matrix lists the machines and their
    labels.

    Examples:

        imgbuild ci jobs --all --changed-since origin/main

        imgbuild ci jobs --all --skip-published ghcr.io/me/rl --json
    """
    query = JobQuery(
        revision=changed_since, arches=tuple(selection.arches), shard=_parse_shard(shard),
        again=cross_build,
    )  # fmt: skip
    session = open_session(selection.matrix)
    settings = _ci_options.ci_settings(session, gate, gpu=not no_gpu)
    chosen = _ci_options.choose_ci_jobs(
        session, selection.named_targets, query, settings, skip_published, plain_http or (),
        everything=selection.everything,
    )  # fmt: skip
    if actions is not None:
        _append_text(actions, _outputs(chosen))
    print_result(chosen, fit_lines(_table(chosen)))


def _parse_shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (is_number(part) and is_number(parts) and 1 <= int(part) <= int(parts)):
        message = f"--shard {text}: not a valid shard"
        raise InputError(message, hint="specify I/N, such as 1/3, 2/3 and 3/3")
    return int(part), int(parts)


def _outputs(chosen: JobPlan) -> str:
    alone = [job for target in chosen.targets for job in (*target.image, *target.again)]
    lines = {"targets": codec.encode_compact(chosen.targets), "jobs": codec.encode_compact(alone)}
    return "".join(f"{name}={data.decode()}\n" for name, data in lines.items())


def _append_text(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def _table(chosen: JobPlan) -> list[str]:
    rows = [
        (job.id, " ".join(job.runner), str(job.disk), " → ".join(job.steps))
        for target in chosen.targets
        for job in target.all_jobs
    ]
    return align_columns([HEAD, *rows], right=frozenset({2})) if rows else []


@create_verb
def report(
    jobs_file: JobsFile = None,
    expect_published: Expected = False,
    strict: Strict = False,
    results: Results = None,
    summary: Summary = None,
    issues: Issues = None,
    record: Record = False,
    matrix: MatrixFile = None,
) -> None:
    """Report the state of each target, based on the results of its jobs.

    Exits with status 1 if a target failed or has unfinished jobs.

    Examples:

        imgbuild ci report

        imgbuild ci report --jobs-file jobs.json --expect-published --issues failed --record
    """
    session = open_session(matrix, SessionOptions())
    project = session.project
    if record:
        project.require_writable("imgbuild ci report --record")
    places = [place for place in (summary, issues) if place is not None]
    files.require_writable(places, hint="choose another path with --summary or --issues")
    folder = _ci_options.results_folder(project, results)
    if jobs_file is not None:
        chosen = codec.read_document(
            jobs_file, JobPlan, what="list of jobs", hint="run imgbuild ci jobs --json"
        )
    else:
        chosen = _jobs_with_results(session, folder)
    overview = reports.job_overview(folder, chosen, published=expect_published)
    if summary is not None:
        _append_text(summary, reports.overview_markdown(overview))
    if issues is not None:
        for entry in overview.outcomes_needing_attention(strict=strict):
            codec.write_bytes(issues / f"{entry.target}.md", reports.issue_text(entry).encode())
    if record:
        recorded = record_results(project, folder, chosen.targets, Store.open(), console)
        _smoke_import.report_changes(recorded)
    print_result(overview, align_columns([reports.HEAD, *reports.overview_rows(overview)]))
    if overview.outcomes_needing_attention(strict=strict):
        raise typer.Exit(1)


def _jobs_with_results(session: Session, folder: Path) -> JobPlan:
    names = {path.name.partition("@")[0] for path in folder.glob("*@*") if path.is_dir()}
    targets = sorted(names & session.matrix.targets.keys())
    if not targets:
        message = f"{folder} contains no results for targets of the matrix"
        raise InputError(
            message, hint="run a script written by `imgbuild ci script`, or specify --results"
        )
    settings = _ci_options.ci_settings(session, None, gpu=True)
    return _ci_options.choose_ci_jobs(session, targets, JobQuery(labels=False), settings, None, ())


register_verb(app, "jobs", jobs)
register_verb(app, "script", ci_script.script)
register_verb(app, "report", report)
COMMAND = create_group(app)
