"""Runs `imgbuild build` and `imgbuild smoke` as Slurm arrays, for `--on slurm`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import typer

from imgbuild.cli._allocation import Cluster, requested_allocation
from imgbuild.cli._output import print_result
from imgbuild.cli._verb import OutputOptions, configure_console, group_parameters, take_group
from imgbuild.codec import write_bytes
from imgbuild.errors import InputError
from imgbuild.oci import layout
from imgbuild.pipeline.opened import report_templates
from imgbuild.pipeline.session import Session, SessionOptions, open_session
from imgbuild.plan import current
from imgbuild.report import CaseResult, Report, has_passed
from imgbuild.slurm import array
from imgbuild.slurm.array import ArrayTarget, TaskEnd
from imgbuild.smoke import junit_report, runner
from imgbuild.smoke.result import SmokeRun
from imgbuild.system import decoding, programs
from imgbuild.system.console import console

PANEL = "On a cluster"
# The options that tasks get; others cannot be combined with --on slurm.
PASSED_OPTIONS = {
    "build": {
        "arch": "--arch", "offline": "--offline", "verify": "--verify", "jobs": "--jobs",
        "mirror": "--mirror", "mirror_only": "--mirror-only", "plain_http": "--plain-http",
    },
    "smoke": {
        "arch": "--arch", "tier": "--tier", "through": "--through", "model": "--model",
        "arbitrary_user": "--arbitrary-user", "timeout_factor": "--timeout-factor",
        "record": "--record", "jobs": "--jobs",
        "share": "--share", "case": "--case",
    },
}  # fmt: skip
# Options whose names are reserved in Python.
OPTION_NAMES = {"form": "format", "imports": "import", "origin": "from"}
EXCLUDED_OPTIONS = frozenset(
    {"names", "target", "everything", "matrix", "json", "quiet", "verbose", "junit"}
)


def add_slurm_options(name: str, function: Callable[..., None]) -> Callable[..., None]:
    """Add `--on slurm` and its options to the command `function`."""
    signature = inspect.signature(function, eval_str=True)
    verb_parameters = list(signature.parameters.values())
    together = [*verb_parameters, *group_parameters(Cluster)]

    def _run_verb(**options: Any) -> None:
        cluster = take_group(Cluster, options)
        if cluster.on == "local":
            if cluster != Cluster():
                message = f"imgbuild {name}: Slurm options require --on slurm"
                raise InputError(message, hint="add --on slurm, or omit the Slurm options")
            function(**options)
            return
        defaults = {parameter.name: parameter.default for parameter in verb_parameters}
        _run_on_slurm(name, options, _task_options(name, options, defaults), cluster)

    _run_verb.__name__, _run_verb.__doc__ = function.__name__, function.__doc__
    _run_verb.__signature__ = signature.replace(parameters=together)  # type: ignore[attr-defined]
    _run_verb.__annotations__ = {parameter.name: parameter.annotation for parameter in together} | {
        "return": None
    }
    return _run_verb


def _task_options(
    verb: str, options: Mapping[str, Any], defaults: Mapping[str, object]
) -> tuple[str, ...]:
    """Return the command-line options of each task.

    Raises InputError for an option that tasks do not support.
    """
    words: list[str] = []
    for name, value in options.items():
        if name in EXCLUDED_OPTIONS or value == defaults[name] or (name == "jobs" and value == 0):
            continue
        flag = PASSED_OPTIONS[verb].get(name)
        if flag is None:
            message = (
                f"--on slurm and --{OPTION_NAMES.get(name, name).replace('_', '-')} cannot be"
                " combined"
            )
            raise InputError(message, hint="omit one of these options")
        if value is True:
            words.append(flag)
        else:
            values = value if isinstance(value, list) else [value]
            values = [
                element.resolve() if isinstance(element, Path) else element for element in values
            ]
            words += [f"{flag}={element}" for element in values]
    return tuple(words)


def _run_on_slurm(
    verb: str, options: Mapping[str, Any], handed: tuple[str, ...], cluster: Cluster
) -> None:
    output = OutputOptions(json=options["json"], quiet=options["quiet"], verbose=options["verbose"])
    configure_console(output)
    session = open_session(options["matrix"], SessionOptions())
    report_templates(session.project)
    patterns = [*(options["names"] or []), *(options["target"] or [])]
    arches = [arch for arch in options["arch"] or [] if arch != "all"]
    selected = session.select_targets(patterns, everything=options["everything"], arches=arches)
    tasks = _create_tasks(session, [item.name for item in selected], arches)
    command = (
        *(*programs.python_command(), "-m", "imgbuild", verb, f"--matrix={session.project.matrix}"),
        *handed,
    )
    top = session.project.output_path(f"build/slurm/{verb}")
    requested_options = requested_allocation(cluster).options
    same = requested_options if verb == "smoke" else None
    earlier = array.existing_tasks(top, verb, command, tasks, same) if cluster.resume else []
    done, live = array.split_ended(earlier)
    if verb == "build":
        built = {
            task.target
            for task in tasks
            if layout.has_complete_image(session.project.output(task.target), task.digest)
        }
        done = [entry for entry in done if entry.target in built]
    submitted = {entry.target for entry in done} | {entry.target for entry in live}
    unsubmitted = tuple(task for task in tasks if task.target not in submitted)
    console.info(
        f"tasks: {len(unsubmitted)} to submit, {len(live)} already queued, {len(done)} already"
        " completed"
    )
    if unsubmitted:
        live += array.submit_array(
            session.project, top, verb, command, unsubmitted, requested_options,
            name=f"imgbuild-{verb}", throttle=cluster.throttle, reporter=console,
        )  # fmt: skip
    if not cluster.wait:
        jobs = list(dict.fromkeys(entry.order.job for entry in live))
        print_result(jobs, jobs)
        return
    _print_results(
        verb, [*done, *array.follow_tasks(live, console, leave=cluster.leave)], options, tasks
    )


def _create_tasks(
    session: Session, names: Sequence[str], arches: Sequence[Any]
) -> list[ArrayTarget]:
    tasks = []
    for name in names:
        target_digests = current.read_current(session.project, session.matrix, name)[1]
        every = not arches or set(arches) == set(target_digests.arch)
        digest = target_digests.digest if every else target_digests.arch[arches[0]].manifest
        tasks.append(ArrayTarget(target=name, digest=digest))
    return tasks


def _print_results(
    verb: str, ended: Sequence[TaskEnd], options: Mapping[str, Any], tasks: Sequence[ArrayTarget]
) -> None:
    order = [task.target for task in tasks]
    ends = sorted(ended, key=lambda end: order.index(end.target))
    reports = [report for end in ends for report in _reports(verb, end)]
    if options.get("junit") is not None:
        write_bytes(options["junit"], junit_report.junit_document(reports))
    if verb == "build":
        built = [item for end in ends if end.good for item in msgspec.json.decode(end.answer)]
        lines = [f"{item['target']} {item['digest']} {item['output']}" for item in built]
        value: Any = {"built": built, "failed": [report for report in reports if not report.ok]}
    else:
        lines = [
            f"{report.target} {report.arch} {report.tier} {runner.report_verdict(report)}"
            for report in reports
        ]
        value = reports
    print_result(value, lines)
    bad = [end.target for end in ends if not end.good]
    if bad:
        console.error(
            f"{len(bad)} of {len(ends)} targets failed: {', '.join(bad)}",
            hint="run the same command again to submit the failed tasks",
        )
        raise typer.Exit(1)


def _reports(verb: str, end: TaskEnd) -> list[Report]:
    """Return the reports of a task. A failure that no report contains is added as a report."""
    reports: list[Report] = []
    if verb == "smoke" and end.status is not None:
        with suppress(msgspec.DecodeError):
            reports += decoding.decode_json(end.answer, list[SmokeRun])
    if reports and (end.good or not all(has_passed(report.cases) for report in reports)):
        return reports
    outcome = "passed" if end.good else "failed"
    message = "" if end.good else end.message
    case = CaseResult(
        name=f"{verb} on slurm", outcome=outcome, seconds=0, message=message, log=end.log
    )
    return [*reports, Report(target=end.target, arch="", tier=verb, cases=(case,))]
