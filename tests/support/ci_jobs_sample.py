"""A small project for tests of CI jobs: its settings, its jobs, results on disk."""

from __future__ import annotations

import dataclasses
import datetime
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from imgbuild.ci import jobs, results, settings
from imgbuild.ci.context import RunContext
from imgbuild.ci.jobs import CiJob, TargetJobs
from imgbuild.ci.results import StepResult
from imgbuild.ci.settings import CiSettings
from imgbuild.project import Project
from imgbuild.values import Arch
from tests.support import inprocess_project, registry_project
from tests.support.inprocess_project import TARGET, Sample
from tests.support.registry_project import Place

BOTH = (Arch.X86_64, Arch.ARM64)
DAY = datetime.date(2026, 11, 21)
RUNNERS = """
runners:
  - {labels: [a], arch: x86_64, disk: 10}
  - {labels: [b], arch: arm64, disk: 10}
  - {labels: [g], arch: x86_64, disk: 10, gpus: 1}
"""


@pytest.fixture(scope="module", name="made")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMGBUILD_CACHE", str(folder / "cache"))
        (folder / "project").mkdir()
        return inprocess_project.make(folder / "project")


@pytest.fixture(name="sample")
def _sample(made: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sample:
    """A copy of the project in a folder of the test."""
    folder = Path(shutil.copytree(made.folder, tmp_path / "project"))
    monkeypatch.chdir(folder)
    return dataclasses.replace(made, folder=folder)


@pytest.fixture(name="place")
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from registry_project.place(tmp_path, monkeypatch)


def read_settings(sample: Sample, text: str = "") -> CiSettings:
    """The settings of the project, with `text` in its ci.yaml."""
    if text:
        (sample.folder / "ci.yaml").write_text(f"version: 1\n{text}")
    return settings.read(Project(matrix=sample.matrix))


def way(sample: Sample, text: str = "", **more: object) -> RunContext:
    """The values with which jobs of the project run."""
    fixed = {"registry": "registry.example/rl", "date": DAY, "results": sample.folder / "build/ci"}
    project = Project(matrix=sample.matrix)
    return RunContext(project=project, settings=read_settings(sample, text), **{**fixed, **more})  # type: ignore[arg-type]


def of(sample: Sample, text: str = RUNNERS, *, again: bool = False, gate: str = "") -> TargetJobs:
    """The jobs of the target with one architecture."""
    found = read_settings(sample, text + gate)
    made = jobs.jobs(TARGET, (Arch.X86_64,), sample.seal, found, again=again)
    return jobs.labelled(made, found)


def passed(folder: Path, job: CiJob, *steps: str, **other: object) -> None:
    """Write results of passed steps; of all steps, if none is named."""
    for step in steps or job.steps:
        result = StepResult(
            job=job.id, target=job.target, step=step, digest=job.digest, outcome="passed",  # type: ignore[arg-type]
            exit_code=0, started="2026-11-21T00:00:00+00:00", seconds=1.0, command=(),
            tiers=job.tiers if step == "smoke" else (),
        )  # fmt: skip
        results.write(folder, msgspec.structs.replace(result, **other))
