"""Slurm's commands: submit a script, query jobs, cancel them.

Every node is taken to see the same files at the same paths, as on any cluster.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from imgbuild.errors import ToolMissing, WorkFailed
from imgbuild.system import process
from imgbuild.system.reporter import SILENT, Reporter

REMEDY = "run this where Slurm's commands are (a login node), or leave --submit and --on out"
# States in which a task is still in Slurm's hands.
LIVE = frozenset({
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD",
    "REQUEUE_FED", "RESIZING", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED",
})  # fmt: skip
GONE = "Invalid job id"  # what squeue and scontrol say of a job that Slurm has forgotten
LOST = "LOST"  # the state, in our words, of such a job
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0  # seconds between two looks
SILENCE = 600.0  # seconds of waiting in which Slurm may fail to answer: its controller restarts


class JobEnd(NamedTuple):
    """How a job ended: Slurm's word, and a status that is 0 only where the work ended well."""

    number: str
    state: str
    status: int


def submit(script: str, folder: Path, options: Sequence[str] = ()) -> str:
    """Hand `script` to sbatch, to start in `folder`: the job's number.

    ToolMissing without sbatch, WorkFailed with Slurm's own words if it refuses.
    """
    program = process.find("sbatch", remedy=REMEDY)
    done = process.run([program, "--parsable", *options], stdin=script, cwd=folder, check=False)
    number = done.stdout.strip().partition(";")[0]
    if done.status != 0 or not number.isdecimal():
        message = f"sbatch refused the job:\n{(done.stderr or done.stdout).strip()}"
        raise WorkFailed(message, hint="see what the site has with: sinfo, sacctmgr show assoc")
    return number


def wait(
    script: str, folder: Path, options: Sequence[str] = (), reporter: Reporter = SILENT
) -> JobEnd:
    """As `submit`, and wait for the job's end. An interrupt cancels the job, and passes through."""
    number = submit(script, folder, options)
    reporter.info(f"submitted as job {number}")
    try:
        return ended(number)
    except KeyboardInterrupt:
        if said := _scancel(number):
            reporter.warn(f"job {number} could not be cancelled: {said}")
        else:
            reporter.info(f"job {number} is cancelled")
        raise


def ended(number: str) -> JobEnd:
    """Wait for the end of a job of any user; an interrupt leaves the job as it is.

    WorkFailed if Slurm is silent for long.
    """
    pause, silent = FIRST_PAUSE, 0.0
    while True:
        state, status = _shown(number)
        if state and state not in LIVE:
            return JobEnd(number, state, status)
        silent = 0.0 if state else silent + pause
        if silent > SILENCE:
            message = f"Slurm does not answer; job {number} was left to it"
            raise WorkFailed(message, hint=f"look at it with: scontrol show job {number}")
        pause = slept(pause)


def slept(pause: float) -> float:
    """Wait between two looks; how long to wait before the next one."""
    time.sleep(pause)
    return min(pause * 1.2, LONGEST_PAUSE)


def _shown(number: str) -> tuple[str, int]:
    """A job's state and status as Slurm shows them; no state while Slurm does not answer.

    The status is 0 for a job that ended by itself, and well, alone: Slurm gives it to a job that
    was cancelled before it ran, too. What Slurm has forgotten is LOST.
    """
    program = process.find("scontrol", remedy=REMEDY)
    done = process.run([program, "--oneliner", "show", "job", number], check=False)
    if done.status != 0:
        return (LOST if GONE in done.stderr else ""), 1
    state, status = (
        re.search(rf"\b{name}=(\w+)", done.stdout) for name in ("JobState", "ExitCode")
    )
    if state is None or status is None:
        return "", 1
    good = state[1] == "COMPLETED"
    return state[1], int(status[1]) if good else int(status[1]) or 1


def states(tasks: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """The state of each of `tasks`, by job and number; those that Slurm forgot are absent.

    What is queued and what has just ended comes from squeue, what ended long ago from sacct where
    the site keeps accounts.
    """
    found: dict[tuple[str, int], str] = {}
    wanted = frozenset(tasks)
    if not wanted:
        return found
    program = process.find("squeue", remedy=REMEDY)
    for job in sorted({job for job, _ in wanted}):
        command = [program, "--noheader", "--array", "--states=all", f"--jobs={job}"]
        done = process.run([*command, "--format=%K %T"], check=False)
        if done.status != 0 and GONE not in done.stderr:
            raise process.failure(command, done)
        rows = dict(re.findall(r"^\s*(\d+|N/A) ([A-Z_]+)", done.stdout, re.MULTILINE))
        # An array that was cancelled while it was pending is one row without a task.
        whole = rows.pop("N/A", None)
        listed = {(job, int(task)): state for task, state in rows.items()}
        own = [task for task in wanted if task[0] == job]
        if whole is not None:
            listed = dict.fromkeys(own, whole) | listed
        elif any(task not in listed for task in own):
            listed = _accounted(job) | listed
        found |= listed
    return found


def _accounted(job: str) -> dict[tuple[str, int], str]:
    """States by sacct; none where there is none, or nothing is kept."""
    try:
        program = process.find("sacct", remedy=REMEDY)
    except ToolMissing:
        return {}
    command = [program, "--noheader", "--parsable2", "--allocations", f"--jobs={job}"]
    done = process.run([*command, "--format=JobID,State"], check=False)
    if done.status != 0:
        return {}
    pairs = re.findall(r"^(\d+)_(\d+)\|([A-Z_]+)", done.stdout, re.MULTILINE)
    return {(number, int(task)): state for number, task, state in pairs}


def named(name: str) -> str:
    """The number of the user's job with that name that is queued or runs; "" if there is none.

    WorkFailed if Slurm does not answer: that is no answer.
    """
    program = process.find("squeue", remedy=REMEDY)
    done = process.run([program, "--noheader", "--me", f"--name={name}", "--format=%F"])
    return next(iter(done.stdout.split()), "")


def cancel(tasks: Mapping[str, Sequence[int]]) -> str:
    """Take tasks from Slurm, by job; those that have ended stay as they are.

    What scancel said where it could not; "" if it could.
    """
    said = [
        _scancel(f"{job}_[{','.join(map(str, sorted(numbers)))}]") for job, numbers in tasks.items()
    ]
    return "\n".join(each for each in said if each)


def _scancel(wanted: str) -> str:
    """Cancel jobs, or tasks of one; what scancel said if it failed."""
    program = process.find("scancel", remedy=REMEDY)
    done = process.run([program, "--quiet", wanted], check=False)
    return "" if done.status == 0 else done.stderr.strip() or f"status {done.status}"
