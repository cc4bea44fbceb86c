"""`imgbuild render`: a lock as text for people and other builders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from imgbuild.cli._help import command
from imgbuild.cli._options import CHECK, FORMAT, OUTPUT_PATH, REGISTRY_PLACE
from imgbuild.cli._output import answer, answer_file
from imgbuild.cli._targets import Selection
from imgbuild.cli._verb import option, verb
from imgbuild.errors import InputError
from imgbuild.lock.published import load
from imgbuild.pipeline.opened import report_templates
from imgbuild.project_paths import Project
from imgbuild.render import bake, write
from imgbuild.render.write import RenderOptions
from imgbuild.system import files
from imgbuild.system.console import console
from imgbuild.values import Arch

RenderFormat = Literal["dockerfile", "bake", "apptainer", "requirements", "pylock", "script"]
WITH_TEMPLATE = ("dockerfile", "apptainer", "script")  # the formats that templates write


@verb
def render(
    selection: Selection,
    form: Annotated[
        RenderFormat,
        FORMAT("dockerfile, bake, apptainer, requirements, pylock or script."),
    ] = "dockerfile",
    output: Annotated[
        Path | None,
        OUTPUT_PATH(
            "A folder for Dockerfiles and for several targets, else a file. Default: Dockerfiles"
            " beside their locks, everything else to stdout."
        ),
    ] = None,
    online: Annotated[
        bool,
        option(
            "--online",
            "A Dockerfile that downloads base and wheels itself, from URLs looked up now. Needs"
            " --output.",
            often=True,
        ),
    ] = False,
    registry: Annotated[
        str | None,
        REGISTRY_PLACE("With --online: where the base is. Default: `registry` of the matrix."),
    ] = None,
    check: Annotated[bool, CHECK("The files are Dockerfiles and docker-bake.json.")] = False,
) -> None:
    """Write locked targets as Dockerfiles or in other formats.

    dockerfile: images/TARGET/Dockerfile with the files that it copies, and docker-bake.json.
    bake: a file for `docker buildx bake` with the selected targets. apptainer: a definition file.
    requirements: for pip and uv. pylock: PEP 751, with URLs looked up now. script: a shell script
    that makes the environment on a machine without containers, and checks it.

    Examples:

        imgbuild render --all

        imgbuild render --all --check

        imgbuild render cu124-vllm --online --output cu124-vllm

        imgbuild render cu124-vllm --format script > cu124-vllm.sh
    """
    options = write.RenderOptions(form=form, online=online, registry=registry)
    _refuse(options, output, check=check, arches=selection.arches)
    project = selection.project()
    if form in WITH_TEMPLATE:
        report_templates(project)
    chosen = selection.locked(project)
    read = load(project.matrix)
    if not check:
        _require_places(project, [item.lock.target for item in chosen], options, output)
    if check:
        write.check(project, read, [item.lock for item in chosen], console)
        current = [item.lock.target for item in chosen]
        answer(current, [f"{name} is up to date" for name in current])
        return
    if form == "dockerfile" and output is None:
        rendered = write.keep(project, read, [item.lock for item in chosen], console)
    else:
        rendered = write.render(
            project, read, [(item.lock, item.arches) for item in chosen], options
        )
    if output is not None:
        rendered = write.leave(rendered, output)
    if all(file.place for file in rendered):
        answer(rendered, [str(file.place) for file in rendered])
    else:
        answer_file(rendered, [file.text for file in rendered])


def _require_places(
    project: Project, targets: list[str], options: RenderOptions, output: Path | None
) -> None:
    """InputError if a place that is written to is read-only."""
    if output is not None:
        files.require_writable([output], hint=files.OUTPUT_HINT)
    elif options.form == "dockerfile":
        project.require_writable("imgbuild render", hint="add --output FOLDER")
        places = [*(project.images / name for name in targets), project.folder / bake.FILE]
        files.require_writable(places, hint="add --output FOLDER")


def _refuse(
    options: RenderOptions, output: Path | None, *, check: bool, arches: list[Arch]
) -> None:
    """InputError for options that cannot be combined."""
    dockerfile = options.form == "dockerfile"
    if (options.online or check) and not dockerfile:
        message = f"--online and --check cannot be combined with --format {options.form}"
        raise InputError(message, hint="leave one of them out")
    if check and (options.online or output is not None):
        message = "--check cannot be combined with --online or --output"
        raise InputError(message, hint="leave --online and --output out")
    if options.online and output is None:
        message = "--online needs --output: its file names hosts, and is not committed"
        raise InputError(message, hint="add --output FOLDER")
    if options.registry is not None and not options.online:
        message = "--registry needs --online"
        raise InputError(message, hint="add --online, or leave it out")
    if dockerfile and arches and output is None:
        message = "the Dockerfile beside a lock is for all its architectures"
        raise InputError(message, hint="leave --arch out, or add --output FOLDER")


COMMAND = command(render)
