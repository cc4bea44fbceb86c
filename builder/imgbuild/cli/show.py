"""Implements `imgbuild show`, which shows a target, or its layers, packages, variables or SBOM."""

from __future__ import annotations

import itertools
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from imgbuild import codec
from imgbuild.attest.sbom import cyclonedx, document, packages, spdx
from imgbuild.cli._help import create_command
from imgbuild.cli._options import OUTPUT_PATH, PACKAGES
from imgbuild.cli._output import (
    align_columns,
    fold_lines,
    format_count,
    print_result,
    terminal_width,
    write_stdout,
)
from imgbuild.cli._selection import SelectedLock
from imgbuild.cli._sessions import select_targets
from imgbuild.cli._show_parts import show_history, show_layers, show_tests, side_by_side_lines
from imgbuild.cli._targets import SelectionOptions
from imgbuild.cli._verb import create_verb, option
from imgbuild.errors import InputError
from imgbuild.lock import published
from imgbuild.lock.lock_file import lock_path, read_lock
from imgbuild.matrix.project_paths import CATALOGUE, Project
from imgbuild.matrix.select import Selected
from imgbuild.pipeline.session import Session, open_session
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import read_digests
from imgbuild.render.readme import readme_text
from imgbuild.show import guide, image_environment, licence_counts, page, status, table
from imgbuild.show.guide import TargetGuide
from imgbuild.show.image_environment import ImageVariable, RuntimeVariable, TargetEnvironment
from imgbuild.show.page import TargetPage
from imgbuild.system import files
from imgbuild.system.amounts import wrap_paragraph
from imgbuild.system.console import console
from imgbuild.system.control_characters import escape_control
from imgbuild.values import Arch, Condition, Digest, digest_of, native_arch_first

VARIABLES_WIDTH = 80
INDENT = "    "
WORDS = {
    "entry point": "set by the entry point of the image if the current value is unsuitable",
    "SIF": "set under Apptainer, by SIF files from imgbuild build --format sif",
    "slurm": "set by the job scripts of imgbuild slurm",
    "smoke": "set by imgbuild smoke, for each case",
    "root folder with GPUs": "set by imgbuild smoke and doctor, in a root folder with GPUs",
}


def show_variables(selection: SelectionOptions) -> None:
    """Print the variables of the images with value, reason, source and origin."""
    session = open_session(selection.matrix, names=selection.named_targets)
    selected = select_targets(selection, session)
    images = session.project.images
    environments = []
    for item in selected:
        has = lock_path(images, item.name).exists()
        lock = read_lock(images, item.name) if has else None
        environment = image_environment.target_environment(
            session.matrix, item.name, item.arches, lock
        )
        _warn_of_stale_lock(environment)
        environments.append(environment)
    print_result(
        environments, [line for environment in environments for line in _lines(environment)]
    )


def _warn_of_stale_lock(environment: TargetEnvironment) -> None:
    """Warn if the lock is stale or missing."""
    if not environment.locked:
        console.warn(f"{environment.target} is not locked; the values are from the matrix")
    differing = [item.name for item in environment.image if item.differs]
    if differing:
        again = f"imgbuild lock {environment.target}"
        console.warn(
            f"{environment.target}: the lock is stale, because the matrix has other values for "
            f"{', '.join(differing)}; run {again}"
        )


def _lines(environment: TargetEnvironment) -> Iterator[str]:
    arches = ", ".join(environment.arch)
    variables = format_count(len(environment.image), "variable")
    yield f"{environment.target} ({arches}): {variables} in the image"
    for item in environment.image:
        yield ""
        yield from _setting(item)
    for by, rows in itertools.groupby(environment.late, lambda item: item.by):
        yield ""
        yield from textwrap.wrap(f"{environment.target}, at run time: {WORDS[by]}", VARIABLES_WIDTH)
        # Variables that are set together are shown together.
        for _, same in itertools.groupby(rows, lambda item: (item.value, item.when, item.reason)):
            yield ""
            yield from _runtime_lines(list(same))


def _setting(item: ImageVariable) -> Iterator[str]:
    yield escape_control(f"{item.name}={shlex.quote(item.value)}")
    if item.differs:
        yield from _wrap_text(f"stale: {item.differs}")
    if item.reason:
        yield from _wrap_text(item.reason)
    yield from _wrap_text(f"set by: {item.by}")
    yield from _sources(item.source)


