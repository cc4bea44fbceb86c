"""Renders a container as a Job, a JobSet or a RayJob for Kubernetes.

Fields: kubernetes.io/docs/reference/kubernetes-api, jobset.sigs.k8s.io (v1alpha2), docs.ray.io
(KubeRay, ray.io/v1). Kubernetes replaces $(NAME) in arguments and variables. `$$` is an escaped
`$`.
"""

from __future__ import annotations

import re
from typing import Any

from imgbuild.container.settings import MODELS, RAY_JOBS, ContainerSettings
from imgbuild.errors import InputError
from imgbuild.render import container_yaml

SECRET = "tokens"  # noqa: S105 - the name of an object
WORKERS = "workers"
PORT = 29500  # of torchrun's rendezvous
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
# Words that a shell, `ray job submit` and its subprocess.list2cmdline do not change.
_WORD = re.compile(r"[A-Za-z0-9_@+=:,./-]+", re.ASCII)
# Words that a shell interprets at the start of a command.
_RESERVED_WORDS = frozenset(
    {"if", "then", "else", "elif", "fi", "case", "esac", "for", "while", "until", "do", "done",
     "in", "function", "select", "time", "coproc"}
)  # fmt: skip


def job_manifest(container: ContainerSettings, comment: str) -> str:
    """Return the manifest of a Job on one node, with a comment on how to reach its ports."""
    if container.nodes > 1:
        message = f"--format k8s-job supports one node, not --nodes {container.nodes}"
        raise InputError(message, hint="use --format jobset, or kuberay for Ray")
    _require_command(container, "k8s-job")
    lines = [_comment_with_prerequisites(container, comment)]
    for port in container.ports:
        words = f"kubectl port-forward job/{container.name} {port}"
        lines.append(f"To reach port {port} on your machine, run: {words}")
    return container_yaml.yaml_document(job_value(container), "\n".join(lines))


