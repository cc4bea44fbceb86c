"""Slurm's own commands: submit a script, look at jobs, cancel them.

Comes in: a script, job numbers. Goes out: a job's number and the states of tasks, in Slurm's own
words. Every node is taken to see the same files at the same paths, as on any cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from imgbuild import run
from imgbuild.console import console
from imgbuild.errors import ToolMissing, WorkFailed

REMEDY = "run this where Slurm's commands are (a login node), or leave --submit and --on out"
# States in which a task is still in Slurm's hands.
LIVE = frozenset({
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD",
    "REQUEUE_FED", "RESIZING", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED",
})  # fmt: skip
GONE = "Invalid job id"  # what squeue says of a job that it has forgotten


def submit(script: str, folder: Path, options: Sequence[str] = ()) -> str:
    """Hand `script` to sbatch, to start in `folder`: the job's number.

    ToolMissing without sbatch, WorkFailed with Slurm's own words if it refuses.
    """
    program = run.find("sbatch", remedy=REMEDY)
    done = run.run([program, "--parsable", *options], stdin=script, cwd=folder, check=False)
    number = done.stdout.strip().partition(";")[0]
    if done.status != 0 or not number.isdecimal():
        message = f"sbatch refused the job:\n{(done.stderr or done.stdout).strip()}"
        raise WorkFailed(message, hint="see what the site has with: sinfo, sacctmgr show assoc")
    return number


def wait(script: str, folder: Path, options: Sequence[str] = ()) -> tuple[str, int]:
    """As `submit`, and wait for the job's end: its number and its exit status."""
    program = run.find("sbatch", remedy=REMEDY)
    command = [program, "--parsable", "--wait", *options]
    done = run.run(command, stdin=script, cwd=folder, check=False)
    number = done.stdout.strip().partition(";")[0]
    if not number.isdecimal():
        message = f"sbatch refused the job:\n{(done.stderr or done.stdout).strip()}"
        raise WorkFailed(message, hint="see what the site has with: sinfo, sacctmgr show assoc")
    return number, done.status


def states(tasks: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """The state of each of `tasks`, by job and number; those that Slurm forgot are absent.

    What is queued and what has just ended comes from squeue, what ended long ago from sacct where
    the site keeps accounts.
    """
    program = run.find("squeue", remedy=REMEDY)
    found: dict[tuple[str, int], str] = {}
    wanted = frozenset(tasks)
    for job in sorted({job for job, _ in wanted}):
        command = [program, "--noheader", "--array", "--states=all", f"--jobs={job}"]
        done = run.run([*command, "--format=%F %K %T"], check=False)
        if done.status != 0 and GONE not in done.stderr:
            raise run.failure(command, done)
        found |= _rows(done.stdout)
        if any(task not in found for task in wanted if task[0] == job):
            found = _accounted(job) | found
    return found


def _rows(text: str) -> dict[tuple[str, int], str]:
    rows = [line.split() for line in text.splitlines()]
    return {
        (row[0], int(row[1])): row[2]
        for row in rows
        if len(row) >= 3 and row[0].isdecimal() and row[1].isdecimal()
    }


def _accounted(job: str) -> dict[tuple[str, int], str]:
    """States by sacct; none where there is none, or nothing is kept."""
    try:
        program = run.find("sacct", remedy=REMEDY)
    except ToolMissing:
        return {}
    command = [program, "--noheader", "--parsable2", "--allocations", f"--jobs={job}"]
    done = run.run([*command, "--format=JobID,State"], check=False)
    if done.status != 0:
        console.detail(f"sacct keeps nothing: {done.stderr.strip()}")
        return {}
    pairs = re.findall(r"^(\d+)_(\d+)\|([A-Z_]+)", done.stdout, re.MULTILINE)
    return {(number, int(task)): state for number, task, state in pairs}


def named(name: str) -> str:
    """The number of the user's job with that name that is queued or runs; "" if there is none."""
    program = run.find("squeue", remedy=REMEDY)
    done = run.run([program, "--noheader", "--me", f"--name={name}", "--format=%F"], check=False)
    return next(iter(done.stdout.split()), "")


def cancel(tasks: Mapping[str, Sequence[int]]) -> None:
    """Take tasks from Slurm, by job; those that have ended stay as they are."""
    program = run.find("scancel", remedy=REMEDY)
    for job, numbers in tasks.items():
        wanted = f"{job}_[{','.join(map(str, sorted(numbers)))}]"
        run.run([program, "--quiet", wanted], check=False)
