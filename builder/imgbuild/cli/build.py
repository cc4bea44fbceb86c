"""Implements `imgbuild build`, which builds images from locks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from imgbuild.cli import _sif
from imgbuild.cli._array import add_slurm_options
from imgbuild.cli._help import create_command
from imgbuild.cli._options import (
    BUILDER,
    FORMAT,
    FROM,
    OUTPUT_PATH,
    PART,
    BuilderName,
    ImagePart,
    Jobs,
    Mirror,
    MirrorOnly,
    Offline,
    PlainHttp,
    process_count,
)
from imgbuild.cli._output import fold_lines, print_result
from imgbuild.cli._sessions import select_targets
from imgbuild.cli._targets import BuildSelection
from imgbuild.cli._verb import create_verb, option
from imgbuild.errors import InputError
from imgbuild.matrix.select import Selected
from imgbuild.pipeline import docker_build, opened, rebuild, with_project
from imgbuild.pipeline.build import build_all, output_path, restrict_to_native
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import Session, SessionOptions, open_session
from imgbuild.plan import current
from imgbuild.render import contexts
from imgbuild.render.contexts import WheelFolder
from imgbuild.system import files
from imgbuild.values import Arch

BuildFormat = Literal["oci", "oci-archive", "docker-archive", "sif", "squashfs"]
Form = Annotated[
    BuildFormat,
    FORMAT(
        "Choices: oci (a folder), oci-archive or docker-archive (a file for docker, podman or "
        "skopeo), sif (a file for Apptainer), or squashfs (a file for enroot and pyxis)."
    ),
]


OriginOption = Annotated[
    str | None,
    FROM(
        "Build from the lock attached to a published image, or from a folder with a lock, "
        "without reading the matrix. With --format sif or squashfs, convert an image in a "
        "registry or an OCI layout."
    ),
]
OutputOption = Annotated[Path | None, OUTPUT_PATH("Default: build/TARGET.")]
PartOption = Annotated[
    ImagePart | None,
    PART(
        "For a Dockerfile, base writes an image of the base layers to build/base/TARGET, and "
        "wheels writes the wheels to build/wheels/TARGET."
    ),
]
BuilderOption = Annotated[
    BuilderName,
    BUILDER(
        "embedded requires no engine and produces the locked digest. docker builds "
        "images/TARGET/Dockerfile with `docker buildx bake` into build/docker/TARGET. The image "
        "has the same files but a different digest."
    ),
]
VerifyOption = Annotated[bool, option("--verify", "Rebuild every layer, and verify every file.")]
ProjectOption = Annotated[
    bool,
    option(
        "--with-project",
        "Add the committed files of the project (git HEAD) to the working folder of the image, "
        "and write the image to build/TARGET-with-project. Use this option on clusters that do "
        "not allow mounting folders.",
        often=True,
    ),
]


@create_verb
def build(
    selection: BuildSelection,
    builder: BuilderOption = "embedded",
    origin: OriginOption = None,
    output: OutputOption = None,
    form: Form = "oci",
    compress: _sif.CompressOption = "zstd",
    part: PartOption = None,
    project: ProjectOption = False,
    verify: VerifyOption = False,
    mirror: Mirror = None,
    mirror_only: MirrorOnly = False,
    plain_http: PlainHttp = None,
    jobs: Jobs = 0,
    offline: Offline = False,
) -> None:
    """Build images from their locks.

    Does not require Docker, root privileges or a GPU. Builds for any architecture. --arch all
    builds all architectures, for publishing. Files that are missing from the cache are downloaded.
    The image is written only if its digest matches the lock. If nothing has changed, the existing
    image is kept.

    --format sif and squashfs convert the image of one architecture without unpacking it, and
    require mksquashfs 4.5 or newer. The same image and the same version of mksquashfs produce the
    same bytes. A SIF file contains the environment, labels, entry point, digest and lock of the
    image.

    Examples:

        imgbuild build cu124-vllm

        imgbuild build 'cu130-*' --arch arm64 --output images

        imgbuild build cu124-vllm --format docker-archive --output cu124-vllm.tar

        imgbuild build cu124-vllm --format sif

        imgbuild build --from registry.example/rl:cu124-vllm --format sif --output rl.sif

        imgbuild build cu124-vllm --builder docker

        imgbuild build --with-project

        imgbuild build cu124-vllm --mirror registry.example/rl/inputs

        imgbuild build --from registry.example/rl:cu124-vllm
    """
    how = SessionOptions(
        jobs=process_count(jobs),
        offline=offline,
        verify=verify,
        mirror=mirror,
        mirror_only=mirror_only,
        plain_http=tuple(plain_http or ()),
    )
    docker = builder == "docker"
    if output is not None:
        files.require_writable([output], hint=files.OUTPUT_HINT)
    if project:
        _refuse_with_project(origin, part, form, docker=docker)
    if form == "sif" or form == "squashfs":  # noqa: PLR1714 - mypy narrows the type by this
        _refuse_file(selection, part, docker=docker)
        _sif.build_sif_files(selection, origin, output, form, compress, how)
        return
    if compress != "zstd":
        message = f"--compress {compress} requires --format sif or squashfs"
        raise InputError(message, hint="add --format sif, or omit --compress")
    if origin is not None:
        _refuse_with_from(
            origin, [selection.named_targets, selection.everything, selection.matrix, part, docker]
        )
        arches = None if selection.arch is None else selection.arches
        _rebuild(origin, arches, output, form, how)
        return
    session = open_session(selection.matrix, how, selection.named_targets)
    selected = select_targets(selection, session)
    _refuse_part(part, form, docker=docker)
    if selection.arch is None:
        selected = [restrict_to_native(item) for item in selected]
    if part == "wheels":
        _answer_wheels(session, selected, output)
        return
    if project:
        built = with_project.build_with_project(session, selected, output, form)
    elif docker:
        opened.report_templates(session.project)
        built = docker_build.build_all(session, selected, output)
    else:
        built = build_all(session, selected, output, form=form, only_base=part == "base")
    lines = [f"{item.target} {item.digest} {item.output}" for item in built]
    print_result(built, fold_lines(lines))


def _refuse_with_from(origin: str, given: Sequence[object]) -> None:
    if any(given):
        message = f"--from {origin} cannot be combined with targets or another builder"
        raise InputError(message, hint="omit targets, --all, --matrix, --only and --builder")


def _refuse_part(part: ImagePart | None, form: BuildFormat, *, docker: bool) -> None:
    if part is not None and (docker or (part == "wheels" and form != "oci")):
        message = f"--only {part} cannot be combined with --builder or --format"
        raise InputError(message, hint="omit --builder and --format")
    if docker and form != "oci":
        message = f"--builder docker and --format {form} cannot be combined"
        raise InputError(message, hint="omit --format, because Docker writes an OCI layout")


def _refuse_with_project(
    origin: str | None, part: ImagePart | None, form: BuildFormat, *, docker: bool
) -> None:
    if origin is not None or part is not None or docker:
        message = "--with-project cannot be combined with --from, --only or --builder"
        raise InputError(message, hint="omit --from, --only and --builder")
    if form in ("sif", "squashfs"):
        message = f"--with-project cannot be combined with --format {form}"
        hint = (
            f"to convert the layout, run: imgbuild build --from LAYOUT --format {form} --output "
            "FILE"
        )
        raise InputError(message, hint=hint)


def _answer_wheels(session: Session, selected: Sequence[Selected], output: Path | None) -> None:
    inputs = open_inputs(session)
    folders: list[WheelFolder] = []
    for item in selected:
        lock, _ = current.read_current(session.project, session.matrix, item.name)
        default = contexts.wheels_folder(session.project, item.name)
        several = len(selected) > 1
        folder = output_path(default, item.name, output, several=several, form="oci")
        folders.append(contexts.write_wheels_context(lock, item.arches, folder, inputs))
    print_result(folders, [f"{item.target} {item.files} {item.output}" for item in folders])


def _refuse_file(selection: BuildSelection, part: ImagePart | None, *, docker: bool) -> None:
    if selection.arch and not selection.arches:
        message = "--arch all: a SIF or squashfs file can have only one architecture"
        raise InputError(message, hint="specify one architecture")
    if part is not None or docker:
        message = "--format sif and squashfs cannot be combined with --only or --builder"
        raise InputError(message, hint="omit --only and --builder")


def _rebuild(
    origin: str,
    arches: Sequence[Arch] | None,
    output: Path | None,
    form: BuildFormat,
    how: SessionOptions,
) -> None:
    source = rebuild.find_rebuild_origin(origin, plain_http=how.plain_http, offline=how.offline)
    built = rebuild.rebuild_image(source, arches, output, how, form=form)
    print_result([built], fold_lines([f"{built.target} {built.digest} {built.output}"]))


COMMAND = create_command(add_slurm_options("build", build))