def _runtime_lines(same: Sequence[RuntimeVariable]) -> Iterator[str]:
    first = same[0]
    yield from textwrap.wrap(", ".join(item.name for item in same), VARIABLES_WIDTH)
    yield from _wrap_text(f"value: {first.value or '(empty)'}")
    if first.when:
        yield from _wrap_text(f"when: {first.when}")
    yield from _wrap_text(first.reason)
    yield from _sources(first.source)


def _sources(sources: Sequence[str]) -> Iterator[str]:
    for source in sources:
        line = f"source: {source}"
        yield from _wrap_text(line, "  ") if " " in source else [f"{INDENT}{escape_control(line)}"]


def _wrap_text(text: str, more: str = "") -> list[str]:
    return wrap_paragraph(escape_control(text), VARIABLES_WIDTH, INDENT, INDENT + more)


Form = Literal["cyclonedx", "spdx"]  # of an SBOM
ENDINGS: Mapping[Form, str] = {"cyclonedx": ".cdx.json", "spdx": ".spdx.json"}


class WrittenSbom(msgspec.Struct, frozen=True, kw_only=True):
    """An SBOM of an image: the digest of the SBOM, and the path or the content."""

    target: str
    arch: Arch
    image: Digest
    digest: Digest
    output: Path | None = None
    document: Any = None


def show_sbom(selection: SelectionOptions, form: Form, output: Path | None) -> None:
    """Write the SBOM of each image, with the same bytes as `imgbuild push` attaches."""
    project = selection.project()
    chosen = selection.selected_locks(project)
    json = console.json
    several = sum(len(item.arches) for item in chosen) > 1
    if several and output is None and not json:
        message = "stdout can contain only one SBOM"
        raise InputError(message, hint="specify one target and --arch, or a folder with --output")
    written = []
    for sbom, data in _sboms(project, chosen, form):
        if output is None and not json:
            write_stdout(data.decode().removesuffix("\n"))
            return
        if output is None:
            written.append(msgspec.structs.replace(sbom, document=msgspec.json.decode(data)))
            continue
        place = output / f"{sbom.target}-{sbom.arch}{ENDINGS[form]}" if several else output
        codec.write_bytes(place, data)
        written.append(msgspec.structs.replace(sbom, output=place))
    lines = [f"{item.target} {item.arch} {item.digest} {item.output}" for item in written]
    print_result(written, fold_lines(lines))


def _sboms(
    project: Project, chosen: Sequence[SelectedLock], form: Form
) -> Sequence[tuple[WrittenSbom, bytes]]:
    recorded = packages.read_packages(project.images)
    write = {"cyclonedx": cyclonedx.cyclonedx_document, "spdx": spdx.spdx_document}[form]
    written = []
    for item in chosen:
        target_digests = image_digests.read_digests(project.images, item.lock)
        for arch in item.arches:
            sbom = document.create_sbom(item.lock, target_digests, arch, recorded)
            data = write(sbom)
            named = WrittenSbom(
                target=sbom.target, arch=arch, image=sbom.digest, digest=digest_of(data)
            )
            written.append((named, data))
    return written


HEAD = ("package", "version", "file")
Layers = Annotated[
    bool, option("--layers", "Show the layers in order, with their sizes.", often=True)
]
History = Annotated[
    bool,
    option("--history", "Show earlier digests, from the git history of the checkout.", often=True),
]
Tests = Annotated[bool, option("--tests", "Show test results by GPU.", often=True)]
Variables = Annotated[
    bool,
    option(
        "--variables",
        "Show the environment variables, with their reasons and sources.",
        often=True,
    ),
]
Packages = Annotated[bool, PACKAGES()]
GuideFlag = Annotated[
    bool,
    option("--guide", "Show how to use the image: its README, size and test results.", often=True),
]
Sbom = Annotated[
    Form | None,
    option("--sbom", "Write the SBOM as JSON, in CycloneDX 1.6 or SPDX 2.3.", often=True),
]


