"""Runs a verb for many targets as one Slurm array, with one task for each target.

An order is a folder on the shared disk: the script, order.json, and of each task its log, its
answer and its state, which the task itself writes in one step. What an order of the same verb,
arguments and digest has done, or has still in Slurm's queue, is not asked again.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.errors import ImgbuildError, WorkFailed
from imgbuild.project import Project
from imgbuild.render import templates
from imgbuild.slurm import commands
from imgbuild.slurm.commands import FIRST_PAUSE, LOST, SILENCE
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Digest

ORDER = "order.json"
# Looks that a state has to arrive over a network disk after its task left the queue: most, over a
# minute in all, where Slurm says that the task ended well, since then there is one.
GRACE, COMPLETED_GRACE = 5, 15
TAIL = 30  # lines of a log that are kept
LATER = "the tasks go on; the same command looks after them again"


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A target of an array, and the digest that its image has by its lock."""

    target: str
    digest: Digest


class JobArray(msgspec.Struct, frozen=True, kw_only=True):
    """An array: task `n` is tasks[n]. `job` is "" until sbatch has answered."""

    verb: str
    name: str
    folder: str
    root: str
    command: tuple[str, ...]
    options: tuple[str, ...]
    tasks: tuple[Task, ...]
    throttle: int = 0
    job: str = ""

    @property
    def counted(self) -> bool:
        """Whether a task says how many processes its verb starts: the user did not."""
        return self.verb == "build" and not any(word.startswith("--jobs") for word in self.command)

    @property
    def place(self) -> Path:
        """The folder of the order."""
        return Path(self.folder)

    @property
    def array(self) -> str:
        """The numbers of the tasks, as sbatch has them."""
        most = f"%{self.throttle}" if self.throttle else ""
        return f"0-{len(self.tasks) - 1}{most}"


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    """What a task says of itself: running, or done with the status of its command."""

    state: str
    status: int | None = None
    node: str = ""


class TaskEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A task's end. `state` is Slurm's word, COMPLETED if the command ended by itself.

    `status` is the command's, None if it did not end; `answer` what it wrote to stdout.
    """

    target: str
    job: str
    state: str
    status: int | None = None
    answer: str = ""
    log: str = ""
    place: Path
    kept: bool = False

    @property
    def good(self) -> bool:
        """Whether the command ended well."""
        return self.status == 0

    @property
    def message(self) -> str:
        """The cause of a bad end, in a line or two: the error that was said, else Slurm's word."""
        if self.status is None:
            word = "Slurm knows nothing of its end" if self.state == LOST else self.state.lower()
            last = self.log.strip().rpartition("\n")[2]
            return f"{word}: {last}" if last else word
        lines = self.log.strip().splitlines()
        errors = [place for place, line in enumerate(lines) if line.startswith("error:")]
        said = lines[errors[-1] :][:4] if errors else lines[-1:]
        return "\n".join(said).removeprefix("error: ") or f"ended with status {self.status}"


class ArrayTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that is looked after: its order and its number there."""

    order: JobArray
    number: int

    @property
    def target(self) -> str:
        """The target's name."""
        return self.order.tasks[self.number].target

    @property
    def key(self) -> tuple[str, int]:
        """Its job and its number there, as Slurm has them."""
        return self.order.job, self.number


def submit(order: JobArray, images: Path) -> JobArray:
    """Write the order and hand it to Slurm; the order with its job's number."""
    text = templates.render("slurm/array.j2", order, images=images)
    order.place.mkdir(parents=True)
    codec.write_bytes(order.place / "array.sh", text.encode())
    codec.write(order.place / ORDER, order)
    try:
        # Not as a line of the script: there a space or a quote would mean something to sbatch.
        log = order.folder.replace("%", "%%") + "/%a.log"
        told = [f"--output={log}"]
        if not any(word.startswith("--export") for word in order.options):
            told.append("--export=ALL")  # SBATCH_EXPORT=NONE would leave out where the cache is
        job = commands.submit(text, Path(order.root), told)
    except ImgbuildError:
        (order.place / ORDER).unlink()  # nothing of it is to be looked for later
        raise
    made = msgspec.structs.replace(order, job=job)
    codec.write(order.place / ORDER, made)
    return made


def start(
    project: Project,
    top: Path,
    verb: str,
    command: Sequence[str],
    tasks: Sequence[Task],
    options: Sequence[str],
    *,
    name: str,
    throttle: int = 0,
    reporter: Reporter = SILENT,
) -> list[ArrayTask]:
    """Submit `tasks` as one array, whose order is a new folder in `top`.

    Folders sort by time. Slurm's name of the array begins with `name`, and is unique.
    """
    mark = secrets.token_hex(4)
    folder = top / f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S%f}-{mark}"
    order = submit(
        JobArray(
            verb=verb,
            name=f"{name}-{mark}",
            folder=str(folder),
            root=str(project.work),
            command=tuple(command),
            options=tuple(options),
            tasks=tuple(tasks),
            throttle=throttle,
        ),
        project.images,
    )
    reporter.info(f"submitted as job {order.job}; its files are in {folder}")
    return [ArrayTask(order=order, number=number) for number in range(len(tasks))]


