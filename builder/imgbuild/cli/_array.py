"""`--on slurm` of `imgbuild build` and `imgbuild smoke`: a Slurm array instead of this machine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import typer

from imgbuild.cli._allocation import Cluster, requested
from imgbuild.cli._options import ExecutionPlace
from imgbuild.cli._output import answer
from imgbuild.cli._verb import Output, configure, parameters, taken
from imgbuild.codec import write_bytes
from imgbuild.errors import InputError
from imgbuild.oci import layout
from imgbuild.pipeline.opened import report_templates
from imgbuild.pipeline.session import Options, Session, open_session
from imgbuild.plan import current
from imgbuild.report import Case, Report, passed
from imgbuild.slurm import array
from imgbuild.slurm.array import Task, TaskEnd
from imgbuild.smoke import junit
from imgbuild.smoke import run as tests
from imgbuild.smoke.result import SmokeRun
from imgbuild.system import programs
from imgbuild.system.console import console

PANEL = "On a cluster"
# The options that tasks get; others cannot be combined with --on slurm.
HANDED = {
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
# Options whose names Python has another use for.
NAMED = {"form": "format", "imports": "import", "origin": "from"}
OWN = frozenset({"names", "target", "everything", "matrix", "json", "quiet", "verbose", "junit"})


def offered(name: str, function: Callable[..., None]) -> Callable[..., None]:
    """The verb `function` with `--on slurm` and its options."""
    signature = inspect.signature(function, eval_str=True)
    own = list(signature.parameters.values())
    together = [*own, *parameters(Cluster)]

    def _verb(**given: Any) -> None:
        asked = taken(Cluster, given)
        if asked.on is ExecutionPlace.LOCAL:
            if asked != Cluster():
                message = f"imgbuild {name}: options of Slurm need --on slurm"
                raise InputError(message, hint="add --on slurm, or leave them out")
            function(**given)
            return
        defaults = {one.name: one.default for one in own}
        _run(name, given, _handed(name, given, defaults), asked)

    _verb.__name__, _verb.__doc__ = function.__name__, function.__doc__
    _verb.__signature__ = signature.replace(parameters=together)  # type: ignore[attr-defined]
    _verb.__annotations__ = {one.name: one.annotation for one in together} | {"return": None}
    return _verb


def _handed(verb: str, given: Mapping[str, Any], defaults: Mapping[str, object]) -> tuple[str, ...]:
    """The options of the verb as each task gets them; InputError for one that no task can have."""
    words: list[str] = []
    for name, value in given.items():
        if name in OWN or value == defaults[name] or (name == "jobs" and value == 0):
            continue
        flag = HANDED[verb].get(name)
        if flag is None:
            message = (
                f"--on slurm and --{NAMED.get(name, name).replace('_', '-')} cannot be combined"
            )
            raise InputError(message, hint="leave one of them out")
        if value is True:
            words.append(flag)
        else:
            values = value if isinstance(value, list) else [value]
            values = [one.resolve() if isinstance(one, Path) else one for one in values]
            words += [f"{flag}={one}" for one in values]
    return tuple(words)


def _run(verb: str, given: Mapping[str, Any], handed: tuple[str, ...], asked: Cluster) -> None:
    """Submit the tasks, follow them, and print the results as the verb itself does."""
    output = Output(json=given["json"], quiet=given["quiet"], verbose=given["verbose"])
    configure(output)
    session = open_session(given["matrix"], Options())
    report_templates(session.project)
    wanted = [*(given["names"] or []), *(given["target"] or [])]
    arches = given["arch"] or []
    selected = session.select(wanted, everything=given["everything"], arches=arches)
    tasks = _tasks(session, [item.name for item in selected], arches)
    command = (
        *(*programs.python(), "-m", "imgbuild", verb, f"--matrix={session.project.matrix}"),
        *handed,
    )
    top = session.project.below(f"build/slurm/{verb}")
    wished = requested(asked).options
    same = wished if verb == "smoke" else None
    earlier = array.known(top, verb, command, tasks, same) if asked.resume else []
    done, live = array.sort(earlier)
    if verb == "build":
        built = {
            task.target
            for task in tasks
            if layout.check(session.project.output(task.target), task.digest)
        }
        done = [one for one in done if one.target in built]
    taken = {one.target for one in done} | {one.target for one in live}
    due = tuple(task for task in tasks if task.target not in taken)
    console.info(
        f"{len(due)} to submit, {len(live)} in the queue already, {len(done)} already done"
    )
    if due:
        live += array.start(
            session.project, top, verb, command, due, wished,
            name=f"imgbuild-{verb}", throttle=asked.throttle, reporter=console,
        )  # fmt: skip
    if not asked.wait:
        jobs = list(dict.fromkeys(one.order.job for one in live))
        answer(jobs, jobs)
        return
    _report(verb, [*done, *array.follow(live, console, leave=asked.leave)], given, tasks)


def _tasks(session: Session, names: Sequence[str], arches: Sequence[Any]) -> list[Task]:
    """A task for each target, with the digest that its lock gives; LockStale if there is none."""
    made = []
    for name in names:
        sealed = current.read_current(session.project, session.matrix, name)[1]
        every = not arches or set(arches) == set(sealed.arch)
        digest = sealed.digest if every else sealed.arch[arches[0]].manifest
        made.append(Task(target=name, digest=digest))
    return made


def _report(
    verb: str, ended: Sequence[TaskEnd], given: Mapping[str, Any], tasks: Sequence[Task]
) -> None:
    """Print the results of all tasks in the order of the targets, as the verb itself does."""
    order = [task.target for task in tasks]
    ends = sorted(ended, key=lambda one: order.index(one.target))
    reports = [report for one in ends for report in _reports(verb, one)]
    if given.get("junit") is not None:
        write_bytes(given["junit"], junit.document(reports))
    if verb == "build":
        built = [item for one in ends if one.good for item in msgspec.json.decode(one.answer)]
        lines = [f"{item['target']} {item['digest']} {item['output']}" for item in built]
        value: Any = {"built": built, "failed": [one for one in reports if not one.ok]}
    else:
        lines = [f"{one.target} {one.arch} {one.tier} {tests.verdict(one)}" for one in reports]
        value = reports
    answer(value, lines)
    bad = [one.target for one in ends if not one.good]
    if bad:
        console.error(
            f"{len(bad)} of {len(ends)} targets failed: {', '.join(bad)}",
            hint="the same command submits these again",
        )
        raise typer.Exit(1)


def _reports(verb: str, one: TaskEnd) -> list[Report]:
    """The reports of a task, and one more if there are none or they do not say why it failed."""
    found: list[Report] = []
    if verb == "smoke" and one.status is not None:
        with suppress(msgspec.DecodeError):
            found += msgspec.json.decode(one.answer, type=list[SmokeRun])
    if found and (one.good or not all(passed(report.cases) for report in found)):
        return found
    outcome = "passed" if one.good else "failed"
    message = "" if one.good else one.message
    case = Case(name=f"{verb} on slurm", outcome=outcome, seconds=0, message=message, log=one.log)
    return [*found, Report(target=one.target, arch="", tier=verb, cases=(case,))]
