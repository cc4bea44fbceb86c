"""`--on slurm` of `imgbuild build` and `imgbuild smoke`: a Slurm array in place of this machine."""

from __future__ import annotations

import enum
import inspect
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from imgbuild.cli import _allocation, _options
from imgbuild.errors import InputError, Interrupted
from imgbuild.plan import current
from imgbuild.report import Case, Report
from imgbuild.smoke.result import Tested
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.pipeline.targets import Session
    from imgbuild.slurm.array import Ended, Followed, Task
    from imgbuild.slurm.jobs import Allocation

PANEL = "On a cluster"
# What each verb hands on to its tasks; another option that is given goes with no --on.
HANDED = {
    "build": {
        "arch": "--arch", "offline": "--offline", "verify": "--verify", "jobs": "--jobs",
        "mirror": "--mirror", "mirror_only": "--mirror-only", "plain_http": "--plain-http",
    },
    "smoke": {
        "arch": "--arch", "tier": "--tier", "through": "--through", "model": "--model",
        "arbitrary_user": "--arbitrary-user", "timeout_factor": "--timeout-factor",
        "record": "--record", "jobs": "--jobs",
        "share": "--share", "only": "--only",
    },
}  # fmt: skip
# Options whose names Python has another use for.
NAMED = {"form": "format", "imports": "import", "origin": "from"}
OWN = frozenset({"names", "target", "everything", "matrix", "json", "quiet", "verbose", "junit"})


