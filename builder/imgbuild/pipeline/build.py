"""Builds targets from their locks as OCI layouts or archives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from imgbuild.assemble import image_layout
from imgbuild.assemble.image_layout import BuiltImage
from imgbuild.cache import prune
from imgbuild.errors import InputError
from imgbuild.matrix.select import Selected
from imgbuild.oci import archive
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import Session
from imgbuild.plan import current
from imgbuild.render import contexts
from imgbuild.system import files
from imgbuild.system.amounts import format_count, size_text
from imgbuild.system.console import console
from imgbuild.values import native_arch


def build_all(
    session: Session,
    selected: Sequence[Selected],
    output: Path | None,
    *,
    form: str = "oci",
    only_base: bool = False,
) -> list[BuiltImage]:
    """Build each target from its lock.

    Raises LockStale if a lock is out of date.
    """
    refuse_one_file(selected, output, form)
    files.require_writable(
        [session.project.output_path("build")] if output is None else [output],
        hint=files.OUTPUT_HINT,
    )
    inputs = open_inputs(session)
    made = []
    for item in selected:
        locked = current.read_current(session.project, session.matrix, item.name)
        own = session.project.output(item.name)
        if only_base:
            own = contexts.base_folder(session.project, item.name)
        place = output_path(own, item.name, output, several=len(selected) > 1, form=form)
        folder = place if form == "oci" else own
        with console.step(f"building {item.name} for {', '.join(item.arches)}"):
            built = image_layout.build_layout(
                *locked,
                item.arches,
                folder,
                inputs,
                processes=session.options.jobs,
                verify=session.options.verify,
                only_base=only_base,
            )
        made.append(deliver_image(built, folder, place, form, item.name))
    prune.trim_cache(inputs.store)
    return made


def restrict_to_native(item: Selected) -> Selected:
    """Restrict a target with several architectures to the architecture of this machine."""
    arches = native_arch(item.arches)
    if len(arches) < len(item.arches):
        console.info(
            f"{item.name}: building only for {arches[0]}, the architecture of this machine; "
            "to build for others, add --arch"
        )
    return msgspec.structs.replace(item, arches=arches)


def refuse_one_file(selected: Sequence[Selected], output: Path | None, form: str) -> None:
    """Raise InputError if `output` is a file and several targets are selected."""
    if output is not None and form != "oci" and len(selected) > 1:
        message = f"--output {output} is a file, but {len(selected)} targets are selected"
        raise InputError(message, hint="select one target, or omit --output")


def output_path(own: Path, name: str, output: Path | None, *, several: bool, form: str) -> Path:
    """Return the output path for image `name`: `own`, `output`, or a folder in `output`."""
    suffix = "" if form == "oci" else f".{form}.tar"
    if output is None:
        return own.with_name(own.name + suffix)
    return output / f"{name}{suffix}" if several else output


def deliver_image(built: BuiltImage, folder: Path, place: Path, form: str, name: str) -> BuiltImage:
    """Write the layout in `folder` to `place` if `form` is an archive, and report the result."""
    if form != "oci":
        archive.write_archive(folder, place, form, name, reporter=console)
        built = msgspec.structs.replace(built, output=place)
    report_built(built)
    return built


def report_built(built: BuiltImage) -> None:
    """Report the size and path of an image, and the number of assembled layers."""
    work = (
        "nothing to do"
        if built.unchanged
        else f"{format_count(built.assembled, 'layer')} assembled"
    )
    console.info(f"{built.target}: {size_text(built.size)} in {built.output}, {work}")
