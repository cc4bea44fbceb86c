"""Submits, queries, awaits and cancels jobs with the commands of Slurm.

All nodes must have the same files at the same paths. A task is a job ID and an array index. A job
that is not an array has the task 0.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from imgbuild.errors import Interrupted, ToolMissing, WorkFailed
from imgbuild.system import process
from imgbuild.system.ending import EndSignal
from imgbuild.system.reporter import SILENT_REPORTER, Reporter

REMEDY = "run the command on a login node, where Slurm is installed, or omit --submit and --on"
# States of tasks that have not ended.
LIVE_STATES = frozenset({
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD",
    "REQUEUE_FED", "RESIZING", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED",
})  # fmt: skip
UNKNOWN_JOB_TEXT = "Invalid job id"  # squeue's error for a job that Slurm no longer lists
LOST_STATE = "LOST"  # imgbuild's name for the state of such a job
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0  # seconds between two queries
SILENCE = 600.0  # seconds in which Slurm may not respond, because its controller restarts
LATER_HINT = (
    "the jobs continue to run; to list jobs, run squeue --me; to follow an array, run the same "
    "command again"
)


def submit_script(script: str, folder: Path, options: Sequence[str] = ()) -> str:
    """Submit `script` with sbatch, to start in `folder`. Returns the job ID.

    Raises ToolMissing without sbatch, and WorkFailed with Slurm's message if sbatch fails.
    """
    program = process.find_program("sbatch", remedy=REMEDY)
    done = process.run_command(
        [program, "--parsable", *options], stdin=script, cwd=folder, check=False
    )
    number = done.stdout.strip().partition(";")[0]
    if done.status != 0 or not number.isdecimal():
        message = f"sbatch rejected the job:\n{(done.stderr or done.stdout).strip()}"
        raise WorkFailed(
            message, hint="to list partitions and accounts, run: sinfo, sacctmgr show assoc"
        )
    return number


def wait_for_job(number: str, reporter: Reporter = SILENT_REPORTER) -> str:
    """Wait for a job, and return the final state.

    Ctrl-C cancels the job and raises Interrupted.
    """
    task = (number, 0)
    try:
        for task_states in poll_states(lambda: [task], reporter):
            if task_states.get(task) not in LIVE_STATES:
                return task_states.get(task, LOST_STATE)
    except EndSignal:
        message = f"ended: {LATER_HINT}"
        raise Interrupted(message) from None
    except KeyboardInterrupt:
        raise cancel_jobs([number]) from None
    return LOST_STATE


def poll_states(
    tasks: Callable[[], Iterable[tuple[str, int]]], reporter: Reporter = SILENT_REPORTER
) -> Iterator[dict[tuple[str, int], str]]:
    """Yield the states of `tasks()` repeatedly, with growing pauses.

    If Slurm does not respond, a warning is reported. After ten minutes, WorkFailed is raised.
    """
    pause, silent = FIRST_PAUSE, 0.0
    while True:
        try:
            task_states = query_states(tasks())
        except WorkFailed as error:
            if silent > SILENCE:
                raise WorkFailed(error.message, hint=LATER_HINT) from error
            if not silent:
                reporter.warn(f"Slurm does not respond; retrying: {error.message}")
            silent += pause
        else:
            silent = 0.0
            yield task_states
        time.sleep(pause)
        pause = min(pause * 1.2, LONGEST_PAUSE)


def query_states(tasks: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Return the states of the `tasks` that Slurm still lists.

    squeue lists queued and recently ended tasks. sacct lists other tasks if the site has
    accounting.
    """
    task_states: dict[tuple[str, int], str] = {}
    requested = frozenset(tasks)
    if not requested:
        return task_states
    program = process.find_program("squeue", remedy=REMEDY)
    for job in sorted({job for job, _ in requested}):
        command = [program, "--noheader", "--array", "--states=all", f"--jobs={job}"]
        done = process.run_command([*command, "--format=%K %T"], check=False)
        if done.status != 0 and UNKNOWN_JOB_TEXT not in done.stderr:
            raise process.command_error(command, done)
        rows = dict(re.findall(r"^\s*(\d+|N/A) ([A-Z_]+)", done.stdout, re.MULTILINE))
        # No array; or one that was cancelled while it was pending, which is one row.
        whole = rows.pop("N/A", None)
        listed = {(job, int(task)): state for task, state in rows.items()}
        job_tasks = [task for task in requested if task[0] == job]
        if whole is not None:
            listed = dict.fromkeys(job_tasks, whole) | listed
        elif any(task not in listed for task in job_tasks):
            listed = _accounted_states(job) | listed
        task_states |= listed
    return task_states


def _accounted_states(job: str) -> dict[tuple[str, int], str]:
    try:
        program = process.find_program("sacct", remedy=REMEDY)
    except ToolMissing:
        return {}
    command = [program, "--noheader", "--parsable2", "--allocations", f"--jobs={job}"]
    done = process.run_command([*command, "--format=JobID,State"], check=False)
    if done.status != 0:
        return {}
    rows = re.findall(r"^(\d+)(?:_(\d+))?\|([A-Z_]+)", done.stdout, re.MULTILINE)
    return {(number, int(task or 0)): state for number, task, state in rows}


def find_job(name: str) -> str:
    """Return the ID of the user's queued or running job with this name, or "".

    Raises WorkFailed if Slurm does not respond.
    """
    program = process.find_program("squeue", remedy=REMEDY)
    done = process.run_command([program, "--noheader", "--me", f"--name={name}", "--format=%F"])
    return next(iter(done.stdout.split()), "")


def cancel_jobs(jobs: Iterable[str]) -> Interrupted:
    """Cancel `jobs`, in the format of scancel (12, 12_[0,1]). Returns the error to raise.

    Finished jobs are not changed.
    """
    program = process.find_program("scancel", remedy=REMEDY)
    done = process.run_command([program, "--quiet", *jobs], check=False)
    if done.status != 0:
        reason = done.stderr.strip() or f"status {done.status}"
        message = f"interrupted, but Slurm did not cancel the tasks: {reason}"
        return Interrupted(message, hint="to list running jobs, run: squeue --me")
    message = "interrupted; the remaining tasks were cancelled"
    return Interrupted(message, hint="run the same command again to submit the remaining tasks")
