"""Implements `imgbuild render`, which writes locks in the formats of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from imgbuild.cli._help import WORDS, RenderCommand, create_command
from imgbuild.cli._options import (
    CHECK,
    ENV,
    FORMAT,
    GPU,
    GPUS,
    OUTPUT_PATH,
    REGISTRY_PLACE,
    SHARED,
)
from imgbuild.cli._output import answer_file, print_result
from imgbuild.cli._targets import SelectionOptions
from imgbuild.cli._verb import CONTAINER, OptionGroup, create_verb, option
from imgbuild.container.settings import StartOptions
from imgbuild.errors import InputError
from imgbuild.lock.published import load_matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.pipeline.opened import report_templates
from imgbuild.render import bake, write
from imgbuild.render.write import RenderOptions
from imgbuild.system import files
from imgbuild.system.console import console
from imgbuild.values import Arch

RenderFormat = Literal[
    "dockerfile", "bake", "apptainer", "requirements", "pylock", "script",
    "compose", "devcontainer", "k8s-job", "jobset", "kuberay", "skypilot",
]  # fmt: skip


class ContainerFlags(OptionGroup, frozen=True, kw_only=True):
    """Options for containers in rendered files."""

    gpus: Annotated[
        str | None,
        GPUS("Applies to each node. Accepts 'all'. Default: all GPUs, or 1 in Kubernetes."),
    ] = None
    gpu: Annotated[
        str | None,
        GPU("With --format skypilot, the GPU type to request, such as H100."),
    ] = None
    nodes: Annotated[
        int,
        option(
            "--nodes",
            "The number of nodes.",
            metavar="N",
            min=1,
            panel=CONTAINER,
            often=True,
            setting=True,
        ),
    ] = 1
    shared: Annotated[
        int, SHARED("0 uses the shared memory of the host, or no limit in Kubernetes.")
    ] = 0
    env: Annotated[
        list[str] | None,
        ENV("In Kubernetes formats, NAME without a value refers to a secret with this name."),
    ] = None
    port: Annotated[
        list[int] | None,
        option("--port", "A port that the container listens on. Can be repeated.", metavar="PORT",
               panel=CONTAINER),
    ] = None  # fmt: skip
    rdma: Annotated[
        str | None,
        option(
            "--rdma",
            "Enable RDMA between nodes: in Kubernetes, with the resource rdma/ib; in compose and "
            "devcontainer, with the device /dev/infiniband.",
            metavar="NAME",
            panel=CONTAINER,
        ),
    ] = None

    def start_options(self, words: tuple[str, ...]) -> StartOptions:
        """Return the options and the command `words`."""
        return StartOptions(
            command=words,
            gpus=self.gpus,
            gpu=self.gpu,
            nodes=self.nodes,
            shared=self.shared,
            env=tuple(self.env or ()),
            ports=tuple(self.port or ()),
            rdma=self.rdma,
        )


WITH_TEMPLATE = ("dockerfile", "apptainer", "script")  # the formats that templates write


@create_verb
def render(
    context: typer.Context,
    selection: SelectionOptions,
    container: ContainerFlags,
    form: Annotated[
        RenderFormat,
        FORMAT(
            "Choices: dockerfile, bake, apptainer, requirements, pylock, script, compose, "
            "devcontainer, k8s-job, jobset, kuberay or skypilot."
        ),
    ] = "dockerfile",
    output: Annotated[
        Path | None,
        OUTPUT_PATH(
            "A folder for Dockerfiles and for several targets, a file otherwise. Default: the "
            "folder of the lock for Dockerfiles, stdout for other formats."
        ),
    ] = None,
    online: Annotated[
        bool,
        option(
            "--online",
            "Write a Dockerfile that downloads the base and the wheels from their current URLs."
            " Requires --output.",
            often=True,
        ),
    ] = False,
    registry: Annotated[
        str | None,
        REGISTRY_PLACE(
            "Containers use the image in this repository, and Dockerfiles with --online use the "
            "base. Default: `registry` in the matrix."
        ),
    ] = None,
    check: Annotated[bool, CHECK("Applies to Dockerfiles and docker-bake.json.")] = False,
) -> None:
    """Write locks as Dockerfiles, Kubernetes jobs and other formats.

    The format dockerfile writes images/TARGET/Dockerfile with the files that it copies, and
    docker-bake.json. bake writes a file for `docker buildx bake` with the selected targets,
    apptainer a definition file, requirements a file for pip and uv, pylock a PEP 751 file with
    current URLs, and script a shell script that creates and checks the environment on a machine
    without containers.

    The formats compose, devcontainer, k8s-job, jobset, kuberay and skypilot run the image as
    `imgbuild run` and `imgbuild slurm` do: by digest, with GPUs, shared memory, a model folder,
    compiled kernels, and references to secrets. Specify the command after --. Kubernetes formats
    use the image in a registry: run `imgbuild push` first, then `kubectl apply -f FILE`. Comments
    in the file list the required volume claims and secrets.

    Examples:

        imgbuild render --all

        imgbuild render --all --check

        imgbuild render cu124-vllm --online --output cu124-vllm

        imgbuild render cu124-vllm --format script > cu124-vllm.sh

        imgbuild render cu124-vllm --format compose --port 8000 -- vllm serve MODEL

        imgbuild render cu124-vllm --format k8s-job --gpus 8 --registry HOST/REPO -- python train.py

        imgbuild render cu130-verl0.9 --format kuberay --nodes 2 --gpus 8 -- python train.py
    """
    words = context.meta.get(WORDS, ())
    options = write.RenderOptions(
        form=form, online=online, registry=registry, container=container.start_options(words)
    )
    _refuse_options(options, output, check=check, arches=selection.arches)
    _render_targets(selection, options, output, check=check)


def _render_targets(
    selection: SelectionOptions, options: RenderOptions, output: Path | None, *, check: bool
) -> None:
    form = options.form
    project = selection.project()
    if form in WITH_TEMPLATE:
        report_templates(project)
    chosen = selection.selected_locks(project)
    read = load_matrix(project.matrix)
    if not check:
        _require_places(project, [item.lock.target for item in chosen], options, output)
    if check:
        write.check_committed(project, read, [item.lock for item in chosen], console)
        current = [item.lock.target for item in chosen]
        print_result(current, [f"{name} is up to date" for name in current])
        return
    if form == "dockerfile" and output is None:
        rendered = write.write_committed(project, read, [item.lock for item in chosen], console)
    else:
        rendered = write.render_locks(
            project, read, [(item.lock, item.arches) for item in chosen], options
        )
    if form in write.LOCAL_FORMATS and not (options.registry or read.registry):
        names = " ".join(item.lock.target for item in chosen)
        console.info(
            f"the file refers to the image that `imgbuild load {names}` loads on this machine; to "
            "refer to an image in a registry by digest, pass --registry"
        )
    if output is not None:
        rendered = write.write_to_output(rendered, output)
    if all(file.place for file in rendered):
        print_result(rendered, [str(file.place) for file in rendered])
    else:
        answer_file(rendered, [file.text for file in rendered])


def _require_places(
    project: Project, targets: list[str], options: RenderOptions, output: Path | None
) -> None:
    if output is not None:
        files.require_writable([output], hint=files.OUTPUT_HINT)
    elif options.form == "dockerfile":
        project.require_writable("imgbuild render", hint="add --output FOLDER")
        places = [*(project.images / name for name in targets), project.folder / bake.FILE]
        files.require_writable(places, hint="add --output FOLDER")


def _refuse_options(
    options: RenderOptions, output: Path | None, *, check: bool, arches: list[Arch]
) -> None:
    dockerfile = options.form == "dockerfile"
    if (options.online or check) and not dockerfile:
        message = f"--online and --check cannot be combined with --format {options.form}"
        raise InputError(message, hint="omit one of these options")
    if check and (options.online or output is not None):
        message = "--check cannot be combined with --online or --output"
        raise InputError(message, hint="omit --online and --output")
    if options.online and output is None:
        message = "--online requires --output, because the file contains host names"
        raise InputError(message, hint="add --output FOLDER")
    is_container = options.form in write.CONTAINERS
    if options.registry is not None and not options.online and not is_container:
        message = "--registry requires --online or a container format"
        raise InputError(message, hint="add --online, or omit --registry")
    if options.container.is_any_given and not is_container:
        message = f"--format {options.form} does not support a command or container options"
        raise InputError(message, hint=f"use --format {', '.join(write.CONTAINERS)}")
    if dockerfile and arches and output is None:
        message = "the Dockerfile next to a lock includes all architectures of the lock"
        raise InputError(message, hint="omit --arch, or add --output FOLDER")


COMMAND = create_command(render, cls=RenderCommand)