def known(
    top: Path,
    verb: str,
    command: Sequence[str],
    tasks: Iterable[Task],
    options: tuple[str, ...] | None = None,
) -> list[ArrayTask]:
    """The newest order of each task with this verb, command and digest; some have none.

    With `options` also with the same ones of sbatch: a test has passed where it ran, and on no
    other partition; an image is the same wherever it was built.
    An order whose number was not written, since imgbuild was killed, is looked for by its name.
    """
    wanted = set(tasks)
    found: dict[Task, ArrayTask] = {}
    for path in sorted(top.glob(f"*/{ORDER}"), reverse=True):
        order = codec.read(path, JobArray, what="order", hint=f"remove {path.parent}")
        if order.verb != verb or order.command != tuple(command):
            continue
        if options is not None and order.options != options:
            continue
        if not order.job:
            order = msgspec.structs.replace(order, job=commands.named(order.name))
        for number, task in enumerate(order.tasks):
            if task in wanted and task not in found:
                found[task] = ArrayTask(order=order, number=number)
    return list(found.values())


def sort(followed: Sequence[ArrayTask]) -> tuple[list[TaskEnd], list[ArrayTask], list[ArrayTask]]:
    """Those that are done well, those still in Slurm's hands, and those to be asked again.

    A task that Slurm is ending, COMPLETING, and that has not done its work, will not do it.
    """
    queue = commands.states(one.key for one in followed if one.order.job)
    done, live, again = [], [], []
    for one in followed:
        state = read_state(one)
        if state is not None and state.status == 0:
            done.append(msgspec.structs.replace(ended(one, "COMPLETED", state), kept=True))
        elif queue.get(one.key) in commands.LIVE - {"COMPLETING"}:
            live.append(one)
        else:
            again.append(one)
    return done, live, again


def follow(followed: Sequence[ArrayTask], reporter: Reporter = SILENT) -> list[TaskEnd]:
    """Wait for the end of each task, saying what changes; an interrupt passes through."""
    left = list(followed)
    seen: dict[str, str] = {}
    missing: dict[str, int] = {}
    finished: list[TaskEnd] = []
    pause, silent = FIRST_PAUSE, 0.0
    with reporter.progress("Slurm", len(left), unit="targets") as bar:
        while left:
            try:
                queue = commands.states(one.key for one in left)
                silent = 0.0
            except WorkFailed as error:
                _bear(error, silent, reporter)
                silent += pause
                pause = commands.slept(pause)
                continue
            for one in tuple(left):
                end = _look(one, queue.get(one.key, LOST), seen, missing, reporter)
                if end is not None:
                    left.remove(one)
                    finished.append(end)
                    bar.advance(1)
            words = [seen.get(one.target, "") for one in left]
            running = sum(word.startswith("running") for word in words)
            bar.describe(f"Slurm: {running} running, {len(left) - running} waiting")
            if left:
                pause = commands.slept(pause)
    return finished


def _bear(error: WorkFailed, silent: float, reporter: Reporter) -> None:
    """Say that Slurm did not answer, once; the error itself when that has lasted too long."""
    if silent > SILENCE:
        raise WorkFailed(error.message, hint=LATER) from error
    if not silent:
        reporter.warn(f"Slurm does not answer, and is asked again: {error.message}")


def _look(
    one: ArrayTask, word: str, seen: dict[str, str], missing: dict[str, int], reporter: Reporter
) -> TaskEnd | None:
    """How `one` stands: its end, or None; a change is said."""
    state = read_state(one)
    if state is not None and state.state == "done":
        end = ended(one, "COMPLETED", state)
    elif word in commands.LIVE:
        running = state is not None and word not in ("PENDING", "REQUEUED")
        now = f"running on {state.node}" if state and running else "waiting"
        if seen.get(one.target) != now:
            seen[one.target] = now
            reporter.info(f"{one.target}: {now} ({one.order.job}_{one.number})")
        return None
    else:
        missing[one.target] = missing.get(one.target, 0) + 1
        if missing[one.target] < (COMPLETED_GRACE if word == "COMPLETED" else GRACE):
            return None
        end = ended(one, word, None)
    if end.good:
        reporter.info(f"{one.target}: done")
    else:
        reporter.error(f"{one.target}: {end.message}", hint=f"its log: {end.place}")
    return end


def read_state(one: ArrayTask) -> TaskState | None:
    """What the task says of itself; None if it has said nothing.

    The folder is listed: for a while NFS says of a single file what it was when last asked for.
    """
    path = one.order.place / f"{one.target}.state.json"
    if path.name not in {each.name for each in one.order.place.glob("*.json")}:
        return None
    return codec.read(path, TaskState, what="state of a task", hint=f"remove {path}")


def ended(one: ArrayTask, word: str, state: TaskState | None) -> TaskEnd:
    """The end of `one`, with what it left."""
    place = one.order.place / f"{one.number}.log"
    answer = one.order.place / f"{one.target}.answer.json"
    log = place.read_text(encoding="utf-8", errors="replace").splitlines() if place.exists() else []
    return TaskEnd(
        target=one.target,
        job=f"{one.order.job}_{one.number}",
        state=word,
        status=state.status if state else None,
        answer=answer.read_text(encoding="utf-8") if answer.exists() else "",
        log="\n".join(log[-TAIL:]),
        place=place,
    )


def cancel(followed: Iterable[ArrayTask]) -> str:
    """Take tasks from Slurm; what Slurm said if it could not."""
    numbers: dict[str, list[int]] = {}
    for one in followed:
        numbers.setdefault(one.order.job, []).append(one.number)
    return commands.cancel(numbers)
