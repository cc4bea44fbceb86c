"""Renders a container as a Compose file or a devcontainer.json.

Formats: docs.docker.com/reference/compose-file (where a `$` is written `$$`) and the reference of
devcontainer.json at containers.dev (`${…}` cannot be escaped and is refused).
"""

# A separate module: single machines.
from __future__ import annotations

from typing import Any

from imgbuild import codec
from imgbuild.container.settings import MODELS, ContainerSettings
from imgbuild.errors import InputError
from imgbuild.render import container_yaml
from imgbuild.values import Arch

EXTENSIONS = ("ms-python.python", "ms-toolsai.jupyter")
LOCAL_MODELS = ".cache/huggingface"  # below the home folder


def compose_text(container: ContainerSettings, comment: str) -> str:
    """Return the text of a compose.yaml with one service."""
    _require_device(container)
    _require_one_node(container, "compose")
    if container.rdma and container.ports:
        message = (
            "--port and --rdma cannot be combined, because RDMA requires the network of the host"
        )
        raise InputError(message, hint="omit --port, because the ports of the host are used")
    kernels = f"kernels-{container.digest.partition(':')[2][:12]}"
    service: dict[str, Any] = {"image": container.image, "init": True}
    if container.arch is not None:
        service["platform"] = _platform(container.arch)
    if container.command:
        service["command"] = [_escape_text(word) for word in container.command]
    else:
        service |= {"stdin_open": True, "tty": True}
    uid, gid = container.user
    service |= {
        "working_dir": _escape_text(container.workdir),
        "user": f"${{IMGBUILD_USER:-{uid}:{gid}}}",
        "environment": {
            **{name: _escape_text(value) for name, value in container.env.items()},
            **dict.fromkeys(container.secrets),
        },
        "volumes": [
            {"type": "bind", "source": ".", "target": _escape_text(container.workdir)},
            {"type": "bind", "source": f"~/{LOCAL_MODELS}", "target": MODELS},
            {"type": "volume", "source": kernels, "target": _escape_text(container.cache)},
        ],
    }
    service |= {"shm_size": f"{container.shared}m"} if container.shared else {"ipc": "host"}
    if container.ports:
        service["ports"] = [f"127.0.0.1:{port}:{port}" for port in container.ports]
    if container.rdma:
        service |= {
            "network_mode": "host",
            "cap_add": ["IPC_LOCK"],
            "devices": [f"{container.rdma}:{container.rdma}"],
            "ulimits": {"memlock": -1},
        }
    count = "all" if container.gpus in (None, True) else int(container.gpus or 0)
    if count:
        device = {"driver": "nvidia", "count": count, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    value = {"services": {container.name: service}, "volumes": {kernels: {}}}
    return container_yaml.yaml_document(value, comment)


def devcontainer_text(container: ContainerSettings) -> str:
    """Return the text of a devcontainer.json. Raises InputError for a value that contains `${`."""
    _require_device(container)
    _require_one_node(container, "devcontainer")
    if container.command:
        message = (
            "--format devcontainer does not support a command, because the editor starts the "
            "container"
        )
        raise InputError(message, hint="omit the command after --")
    wrong = [f"--env {name}" for name, value in container.env.items() if "${" in value]
    if wrong:
        message = (
            f"{', '.join(wrong)}: devcontainer.json cannot contain the characters ${{ in a value"
        )
        raise InputError(message, hint="set the variable in a shell inside the container")
    arguments = [f"--shm-size={container.shared}m"] if container.shared else ["--ipc=host"]
    if container.arch is not None:
        arguments.append(f"--platform={_platform(container.arch)}")
    if container.gpus:
        arguments.append(f"--gpus={'all' if container.gpus is True else container.gpus}")
    if container.rdma:
        arguments += ["--network=host", "--cap-add=IPC_LOCK", "--ulimit=memlock=-1"]
        arguments.append(f"--device={container.rdma}")
    home = f"${{localEnv:HOME}}/{LOCAL_MODELS}"
    volume = f"imgbuild-kernels-{container.digest.partition(':')[2][:12]}"
    value = {
        "name": container.target,
        "image": container.image,
        "init": True,
        "runArgs": arguments,
        "workspaceFolder": container.workdir,
        "workspaceMount": f"source=${{localWorkspaceFolder}},target={container.workdir},type=bind",
        "mounts": [
            f"source={home},target={MODELS},type=bind",
            f"source={volume},target={container.cache},type=volume",
        ],
        "remoteUser": container.account,
        "initializeCommand": ["mkdir", "-p", home],
        "containerEnv": container.env,
        "remoteEnv": {name: f"${{localEnv:{name}}}" for name in container.secrets},
        "customizations": {
            "vscode": {
                "extensions": list(EXTENSIONS),
                "settings": {"python.defaultInterpreterPath": container.python},
            }
        },
    }
    if container.gpus is None:
        value["hostRequirements"] = {"gpu": "optional"}
    if container.ports:
        value["forwardPorts"] = list(container.ports)
    return codec.encode(value).decode()


def _escape_text(text: str) -> str:
    return text.replace("$", "$$")


def _platform(arch: Arch) -> str:
    return f"linux/{arch.oci}"


def _require_one_node(container: ContainerSettings, form: str) -> None:
    if container.nodes > 1:
        message = f"--format {form} supports one machine, not --nodes {container.nodes}"
        raise InputError(message, hint="use --format jobset, --format kuberay, or imgbuild slurm")


def _require_device(container: ContainerSettings) -> None:
    if container.rdma and not container.rdma.startswith("/dev/"):
        message = f"--rdma {container.rdma}: expected a device, not a Kubernetes resource"
        raise InputError(message, hint="specify, for example, --rdma /dev/infiniband")
