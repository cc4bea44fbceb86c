"""Creates small projects for Slurm arrays on the Slurm of tools/engines.

The projects are locked, and their environment contains Slurm's configuration.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support import needs, sample_project
from tests.support.sample_project import Project
from tests.support.servers import FileSite, serve_site

BASE = {
    "kind": "debian", "suite": "bookworm", "python": "3.11", "glibc": "2.36",
    "packages": ["python3", "usr-is-merged"],
}  # fmt: skip
TARGETS = ("one", "three", "two")  # in the order of events
SCRIPTS = Path(__file__).parents[1] / "data/slurm"  # as they are committed for reading
PATIENCE = 600.0  # a busy machine is slow; nothing is measured


@contextlib.contextmanager
def project(folder: Path) -> Iterator[Project]:
    """Create three locked targets that differ in a wheel."""
    env = needs.require_slurm()
    needs.require_network()
    needs.user_namespaces()
    with serve_site(FileSite(files=sample_project.sample_index().site_files())) as site:
        project = Project(folder, site.url("simple"), cache=None, env=env)
        project.write(BASE)
        path = folder / "matrix.yaml"
        head, _, row = path.read_text().partition("  small:\n")
        rows = [f"  {name}:\n{row}" for name in TARGETS]
        rows[1] = rows[1].replace('thewheel: "1.0"', 'thewheel: "2.0"')
        path.write_text(head + "".join(rows))
        project.run("lock", "--all", "--keep")
        yield project


def slurm(project: Project, *command: str, cwd: Path | None = None) -> str:
    """The output of a command of Slurm."""
    done = subprocess.run(
        command, cwd=cwd, env=project.environment(), capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def queued_jobs(project: Project) -> list[str]:
    """The names of the user's queued jobs from this project's folder."""
    lines = slurm(project, "squeue", "--noheader", "--array", "--me", "--format=%F_%K %T %Z")
    rows = [line.split(maxsplit=2) for line in lines.splitlines()]
    return [name for name, _, folder in rows if folder == str(project.folder)]


def wait_until(true: object, what: str) -> None:
    """Wait until `true` returns a true value."""
    assert callable(true)
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, f"timed out after {PATIENCE} s: {what}"
        time.sleep(0.5)


def array_folders(project: Project, verb: str) -> list[Path]:
    """The folders of the arrays of `verb`, oldest first."""
    return sorted((project.folder / "build/slurm" / verb).glob("*"))


def run_job(project: Project, script: Path) -> tuple[int, str]:
    """Run a job script to its end. Returns the exit status and the log.

    `sbatch --wait` is not used, because it polls at growing intervals.
    """
    log = script.with_suffix(".log")
    command = ("sbatch", "--parsable", f"--output={log}", str(script))
    number = slurm(project, *command, cwd=script.parent).strip()

    def _job_state() -> str:
        return slurm(project, "scontrol", "show", "job", number)

    ended = re.compile(r"JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT)")
    wait_until(lambda: ended.search(_job_state()), "its end")
    [status] = re.findall(r" ExitCode=(\d+):", _job_state())
    return int(status), log.read_text()


RAY = "2.47.1"


@contextlib.contextmanager
def sif_project(folder: Path) -> Iterator[Project]:
    """Lock and build a target without torch as a SIF."""
    env = _require_sif_jobs()
    with serve_site(FileSite(files=sample_project.sample_index().site_files())) as site:
        project = Project(folder, site.url("simple"), cache=None, env=env)
        project.write(BASE)
        path = folder / "matrix.yaml"
        path.write_text(path.read_text().replace('torch: "2.6.0", ', ""))
        _build_sif(project)
        yield project


@contextlib.contextmanager
def ray_project(folder: Path) -> Iterator[Project]:
    """Lock and build a target with Ray as a SIF, with wheels from the default index.

    The target has grpcio, which the client server of Ray requires.
    """
    project = Project(folder, "", cache=None, env=_require_sif_jobs())
    project.write({**BASE, "packages": ["libstdc++6", *BASE["packages"]]})
    path = folder / "matrix.yaml"
    pins = 'pins: {torch: "2.6.0", thewheel: "1.0"}'
    text = path.read_text().replace(pins, f'pins: {{grpcio: "1.73.0", ray: "{RAY}"}}')
    text = text.replace("thewheel", "ray")
    path.write_text(text.replace("order: [torch]", "order: [ray]"))
    _build_sif(project)
    yield project


def _require_sif_jobs() -> dict[str, str]:
    """Environment variables for Slurm; jobs with a SIF require Apptainer, too."""
    env = needs.require_slurm()
    needs.require_network()
    needs.require_apptainer()
    return env


def _build_sif(project: Project) -> None:
    for words in (("lock", "--keep"), ("build",), ("build", "--format", "sif")):
        project.run(words[0], sample_project.TARGET, *words[1:])
