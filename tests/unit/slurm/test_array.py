"""Tests finding existing arrays, resubmitting tasks, querying Slurm and reporting results."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.errors import WorkFailed
from imgbuild.matrix.project_paths import Project
from imgbuild.render import templates
from imgbuild.slurm import array, commands
from imgbuild.slurm.array import ArrayTarget, ArrayTask, JobArray, TaskState
from imgbuild.system import process as processes
from imgbuild.system.console import console
from tests.support.inprocess_project import TARGET, Command, write_project
from tests.support.rows import each_row

ONE = ArrayTarget(target="one", digest="sha256:" + "1" * 64)
TWO = ArrayTarget(target="two", digest="sha256:" + "2" * 64)
THREE = ArrayTarget(target="three", digest="sha256:" + "3" * 64)
COMMAND = ("python", "-m", "imgbuild", "build")


@pytest.fixture(name="command")
def _command(monkeypatch, capsys, tmp_path) -> Command:
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path)
    return Command(monkeypatch, capsys)


def order(
    top: Path, name: str, *tasks: ArrayTarget, job: str = "7", command=COMMAND, **more
) -> JobArray:
    job_array = JobArray(
        verb="build", name=name, folder=str(top / name), root=str(top), command=command,
        options=(), tasks=tasks, job=job, **more,
    )  # fmt: skip
    codec.write_document(top / name / array.ORDER, job_array)
    return job_array


def say(job_array: JobArray, number: int, status: int | None) -> None:
    state = TaskState(state="running" if status is None else "done", status=status, node="n1")
    codec.write_document(job_array.place / f"{job_array.tasks[number].target}.state.json", state)


def targets(tasks) -> list[str]:
    return sorted(task.target for task in tasks)


def test_newest_array_job_of_a_target_is_used(tmp_path):
    order(tmp_path, "1", ONE, TWO, job="1")
    order(tmp_path, "2", TWO, job="2")
    order(tmp_path, "3", ONE, command=("another",), job="3")
    tasks = array.existing_tasks(tmp_path, "build", COMMAND, [ONE, TWO, THREE])
    assert {task.target: task.order.job for task in tasks} == {"one": "1", "two": "2"}


def test_array_job_for_a_different_digest_is_not_used(tmp_path):
    order(tmp_path, "1", ONE)
    changed = ArrayTarget(target="one", digest=TWO.digest)
    assert array.existing_tasks(tmp_path, "build", COMMAND, [changed]) == []


def test_array_tasks_with_other_sbatch_options_do_not_match(tmp_path):
    order(tmp_path, "1", ONE)
    assert array.existing_tasks(tmp_path, "build", COMMAND, [ONE], ()) != []
    assert array.existing_tasks(tmp_path, "build", COMMAND, [ONE], ("--partition=h100",)) == []
    assert array.existing_tasks(tmp_path, "build", COMMAND, [ONE]) != []


def test_smoke_test_result_applies_only_to_the_same_partition(command, tmp_path, monkeypatch):
    checked_options: list[object] = []

    def existing_tasks(*given: object) -> list[ArrayTask]:
        checked_options.append(given[-1])
        return []

    monkeypatch.setattr(array, "existing_tasks", existing_tasks)
    monkeypatch.setattr(commands, "submit_script", lambda *_: "1")
    for verb in ("smoke", "build"):
        words = ("--on", "slurm", "--partition", "h100", "--no-wait")
        assert command(verb, TARGET, *words).status == 0
    assert checked_options == [("--partition=h100",), None]


def test_array_option_for_sbatch_is_refused(command):
    done = command("build", TARGET, "--on", "slurm", "--sbatch=--array=0", status=2)
    assert "--sbatch '--array=0': the job script sets this option" in done.stderr


def test_array_job_without_a_recorded_number_is_found_by_name(tmp_path, monkeypatch):
    order(tmp_path, "1", ONE, job="")
    monkeypatch.setattr(commands, "find_job", {"1": "42"}.__getitem__)
    [task] = array.existing_tasks(tmp_path, "build", COMMAND, [ONE])
    assert task.order.job == "42"


def test_finished_and_queued_array_tasks_are_not_resubmitted(tmp_path, monkeypatch):
    job_array = order(tmp_path, "1", ONE, TWO, THREE)
    say(job_array, 0, 0)
    say(job_array, 1, None)
    say(job_array, 2, 1)
    followed = [ArrayTask(order=job_array, number=number) for number in range(3)]
    monkeypatch.setattr(
        commands, "query_states", lambda _: {("7", 1): "RUNNING", ("7", 2): "FAILED"}
    )
    done, live = array.split_ended(followed)
    assert (targets(done), targets(live)) == (["one"], ["two"])
    assert done[0].good


def test_state_of_a_completing_task_is_queried_again(tmp_path, monkeypatch):
    job_array = order(tmp_path, "1", ONE, TWO)
    say(job_array, 0, None)
    say(job_array, 1, 0)
    followed = [ArrayTask(order=job_array, number=number) for number in range(2)]
    monkeypatch.setattr(commands, "query_states", lambda tasks: dict.fromkeys(tasks, "COMPLETING"))
    done, live = array.split_ended(followed)
    assert (targets(done), targets(live)) == (["two"], [])


def test_query_of_an_unresponsive_slurm_is_retried(tmp_path, monkeypatch, capsys):
    job_array = order(tmp_path, "1", ONE)
    answers = [WorkFailed("Socket timed out"), WorkFailed("Socket timed out"), {}]

    def answer(_: object) -> dict[tuple[str, int], str]:
        response = answers.pop(0)
        if isinstance(response, WorkFailed):
            raise response
        say(job_array, 0, 0)
        return {}

    monkeypatch.setattr(commands, "query_states", answer)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    [end] = array.follow_tasks([ArrayTask(order=job_array, number=0)], console)
    assert end.good
    assert capsys.readouterr().err.count("Slurm does not respond") == 1


def test_connection_lost_to_slurm_is_reported_with_the_running_tasks(tmp_path, monkeypatch):
    job_array = order(tmp_path, "1", ONE)
    waited: list[float] = []

    def silent(_: object) -> None:
        raise WorkFailed("Unable to contact slurm controller")

    monkeypatch.setattr(commands, "query_states", silent)
    monkeypatch.setattr(time, "sleep", waited.append)
    with pytest.raises(WorkFailed, match="Unable to contact") as caught:
        array.follow_tasks([ArrayTask(order=job_array, number=0)])
    assert caught.value.hint == commands.LATER_HINT
    assert sum(waited) >= commands.SILENCE - commands.LONGEST_PAUSE


def test_sacct_is_queried_for_jobs_missing_in_squeue(monkeypatch):
    outputs = {"squeue": "1 RUNNING\n", "sacct": "12_0|COMPLETED\n12_0.batch|FAILED\n12_1|FAILED\n"}

    def answer(command, **_: object) -> processes.ProcessResult:
        return processes.ProcessResult(status=0, stdout=outputs[command[0]], stderr="")

    monkeypatch.setattr(processes, "find_program", lambda name, **_: name)
    monkeypatch.setattr(processes, "run_command", answer)
    states = commands.query_states([("12", 0), ("12", 1)])
    assert states == {("12", 0): "COMPLETED", ("12", 1): "RUNNING"}


@pytest.mark.parametrize("sbatch_options", [(), ("--export=NONE",)])
def test_array_tasks_inherit_environment_with_cache_path(tmp_path, monkeypatch, sbatch_options):
    result: list[str] = []

    def taken(_: str, __: Path, options: list[str]) -> str:
        result.extend(options)
        return "7"

    monkeypatch.setattr(commands, "submit_script", taken)
    array.submit_array(
        Project(matrix=tmp_path / "matrix.yaml"),
        tmp_path,
        "build",
        COMMAND,
        [ONE],
        sbatch_options,
        name="x",
    )
    assert ("--export=ALL" in result) is (not sbatch_options)


@pytest.mark.parametrize(
    ("word", "most"), [("TIMEOUT", array.GRACE), ("COMPLETED", array.COMPLETED_GRACE)]
)
def test_task_without_final_state_is_reported_as_lost_after_retries(
    tmp_path, monkeypatch, word, most
):
    job_array = order(tmp_path, "1", ONE)
    say(job_array, 0, None)
    (job_array.place / "0.log").write_text(
        "working\nslurmstepd: error: *** CANCELLED DUE TO TIME LIMIT\n"
    )
    looks: list[object] = []

    def gone(_: object) -> dict[tuple[str, int], str]:
        looks.append(_)
        return {("7", 0): word}

    monkeypatch.setattr(commands, "query_states", gone)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    [end] = array.follow_tasks([ArrayTask(order=job_array, number=0)])
    assert len(looks) == most
    assert not end.good
    assert end.message == f"{word.lower()}: slurmstepd: error: *** CANCELLED DUE TO TIME LIMIT"


@each_row(
    ("log", "message"),
    [
        ("building …\nerror: it broke\n  here\nhint: mend it\n", "it broke\n  here\nhint: mend it"),
        ("error: first\nerror: last\n", "last"),
        ("Segmentation fault\n", "Segmentation fault"),
        ("", "ended with status 1"),
    ],
)
def test_failed_task_is_reported_with_last_error(tmp_path, log, message):
    job_array = order(tmp_path, "1", ONE)
    (job_array.place / "0.log").write_text(log)
    end = array.task_end(
        ArrayTask(order=job_array, number=0), "COMPLETED", TaskState(state="done", status=1)
    )
    assert end.message == message


def test_array_script_lists_targets_and_quotes_path(tmp_path):
    job_array = order(tmp_path / "100% it's", "1", ONE, TWO, throttle=3)
    text = templates.render_template("slurm/array.j2", job_array, images=None)
    assert "#SBATCH --array=0-1%3\n" in text
    assert "targets=(\n  one\n  two\n)" in text
    assert f"""folder='{tmp_path}/100% it'"'"'s/1'\n""" in text


def test_build_uses_the_allocated_cpus(tmp_path):
    granted = 'set -- "--jobs=${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}"'
    job_array = order(tmp_path, "1", ONE)
    assert granted in templates.render_template("slurm/array.j2", job_array, images=None)
    result = order(tmp_path, "2", ONE, command=(*COMMAND, "--jobs=2"))
    assert granted not in templates.render_template("slurm/array.j2", result, images=None)


def test_cluster_options_require_slurm(command: Command):
    answer = command("build", TARGET, "--partition", "gpu", status=2)
    assert "Slurm options require --on slurm" in answer.stderr


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("build", TARGET, "--output", "x"), "--output"),
        (("build", TARGET, "--format", "oci-archive"), "--format"),
        (("smoke", TARGET, "--layout", "x"), "--layout"),
    ],
)
def test_invalid_task_options_are_refused(command: Command, words, option):
    answer = command(*words, "--on", "slurm", status=2)
    assert f"--on slurm and {option} cannot be combined" in answer.stderr


def test_error_for_missing_slurm_has_a_hint(command: Command, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    answer = command("build", TARGET, "--on", "slurm", "--json", status=6)
    assert json.loads(answer.stdout)["error"] == "ToolMissing"
