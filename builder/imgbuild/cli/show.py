"""`imgbuild show`: a target on one page, or the part of it that an option names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from imgbuild.cli import _show_env, _show_layers, _show_sbom
from imgbuild.cli._help import command
from imgbuild.cli._options import OUTPUT_PATH
from imgbuild.cli._output import GAP, aligned, answer, count, terminal_width
from imgbuild.cli._sessions import select_targets
from imgbuild.cli._targets import Selection
from imgbuild.cli._verb import option, verb
from imgbuild.errors import InputError
from imgbuild.lock import published
from imgbuild.lock.lock import read_lock
from imgbuild.matrix.select import Selected
from imgbuild.pipeline.session import Session, open_session
from imgbuild.plan.seal import read_seal
from imgbuild.show import page, status, table
from imgbuild.show.page import Page
from imgbuild.system import files
from imgbuild.system.console import console
from imgbuild.values import Arch, Condition

HEAD = ("package", "version", "file")
Layers = Annotated[bool, option("--layers", "The layers, in order, with sizes.", often=True)]
Variables = Annotated[
    bool,
    option(
        "--variables", "The environment variables, with the reason and source of each.", often=True
    ),
]
Packages = Annotated[
    bool, option("--packages", "The wheels and Debian packages, with versions.", often=True)
]
Sbom = Annotated[
    _show_sbom.Form | None,
    option("--sbom", "The SBOM as JSON: CycloneDX 1.6 or SPDX 2.3.", often=True),
]


class PackageList(msgspec.Struct, frozen=True, kw_only=True):
    """The packages of an image: wheels and Debian packages, each name → version."""

    target: str
    arch: Arch
    wheels: dict[str, str]
    debs: dict[str, str]


@verb
def show(
    selection: Selection,
    layers: Layers = False,
    variables: Variables = False,
    packages: Packages = False,
    sbom: Sbom = None,
    output: Annotated[
        Path | None, OUTPUT_PATH("With --sbom: a file, or a folder for several. Default: stdout.")
    ] = None,
) -> None:
    """Show a target: versions, digest, sizes, tests, commands.

    Nothing is fetched or built. One of --layers, --variables, --packages and --sbom shows that part
    instead.

    --layers has the columns position, name, MB to pull, MB unpacked (- if a registry does not say),
    contents, first digits of the digest; with --json the whole digest and every file of each layer.

    --variables lists the variables of the image, as its lock has them, then those that are set when
    it runs: by its entry point, under Apptainer, by job scripts for Slurm, by smoke tests. A source
    is a URL, PACKAGE==VERSION PATH:LINE of a wheel, or a file of the repository. If the image has
    another version, it follows with the place that it is from: pins of the target, or the lock.

    --sbom writes the same bytes on every machine, those that `imgbuild push` attaches.

    Examples:

        imgbuild show cu124-vllm

        imgbuild show cu130-vllm --layers --arch arm64

        imgbuild show cu130-vllm --variables --json

        imgbuild show cu124-vllm --sbom cyclonedx > cu124-vllm.cdx.json

        imgbuild show 'cu130-*' --sbom spdx --output sboms
    """
    given = {
        "--layers": layers,
        "--variables": variables,
        "--packages": packages,
        "--sbom": sbom is not None,
    }
    parts = [flag for flag, is_given in given.items() if is_given]
    if len(parts) > 1:
        message = f"{' and '.join(parts)} cannot be combined"
        raise InputError(message, hint="give one of them")
    if output is not None and sbom is None:
        message = "--output needs --sbom"
        raise InputError(message, hint="redirect stdout instead: imgbuild show TARGET > FILE")
    if output is not None:
        files.require_writable([output], hint=files.OUTPUT_HINT)
    if layers:
        _show_layers.show(selection)
    elif variables:
        _show_env.show(selection)
    elif packages:
        _packages(selection)
    elif sbom is not None:
        _show_sbom.show(selection, sbom, output)
    else:
        _pages(selection)


def _pages(selection: Selection) -> None:
    session = open_session(selection.matrix)
    found = [_page(session, item) for item in select_targets(selection, session)]
    lines: list[str] = []
    for each in found:
        lines += ["", ""] if lines else []
        lines += page.lines(each)
    answer(found, lines)


def _page(session: Session, item: Selected) -> Page:
    project, matrix = session.project, session.matrix
    found = status.state(project, matrix, item.name)
    [row] = table.rows(matrix, published.shown(matrix, [item]))
    row = msgspec.structs.replace(row, state=str(found), reasons=found.reasons)
    if found.condition is not Condition.LOCKED:
        return page.page(row, None, None, matrix.registry)
    lock = read_lock(project.images, item.name)
    sealed = read_seal(project.images, lock)
    return page.page(table.shown(project, row), lock, sealed, matrix.registry)


def _packages(selection: Selection) -> None:
    chosen = selection.locked(selection.project())
    found: list[PackageList] = []
    lines: list[str] = []
    for item in chosen:
        for arch in item.arches:
            locked = item.lock.arch[arch]
            made = PackageList(
                target=item.lock.target,
                arch=arch,
                wheels={wheel.package: wheel.version for wheel in locked.wheels},
                debs={deb.package: deb.version for deb in locked.debs},
            )
            rows: list[Sequence[str]] = [HEAD]
            rows += [(one.package, one.version, Path(one.file).name) for one in locked.wheels]
            rows += [(one.package, one.version, Path(one.file).name) for one in locked.debs]
            lines += _with_files(rows)
            found.append(made)
            console.info(
                f"{made.target} {arch}: {count(len(locked.wheels), 'wheel')},"
                f" {count(len(locked.debs), 'Debian package')}"
            )
    answer(found, lines)


def _with_files(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as a table; if it is too wide, each file on a line of its own, to be copied."""
    table = aligned(rows, width=sys.maxsize)
    if max(map(len, table)) <= terminal_width():
        return table
    names = aligned([row[:-1] for row in rows], width=sys.maxsize)
    return [
        line for name, row in zip(names, rows, strict=True) for line in (name, f"{GAP}{row[-1]}")
    ]


COMMAND = command(show)
