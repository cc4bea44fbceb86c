"""Provides a small project for tests of CI jobs, with settings, jobs and results."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.ci import jobs, results, settings
from imgbuild.ci import script as scripts
from imgbuild.ci.jobs import CiJob, TargetJobs
from imgbuild.ci.results import StepState
from imgbuild.ci.script import ScriptOptions
from imgbuild.ci.settings import CiSettings
from imgbuild.matrix.project_paths import Project
from imgbuild.values import Arch
from tests.support import inprocess_project, registry_project
from tests.support.inprocess_project import TARGET, SampleProject
from tests.support.registry_project import Place

BOTH = (Arch.X86_64, Arch.ARM64)
RUNNERS = """
runners:
  - {labels: [a], arch: x86_64, disk: 10}
  - {labels: [b], arch: arm64, disk: 10}
  - {labels: [g], arch: x86_64, disk: 10, gpus: 1}
"""


@pytest.fixture(scope="module", name="shared_sample")
def _shared_sample(tmp_path_factory: pytest.TempPathFactory) -> SampleProject:
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMGBUILD_CACHE", str(folder / "cache"))
        (folder / "project").mkdir()
        return inprocess_project.write_project(folder / "project")


@pytest.fixture(name="sample")
def _sample(
    shared_sample: SampleProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SampleProject:
    """A copy of the project in a folder of the test."""
    folder = Path(shutil.copytree(shared_sample.folder, tmp_path / "project"))
    monkeypatch.chdir(folder)
    return dataclasses.replace(shared_sample, folder=folder)


@pytest.fixture(name="place")
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from registry_project.place(tmp_path, monkeypatch)


def read_settings(sample: SampleProject, text: str = "") -> CiSettings:
    """The settings of the project, with `text` in its ci.yaml."""
    if text:
        (sample.folder / "ci.yaml").write_text(f"version: 1\n{text}")
    return settings.read_ci_settings(Project(matrix=sample.matrix))


def job_script(
    sample: SampleProject, target: TargetJobs, text: str = RUNNERS, **more: object
) -> str:
    """The script that runs the jobs of `target`. `more` are fields of `ScriptOptions`."""
    fixed = {"registry": "registry.example/rl", "results": sample.folder / "build/ci"}
    options = ScriptOptions(**{**fixed, **more})  # type: ignore[arg-type]
    project = Project(matrix=sample.matrix)
    return scripts.write_script(project, read_settings(sample, text), [target], options)


def make_jobs(
    sample: SampleProject, text: str = RUNNERS, *, again: bool = False, gate: str = ""
) -> TargetJobs:
    """The jobs of the target that has one architecture."""
    ci_settings = read_settings(sample, text + gate)
    target_jobs = jobs.create_jobs(
        TARGET, (Arch.X86_64,), sample.target_digests, ci_settings, again=again
    )
    return jobs.add_labels(target_jobs, ci_settings)


def write_ended_step(folder: Path, job: CiJob, step: str, exit_code: int = 0) -> None:
    """Write the result of a step of `job`, or of the whole job for the step "job"."""
    state = StepState(digest=job.digest, key="0", exit_code=exit_code, seconds=1.0)
    codec.write_document(results.result_path(folder, job.id, f"{step}.json"), state)


def write_passed_job(folder: Path, job: CiJob) -> None:
    """Write the results of `job` with all steps passed."""
    for step in (*job.steps, "job"):
        write_ended_step(folder, job, step)
