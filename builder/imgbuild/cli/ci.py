"""`imgbuild ci`: which jobs there are, one job's real steps, what came of them."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import _ci_options, _options, ci_nightly
from imgbuild.errors import InputError
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.ci.choosing import Chosen

HEAD = ("job", "machine", "GB", "steps")

app = typer.Typer(
    no_args_is_help=True,
    help="The jobs of a CI, from the matrix and the locks, and their real steps, which run on any"
    " machine: lock check, audit, build, smoke tests, push by digest, and, when all that is asked"
    " of an image is passed for its digest, its tags.",
)

Since = Annotated[
    str | None,
    typer.Option(
        "--changed-since",
        metavar="REV",
        help="Only targets whose sealed digest is another one than at this git revision.",
        rich_help_panel=_options.SELECT,
        show_default=False,
    ),
]
Published = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="HOST/REPOSITORY",
        help="Leave out targets whose tag in this repository names the sealed digest: they are"
        " proven and published.",
        rich_help_panel=_options.SELECT,
        show_default=False,
    ),
]
Shard = Annotated[
    str,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Only part I of N of the targets.",
        rich_help_panel=_options.SELECT,
    ),
]
Again = Annotated[
    bool,
    typer.Option(
        "--again",
        help="Build each target on a machine of another architecture too: the same digest must"
        " come out.",
        rich_help_panel=_options.WORK,
    ),
]
Actions = Annotated[
    Path | None,
    typer.Option(
        "--actions",
        metavar="FILE",
        help="Add `targets=` and `jobs=` to this file, each one line of JSON for a matrix:"
        ' "$GITHUB_OUTPUT". `jobs` are those that need no registry.',
        rich_help_panel=_options.TALK,
        show_default=False,
    ),
]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="A job, as `ci jobs` names it.")]
JobsFile = Annotated[
    Path | None,
    typer.Option(
        "--jobs",
        metavar="FILE",
        help="What `ci jobs --json` wrote; by default the jobs of the last `imgbuild ci nightly`"
        " with these results, else all jobs of all targets.",
        rich_help_panel=_options.SELECT,
        show_default=False,
    ),
]
Whole = Annotated[
    bool,
    typer.Option(
        "--published",
        help="All targets were to be published: one whose tags or SIFs were not begun is unfinished"
        " and not proven.",
        rich_help_panel=_options.SELECT,
    ),
]
Summary = Annotated[
    Path | None,
    typer.Option(
        "--summary",
        metavar="FILE",
        help='Add the report to this file as Markdown: "$GITHUB_STEP_SUMMARY".',
        rich_help_panel=_options.TALK,
        show_default=False,
    ),
]
Issues = Annotated[
    Path | None,
    typer.Option(
        "--issues",
        metavar="FOLDER",
        help="Write TARGET.md into this folder for each target that somebody has to look at.",
        rich_help_panel=_options.TALK,
        show_default=False,
    ),
]


@app.command("jobs")
def jobs(
    names: _options.Names = None,
    target: _options.Targets = None,
    everything: _options.Everything = False,
    changed_since: Since = None,
    registry: Published = None,
    shard: Shard = "1/1",
    arch: _options.Arches = None,
    gate: _ci_options.Gate = None,
    no_gpu: _ci_options.NoGpu = False,
    again: Again = False,
    actions: Actions = None,
    plain_http: _options.PlainHttp = None,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Say which jobs there are: those of the targets that are not proven and published yet.

    Nothing is built, fetched or resolved. A machine is named by its labels: ci.yaml beside the
    matrix says which there are.

    Examples:

        imgbuild ci jobs --all --changed-since origin/main

        imgbuild ci jobs --all --registry ghcr.io/me/rl --json
    """
    from imgbuild.ci.choosing import Asked

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    asked = Asked(
        revision=changed_since, arches=tuple(arch or ()), shard=_shard(shard), again=again
    )
    chosen = _ci_options.chosen(
        _options.wanted(names, target), matrix, gate or [], asked, registry, plain_http or [],
        everything=everything, gpu=not no_gpu,
    )  # fmt: skip
    for one in chosen.passed:
        console.info(f"{one.target}: {one.outcome}, {one.reason}")
    if actions is not None:
        _add(actions, _outputs(chosen))
    _options.answer(chosen, _table(chosen), json=json)


def _shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        message = f"--shard {text} is no part"
        raise InputError(message, hint="write I/N, such as 1/3, 2/3 and 3/3")
    return int(part), int(parts)


def _outputs(chosen: Chosen) -> str:
    from imgbuild import codec

    alone = [job for one in chosen.targets for job in (*one.image, *one.again)]
    lines = {"targets": codec.compact(chosen.targets), "jobs": codec.compact(alone)}
    return "".join(f"{name}={data.decode()}\n" for name, data in lines.items())


