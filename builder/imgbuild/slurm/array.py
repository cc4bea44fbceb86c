"""Submits Slurm arrays with a task for each target, and follows their states.

An order is a folder on the shared disk with the script, order.json, and for each task a log, the
output of the command and a state, which the task writes atomically. A task is not submitted again
if it is completed or queued in another order with the same command, arguments and digest.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.errors import ImgbuildError, Interrupted
from imgbuild.matrix.project_paths import Project
from imgbuild.render import templates
from imgbuild.slurm import commands
from imgbuild.slurm.commands import LATER_HINT, LOST_STATE
from imgbuild.system import boundary
from imgbuild.system.ending import EndSignal
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Digest

ORDER = "order.json"
# Queries until a task that left the queue without a state counts as lost, since a network disk may
# show the state late: more, over a minute in all, for COMPLETED, which always has a state.
GRACE, COMPLETED_GRACE = 5, 15
TAIL = 30  # lines of a log that are kept


class ArrayTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target of an array, and the locked digest of its image."""

    target: str
    digest: Digest


class JobArray(msgspec.Struct, frozen=True, kw_only=True):
    """A job array. Task `n` is `tasks[n]`. `job` is "" until sbatch returns the job ID."""

    verb: str
    name: str
    folder: str
    root: str
    command: tuple[str, ...]
    options: tuple[str, ...]
    tasks: tuple[ArrayTarget, ...]
    throttle: int = 0
    job: str = ""

    @property
    def counted(self) -> bool:
        """Whether the script sets --jobs to the number of CPUs. False if the user sets --jobs."""
        return self.verb == "build" and not any(word.startswith("--jobs") for word in self.command)

    @property
    def place(self) -> Path:
        """The folder of the order."""
        return Path(self.folder)

    @property
    def array(self) -> str:
        """The task numbers, in the format of `sbatch --array`."""
        most = f"%{self.throttle}" if self.throttle else ""
        return f"0-{len(self.tasks) - 1}{most}"


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a task writes: running, or finished with the exit status of its command."""

    state: str
    status: int | None = None
    node: str = ""


class TaskEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a task.

    `state` is the Slurm state, or COMPLETED if the command ended. `status` is the exit status of
    the command, or None if it did not end. `answer` is the command's stdout.
    """

    target: str
    job: str
    state: str
    status: int | None = None
    answer: str = ""
    log: str = ""
    place: Path

    @property
    def good(self) -> bool:
        """Whether the command succeeded."""
        return self.status == 0

    @property
    def message(self) -> str:
        """The reason for a failure in one or two lines: the last error in the log, or the state."""
        if self.status is None:
            word = (
                ("Slurm has no record of the end of the task")
                if self.state == LOST_STATE
                else self.state.lower()
            )
            last = self.log.strip().rpartition("\n")[2]
            return f"{word}: {last}" if last else word
        lines = self.log.strip().splitlines()
        errors = [place for place, line in enumerate(lines) if line.startswith("error:")]
        excerpt = lines[errors[-1] :][:4] if errors else lines[-1:]
        return "\n".join(excerpt).removeprefix("error: ") or f"ended with status {self.status}"


class ArrayTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task, identified by a job array and an index in its tasks."""

    order: JobArray
    number: int

    @property
    def target(self) -> str:
        """The name of the target."""
        return self.order.tasks[self.number].target

    @property
    def key(self) -> tuple[str, int]:
        """The job ID and the task number."""
        return self.order.job, self.number


def submit_array(
    project: Project,
    top: Path,
    verb: str,
    command: Sequence[str],
    tasks: Sequence[ArrayTarget],
    options: Sequence[str],
    *,
    name: str,
    throttle: int = 0,
    reporter: Reporter = SILENT_REPORTER,
) -> list[ArrayTask]:
    """Submit `tasks` as a job array. Its files are in a new folder below `top`.

    Folder names sort by time. The array's unique name in Slurm begins with `name`.
    """
    mark = secrets.token_hex(4)
    folder = top / f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S%f}-{mark}"
    order = JobArray(
        verb=verb,
        name=f"{name}-{mark}",
        folder=str(folder),
        root=str(project.work),
        command=tuple(command),
        options=tuple(options),
        tasks=tuple(tasks),
        throttle=throttle,
    )
    text = templates.render_template("slurm/array.j2", order, images=project.images)
    folder.mkdir(parents=True)
    codec.write_bytes(folder / "array.sh", text.encode())
    codec.write_document(folder / ORDER, order)
    # Not as a line of the script: sbatch would read a space or a quote in it.
    arguments = [f"--output={order.folder.replace('%', '%%')}/%a.log"]
    if not any(word.startswith("--export") for word in order.options):
        arguments.append("--export=ALL")  # SBATCH_EXPORT=NONE would omit the location of the cache
    try:
        job = commands.submit_script(text, project.work, arguments)
    except ImgbuildError:
        (folder / ORDER).unlink()  # so that no later run searches for it
        raise
    order = msgspec.structs.replace(order, job=job)
    codec.write_document(folder / ORDER, order)
    reporter.info(f"submitted as job {job}; its files are in {folder}")
    return [ArrayTask(order=order, number=number) for number in range(len(tasks))]


def existing_tasks(
    top: Path,
    verb: str,
    command: Sequence[str],
    tasks: Iterable[ArrayTarget],
    options: tuple[str, ...] | None = None,
) -> list[ArrayTask]:
    """Find the tasks in the newest arrays with the same verb, command and digest.

    With `options`, the options of sbatch must be the same, because a test result from one partition
    is not valid for another partition. If imgbuild was killed, an array has no job ID, and its job
    is found by name.
    """
    requested = set(tasks)
    latest: dict[ArrayTarget, ArrayTask] = {}
    for path in sorted(top.glob(f"*/{ORDER}"), reverse=True):
        order = codec.read_document(path, JobArray, what="order", hint=f"remove {path.parent}")
        if (order.verb, order.command) != (verb, tuple(command)):
            continue
        if options is not None and order.options != options:
            continue
        if not order.job:
            order = msgspec.structs.replace(order, job=commands.find_job(order.name))
        for number, task in enumerate(order.tasks):
            if task in requested and task not in latest:
                latest[task] = ArrayTask(order=order, number=number)
    return list(latest.values())


def split_ended(followed: Sequence[ArrayTask]) -> tuple[list[TaskEnd], list[ArrayTask]]:
    """Return the ends of passed tasks, and the tasks that are queued or running.

    A task in the state COMPLETING that has not written its end will never write it.
    """
    queue = commands.query_states(task.key for task in followed if task.order.job)
    done, live = [], []
    for task in followed:
        state = read_state(task)
        if state is not None and state.status == 0:
            done.append(task_end(task, "COMPLETED", state))
        elif queue.get(task.key) in commands.LIVE_STATES - {"COMPLETING"}:
            live.append(task)
    return done, live


def follow_tasks(
    followed: Sequence[ArrayTask], reporter: Reporter = SILENT_REPORTER, *, leave: bool = False
) -> list[TaskEnd]:
    """Wait for the end of each task, and report changes of states.

    Raises Interrupted on Ctrl-C, which cancels the tasks unless `leave` is set, and EndSignal on
    other signals, which do not cancel tasks.
    """
    try:
        return _follow_until_ended(followed, reporter)
    except EndSignal:
        message = f"ended: {LATER_HINT}"
        raise Interrupted(message) from None
    except KeyboardInterrupt:
        if leave:
            message = f"interrupted: {LATER_HINT}"
            raise Interrupted(message) from None
        numbers: dict[str, list[str]] = {}
        for task in followed:
            numbers.setdefault(task.order.job, []).append(str(task.number))
        jobs = (f"{job}_[{','.join(task_numbers)}]" for job, task_numbers in numbers.items())
        raise commands.cancel_jobs(jobs) from None


def _follow_until_ended(followed: Sequence[ArrayTask], reporter: Reporter) -> list[TaskEnd]:
    left = list(followed)
    seen: dict[str, str] = {}
    missing: dict[str, int] = {}
    finished: list[TaskEnd] = []
    with reporter.progress("Slurm", len(left), unit="targets") as bar:
        for queue in commands.poll_states(lambda: [task.key for task in left], reporter):
            for task in tuple(left):
                end = _task_end(task, queue.get(task.key, LOST_STATE), seen, missing, reporter)
                if end is not None:
                    left.remove(task)
                    finished.append(end)
                    bar.advance(1)
            words = [seen.get(task.target, "") for task in left]
            running = sum(word.startswith("running") for word in words)
            bar.describe(f"Slurm: {running} running, {len(left) - running} waiting")
            if not left:
                break
    return finished


def _task_end(
    task: ArrayTask, word: str, seen: dict[str, str], missing: dict[str, int], reporter: Reporter
) -> TaskEnd | None:
    state = read_state(task)
    if state is not None and state.state == "done":
        end = task_end(task, "COMPLETED", state)
    elif word in commands.LIVE_STATES:
        running = state is not None and word not in ("PENDING", "REQUEUED")
        now = f"running on {state.node}" if state and running else "waiting"
        if seen.get(task.target) != now:
            seen[task.target] = now
            reporter.info(f"{task.target}: {now} ({task.order.job}_{task.number})")
        return None
    else:
        missing[task.target] = missing.get(task.target, 0) + 1
        if missing[task.target] < (COMPLETED_GRACE if word == "COMPLETED" else GRACE):
            return None
        end = task_end(task, word, None)
    if end.good:
        reporter.info(f"{task.target}: done")
    else:
        reporter.error(f"{task.target}: {end.message}", hint=f"log: {end.place}")
    return end


def read_state(task: ArrayTask) -> TaskState | None:
    """Read the state that the task wrote. Returns None if the task has not written a state.

    The folder is listed, because NFS clients cache the absence of a file for some time.
    """
    path = task.order.place / f"{task.target}.state.json"
    if path.name not in {each.name for each in task.order.place.glob("*.json")}:
        return None
    return codec.read_document(path, TaskState, what="state of a task", hint=f"remove {path}")


def task_end(task: ArrayTask, word: str, state: TaskState | None) -> TaskEnd:
    """Return the end of `task`, with its log and output."""
    place = task.order.place / f"{task.number}.log"
    answer = task.order.place / f"{task.target}.answer.json"
    log = (
        boundary.read_regular_file(place).decode(errors="replace").splitlines()
        if place.exists()
        else []
    )
    return TaskEnd(
        target=task.target,
        job=f"{task.order.job}_{task.number}",
        state=word,
        status=state.status if state else None,
        answer=boundary.read_regular_file(answer).decode() if answer.exists() else "",
        log="\n".join(log[-TAIL:]),
        place=place,
    )