class Where(enum.StrEnum):
    """What does the work, if not this machine."""

    SLURM = "slurm"


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The options that `--on slurm` brings along."""

    partition: str = ""
    account: str = ""
    time: str = ""
    sbatch: list[str] | None = None
    throttle: int = 0
    resume: bool = True
    wait: bool = True
    leave: bool = False


On = Annotated[
    Where | None,
    typer.Option(
        "--on",
        help="slurm: one array job with a task for each target; followed, and its results"
        " collected. Nodes must see this folder, the cache and imgbuild's Python as it is here.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
Throttle = Annotated[
    int,
    typer.Option(
        "--throttle",
        metavar="N",
        min=0,
        help="With --on slurm: so many tasks at once; 0: as many as Slurm lets run.",
        rich_help_panel=PANEL,
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume/--again",
        help="With --on slurm: what an earlier run has done, or has in the queue, is not submitted"
        " again; --again submits all.",
        rich_help_panel=PANEL,
    ),
]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait",
        help="With --on slurm: follow the tasks to their end; --no-wait ends once they are"
        " submitted.",
        rich_help_panel=PANEL,
    ),
]
Leave = Annotated[
    bool,
    typer.Option(
        "--leave",
        help="With --on slurm: an interrupt (Ctrl-C) leaves the tasks in Slurm's hands, and does"
        " not cancel them.",
        rich_help_panel=PANEL,
    ),
]
ADDED: Mapping[str, tuple[Any, object]] = {
    "on": (On, None),
    "partition": (_allocation.Partition, ""),
    "account": (_allocation.Account, ""),
    "time": (_allocation.Time, ""),
    "sbatch": (_allocation.More, None),
    "throttle": (Throttle, 0),
    "resume": (Resume, True),
    "wait": (Wait, True),
    "leave": (Leave, False),
}


def offered(verb: str, function: Callable[..., None]) -> Callable[..., None]:
    """`function`, the verb, with `--on` and what belongs to it among its options."""
    signature = inspect.signature(function, eval_str=True)
    own = list(signature.parameters.values())
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    added = [
        inspect.Parameter(name, kind, default=default, annotation=annotation)
        for name, (annotation, default) in ADDED.items()
    ]

    def _verb(**given: Any) -> None:
        on = given.pop("on")
        asked = Cluster(**{name: given.pop(name) for name in ADDED if name != "on"})
        if on is None:
            if asked != Cluster():
                message = f"imgbuild {verb}: options of a cluster go with --on slurm"
                raise InputError(message, hint="add --on slurm, or leave them out")
            function(**given)
            return
        defaults = {one.name: one.default for one in own}
        _run(verb, given, _handed(verb, given, defaults), asked)

    _verb.__name__, _verb.__doc__ = function.__name__, function.__doc__
    together = [*own, *added]
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
            message = f"--on slurm does not go with --{NAMED.get(name, name).replace('_', '-')}"
            raise InputError(message, hint="leave one of them out")
        if value is True:
            words.append(flag)
        else:
            values = value if isinstance(value, list) else [value]
            values = [one.resolve() if isinstance(one, Path) else one for one in values]
            words += [f"{flag}={one}" for one in values]
    return tuple(words)


def _run(verb: str, given: Mapping[str, Any], handed: tuple[str, ...], asked: Cluster) -> None:
    """Submit what is due, follow it, answer with what the verb itself would say."""
    from imgbuild.pipeline import targets
    from imgbuild.slurm import array

    json = bool(given["json"])
    _options.configure(json=json, quiet=given["quiet"], verbose=given["verbose"])
    session = targets.open_session(given["matrix"], targets.Options())
    wanted = _options.wanted(given["names"], given["target"])
    arches = given["arch"] or []
    selected = session.select(wanted, everything=given["everything"], arches=arches)
    tasks = _tasks(session, [item.name for item in selected], arches)
    command = (
        *(sys.executable, "-m", "imgbuild", verb, f"--matrix={session.project.matrix}"),
        *handed,
    )
    top = session.project.root / "build" / "slurm" / verb
    wished = _requested(verb, asked).options
    same = wished if verb == "smoke" else None
    earlier = array.known(top, verb, command, tasks, same) if asked.resume else []
    done, live, _ = array.sort(earlier)
    if verb == "build":
        there = {task.target for task in tasks if _is_built(session, task)}
        done = [one for one in done if one.target in there] if asked.resume else []
    taken = {one.target for one in done} | {one.target for one in live}
    due = tuple(task for task in tasks if task.target not in taken)
    console.info(f"{len(due)} to submit, {len(live)} in the queue already, {len(done)} done before")
    if due:
        live += array.start(
            session.project, top, verb, command, due, wished,
            name=f"imgbuild-{verb}", throttle=asked.throttle, reporter=console,
        )  # fmt: skip
    if not asked.wait:
        jobs = list(dict.fromkeys(one.order.job for one in live))
        _options.answer(jobs, jobs, json=json)
        return
    _tell(verb, [*done, *_followed(live, asked)], given, tasks)


def _tasks(session: Session, names: Sequence[str], arches: Sequence[Any]) -> list[Task]:
    """A task for each target, with the digest that its lock gives; LockStale if there is none."""
    from imgbuild.slurm.array import Task

    made = []
    for name in names:
        sealed = current.read_current(session.project, session.matrix, name)[1]
        every = not arches or set(arches) == set(sealed.arch)
        digest = sealed.digest if every else sealed.arch[arches[0]].manifest
        made.append(Task(target=name, digest=digest))
    return made


def _is_built(session: Session, task: Task) -> bool:
    from imgbuild.oci import layout

    return layout.check(session.project.output(task.target), task.digest)


def _requested(verb: str, asked: Cluster) -> Allocation:
    """What each task asks Slurm for; InputError for what the array itself sets."""
    from imgbuild.slurm.jobs import Allocation, words

    wished = Allocation(
        partition=asked.partition,
        account=asked.account,
        time=asked.time,
        more=tuple(asked.sbatch or ()),
    )
    wrong = words(wished, log=True)
    if wrong:
        raise InputError("\n".join(wrong), hint=f"see: imgbuild {verb} --help")
    return wished


def _followed(live: Sequence[Followed], asked: Cluster) -> list[Ended]:
    """The ends of `live`. Ctrl-C cancels them unless they are to be left; SIGTERM leaves them."""
    from imgbuild.slurm import array

    try:
        with _ended_by_term():
            return array.follow(live, console)
    except KeyboardInterrupt:
        if asked.leave:
            message = f"interrupted: {array.LATER}"
            raise Interrupted(message) from None
        if said := array.cancel(live):
            message = f"interrupted, but Slurm did not cancel the tasks: {said}"
            raise Interrupted(message, hint="see what runs with: squeue --me") from None
        message = "interrupted: the tasks that had not ended are cancelled"
        raise Interrupted(message, hint="the same command submits what is not done") from None


@contextmanager
def _ended_by_term() -> Iterator[None]:
    """Let SIGTERM end the waiting with a word, the tasks left in Slurm's hands."""
    from imgbuild.slurm.array import LATER

    def _stop(*_: object) -> None:
        message = f"ended: {LATER}"
        raise Interrupted(message)

    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell(
    verb: str, ended: Sequence[Ended], given: Mapping[str, Any], tasks: Sequence[Task]
) -> None:
    """What all tasks answered, in the order of the targets, as the verb itself would have it."""
    from imgbuild.codec import write_bytes
    from imgbuild.smoke import junit
    from imgbuild.smoke import run as tests

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
    _options.answer(value, lines, json=given["json"])
    bad = [one.target for one in ends if not one.good]
    if bad:
        console.error(
            f"{len(bad)} of {len(ends)} targets failed: {', '.join(bad)}",
            hint="the same command submits these again",
        )
        raise typer.Exit(1)


def _reports(verb: str, one: Ended) -> list[Report]:
    """The reports of a task, and one of its own if they do not say why it failed, or are none."""
    from imgbuild.smoke import run as tests

    told: list[Report] = []
    if verb == "smoke" and one.status is not None:
        with suppress(msgspec.DecodeError):
            told += msgspec.json.decode(one.answer, type=list[Tested])
    if told and (one.good or not all(map(tests.succeeded, told))):
        return told
    outcome = "passed" if one.good else "failed"
    message = "" if one.good else one.message
    case = Case(name=f"{verb} on slurm", outcome=outcome, seconds=0, message=message, log=one.log)
    return [*told, Report(target=one.target, arch="", tier=verb, cases=(case,))]
