"""Renders an Apptainer definition file."""

# A separate module: an output format.
from __future__ import annotations

from pathlib import Path

import msgspec

from imgbuild.render import templates
from imgbuild.render.dockerfile import DockerfileModel, OmittedFiles
from imgbuild.values import Arch


class ApptainerDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the template, in addition to those of the Dockerfile template.

    `name` is the name of the file and of the folders in its header.
    """

    name: str
    arch: Arch
    requirements: tuple[str, ...]
    omissions: tuple[OmittedFiles, ...]


def definition_text(dockerfile: DockerfileModel, arch: Arch, name: str, images: Path) -> str:
    """Return the definition file `name`.def of `dockerfile` on `arch`.

    `dockerfile` must have all architectures of the lock.
    """
    stage = next(stage for stage in dockerfile.stages if stage.arch == arch.oci)
    definition = ApptainerDefinition(
        name=name,
        arch=arch,
        requirements=tuple(
            sorted(each for install in stage.installs for each in install.requirements)
        ),
        omissions=tuple(each for install in stage.installs for each in install.omissions),
    )
    return templates.render_template(
        "apptainer.j2", dockerfile, images=images, stage=stage, all=definition
    )
