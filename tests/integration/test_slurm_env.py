"""Tests the environment of a job's image on a real Slurm.

The job receives the variables of --env and no others of the caller. The image is a folder
with busybox, which Apptainer runs like a SIF.
"""

from __future__ import annotations

import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from imgbuild.slurm import jobs
from tests.support import needs, samples, slurm_project
from tests.support.sample_project import Project

pytestmark = pytest.mark.engine
# Names to which the host's programs, the script itself, srun or Apptainer react.
TAKEN = {
    "PATH": "/bin", "image": "/evil.sif", "gpus": "7", "cpus": "x", "each": "0", "name": "z",
    "scratch": "/nowhere", "models": "/nowhere", "told": "1", "NCCL_DEBUG": "INFO",
    "LD_PRELOAD": "/nowhere.so", "LD_LIBRARY_PATH": "/nowhere", "WORD": "it's two",
}  # fmt: skip
BEHIND = ("PATH", "LD_LIBRARY_PATH")  # Apptainer adds folders of its own


@pytest.fixture(name="image")
def _image(tmp_path: Path) -> Path:
    folder = tmp_path / "image"
    (folder / "bin").mkdir(parents=True)
    shutil.copy(needs.require_tool("busybox", "busybox-static"), folder / "bin/busybox")
    (folder / "bin/sh").symlink_to("busybox")
    entry = folder / "opt/imgbuild/entrypoint"
    entry.parent.mkdir(parents=True)
    entry.write_text('#!/bin/sh\nexec "$@"\n')
    entry.chmod(entry.stat().st_mode | stat.S_IXUSR)
    for place in ("tmp", "proc", "dev", "sys", "etc", "var/cache/imgbuild", "root", "home"):
        (folder / place).mkdir(parents=True)
    return folder


def job(image: Path, folder: Path, *command: str, **more: object) -> Path:
    """The script of a job in `image`, with a folder for scratch files."""
    (folder / "scratch").mkdir(exist_ok=True)
    job_script = jobs.create_job_script(
        samples.lock(), "sha256:0", jobs.ScriptKind.SINGLE, jobs.Allocation(),
        jobs.Container(image=str(image)), command=command, scratch=str(folder / "scratch"), **more,
    )  # fmt: skip
    path = folder / "job.sh"
    path.write_text(jobs.job_text(job_script, None))
    return path


def test_paths_in_variables_are_mounted_in_the_job(image, tmp_path):
    """The job script is written before any of the variables is set."""
    needs.require_apptainer()
    place = Path(tempfile.mkdtemp(dir="/srv"))
    script = (
        'echo "seen=$HF_HUB_CACHE;$HF_DATASETS_CACHE;$WANDB_DIR;$NCCL_TOPO_FILE;$TRITON_CACHE_DIR";'
        'echo "tiktoken=$TIKTOKEN_CACHE_DIR;$XDG_CACHE_HOME;$VLLM_CACHE_ROOT;$HF_HOME";'
        'echo made >"$HF_HUB_CACHE/new"; echo made >"$WANDB_DIR/run"; cat "$NCCL_TOPO_FILE"'
    )
    command = ("/bin/busybox", "sh", "-c", script.replace("cat ", "/bin/busybox cat "))
    path = job(image, tmp_path, *command, passed=("VLLM_CACHE_ROOT",))
    (place / "topo.xml").write_text("topology")
    values = {
        "HF_HUB_CACHE": f"{place}/a/hub", "HF_DATASETS_CACHE": f"{place}/a/data",
        "WANDB_DIR": "runs", "NCCL_TOPO_FILE": f"{place}/topo.xml",
        "TRITON_CACHE_DIR": f"{place}/t", "TIKTOKEN_CACHE_DIR": f"{place}/one,two",
        "XDG_CACHE_HOME": f"{place}/xdg",
        "VLLM_CACHE_ROOT": f"{place}/vllm", "UCX_FILE": str(place),
    }  # fmt: skip
    try:
        project = Project(
            tmp_path, "", None, needs.require_slurm() | {"HOME": str(tmp_path), **values}
        )
        status, log = slurm_project.run_job(project, path)
        assert status == 0, log
        shown = [f"{place}/a/hub", f"{place}/a/data", f"{tmp_path}/runs", f"{place}/topo.xml", ""]
        assert f"seen={';'.join(shown)}\n" in log
        # --env passes a variable by its name; the model cache follows XDG_CACHE_HOME.
        assert f"tiktoken=;;{place}/vllm;{place}/xdg/huggingface\n" in log
        assert "topology" in log
        assert (place / "a/hub/new").read_text() == "made\n"
        assert (tmp_path / "runs/run").read_text() == "made\n"
        for name in ("TRITON_CACHE_DIR", "TIKTOKEN_CACHE_DIR", "XDG_CACHE_HOME"):
            assert f"{name}={values[name]} is not passed: " in log
        assert f"UCX_FILE={place}: nothing mounts this path" in log
        assert list((tmp_path / "scratch").iterdir()) == []
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize("export", [None, "NONE"])
def test_only_selected_environment_variables_are_passed_to_the_image(image, tmp_path, export):
    """If sbatch passes all variables, output of the shell at its start has no effect."""
    needs.require_apptainer()
    (tmp_path / "talk").write_text("echo hello\n")
    (tmp_path / "scratch").mkdir()
    job_script = jobs.create_job_script(
        samples.lock(samples.wheel("ray", "2.47.1")), "sha256:0", jobs.ScriptKind.SINGLE,
        jobs.Allocation(more=(f"--export={export}",) if export else ()),
        jobs.Container(image=str(image)), command=("/bin/busybox", "env"),
        environment=tuple(jobs.EnvVariable(*each) for each in TAKEN.items()),
        scratch=str(tmp_path / "scratch"), passed=("TOKEN",),
    )  # fmt: skip
    path = tmp_path / "job.sh"
    path.write_text(jobs.job_text(job_script, None))
    home = {"HOME": str(tmp_path), "NCCL_DEBUG": "WARN", "TOKEN": "a secret"}
    env = needs.require_slurm() | home | ({} if export else {"BASH_ENV": str(tmp_path / "talk")})
    status, log = slurm_project.run_job(Project(tmp_path, "", None, env), path)
    assert status == 0, log
    seen = dict(line.split("=", 1) for line in log.splitlines() if "=" in line)
    for name, value in TAKEN.items():
        assert seen[name].startswith(value) if name in BEHIND else seen[name] == value, log
    assert seen.get("TOKEN") == (None if export else "a secret")
    assert list((tmp_path / "scratch").iterdir()) == []
