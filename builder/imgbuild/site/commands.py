"""Writes the commands that readers can copy, for Docker, Slurm, Kubernetes and other programs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import msgspec

from imgbuild.container import settings
from imgbuild.container.settings import StartOptions
from imgbuild.lock.lock_file import Lock
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.registry.image_reference import Repository
from imgbuild.render import container_yaml, kubernetes
from imgbuild.show.guide import SERVERS
from imgbuild.site.model import PageCommand
from imgbuild.values import Digest

SCRIPT = "train.py"
PROGRAM = f"python {SCRIPT}"
VERL = "python -m verl.trainer.main_ppo"
TWO_NODES = "Slurm, two nodes"
SERVER = "OpenAI server"
# Placeholders for values that readers select: the number of GPUs, their own repository where the
# catalogue has no registry, the image of a job. `pages` writes them as elements of HTML.
GPUS = "\ufdd0"
REPOSITORY = "\ufdd1"
IMAGE = "\ufdd2"
JOB = "train"
LAUNCH_COMMAND = f"torchrun --standalone --nproc-per-node {GPUS} {SCRIPT}"
# What YAML has for the placeholders: JSON's escapes.
_IN_YAML = (
    ('nvidia.com/gpu: "\\uFDD0"', f"nvidia.com/gpu: {GPUS}"),
    ("\\uFDD0", GPUS),
    ("\\uFDD2", IMAGE),
)


def target_commands(
    lock: Lock, target_digests: TargetDigests, repository: Repository | None, *, rendered: bool
) -> tuple[PageCommand, ...]:
    """Return the commands for a locked target, which pull it from `repository`, or else build it.

    Without `rendered`, only commands for Docker, Apptainer, Slurm and imgbuild are included.
    """
    return tuple(_commands(lock, target_digests, repository, rendered=rendered))


def _compose_command(target: str, repository: Repository | None) -> PageCommand:
    name = shlex.quote(target)
    place = f" --registry {repository}" if repository else ""
    text = (
        f"imgbuild render {name} --format compose{place} -- {PROGRAM} > compose.yaml\n"
        "docker compose up"
    )
    return PageCommand(title="Docker Compose", text=text)


def _ray_command(target: str, repository: Repository | None) -> PageCommand:
    place = repository or REPOSITORY
    text = (
        f"imgbuild render {shlex.quote(target)} --format kuberay --gpus {GPUS} \\\n"
        f"  --registry {place} -- {PROGRAM} > rayjob.yaml\n"
        "kubectl apply --filename rayjob.yaml"
    )
    return PageCommand(title="Ray in Kubernetes", text=text)


def _commands(
    lock: Lock, target_digests: TargetDigests, repository: Repository | None, *, rendered: bool
) -> Iterator[PageCommand]:
    target, name = lock.target, shlex.quote(lock.target)
    ray = settings.has_ray_jobs(locked.versions for locked in lock.arch.values())
    exact = str(repository.with_digest(target_digests.digest)) if repository else ""
    image = exact or name
    mount = f'--volume "$PWD":{shlex.quote(lock.settings.workdir)}'
    goes_on = " \\\n" if exact else " "
    get = f"docker pull {exact}" if exact else f"imgbuild load {name}"
    run = f"docker run --rm -it --gpus all --ipc=host {mount}{goes_on}{image} {PROGRAM}"
    yield PageCommand(title="Docker", text=f"{get}\n{run}")
    if rendered and (server := _server_command(lock, exact)):
        yield server
    if rendered:
        load = "" if exact else f"imgbuild load {name} --through podman\n"
        run = f"podman run --rm -it --device nvidia.com/gpu=all --ipc=host {mount}"
        yield PageCommand(title="podman", text=f"{load}{run}{goes_on}{image} {PROGRAM}")
        yield _compose_command(target, repository)
    sif = shlex.quote(f"{target}.sif")
    get = f"apptainer pull {sif} docker://{exact}"
    if not exact:
        get = f"imgbuild build {name} --format sif --output {sif}"
    yield PageCommand(
        title="Apptainer",
        text=f"{get}\napptainer exec --nv {sif} {PROGRAM}",
        note="The current folder and your home are mounted; others with --bind DIR, such as"
        ' --bind "$HF_HOME".',
    )
    yield PageCommand(
        title="Slurm, one node",
        text=(
            f"{get}\n"
            f"imgbuild slurm {name} --sif-file {sif} --nodes 1 --gpus {GPUS} \\\n"
            f"  --time 4:00:00 -- {LAUNCH_COMMAND} > job.sh\n"
            "sbatch job.sh"
        ),
        note="The folder of sbatch, your home and the Hugging Face cache are mounted; others with"
        " --bind DIR.",
    )
    if rendered:
        yield PageCommand(
            title="Slurm, without imgbuild",
            text=(
                f"srun --gpus-per-node {GPUS} apptainer exec --nv --cleanenv \\\n"
                '  --bind "${HF_HOME:=$HOME/.cache/huggingface}" --env HF_HOME="$HF_HOME" \\\n'
                f"  {sif} {LAUNCH_COMMAND}"
            ),
        )
        yield _two_nodes(lock, sif, get, ray=ray)
        yield _kubernetes(target, repository)
        if ray:
            yield _ray_command(target, repository)
    yield PageCommand(
        title="imgbuild",
        text=(
            f"imgbuild build {name}\nimgbuild run {name} -- {PROGRAM}\nimgbuild show {name} --guide"
        ),
    )


def _server_command(lock: Lock, exact: str) -> PageCommand | None:
    """An OpenAI server in Docker with the caches of models and kernels, if the image has one."""
    versions = [locked.versions for locked in lock.arch.values()]
    servers = [SERVERS[name] for name in SERVERS if all(name in each for each in versions)]
    if not servers:
        return None
    port, program = servers[0]
    name = shlex.quote(lock.target)
    volume = shlex.quote(f"{lock.target}-cache:/var/cache/imgbuild")
    models = settings.MODELS
    load = "" if exact else f"imgbuild load {name}\n"
    text = (
        f"{load}docker run --rm --gpus all --ipc=host -p 127.0.0.1:{port}:{port} \\\n"
        f"  --volume {volume} \\\n"
        f"  --env {settings.MODELS_VARIABLE}={models} --volume ~/.cache/huggingface:{models} \\\n"
        f"  {exact or name} {program}"
    )
    note = f"It answers on http://127.0.0.1:{port}/v1. The volumes keep kernels and models."
    return PageCommand(title=SERVER, text=text, note=note)


def _two_nodes(lock: Lock, sif: str, get: str, *, ray: bool) -> PageCommand:
    """A job on two nodes with verl, a Ray cluster or torchrun. `get` creates the SIF file."""
    if not ray:
        job, program = "torchrun", SCRIPT
    elif all("verl" in locked.versions for locked in lock.arch.values()):
        job, program = "verl", VERL
    else:
        job, program = "ray", PROGRAM
    text = (
        f"{get}\nimgbuild slurm {shlex.quote(lock.target)} --job {job} --sif-file {sif} --nodes 2"
        f" --gpus {GPUS} \\\n  --time 4:00:00 -- {program} > job.sh\nsbatch job.sh"
    )
    return PageCommand(title=TWO_NODES, text=text)


def _kubernetes(target: str, repository: Repository | None) -> PageCommand:
    name, place = shlex.quote(target), repository or REPOSITORY
    push = "" if repository else f"imgbuild push {name} {place}\n"
    return PageCommand(
        title="Kubernetes",
        text=(
            f"{push}imgbuild render {name} --format k8s-job --gpus {GPUS} \\\n"
            f"  --registry {place} -- {LAUNCH_COMMAND} > job.yaml\n"
            "kubectl apply --filename job.yaml\n"
            f"kubectl logs --follow job/{settings.dns_label(target)}"
        ),
        note="On two nodes: --format jobset --nodes 2.",
    )


def job_text(lock: Lock) -> str:
    """Return the Job of `imgbuild render --format k8s-job`, with IMAGE and GPUS as placeholders."""
    options = StartOptions(command=(*LAUNCH_COMMAND.split(),))
    generic = msgspec.structs.replace(lock, target=JOB)
    container = settings.container_settings(generic, sorted(lock.arch), IMAGE, Digest(""), options)
    value = kubernetes.job_value(container)
    (pod,) = value["spec"]["template"]["spec"]["containers"]
    pod["resources"]["limits"]["nvidia.com/gpu"] = GPUS
    text = container_yaml.yaml_document(value, compact=True).rstrip("\n")
    for old, new in _IN_YAML:
        text = text.replace(old, new)
    return text
