"""`imgbuild show --sbom`: what is inside an image, from its lock, for other tools to read."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from imgbuild import codec
from imgbuild.attest.sbom import cyclonedx, document, packages, spdx
from imgbuild.cli._output import answer, folded, put
from imgbuild.cli._selection import SelectedLock
from imgbuild.cli._targets import Selection
from imgbuild.errors import InputError
from imgbuild.plan import seal
from imgbuild.project import Project
from imgbuild.system.console import console
from imgbuild.values import Arch, Digest, digest_of


class Form(enum.StrEnum):
    """The document to write."""

    CYCLONEDX = "cyclonedx"
    SPDX = "spdx"

    @property
    def ending(self) -> str:
        """How its file's name ends."""
        return {"cyclonedx": ".cdx.json", "spdx": ".spdx.json"}[self.value]


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """An SBOM: its image, its own digest, and its path or its content."""

    target: str
    arch: Arch
    image: Digest
    digest: Digest
    output: Path | None = None
    document: Any = None


def show(selection: Selection, form: Form, output: Path | None) -> None:
    """Write the SBOM of each image, the same bytes that `imgbuild push` attaches."""
    project = selection.project()
    chosen = selection.locked(project)
    json = console.json
    several = sum(len(item.arches) for item in chosen) > 1
    if several and output is None and not json:
        message = "only one SBOM can be written to stdout"
        raise InputError(message, hint="name one target and --arch, or a folder with --output")
    made = []
    for sbom, data in _sboms(project, chosen, form):
        if output is None and not json:
            put(data.decode().removesuffix("\n"))
            return
        if output is None:
            made.append(msgspec.structs.replace(sbom, document=msgspec.json.decode(data)))
            continue
        place = output / f"{sbom.target}-{sbom.arch}{form.ending}" if several else output
        codec.write_bytes(place, data)
        made.append(msgspec.structs.replace(sbom, output=place))
    lines = [f"{item.target} {item.arch} {item.digest} {item.output}" for item in made]
    answer(made, folded(lines))


def _sboms(
    project: Project, chosen: Sequence[SelectedLock], form: Form
) -> Sequence[tuple[Written, bytes]]:
    known = packages.read_packages(project.images)
    write = {Form.CYCLONEDX: cyclonedx.document, Form.SPDX: spdx.document}[form]
    found = []
    for item in chosen:
        sealed = seal.read_seal(project.images, item.lock)
        for arch in item.arches:
            made = document.sbom(item.lock, sealed, arch, known)
            data = write(made)
            named = Written(
                target=made.target, arch=arch, image=made.digest, digest=digest_of(data)
            )
            found.append((named, data))
    return found
