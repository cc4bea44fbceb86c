"""`imgbuild ci`: the jobs of a CI, the steps of one job, and a report of all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import _ci_options, ci_nightly
from imgbuild.cli._ci_options import (
    ExecutionOptions,
    Gate,
    NoGpu,
    NoPush,
    Published,
    Results,
    Strict,
)
from imgbuild.cli._help import VerbGroup, add
from imgbuild.cli._options import Arches, PlainHttp, Record
from imgbuild.cli._output import aligned, answer, fitted
from imgbuild.cli._targets import MatrixFile, Selection
from imgbuild.cli._verb import OUTPUT, SELECT, option, verb
from imgbuild.errors import InputError
from imgbuild.system import files
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.ci.choosing import JobPlan

HEAD = ("job", "machine", "GB", "steps")

app = typer.Typer(
    cls=VerbGroup,
    no_args_is_help=True,
    help="List, run and report the jobs of a CI.\n\n"
    "Jobs follow from the matrix and the locks. Their steps run on any machine: lock check, audit,"
    " build, smoke tests, push by digest, and, when everything has passed for the digest of an"
    " image, its tags.",
)

Since = Annotated[
    str | None,
    option(
        "--changed-since",
        "Only targets whose locked digest changed since this git revision.",
        metavar="REV",
        panel=SELECT,
        often=True,
    ),
]
Shard = Annotated[str, option("--shard", "Select shard I of N.", metavar="I/N", panel=SELECT)]
CrossBuild = Annotated[
    bool,
    option(
        "--cross-build",
        "Also build each target on a machine of another architecture, and compare the digests.",
    ),
]
Actions = Annotated[
    Path | None,
    option(
        "--actions",
        "Append job matrices for GitHub Actions (targets=, jobs=) to FILE, usually"
        ' "$GITHUB_OUTPUT"; jobs= has those that need no registry.',
        metavar="FILE",
        panel=OUTPUT,
    ),
]
JobsFile = Annotated[
    Path | None,
    option(
        "--jobs-file",
        "The output of `ci jobs --json`. Default: the jobs of the last `imgbuild ci nightly` with"
        " these results, else all jobs of all targets.",
        metavar="FILE",
        panel=SELECT,
        often=True,
    ),
]
Expected = Annotated[
    bool,
    option(
        "--expect-published",
        "Report a target as unfinished if its tags or SIFs were not started.",
        panel=SELECT,
    ),
]
Summary = Annotated[
    Path | None,
    option(
        "--summary",
        'Add the report as Markdown to this file: "$GITHUB_STEP_SUMMARY".',
        metavar="FILE",
        panel=OUTPUT,
    ),
]
Issues = Annotated[
    Path | None,
    option(
        "--issues",
        "Write TARGET.md into this folder for each target that needs attention.",
        metavar="FOLDER",
        panel=OUTPUT,
    ),
]


@verb
def jobs(
    selection: Selection,
    changed_since: Since = None,
    skip_published: Published = None,
    shard: Shard = "1/1",
    gate: Gate = None,
    no_gpu: NoGpu = False,
    cross_build: CrossBuild = False,
    actions: Actions = None,
    plain_http: PlainHttp = None,
) -> None:
    """List the jobs of targets that are not tested and published yet.

    Nothing is built, fetched or solved. A machine is named by its labels; ci.yaml beside the matrix
    lists the machines.

    Examples:

        imgbuild ci jobs --all --changed-since origin/main

        imgbuild ci jobs --all --skip-published ghcr.io/me/rl --json
    """
    from imgbuild.ci.choosing import JobQuery

    asked = JobQuery(
        revision=changed_since, arches=tuple(selection.arches), shard=_shard(shard),
        again=cross_build,
    )  # fmt: skip
    chosen = _ci_options.chosen(
        selection.named, selection.matrix, gate or [], asked, skip_published, plain_http or [],
        everything=selection.everything, gpu=not no_gpu,
    )  # fmt: skip
    if actions is not None:
        _add(actions, _outputs(chosen))
    answer(chosen, fitted(_table(chosen)))


def _shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        message = f"--shard {text}: not a part"
        raise InputError(message, hint="write I/N, such as 1/3, 2/3 and 3/3")
    return int(part), int(parts)


def _outputs(chosen: JobPlan) -> str:
    from imgbuild import codec

    alone = [job for one in chosen.targets for job in (*one.image, *one.again)]
    lines = {"targets": codec.compact(chosen.targets), "jobs": codec.compact(alone)}
    return "".join(f"{name}={data.decode()}\n" for name, data in lines.items())


def _add(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def _table(chosen: JobPlan) -> list[str]:
    found = [
        (job.id, " ".join(job.runner), str(job.disk), " → ".join(job.steps))
        for one in chosen.targets
        for job in one.all
    ]
    return aligned([HEAD, *found], right=frozenset({2})) if found else []


@verb
def run(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job, as `ci jobs` lists it.")],
    how: ExecutionOptions,
    no_push: NoPush = False,
    no_gpu: NoGpu = False,
) -> None:
    """Run the steps of one job on this machine.

    Each step is a command of imgbuild, and leaves a result, a log and its output in build/ci/JOB.
    The first step that fails ends the job. Steps that have passed for the same digest are not
    repeated, except pushes that are missing from the registry, and tags. A job that publishes first
    checks that every job which it needs has passed for the digest. The exit status is that of the
    step that failed.

    Examples:

        imgbuild ci run cu124-vllm@x86_64 --no-push

        imgbuild ci run cu124-vllm@x86_64-gpu --registry ghcr.io/me/rl

        imgbuild ci run cu124-vllm@publish --registry ghcr.io/me/rl --sign-key cosign.key
    """
    from imgbuild.ci import running

    way = _ci_options.way(how, no_push=no_push, gpu=not no_gpu)
    own = _ci_options.jobs_of(way, how.matrix, job)
    known = way.jobs_of(own)
    if job not in known:
        message = f"{own.target} has no job {job}"
        raise InputError(message, hint=f"its jobs are {', '.join(known)}")
    done = running.run_job(way, known[job], known)
    answer(done, [str(done)])
    if done.failed is not None:
        raise typer.Exit(done.failed.exit_code)


@verb
def report(
    jobs_file: JobsFile = None,
    expect_published: Expected = False,
    strict: Strict = False,
    skip_published: Published = None,
    arch: Arches = None,
    gate: Gate = None,
    no_gpu: NoGpu = False,
    plain_http: PlainHttp = None,
    results: Results = None,
    summary: Summary = None,
    issues: Issues = None,
    record: Record = False,
    matrix: MatrixFile = None,
) -> None:
    """Report the state of each target from the results of its jobs.

    The jobs are those of --jobs-file, or of the last nightly run; else --skip-published, --arch
    and --gate select them as in `ci jobs`. Exit status 1 if a target failed or has unfinished jobs.

    Examples:

        imgbuild ci report

        imgbuild ci report --jobs-file jobs.json --expect-published --issues failed --record
    """
    from imgbuild import codec
    from imgbuild.ci import report as reports
    from imgbuild.ci.choosing import JobPlan, JobQuery
    from imgbuild.pipeline.opened import open_project

    project = open_project(matrix)
    if record:
        project.require_writable("imgbuild ci report --record")
    places = [place for place in (summary, issues) if place is not None]
    files.require_writable(places, hint="choose another place with --summary or --issues")
    folder = _ci_options.folder(project, results)
    last = folder / _ci_options.JOBS
    if jobs_file is None and last.exists() and not (skip_published or arch or gate or no_gpu):
        console.info(f"jobs of the last nightly run: {last}")
        jobs_file = last
    if jobs_file is not None:
        chosen = codec.read(jobs_file, JobPlan, what="list of jobs", hint="imgbuild ci jobs --json")
    else:
        asked = JobQuery(arches=tuple(arch or ()), labels=False)
        chosen = _ci_options.chosen(
            [], matrix, gate or [], asked, skip_published, plain_http or [],
            everything=True, gpu=not no_gpu,
        )  # fmt: skip
    found = reports.overview(folder, chosen, published=expect_published)
    if summary is not None:
        _add(summary, reports.markdown(found))
    if issues is not None:
        for one in found.wrong(strict=strict):
            codec.write_bytes(issues / f"{one.target}.md", reports.issue(one).encode())
    _ci_options.finish(found, chosen, folder, project, record=record, strict=strict)


add(app, "jobs", jobs)
add(app, "run", run)
add(app, "report", report)
add(app, "nightly", ci_nightly.nightly)
