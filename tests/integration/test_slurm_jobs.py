"""Tests job scripts on a real Slurm of two nodes: a SIF, Ray, the check and user environments."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from imgbuild.lock.lock_file import read_lock
from imgbuild.slurm import jobs
from imgbuild.slurm.jobs import Container
from tests.support import needs, samples, slurm_project
from tests.support.sample_project import TARGET, Project

pytestmark = [pytest.mark.engine, pytest.mark.network]
# The environment of a job, as one line of JSON.
LOOK = """\
import json, os, sys
def leaks(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True
def writable(folder):
    try:
        open(os.path.join(folder, f"x{os.getpid()}"), "w").close()
    except OSError:
        return False
    return True
print(json.dumps({
    "prefix": sys.prefix, "word": os.environ.get("WORD"), "token": os.environ.get("TOKEN"),
    "other": os.environ.get("OTHER"), "leaks": [leaks("at_home"), leaks("on_path")],
    "root": writable("/"), "places": [writable(one) for one in ("/tmp", "/var/cache/imgbuild")],
    "staged": open(sys.argv[1] + "/weights").read(), "threads": os.environ.get("OMP_NUM_THREADS"),
    "temporary": os.environ["TMPDIR"], "models": os.environ["HF_HOME"],
    "taken": writable(os.environ["HF_HOME"]),
    "links": [os.path.islink(f"{sys.argv[1]}/{name}") for name in ("weights", "same")],
    "input": sys.stdin.read(),
}))
sys.exit(7)
"""
RAY = """\
import json, os, sys
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init()

@ray.remote(num_cpus=2)
def where():
    return ray.get_runtime_context().get_node_id(), os.environ.get("WORD"), sys.prefix

asked = [where.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote()
         for node in ray.nodes()]
nodes, words, prefixes = zip(*ray.get(asked))
print(json.dumps([len(set(nodes)), sorted(set(words)), sorted(set(prefixes)),
                  ray.cluster_resources()["CPU"]]))
sys.exit(9)
"""
# Reports its start, and saves at the end.
TRAIN = """\
import pathlib, signal, sys, time
def save(*_):
    time.sleep(2)  # a checkpoint takes a while
    pathlib.Path(sys.argv[1]).write_text("at the end")
    sys.exit()
signal.signal(signal.SIGTERM, save)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""


@pytest.fixture(scope="module", name="project")
def _project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with slurm_project.sif_project(tmp_path_factory.mktemp("jobs")) as project:
        yield project


@pytest.fixture(scope="module", name="ray_project")
def _ray_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with slurm_project.ray_project(tmp_path_factory.mktemp("ray")) as project:
        yield project


@pytest.fixture(name="user")
def _user(project: Project, tmp_path: Path) -> dict[str, str]:
    """A user's environment: packages in the home and on PYTHONPATH, a scratch folder."""
    home = tmp_path / "home"
    packages = home / ".local/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages / "at_home.py").touch()
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/on_path.py").touch()
    (tmp_path / "scratch").mkdir()
    return {
        "HOME": str(home),
        "PYTHONPATH": str(tmp_path / "modules"),
        "TMPDIR": str(tmp_path / "scratch"),
        "TOKEN": "a secret",
        "OTHER": "not for the image",
    }


def script(project: Project, folder: Path, *words: str) -> Path:
    """Write the job script for `words` to a file."""
    path = folder / "job.sh"
    project.run("slurm", TARGET, "--output", str(path), *words)
    return path


def printed_value(log: str) -> object:
    """The line of JSON printed by a job."""
    [line] = re.findall(r"^[\[{].*[\]}]$", log, re.MULTILINE)
    return json.loads(line)


def run(project: Project, user: dict[str, str], path: Path) -> tuple[int, str]:
    """Run a script as the user and check that the nodes have no leftovers."""
    user_project = Project(project.folder, "", None, {**project.env, **user})
    ended = slurm_project.run_job(user_project, path)
    assert list(Path(user["TMPDIR"]).iterdir()) == [], ended[1]
    return ended


def test_slurm_job_runs_with_a_sif(project: Project, user: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(LOOK)
    # Like a model cache: a folder of links to files elsewhere.
    (tmp_path / "model").mkdir()
    (tmp_path / "blob").write_text("from the network disk")
    (tmp_path / "model/config").touch()
    for name, target in (("weights", "../blob"), ("same", "config"), ("nowhere", "../gone")):
        (tmp_path / "model" / name).symlink_to(target)
    path = script(
        project, tmp_path, "--cpus-per-task", "2", "--env", "WORD=two words", "--env", "TOKEN",
        "--env", f"HF_HOME={tmp_path}/models", "--stage", str(tmp_path / "model"),
        "--", "python", str(tmp_path / "look.py"), str(tmp_path / "model"),
    )  # fmt: skip
    # Input sent by srun to a node whose task has ended can lose its output, or the whole step.
    head, line, rest = path.read_text().partition("set -euo pipefail\n")
    path.write_text(head + line + "exec <<<'for no step'\n" + rest)
    status, log = run(project, user, path)
    assert status == 7, log
    assert printed_value(log) == {
        "prefix": "/opt/venv",
        "word": "two words",
        "token": "a secret",
        "other": None,
        "leaks": [False, False],
        "root": False,
        "places": [True, True],
        "staged": "from the network disk",
        "threads": "2",
        "temporary": "/tmp",
        "models": f"{tmp_path}/models",
        "taken": True,
        "links": [False, True],
        "input": "",
    }
    [kernels] = Path(user["HOME"]).glob(".cache/imgbuild/kernels/*")
    assert list(kernels.iterdir()), "files that the job wrote below /var/cache/imgbuild remain"


@pytest.mark.long
def test_ray_cluster_of_a_job_includes_both_nodes(
    ray_project: Project, user: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "task.py").write_text(RAY)
    path = script(
        ray_project, tmp_path, "--job", "ray", "--nodes", "2", "--cpus-per-task", "2",
        "--env", "WORD=two words", "--", "python", str(tmp_path / "task.py"),
    )  # fmt: skip
    status, log = run(ray_project, user, path)
    assert status == 9, log  # the command's own
    assert "Ray: 2 of 2 nodes have registered" in log
    # Two CPUs of each node by the allocation, regardless of this machine's cores.
    assert printed_value(log) == [2, ["two words"], ["/opt/venv"], 4.0]


VERL = """\
import json, os, sys
import ray
ray.init()
print(json.dumps([sys.argv[1:], len(ray.nodes()), ray.cluster_resources()["GPU"]]))
"""


@pytest.mark.long  # unit/slurm/test_jobs.py has the script
def test_verl_joins_the_ray_cluster_of_all_nodes(
    ray_project: Project, user: dict[str, str], tmp_path: Path
) -> None:
    """The trainer is a stub, and Ray is configured with GPUs."""
    (tmp_path / "main.py").write_text(VERL)
    locked = read_lock(ray_project.folder / "images", TARGET)
    verl = samples.lock(*(samples.wheel(name, "1.0") for name in ("ray", "verl")))
    image = Container(image=str(ray_project.folder / "build" / f"{TARGET}.sif"))
    command = ("python", str(tmp_path / "main.py"), "data.train_files=a b")
    job_script = jobs.create_job_script(
        msgspec.structs.replace(locked, arch=verl.arch), "sha256:0", jobs.ScriptKind.VERL,
        jobs.Allocation(nodes=2, gpus=1, cpus=1), image, command=command,
    )  # fmt: skip
    path = tmp_path / "job.sh"
    path.write_text(jobs.job_text(job_script, None).replace("#SBATCH --gpus-per-node=1\n", ""))
    status, log = run(ray_project, user, path)
    assert status == 0, log
    words = ["data.train_files=a b", "trainer.nnodes=2", "trainer.n_gpus_per_node=1"]
    assert printed_value(log) == [words, 2, 2.0]


def test_cancelled_job_saves_its_state_and_removes_its_files(
    project: Project, user: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    saved = tmp_path / "saved"
    words = ("--", "python", str(tmp_path / "train.py"), str(saved))
    path = script(project, tmp_path, "--cpus-per-task", "1", *words)
    user_project = Project(project.folder, "", None, {**project.env, **user})
    number = slurm_project.slurm(
        user_project, "sbatch", "--parsable", str(path), cwd=tmp_path
    ).strip()
    slurm_project.wait_until(saved.exists, "the training has started")
    slurm_project.slurm(user_project, "scancel", number)
    slurm_project.wait_until(lambda: not list(Path(user["TMPDIR"]).iterdir()), "nothing is left")
    [log] = tmp_path.glob(f"*-{number}.log")
    # Files used by the program are removed only after it has ended.
    assert saved.read_text() == "at the end", log.read_text()
    assert "told to end by Slurm" in log.read_text()


@pytest.mark.parametrize("present", [True, False])
def test_failed_job_ends_with_its_likely_cause(
    project: Project, user: dict[str, str], tmp_path: Path, *, present: bool
) -> None:
    text = "x: error while loading shared libraries: libmpi.so.40: cannot open shared object file"
    path = script(project, tmp_path, "--", "sh", "-c", f"echo '{text}'; exit 127")
    folders = os.environ["PATH"].split(":")
    places = [folder for folder in folders if not Path(folder, "imgbuild").exists()]
    places += [str(Path(sys.executable).parent)] if present else []
    head, line, rest = path.read_text().partition("set -euo pipefail\n")
    path.write_text(f"{head}{line}PATH={':'.join(places)}\n{rest}")
    status, log = run(project, user, path)
    assert status == 127, log
    expected = r"^IMG\d+: .*libmpi\.so\.40.*; cure: " if present else "imgbuild diagnose /"
    assert re.search(expected, log, re.MULTILINE), log


def test_failed_staging_is_reported_and_its_files_are_removed(
    project: Project, user: dict[str, str], tmp_path: Path
) -> None:
    path = script(project, tmp_path, "--stage", str(tmp_path / "nowhere"), "--", "true")
    status, log = run(project, user, path)
    assert status == 1, log
    assert f"{tmp_path}/nowhere" in log
    assert "a node has no place for the job's files" in log


def test_job_ends_if_the_preparation_of_a_node_fails(
    project: Project, user: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "check.sh"
    words = ("--job", "check", "--nodes", "2", "--cpus-per-task", "1", "--output", str(path))
    project.run("slurm", TARGET, *words)
    fails = 'prepare() {\n  [ "$SLURMD_NODENAME" != node2 ] || exit 1\n'
    path.write_text(path.read_text().replace("prepare() {\n", fails))
    status, log = run(project, user, path)
    assert status == 1, log
    assert "a node has no place for the job's files" in log
    slurm_project.wait_until(lambda: not list(Path(user["TMPDIR"]).iterdir()), "nothing is left")


def test_folder_of_another_user_is_not_written_to(
    project: Project, user: dict[str, str], tmp_path: Path
) -> None:
    path = script(project, tmp_path, "--", "touch", str(tmp_path / "ran"))
    # The job number is known only after the start: a link exists before the script reads it.
    other = tmp_path / "other"
    other.mkdir()
    trap = f'mkdir -p "$TMPDIR"; ln -s {other} "$TMPDIR/imgbuild-$SLURM_JOB_ID"\n'
    head, line, rest = path.read_text().partition("set -euo pipefail\n")
    path.write_text(head + line + trap + rest)
    user_project = Project(project.folder, "", None, {**project.env, **user})
    status, log = slurm_project.run_job(user_project, path)
    assert status == 1, log
    assert "is not yours: another --scratch" in log
    assert (list(other.iterdir()), (tmp_path / "ran").exists()) == ([], False)


def test_check_job_reports_the_passed_steps(project: Project, tmp_path: Path) -> None:
    words = ("slurm", TARGET, "--job", "check", "--submit", "--nodes", "2", "--cpus-per-task", "1")
    done = project.run(*words)
    assert "no problem found on node1 node2" in done.stdout
    for node in ("node1", "node2"):
        assert f"{node}: note     packages: all come from /opt/venv" in done.stdout
        assert f"{node}: note     driver: no driver, and no GPU was requested" in done.stdout
    assert "not tested: the interconnect, since the image has no torch" in done.stdout
    short = project.run(*words[:-4], *words[-2:], "--shared", "999999999", status=1)
    assert "999999999 MB are required" in short.stdout
    assert "see the errors above" in short.stdout


@pytest.mark.long  # unit/smoke_tests/test_doctor_script.py has them
def test_doctor_reports_user_environment_problems(
    ray_project: Project, user: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "modules/ray.py").touch()
    user_project = Project(ray_project.folder, "", None, {**ray_project.env, **user})
    sif = str(ray_project.folder / "build" / f"{TARGET}.sif")
    words = ("doctor", TARGET, "--through", "apptainer", "--sif-file", sif)
    # imgbuild itself is started without the user's PYTHONPATH; Apptainer passes this one on.
    user_project.env["APPTAINERENV_PYTHONPATH"] = user_project.env.pop("PYTHONPATH")
    user_project.env["APPTAINER_BIND"] = str(tmp_path)
    done = user_project.run(*words, status=1)
    assert f"error: packages: ray is imported from {tmp_path}/modules/ray.py" in done.stdout
    assert "unset PYTHONPATH, or start with apptainer --cleanenv" in done.stdout
    del user_project.env["APPTAINERENV_PYTHONPATH"]
    report = json.loads(user_project.run(*words, "--apptainer=--cleanenv", "--json").stdout)
    assert {finding["severity"] for finding in report["findings"]} <= {"note", "warning"}


@pytest.mark.parametrize("through", ["root", pytest.param("docker", marks=pytest.mark.long)])
def test_doctor_runs_inside_every_container_type(project: Project, through: str) -> None:
    if through == "docker":
        needs.require_docker()
    report = json.loads(project.run("doctor", TARGET, "--through", through, "--json").stdout)
    messages = {finding["check"]: finding["message"] for finding in report["findings"]}
    assert messages["packages"] == "all come from /opt/venv"
    assert "id 1234" in messages["user"]
    assert (report["target"], report["tier"]) == (TARGET, "doctor")
