"""What a night makes of jobs in Slurm's queue: what an earlier one left there, what is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.ci import results, running
from imgbuild.ci.context import RunContext
from imgbuild.ci.jobs import CiJob
from imgbuild.ci.results import JobResult
from imgbuild.slurm import array
from imgbuild.slurm.array import JobArray, Task
from tests.support import ci_jobs_sample, needs, slurm_project
from tests.support.inprocess_project import TARGET, Command, make

pytestmark = pytest.mark.engine
BARE = "--gpus-per-node=0"  # the Slurm of the tests has no GPUs


@dataclass
class Night:
    """A job that needs a GPU, of an image that is built, and how it is done."""

    way: RunContext
    job: CiJob
    known: dict[str, CiJob]

    def queue(self) -> list[str]:
        """Numbers of the arrays of this job that are queued or run."""
        command = ("squeue", "--noheader", "--me", "--format=%F %j")
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows = [line.split() for line in done.stdout.splitlines()]
        return [number for number, name in rows if name.startswith(f"{self.job.id}-")]

    def left(self) -> str:
        """Leave this job in the queue, held, as an interrupted run may: its number."""
        [one] = array.start(
            self.way.project,
            running.orders(self.way),
            running.VERB,
            (sys.executable, "-m", "imgbuild", *self.way.elsewhere()),
            [Task(target=self.job.id, digest=self.job.digest)],
            (BARE, "--hold"),
            name=self.job.id,
        )
        return one.order.job

    def logs(self) -> list[str]:
        """The job numbers of all arrays that were submitted."""
        found = running.orders(self.way).glob(f"*/{array.ORDER}")
        return sorted(codec.read(path, JobArray).job for path in found)

    def through(self, *options: str) -> JobResult:
        """Do the job."""
        return running.run_on_slurm(self.way, self.job, self.known, (BARE, *options))

    def failed_before(self) -> None:
        """Leave the result of another night."""
        said = {"outcome": "failed", "error": "of last night", "exit_code": 1}
        ci_jobs_sample.passed(self.way.results, self.job, "smoke", **said)


@pytest.fixture(name="night")
def _night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Night]:
    for name, value in needs.slurm().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    sample = make(tmp_path)
    assert Command(monkeypatch, capsys)("build", TARGET).status == 0
    way, own = (
        ci_jobs_sample.way(sample, ci_jobs_sample.RUNNERS, through="root"),
        ci_jobs_sample.of(sample),
    )
    known = way.jobs_of(own)
    [image], [job] = own.image, own.gpu
    ci_jobs_sample.passed(way.results, known[image.id], registry=way.registry)
    made = Night(way, known[job.id], known)
    yield made
    for number in made.queue():
        subprocess.run(["scancel", number], check=True)


def once(night: Night, *command: str) -> threading.Thread:
    """Hand the number of the first job to one of Slurm's commands, as soon as there is one."""

    def _do() -> None:
        slurm_project.until(night.queue, "a job in the queue")
        subprocess.run([*command, night.queue()[0]], check=True)

    thread = threading.Thread(target=_do)
    thread.start()
    return thread


def test_what_an_earlier_night_left_in_the_queue_is_waited_for(night):
    """It is queued still, and holds no lock; its own result counts, and nothing is submitted."""
    number = night.left()
    night.failed_before()
    release = once(night, "scontrol", "release")
    done = night.through()
    release.join()
    assert night.logs() == [number]
    assert done.failed is not None
    assert (done.failed.step, done.failed.error != "of last night") == ("smoke", True)


def test_a_job_in_the_queue_that_ends_without_a_result_is_submitted_again(night):
    night.left()
    cancel = once(night, "scancel")
    done = night.through()
    cancel.join()
    assert len(night.logs()) == 2
    assert done.failed is not None
    assert done.failed.step == "smoke"


def test_the_word_of_slurm_stands_where_another_night_failed(night):
    night.failed_before()
    cancel = once(night, "scancel")
    done = night.through("--hold")
    cancel.join()
    assert done.failed is not None
    assert "ended without a result: cancelled" in done.failed.error
    assert done.failed.repeat.startswith(f"imgbuild ci run {night.job.id} ")


def test_what_has_passed_is_not_submitted(night):
    """Its gate was shut then, and opens now."""
    ci_jobs_sample.passed(night.way.results, night.job, "pull", "smoke")
    assert night.through("--hold").passed
    assert not night.logs()
    assert results.read_job(night.way.results, night.job).passed