def job_value(container: ContainerSettings) -> dict[str, Any]:
    """Return the Job object for one node."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": container.name},
        "spec": {"backoffLimit": 0, "template": _pod_template(container, restart=True)},
    }


def jobset_manifest(container: ContainerSettings, comment: str) -> str:
    """Return a JobSet with a pod on each node, and the variables that torchrun reads."""
    _require_command(container, "jobset")
    name = container.name
    variables: list[dict[str, Any]] = [
        {"name": "PET_NNODES", "value": str(container.nodes)},
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}},
        {"name": "PET_MASTER_ADDR", "value": f"{name}-{WORKERS}-0-0.{name}"},
        {"name": "PET_MASTER_PORT", "value": str(PORT)},
        {"name": "PET_NPROC_PER_NODE", "value": str(_gpus_per_node(container) or 1)},
    ]
    template = _pod_template(container, restart=True, variables=variables)
    workers = {
        "name": WORKERS,
        "replicas": 1,
        "template": {
            "spec": {
                "parallelism": container.nodes,
                "completions": container.nodes,
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "template": template,
            }
        },
    }
    value = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"failurePolicy": {"maxRestarts": 0}, "replicatedJobs": [workers]},
    }
    return container_yaml.yaml_document(
        value, _comment_with_prerequisites(container, comment, "the JobSet controller")
    )


def rayjob_manifest(container: ContainerSettings, comment: str) -> str:
    """Return the manifest of a RayJob that runs the command on a Ray cluster of all nodes.

    Raises InputError if the image lacks packages with which Ray accepts jobs, or if a shell would
    change the command.
    """
    if not container.ray:
        message = (
            f"--format kuberay: {container.target} lacks packages of ray[default]"
            f" (ray, {', '.join(RAY_JOBS)}), which Ray needs to accept jobs"
        )
        raise InputError(
            message, hint="add the packages to an image that extends this target (imgbuild add)"
        )
    _require_command(container, "kuberay")
    cluster: dict[str, Any] = {
        "rayVersion": container.ray,
        "headGroupSpec": {"rayStartParams": {}, "template": _ray_template(container, "ray-head")},
    }
    if (workers := container.nodes - 1) > 0:
        cluster["workerGroupSpecs"] = [
            {
                "groupName": WORKERS,
                "replicas": workers,
                "minReplicas": workers,
                "maxReplicas": workers,
                "rayStartParams": {},
                "template": _ray_template(container, "ray-worker"),
            }
        ]
    value = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": container.name},
        "spec": {
            "entrypoint": rayjob_entrypoint(container.command),
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": cluster,
        },
    }
    return container_yaml.yaml_document(
        value, _comment_with_prerequisites(container, comment, "the KubeRay operator")
    )


def rayjob_entrypoint(words: tuple[str, ...]) -> str:
    """Format a command as the entry point of a RayJob.

    The operator inserts the text into a bash command that runs `ray job submit`. The Ray server
    joins the words with spaces and passes the result to sh. Raises InputError for a word that would
    be changed.
    """
    wrong = [word for word in words if not _WORD.fullmatch(word)]
    if words and (words[0] in _RESERVED_WORDS or "=" in words[0]):
        wrong.insert(0, words[0])
    if wrong:
        shown = ", ".join(repr(word[:80]) for word in wrong)
        message = f"--format kuberay: a shell would change these words of the command: {shown}"
        raise InputError(message, hint="move the command into a script in the workspace")
    return " ".join(words)


def _comment_with_prerequisites(
    container: ContainerSettings, comment: str, operator: str = ""
) -> str:
    secrets, repository = ", ".join(container.secrets), container.image.partition("@")[0]
    return "\n".join(
        (
            comment,
            *([f"The cluster must have {operator}"] if operator else []),
            f"Push the image first: imgbuild push {container.target} {repository}",
            f"Two PersistentVolumeClaims: workspace ({container.workdir}), models ({MODELS})",
            *([f"Secret {SECRET}, with optional keys: {secrets}"] if secrets else []),
            "kernels stores compiled code; to keep the code, use a claim instead of emptyDir.",
            "To start it, run: kubectl apply -f FILE",
        )
    )


def _pod_template(
    container: ContainerSettings,
    *,
    restart: bool,
    variables: list[dict[str, Any]] | None = None,
    name: str = "main",
) -> dict[str, Any]:
    shared: dict[str, Any] = {"medium": "Memory"}
    if container.shared:
        shared["sizeLimit"] = f"{container.shared}Mi"
    folders: dict[str, tuple[str, dict[str, Any]]] = {
        "workspace": (container.workdir, {"persistentVolumeClaim": {"claimName": "workspace"}}),
        "models": (MODELS, {"persistentVolumeClaim": {"claimName": "models"}}),
        "kernels": (container.cache, {"emptyDir": {}}),
        "shm": ("/dev/shm", {"emptyDir": shared}),  # noqa: S108 - in the container
    }
    inner: dict[str, Any] = {"name": name, "image": container.image}
    if restart:  # the operator of Ray writes the commands of its pods
        inner["args"] = [_escape_text(word) for word in container.command]
    inner |= {
        "workingDir": container.workdir,
        "env": [*_variables(container), *(variables or [])],
        "resources": {"limits": _limits(container)},
        "volumeMounts": [
            {"name": volume, "mountPath": path} for volume, (path, _) in folders.items()
        ],
    }
    if container.ports:
        inner["ports"] = [{"containerPort": port} for port in container.ports]
    if container.rdma:
        inner["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    uid, gid = container.user
    spec: dict[str, Any] = {
        "securityContext": {"runAsUser": uid, "runAsGroup": gid, "fsGroup": gid},
        "containers": [inner],
        "volumes": [{"name": volume, **source} for volume, (_, source) in folders.items()],
    }
    if restart:
        spec = {"restartPolicy": "Never", **spec}
    if container.arch is not None:
        spec["nodeSelector"] = {"kubernetes.io/arch": container.arch.oci}
    return {"spec": spec}


def _ray_template(container: ContainerSettings, name: str) -> dict[str, Any]:
    return _pod_template(container, restart=False, name=name)


def _variables(container: ContainerSettings) -> list[dict[str, Any]]:
    plain: list[dict[str, Any]] = [
        {"name": name, "value": _escape_text(value)} for name, value in container.env.items()
    ]
    return plain + [
        {
            "name": name,
            "valueFrom": {"secretKeyRef": {"name": SECRET, "key": name, "optional": True}},
        }
        for name in container.secrets
    ]


def _limits(container: ContainerSettings) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if gpus := _gpus_per_node(container):
        limits["nvidia.com/gpu"] = gpus
    if container.rdma:
        if container.rdma.startswith("/"):
            message = (
                f"--rdma {container.rdma}: expected the resource of a device plugin, not a device"
            )
            raise InputError(message, hint="specify a resource, for example: --rdma rdma/ib")
        limits[container.rdma] = 1
    return limits


def _gpus_per_node(container: ContainerSettings) -> int:
    if container.gpus is True:
        message = "--gpus all is not supported, because Kubernetes requires a number"
        raise InputError(message, hint="specify a number per node, such as --gpus 8")
    return 1 if container.gpus is None else int(container.gpus)


def _escape_text(text: str) -> str:
    return text.replace("$", "$$")


def _require_command(container: ContainerSettings, form: str) -> None:
    if not container.command:
        message = f"--format {form} requires a command; add it after --"
        raise InputError(message, hint="add, for example, -- python train.py")