def _add(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def _table(chosen: Chosen) -> list[str]:
    found = [
        (job.id, " ".join(job.runner), str(job.disk), " → ".join(job.steps))
        for one in chosen.targets
        for job in one.all
    ]
    return _options.aligned([HEAD, *found], right=frozenset({2})) if found else []


@app.command("run")
def run(
    job: JobName,
    registry: _ci_options.Registry = None,
    no_push: _ci_options.NoPush = False,
    results: _ci_options.Results = None,
    arch: _options.Arches = None,
    gate: _ci_options.Gate = None,
    no_gpu: _ci_options.NoGpu = False,
    date: _ci_options.Date = None,
    key: _ci_options.Key = None,
    keyless: _ci_options.Keyless = False,
    through: _ci_options.Through = None,
    timeout_factor: _ci_options.TimeoutFactor = 1.0,
    plain_http: _options.PlainHttp = None,
    jobs: _options.Jobs = 0,
    offline: _options.Offline = False,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Do one job's steps on this machine, in their order; the first that fails ends it.

    Each step is a verb of imgbuild, and leaves a result, a log and the verb's own answer in
    build/ci/JOB. What has passed for the same digest is not done again; what was put into a
    registry is if it is gone from there, and tags are put each time. A job that publishes first
    sees that every job which it needs has passed for that digest: else no tag is put. Exit status:
    that of the step that failed.

    Examples:

        imgbuild ci run cu124-vllm@x86_64 --no-push

        imgbuild ci run cu124-vllm@x86_64-gpu --registry ghcr.io/me/rl

        imgbuild ci run cu124-vllm@publish --registry ghcr.io/me/rl --key cosign.key
    """
    from imgbuild.ci import running

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    way = _ci_options.way(
        matrix, registry, results, gate or [], date or _today(), plain_http or [],
        arches=arch or [], no_push=no_push, key=key, keyless=keyless, through=through,
        patience=timeout_factor, jobs=jobs, offline=offline, gpu=not no_gpu,
    )  # fmt: skip
    own = _ci_options.jobs_of(way, matrix, job)
    known = running.known(way, own)
    if job not in known:
        message = f"{own.target} has no job {job}"
        raise InputError(message, hint=f"its jobs are {', '.join(known)}")
    done = running.run_job(way, known[job], known)
    _options.answer(done, [str(done)], json=json)
    if done.failed is not None:
        raise typer.Exit(done.failed.exit_code)


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


@app.command("report")
def report(
    jobs: JobsFile = None,
    published: Whole = False,
    strict: _ci_options.Strict = False,
    registry: Published = None,
    arch: _options.Arches = None,
    gate: _ci_options.Gate = None,
    no_gpu: _ci_options.NoGpu = False,
    plain_http: _options.PlainHttp = None,
    results: _ci_options.Results = None,
    summary: Summary = None,
    issues: Issues = None,
    record: _ci_options.Record = False,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Say what became of each target, by the results of its jobs.

    Which jobs there were says --jobs, or the last night; else --registry, --arch and --gate, as
    `ci jobs` has them. Exit status 1 if a target failed, or has jobs that were not done.

    Examples:

        imgbuild ci report

        imgbuild ci report --jobs jobs.json --published --issues failed --record
    """
    from imgbuild import codec
    from imgbuild.ci import report as reports
    from imgbuild.ci.choosing import Asked, Chosen

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    last = _ci_options.folder(matrix, results) / _ci_options.JOBS
    if jobs is None and last.exists() and not (registry or arch or gate or no_gpu):
        console.info(f"these are the jobs of the last night: {last}")
        jobs = last
    if jobs is not None:
        chosen = codec.read(jobs, Chosen, what="list of jobs", hint="imgbuild ci jobs --json")
    else:
        asked = Asked(arches=tuple(arch or ()), labels=False)
        chosen = _ci_options.chosen(
            [], matrix, gate or [], asked, registry, plain_http or [],
            everything=True, gpu=not no_gpu,
        )  # fmt: skip
    found = reports.overview(_ci_options.folder(matrix, results), chosen, published=published)
    if summary is not None:
        _add(summary, reports.markdown(found))
    if issues is not None:
        for one in found.wrong(strict=strict):
            codec.write_bytes(issues / f"{one.target}.md", reports.issue(one).encode())
    if record:
        _ci_options.record(matrix, results, chosen)
    _options.answer(found, _options.aligned([reports.HEAD, *reports.rows(found)]), json=json)
    if found.wrong(strict=strict):
        raise typer.Exit(1)


app.command("nightly")(ci_nightly.nightly)
