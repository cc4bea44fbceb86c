"""`imgbuild sbom`: what is inside an image, from its lock, for other tools to read."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from imgbuild.cli import options
from imgbuild.errors import InputError
from imgbuild.values import Arch, Digest, digest_of

if TYPE_CHECKING:
    from imgbuild.cli.locked import Chosen
    from imgbuild.project import Project


class Form(enum.StrEnum):
    """The document to write."""

    CYCLONEDX = "cyclonedx"
    SPDX = "spdx"

    @property
    def ending(self) -> str:
        """How its file's name ends."""
        return {"cyclonedx": ".cdx.json", "spdx": ".spdx.json"}[self.value]


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A bill of materials: whose it is, its own digest, and where it went or what it says."""

    target: str
    arch: Arch
    image: Digest
    digest: Digest
    output: Path | None = None
    document: Any = None


def sbom(
    names: options.Names = None,
    target: options.Targets = None,
    everything: options.Everything = False,
    arch: options.Arches = None,
    form: Annotated[
        Form,
        typer.Option(
            "--format", help="CycloneDX 1.6 or SPDX 2.3, in JSON.", rich_help_panel=options.WORK
        ),
    ] = Form.CYCLONEDX,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="A file for one bill, a folder for several; by default one goes to stdout.",
            rich_help_panel=options.WORK,
            show_default=False,
        ),
    ] = None,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Write the bill of materials of an image: wheels, Debian packages, licences, what needs what.

    It follows from committed files alone, so it is the same bytes everywhere, and those that
    `imgbuild push` attaches. Nothing is fetched or built.

    Examples:

        imgbuild sbom cu124-vllm > cu124-vllm.cdx.json

        imgbuild sbom 'cu130-*' --format spdx --output bills
    """
    from imgbuild import codec, project
    from imgbuild.cli import locked

    options.configure(json=json, quiet=quiet, verbose=verbose)
    found = project.find(matrix)
    chosen = locked.choose(
        found, options.wanted(names, target), everything=everything, arches=arch or []
    )
    several = sum(len(item.arches) for item in chosen) > 1
    if several and output is None and not json:
        message = "several bills of materials do not go to stdout"
        raise InputError(message, hint="name one target and --arch, or a folder with --output")
    made = []
    for bill, data in _bills(found, chosen, form):
        if output is None and not json:
            options.put(data.decode().removesuffix("\n"))
            return
        if output is None:
            made.append(msgspec.structs.replace(bill, document=msgspec.json.decode(data)))
            continue
        place = output / f"{bill.target}-{bill.arch}{form.ending}" if several else output
        codec.write_bytes(place, data)
        made.append(msgspec.structs.replace(bill, output=place))
    lines = [f"{item.target} {item.arch} {item.digest} {item.output}" for item in made]
    options.answer(made, lines, json=json)


def _bills(
    project: Project, chosen: Sequence[Chosen], form: Form
) -> Sequence[tuple[Written, bytes]]:
    from imgbuild.attest.sbom import cyclonedx, document, packages, spdx
    from imgbuild.plan import seal

    known = packages.read_packages(project.images)
    write = {Form.CYCLONEDX: cyclonedx.document, Form.SPDX: spdx.document}[form]
    found = []
    for item in chosen:
        sealed = seal.read_seal(project.images, item.lock)
        for arch in item.arches:
            made = document.bill(item.lock, sealed, arch, known)
            data = write(made)
            named = Written(
                target=made.target, arch=arch, image=made.digest, digest=digest_of(data)
            )
            found.append((named, data))
    return found
