"""Tests that Compose, Kubernetes and other tools read and start rendered containers.

Compose files are tested with podman-compose, because Debian has no package of the Docker plugin.
The other tests are long tests: dev containers with the CLI of the specification (npm) and Docker,
Kubernetes objects with the Kubernetes schemas (kubernetes-validate), and SkyPilot tasks with its
package. JobSets are tested with the models of Kubeflow Trainer, which are generated from the schema
of JobSet. No package with the schema of KubeRay was found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from uv import find_uv_bin

from imgbuild.container import engine, settings
from imgbuild.container.load import load_image
from imgbuild.container.settings import ContainerSettings, StartOptions
from imgbuild.oci import layout
from imgbuild.render import compose, kubernetes, skypilot
from imgbuild.values import Arch
from tests.support import images, needs, samples

VALUE = "$HOME $$ $(A) 1e3 '\""  # nothing may replace a part of it
DIGEST = "sha256:" + "1" * 64
DEVCONTAINERS = "@devcontainers/cli@0.89.0"


def container(image: str, **options: object) -> ContainerSettings:
    """The container of the sample lock with another image."""
    requested = StartOptions(**{"gpus": "0", "env": (f"A={VALUE}",), **options})  # type: ignore[arg-type]
    return settings.container_settings(samples.lock(), [Arch.X86_64], image, DIGEST, requested)


@pytest.fixture(name="image", params=["podman"])
def _image(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An image with a shell, loaded into an engine."""
    getattr(needs, f"require_{request.param}")()
    container_engine = engine.require_engine(request.param)
    tag = f"imgbuild-test-{uuid.uuid4().hex[:12]}"
    built = layout.read_layout(images.write_tiny_image(tmp_path / "image"))
    yield load_image(container_engine, built, Arch.X86_64, tag).reference
    engine.remove_image(container_engine, f"{tag}:latest")


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """A project with the file `hello` in a home folder with a model cache."""
    folder = tmp_path / f"project-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
    (folder / "hello").write_text("hello\n")
    return folder


def run(folder: Path, *words: str | Path, timeout: float = 240) -> str:
    """Run a command in `folder`, below the home folder, and return its stdout."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder.parent),
        **{name: value for name, value in os.environ.items() if "PROXY" in name.upper()},
        **{name: value for name, value in os.environ.items() if name.startswith(("UV_", "npm_"))},
    }
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False,
        timeout=timeout, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.engine
def test_docker_compose_starts_the_image(image: str, folder: Path) -> None:
    script = 'echo "[$A]" "$HF_HOME"; pwd; cat hello; id -u'
    text = compose.compose_text(container(image, command=("sh", "-c", script), shared=64), "test")
    # Debian's engines only recommend the program for `init`.
    (folder / "compose.yaml").write_text(text.replace("    init: true\n", ""))
    words = ("podman-compose", "--in-pod", "false")
    try:
        printed = run(folder, *words, "up", "--no-color")
    finally:
        run(folder, *words, "down", "--volumes")
    lines = [line.rpartition(" |\x1b[0m ")[2] for line in printed.splitlines()]
    expected = [f"[{VALUE}] /mnt/huggingface", "/workspace", "hello", "1000"]
    assert [line for line in lines if line in expected] == expected, printed


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.network
@pytest.mark.parametrize("image", ["docker"], indirect=True)
def test_dev_container_command_starts_the_image(image: str, folder: Path) -> None:
    npx = needs.require_tool("npx", "npm")
    document = json.loads(compose.devcontainer_text(container(image, shared=64)))
    # The sample is a shell without accounts, and Docker of Debian has no program for `init`.
    document |= {"remoteUser": "root", "updateRemoteUserUID": False, "init": False}
    (folder / ".devcontainer").mkdir()
    (folder / ".devcontainer" / "devcontainer.json").write_text(json.dumps(document))
    words: Sequence[str] = (npx, "--yes", DEVCONTAINERS)
    place = ("--workspace-folder", str(folder))
    started = json.loads(run(folder, *words, "up", *place).splitlines()[-1])
    try:
        assert started["outcome"] == "success"
        script = 'echo "[$A]"; pwd; cat hello'
        printed = run(folder, *words, "exec", *place, "sh", "-c", script)
        assert printed.splitlines()[-3:] == [f"[{VALUE}]", "/workspace", "hello"]
    finally:
        docker = needs.require_tool("docker", "docker.io")
        run(folder, docker, "rm", "--force", started["containerId"])
        run(folder, docker, "volume", "rm", f"imgbuild-kernels-{'1' * 12}")


@pytest.mark.long
@pytest.mark.network
def test_kubernetes_schemas_accept_jobs_and_pods(folder: Path) -> None:
    image = f"registry.example/rl@{DIGEST}"
    options = {"command": ("python", "train.py"), "gpus": "8", "rdma": "rdma/ib", "shared": 64}
    (folder / "job.yaml").write_text(kubernetes.job_manifest(container(image, **options), "test"))
    uv = find_uv_bin()
    words = (
        uv,
        "tool",
        "run",
        "--system-certs",
        "--from",
        "kubernetes-validate==1.37.0",
        "kubernetes-validate",
    )
    assert "job.yaml" in run(folder, *words, "--strict", "job.yaml", timeout=600)


@pytest.mark.long
@pytest.mark.network
def test_models_generated_from_the_jobset_schema_have_every_field(folder: Path) -> None:
    """The models drop unknown fields and refuse wrong types."""
    image = f"registry.example/rl@{DIGEST}"
    options = {"command": ("torchrun", "train.py"), "gpus": "8", "nodes": 2, "rdma": "rdma/ib"}
    (folder / "jobset.yaml").write_text(
        kubernetes.jobset_manifest(container(image, **options), "test")
    )
    script = (
        "import sys, json, yaml; from kubeflow_trainer_api.models import JobsetV1alpha2JobSet as J;"
        "document = yaml.safe_load(open('jobset.yaml'));"
        "same = J.from_dict(document).to_dict() == document;"
        "document['spec']['replicatedJobs'][0]['template']['spec']['unknown'] = 1;"
        "other = J.from_dict(document).to_dict() == document;"
        "print(json.dumps([same, other]))"
    )
    words = (
        find_uv_bin(), "run", "--system-certs", "--no-project", "--with",
        "kubeflow-trainer-api==2.3.0", "--with", "pyyaml", "--python", sys.executable,
    )  # fmt: skip
    printed = run(folder, *words, "python", "-c", script, timeout=600)
    assert json.loads(printed.splitlines()[-1]) == [True, False]


@pytest.mark.long
@pytest.mark.network
def test_skypilot_reads_the_task_file(folder: Path) -> None:
    image = f"registry.example/rl@{DIGEST}"
    options = {"command": ("echo", VALUE), "gpus": "8", "gpu": "H100", "nodes": 2}
    (folder / "task.yaml").write_text(skypilot.task_text(container(image, **options), "test"))
    script = (
        "import sys, sky, json; task = sky.Task.from_yaml('task.yaml');"
        "[resources] = task.resources;"
        "print(json.dumps([task.num_nodes, resources.accelerators, task.envs, task.run]))"
    )
    words = (
        find_uv_bin(),
        "run",
        "--system-certs",
        "--no-project",
        "--with",
        "skypilot",
        "--python",
        "3.11",
    )
    printed = run(folder, *words, "python", "-c", script, timeout=600)
    nodes, accelerators, envs, command = json.loads(printed.splitlines()[-1])
    assert (nodes, accelerators, envs) == (2, {"H100": 8}, {"A": VALUE})
    assert run(folder, "bash", "-c", command) == f"{VALUE}\n"