class PackageList(msgspec.Struct, frozen=True, kw_only=True):
    """The packages of an image: the versions of wheels and Debian packages by name.

    `cpython` is the version of a standalone Python, or "" if Python is part of the base. `licences`
    are those that wheels declare, or "".
    """

    target: str
    arch: Arch
    wheels: dict[str, str]
    debs: dict[str, str]
    cpython: str = ""
    licences: dict[str, str] = {}


@create_verb
def show(
    selection: SelectionOptions,
    layers: Layers = False,
    variables: Variables = False,
    packages: Packages = False,
    guide: GuideFlag = False,
    history: History = False,
    tests: Tests = False,
    sbom: Sbom = None,
    output: Annotated[
        Path | None,
        OUTPUT_PATH("Applies to --sbom: a file, or a folder for several targets. Default: stdout."),
    ] = None,
) -> None:
    """Show the versions, digest, size and tests of a target.

    Two targets are shown side by side. Nothing is downloaded or built. --layers, --variables,
    --packages, --guide, --history, --tests and --sbom show other information instead.

    On a terminal, --layers draws the download sizes as bars. Otherwise, it prints the columns
    position, name, MB to pull, MB unpacked ("-" if unknown), contents, and the first digits of the
    digest. --json includes complete digests and every file in each layer.

    --history lists the commits of the checkout that changed the digest of the target. --tests lists
    the latest run of each tier of smoke tests on each kind of GPU, and the names of the failed,
    passed and skipped cases, with the reasons. Runs of other images with the same configuration are
    included, with the digests of these images. The column "in" shows how the image was run: docker,
    podman, apptainer, or root (an unpacked root folder, without an engine).

    --variables lists the variables in the image, as recorded in the lock, and the variables that
    are set at run time by the entry point, under Apptainer, by Slurm job scripts and by smoke
    tests. The source of a variable is a URL, a line of a file in a wheel (PACKAGE==VERSION
    PATH:LINE), or a file of the repository. If the image has a different version of the package,
    this version and its origin (pins or lock) are shown.

    --guide prints how to use the image as Markdown (first commands, missing features, and how to
    add a package), with its digest, download size and test results. The image has most of it in
    /opt/imgbuild/README, without corrections that were made after it was locked.

    --sbom writes the SBOM that `imgbuild push` attaches, with the same bytes on every machine.

    Examples:

        imgbuild show cu124-vllm

        imgbuild show cu124-vllm cu130-vllm

        imgbuild show cu130-vllm --layers --arch arm64

        imgbuild show cu130-verl0.9 --tests

        imgbuild show cu130-vllm --variables --json

        imgbuild show cu130-verl0.9 --guide

        imgbuild show cu124-vllm --sbom cyclonedx > cu124-vllm.cdx.json

        imgbuild show 'cu130-*' --sbom spdx --output sboms
    """
    given = {
        "--layers": layers,
        "--variables": variables,
        "--packages": packages,
        "--guide": guide,
        "--history": history,
        "--tests": tests,
        "--sbom": sbom is not None,
    }
    parts = [flag for flag, is_given in given.items() if is_given]
    if len(parts) > 1:
        message = f"{' and '.join(parts)} cannot be combined"
        raise InputError(message, hint="omit all but one of these options")
    if output is not None and sbom is None:
        message = "--output requires --sbom"
        raise InputError(message, hint="redirect stdout instead: imgbuild show TARGET > FILE")
    if output is not None:
        files.require_writable([output], hint=files.OUTPUT_HINT)
    if layers:
        show_layers(selection)
    elif variables:
        show_variables(selection)
    elif packages:
        _packages(selection)
    elif guide:
        _guides(selection)
    elif history:
        show_history(selection)
    elif tests:
        show_tests(selection)
    elif sbom is not None:
        show_sbom(selection, sbom, output)
    else:
        _pages(selection)


def _pages(selection: SelectionOptions) -> None:
    session = open_session(selection.matrix, names=selection.named_targets)
    pages = [
        _native_image_first(_page(session, item)) for item in select_targets(selection, session)
    ]
    order = list(selection.named_targets)
    if len(pages) == 2 and {each.row.target for each in pages} == set(order):
        pages.sort(key=lambda each: order.index(each.row.target))
    if len(pages) == 2 and not console.json:
        print_result(pages, side_by_side_lines(*pages))
        return
    lines: list[str] = []
    for each in pages:
        lines += ["", ""] if lines else []
        lines += page.page_lines(each)
    print_result(pages, lines)


