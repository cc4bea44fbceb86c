"""Tests `--on slurm` on a real Slurm, with tasks that fail, are interrupted, killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support import slurm_project
from tests.support.sample_project import Project
from tests.support.slurm_project import TARGETS, array_folders, queued_jobs, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.network]


@pytest.fixture(scope="module", name="project")
def _project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with slurm_project.project(tmp_path_factory.mktemp("an array, 100%")) as project:
        yield project


@pytest.fixture(scope="module", name="built")
def _built(project: Project) -> Project:
    """The project after two runs; one task failed in the first run."""
    layers = project.folder / "build" / "two"
    layers.parent.mkdir()
    layers.write_text("a file where the layout of `two` is to go")
    failed = project.run("build", "--all", "--on", "slurm", "--throttle", "2", "--json", status=1)
    answer = json.loads(failed.stdout)
    assert [item["target"] for item in answer["built"]] == ["one", "three"]
    assert [report["target"] for report in answer["failed"]] == ["two"]
    assert "build/two" in answer["failed"][0]["cases"][0]["message"]
    assert "1 of 3 targets failed: two" in failed.stderr
    layers.unlink()
    again = project.run("build", "--all", "--on", "slurm")
    assert "1 to submit, 0 already queued, 2 already completed" in again.stderr
    assert [line.split()[0] for line in again.stdout.splitlines()] == list(TARGETS)
    return project


def test_second_run_submits_only_failed_array_tasks(built: Project) -> None:
    first, second = array_folders(built, "build")[:2]
    order_documents = [json.loads((each / "order.json").read_text()) for each in (first, second)]
    assert [[task["target"] for task in order["tasks"]] for order in order_documents] == [
        list(TARGETS),
        ["two"],
    ]
    assert "#SBATCH --array=0-2%2\n" in (first / "array.sh").read_text()
    for line in built.run("digest", "--all").stdout.splitlines():
        target, digest = line.split()
        index = json.loads((built.folder / "build" / target / "index.json").read_text())
        assert index["manifests"][0]["digest"] == digest


def test_array_run_submits_no_tasks_if_all_tasks_have_succeeded(built: Project) -> None:
    before = array_folders(built, "build")
    done = built.run("build", "--all", "--on", "slurm")
    assert "0 to submit, 0 already queued, 3 already completed" in done.stderr
    assert array_folders(built, "build") == before


@pytest.mark.long
def test_reports_of_all_array_tasks_are_combined(built: Project, tmp_path: Path) -> None:
    command = ("--tier", "static", "--through", "root", "--on", "slurm")
    junit = tmp_path / "report.xml"
    done = built.run("smoke", "--all", *command, "--junit", str(junit), "--json", status=1)
    reports = json.loads(done.stdout)
    assert [report["target"] for report in reports] == list(TARGETS)
    outcomes = [{case["name"]: case["outcome"] for case in target["cases"]} for target in reports]
    assert {each["versions"] for each in outcomes} == {"passed"}
    assert {each["compiler"] for each in outcomes} == {"skipped"}
    suites = ElementTree.parse(junit).getroot()
    assert [suite.get("name") for suite in suites] == [
        f"{target} x86_64 static" for target in TARGETS
    ]


def started(project: Project, *words: str) -> subprocess.Popen[str]:
    """Start a command, and wait until one task is running and another is pending."""
    before = len(array_folders(project, "build"))
    process = subprocess.Popen(
        project.command("build", "--all", "--on", "slurm", "--throttle", "1", *words),
        cwd=project.folder, env=project.environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip

    def _runs() -> bool:
        return any(
            list(order.glob("*.state.json")) for order in array_folders(project, "build")[before:]
        )

    wait_until(_runs, "a task runs")
    return process


@pytest.mark.long
def test_interrupt_cancels_array_tasks_and_the_next_run_resumes(built: Project) -> None:
    process = started(built, "--no-resume")
    os.killpg(process.pid, signal.SIGINT)
    _, messages = process.communicate(timeout=slurm_project.PATIENCE)
    assert process.returncode == 130, messages
    assert "the remaining tasks were cancelled" in messages
    folder = array_folders(built, "build")[-1]
    wait_until(lambda: not queued_jobs(built), "Slurm has nothing of it any more")
    finished = {
        state_file.name
        for state_file in folder.glob("*.state.json")
        if '"status": 0' in state_file.read_text()
    }
    left = [target for target in TARGETS if f"{target}.state.json" not in finished]
    assert left
    done = built.run("build", "--all", "--on", "slurm")
    assert f"{len(left)} to submit, 0 already queued" in done.stderr
    order = json.loads((array_folders(built, "build")[-1] / "order.json").read_text())
    assert [task["target"] for task in order["tasks"]] == left
    assert len(done.stdout.splitlines()) == len(TARGETS)


@pytest.mark.long  # unit/slurm/test_array.py finds these jobs
def test_next_run_follows_the_tasks_of_a_killed_imgbuild(built: Project) -> None:
    process = started(built, "--no-resume")
    process.kill()
    process.communicate(timeout=slurm_project.PATIENCE)
    orders_before = array_folders(built, "build")
    assert queued_jobs(built)
    done = built.run("build", "--all", "--on", "slurm")
    assert "0 to submit" in done.stderr
    assert array_folders(built, "build") == orders_before
    assert len(done.stdout.splitlines()) == len(TARGETS)


@pytest.mark.long  # unit/slurm/test_array.py has the states of Slurm
def test_array_task_that_slurm_ends_is_reported(built: Project) -> None:
    process = started(built, "--no-resume", "--leave")
    [first] = {name.partition("_")[0] for name in queued_jobs(built)}
    slurm_project.slurm(built, "scancel", first)
    _, messages = process.communicate(timeout=slurm_project.PATIENCE)
    assert process.returncode == 1, messages
    assert "cancelled" in messages
    assert f"{first}_2" not in queued_jobs(built)


def test_error_of_sbatch_is_reported_and_leaves_no_files(built: Project) -> None:
    before = array_folders(built, "build")
    done = built.run(
        "build", "--all", "--no-resume", "--on", "slurm", "--partition", "nowhere", status=1
    )
    assert "invalid partition" in done.stderr.lower()
    left = [order for order in array_folders(built, "build") if (order / "order.json").exists()]
    assert left == before
