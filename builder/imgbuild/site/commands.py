"""Commands to copy: Docker, podman, Apptainer, Slurm, Kubernetes (separate: other languages)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from imgbuild.lock.lock_file import Lock
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.registry.image_reference import Repository
from imgbuild.site.model import Command

PROGRAM = "python train.py"
JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: train
          image: {image}
          command: [python, train.py]
          resources:
            limits: {{nvidia.com/gpu: 1}}
          volumeMounts:
            - {{name: shm, mountPath: /dev/shm}}
      volumes:
        - name: shm
          emptyDir: {{medium: Memory, sizeLimit: 16Gi}}"""


def commands(
    lock: Lock, target_digests: TargetDigests, repository: Repository | None
) -> tuple[Command, ...]:
    """The commands of a locked target; they pull from `repository`, without one they build."""
    return tuple(_commands(lock, target_digests, repository))


def _commands(
    lock: Lock, target_digests: TargetDigests, repository: Repository | None
) -> Iterator[Command]:
    target, name = lock.target, shlex.quote(lock.target)
    mount = shlex.quote(f"{lock.settings.workdir}")
    volume = f'--volume "$PWD":{mount}'
    tagged = str(repository.tagged(target)) if repository else target
    exact = str(repository.with_digest(target_digests.digest)) if repository else ""
    get = (f"docker pull {exact}",) if repository else (f"imgbuild load {name}",)
    image = exact or name
    note = "" if repository else "No registry is set for this catalogue: the image is built here."
    yield Command(
        title="Docker",
        text="\n".join(
            (*get, f"docker run --rm -it --gpus all --ipc=host {volume} {image} {PROGRAM}")
        ),
        note=note,
    )
    get = (f"podman pull {exact}",) if repository else (f"imgbuild load {name} --through podman",)
    gpus = "--device nvidia.com/gpu=all"
    yield Command(
        title="podman",
        text="\n".join((*get, f"podman run --rm -it {gpus} --ipc=host {volume} {image} {PROGRAM}")),
    )
    sif = shlex.quote(f"{target}.sif")
    get_sif = f"apptainer pull {sif} docker://{exact}"
    if not repository:
        get_sif = f"imgbuild build {name} --format sif --output {sif}"
    yield Command(title="Apptainer", text=f"{get_sif}\napptainer exec --nv {sif} {PROGRAM}")
    yield Command(
        title="Slurm",
        text=(
            f"imgbuild build {name} --format sif\n"
            f"imgbuild slurm {name} --gpus 8 --time 4:00:00 -- {PROGRAM} > job.sh\n"
            "sbatch job.sh"
        ),
        note=f"Without imgbuild: srun --gpus=8 apptainer exec --nv {target}.sif {PROGRAM}",
    )
    yield Command(
        title="Kubernetes",
        text=JOB.format(
            name=target.replace(".", "-").replace("_", "-"), image=exact or f"REGISTRY/{tagged}"
        ),
        note=""
        if repository
        else f"Push the image first: imgbuild push {name} REGISTRY/REPOSITORY",
    )
    yield Command(
        title="imgbuild",
        text=(
            f"imgbuild build {name}\nimgbuild run {name} -- {PROGRAM}\nimgbuild show {name} --guide"
        ),
    )