def _native_image_first(shown: TargetPage) -> TargetPage:
    images = {image.arch: image for image in shown.images}
    ordered = tuple(images[arch] for arch in native_arch_first(images))
    return msgspec.structs.replace(shown, images=ordered)


def _page(session: Session, item: Selected) -> TargetPage:
    project, matrix = session.project, session.matrix
    state = status.target_state(project, matrix, item.name)
    [row] = table.create_rows(matrix, published.shown_targets(matrix, [item]))
    row = msgspec.structs.replace(row, state=str(state), reasons=state.reasons)
    if state.condition is not Condition.LOCKED:
        return page.target_page(row, None, None, matrix.registry, writable=project.writable)
    lock = read_lock(project.images, item.name)
    target_digests = read_digests(project.images, lock)
    return page.target_page(table.add_images(project, row), lock, target_digests, matrix.registry)


def target_guide(session: Session, item: Selected) -> TargetGuide:
    """Return the guide of a locked target. Raises LockStale if the target is not locked."""
    images = session.project.images
    lock = read_lock(images, item.name)
    text = readme_text(lock, item.target, images)
    return TargetGuide(
        readme=guide.image_readme(text, lock, item.target),
        page=_page(session, item),
        corrects_image=lock.settings.readme not in (msgspec.UNSET, text),
    )


def _guides(selection: SelectionOptions) -> None:
    session = open_session(selection.matrix, names=selection.named_targets)
    guides = [target_guide(session, item) for item in select_targets(selection, session)]
    for each in guides:
        if not each.page.images:
            console.warn(f"{each.page.row.target}: {each.page.row.state}")
    lines: list[str] = []
    for each in guides:
        lines += ["", ""] if lines else []
        lines += guide.guide_lines(each)
    print_result(guides, lines)


def _packages(selection: SelectionOptions) -> None:
    chosen = selection.selected_locks(selection.project())
    folders = dict.fromkeys((selection.project().images, CATALOGUE / "images"))
    package_lists: list[PackageList] = []
    tables: list[tuple[str, list[str]]] = []
    for item in chosen:
        for arch in native_arch_first(item.arches):
            locked = item.lock.arch[arch]
            package_list = PackageList(
                target=item.lock.target,
                arch=arch,
                wheels=dict(sorted(locked.versions.items())),
                debs={deb.package: deb.version for deb in locked.debs},
                cpython=locked.python.version if locked.python else "",
                licences=licence_counts.wheel_licences(locked, folders),
            )
            rows: list[Sequence[str]] = [HEAD]
            files = {each.package: each.file for each in locked.wheels}
            files |= {each.package: each.wheel.file for each in locked.built}
            rows += [
                (package, version, Path(files[package]).name)
                for package, version in package_list.wheels.items()
            ]
            if locked.python:
                rows.append(("cpython", locked.python.version, locked.python.file))
            rows += [(deb.package, deb.version, Path(deb.file).name) for deb in locked.debs]
            tables.append((f"{item.lock.target} {arch}", _fitting_table(rows)))
            package_lists.append(package_list)
            console.info(
                f"{package_list.target} {arch}: {format_count(len(files), 'wheel')},"
                f" {format_count(len(locked.debs), 'Debian package')}"
            )
            counts = licence_counts.count_licences(package_list.licences)
            console.info(f"licences of the wheels: {counts}; to list them, add --json")
    if len(tables) == 1:
        lines = tables[0][1]
    else:  # a title above each, and an empty line between them
        lines = [line for title, table in tables for line in ("", title, *table)][1:]
    print_result(package_lists, lines)


def _fitting_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as a table, without file names if the terminal is too narrow."""
    table = align_columns(rows, width=sys.maxsize)
    if max(map(len, table)) <= terminal_width():
        return table
    console.info(
        "to see file names, use a wider terminal, or run: imgbuild show TARGET --packages | cat"
    )
    return align_columns([row[:-1] for row in rows])


COMMAND = create_command(show)
