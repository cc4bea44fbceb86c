"""Renders a container as a SkyPilot task.

The YAML specification of tasks is at docs.skypilot.co.
"""

# A separate module: a format for cloud machines.
from __future__ import annotations

import shlex
from typing import Any

from imgbuild.container.settings import MODELS, MODELS_VARIABLE, ContainerSettings
from imgbuild.errors import InputError
from imgbuild.render import container_yaml


def task_text(container: ContainerSettings, comment: str) -> str:
    """Return a task that runs the command in the image, on machines with the required GPUs."""
    wrong = _problems(container)
    if wrong:
        raise InputError("\n".join(wrong), hint="for the options, run: imgbuild render --help")
    resources: dict[str, Any] = {"image_id": f"docker:{container.image}"}
    if container.gpu:
        number = 1 if container.gpus is None else container.gpus
        resources["accelerators"] = f"{container.gpu}:{number}"
    if container.ports:
        resources["ports"] = list(container.ports)
    value: dict[str, Any] = {
        "name": container.name,
        "num_nodes": container.nodes,
        "workdir": ".",
        "resources": resources,
    }
    # The folder of models is that of SkyPilot's machine, unless it is named.
    env = {
        name: text
        for name, text in container.env.items()
        if (name, text) != (MODELS_VARIABLE, MODELS)
    }
    if env:
        value["envs"] = env
    if container.passed:
        value["secrets"] = dict.fromkeys(container.passed)
    value["run"] = shlex.join(container.command)
    return container_yaml.yaml_document(value, comment)


def _problems(container: ContainerSettings) -> list[str]:
    form = "--format skypilot"
    wrong = []
    if not container.command:
        wrong.append(f"{form} requires a command; add it after --, for example: -- python train.py")
    if container.gpus is True:
        wrong.append(
            "--gpus all is not supported by SkyPilot; specify a number per node, such as --gpus 8"
        )
    if not container.gpu and container.gpus != 0:
        wrong.append(
            f"{form}: SkyPilot selects machines by GPU; add --gpu, such as --gpu H100, or --gpus 0"
        )
    if container.gpu and container.gpus == 0:
        wrong.append("--gpu and --gpus 0 cannot be combined")
    if container.shared:
        wrong.append("omit --shared, because SkyPilot sets the size of shared memory")
    if container.rdma:
        wrong.append("omit --rdma, because SkyPilot selects the network")
    return wrong
