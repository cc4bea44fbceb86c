"""Implements `imgbuild diff`, which compares two images by packages or by files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from imgbuild.cli._help import create_command
from imgbuild.cli._options import (
    BUILDER,
    FULL,
    BuilderName,
    Jobs,
    Offline,
    PlainHttp,
    complete_target,
    process_count,
)
from imgbuild.cli._output import fold_lines, format_count, print_result
from imgbuild.cli._selection import at_most_one_arch
from imgbuild.cli._targets import FilterOptions
from imgbuild.cli._verb import create_verb, option
from imgbuild.errors import InputError
from imgbuild.matrix.select import Selected
from imgbuild.oci import image
from imgbuild.pipeline import docker_build
from imgbuild.pipeline.build import build_all, restrict_to_native
from imgbuild.pipeline.session import Session, SessionOptions, open_session
from imgbuild.registry.client import RegistryClient
from imgbuild.show import diff_sides, image_diff
from imgbuild.show.accepted import (
    AcceptedDifference,
    FileDifference,
    builder_differences,
    read_accepted,
)
from imgbuild.show.compare import ImageComparison, compare_images
from imgbuild.system.console import console
from imgbuild.values import Arch

SHOWN_DIFFERENCES = 40  # differences that are printed; --json has all


class ComparedImages(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of two images, or of the two builds of a target on one architecture."""

    name: str
    arch: Arch | None
    comparison: ImageComparison


def compare_files(
    names: Sequence[str],
    selection: FilterOptions,
    accept: Sequence[Path],
    work: SessionOptions,
    *,
    docker: bool,
) -> None:
    """Compare two images, or with `docker`, the builds of each target by imgbuild and by Docker.

    Exits with status 1 if a difference is not accepted.
    """
    accepted = [entry for path in accept for entry in read_accepted(path)]
    if docker:
        session = open_session(selection.matrix, work, names)
        selected = session.select_targets(
            names, everything=selection.everything, arches=selection.arches
        )
        accepted += builder_differences()
        compared = _compare_with_docker(session, selected, accepted, named=bool(selection.arches))
    else:
        compared = [_compare_pair(names, selection.arches, accepted)]
    for item in compared:
        _show_comparison(item.comparison)
    print_result(compared, fold_lines(map(_line, compared)))
    if not all(item.comparison.equal for item in compared):
        raise typer.Exit(1)


def _compare_pair(
    names: Sequence[str], arches: Sequence[Arch], accepted: Sequence[AcceptedDifference]
) -> ComparedImages:
    arch = at_most_one_arch(arches, "images can be compared for only one architecture")
    left, right = (image.read_image(Path(name), arch) for name in names)
    comparison = compare_images(left, right, accepted, names=(names[0], names[1]), reporter=console)
    return ComparedImages(name=f"{names[0]} {names[1]}", arch=arch, comparison=comparison)


def _compare_with_docker(
    session: Session,
    selected: Sequence[Selected],
    accepted: Sequence[AcceptedDifference],
    *,
    named: bool,
) -> list[ComparedImages]:
    comparisons = []
    for item in selected:
        target = item if named else restrict_to_native(item)
        folder = session.project.output_path(f"build/embedded/{item.name}")
        left_path = build_all(session, [target], folder)[0].output
        with docker_build.temporary_layout(session, target) as built:
            for arch in target.arches:
                left, right = (image.read_image(place, arch) for place in (left_path, built.path))
                with console.step(f"comparing {item.name} for {arch}"):
                    names = ("embedded", "docker")
                    comparison = compare_images(
                        left, right, accepted, names=names, reporter=console
                    )
                comparisons.append(ComparedImages(name=item.name, arch=arch, comparison=comparison))
    return comparisons


def _show_comparison(comparison: ImageComparison) -> None:
    """Print refused differences, and count accepted differences by reason."""
    reasons = Counter(each.reason for each in comparison.differences if each.reason)
    for reason, number in reasons.items():
        console.info(f"  accepted ({number}): {reason}")
    for entry in comparison.unused:
        console.info(f"  unused entry: {entry.field} of {entry.path}")
    for each in comparison.refused[:SHOWN_DIFFERENCES]:
        console.error(_difference(each, comparison))
    if len(comparison.refused) > SHOWN_DIFFERENCES:
        console.info(
            f"and {len(comparison.refused) - SHOWN_DIFFERENCES} more; to list all, add --json"
        )


def _difference(each: FileDifference, comparison: ImageComparison) -> str:
    sides = ((comparison.left.name, each.left), (comparison.right.name, each.right))
    values = "; ".join(f"{name} {value or 'none'}" for name, value in sides)
    return f"{each.path}: {each.field}: {values}"


def _line(item: ComparedImages) -> str:
    comparison = item.comparison
    accepted = len(comparison.differences) - len(comparison.refused)
    verdict = "equal" if comparison.equal else format_count(len(comparison.refused), "difference")
    words = [item.name, item.arch or "", verdict, format_count(comparison.left.paths, "path")]
    return " ".join([*(word for word in words if word), f"{accepted} accepted"])


NamesOption = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="A B | TARGET...",
        help="Two images, each a target, TARGET@REVISION with a git revision, a lock.json or its"
        " folder, or an image in a registry. With --files, two OCI layouts or archives,"
        " including archives from `docker save`. With --builder docker, two targets.",
        autocompletion=complete_target,
        show_default=False,
    ),
]
FilesOption = Annotated[
    bool,
    option(
        "--files",
        "Compare files and configuration instead of packages. Exit with status 1 if they differ.",
        often=True,
    ),
]
BuilderOption = Annotated[
    BuilderName,
    BUILDER(
        "With docker, build each target both with imgbuild and from the Dockerfile with Docker, "
        "and compare the files of the two images."
    ),
]
AcceptOption = Annotated[
    list[Path] | None,
    option(
        "--accept",
        "With --files, a YAML file that lists accepted differences by path, field and reason. Can "
        "be repeated. With --builder docker, imgbuild's default list also applies.",
        metavar="FILE",
    ),
]
FullOption = Annotated[
    bool,
    FULL("Lists all packages that differ."),
]


@create_verb
def diff(
    selection: FilterOptions,
    names: NamesOption = None,
    files: FilesOption = False,
    builder: BuilderOption = "embedded",
    accept: AcceptOption = None,
    full: FullOption = False,
    plain_http: PlainHttp = None,
    jobs: Jobs = 0,
    offline: Offline = False,
) -> None:
    """Compare two images: packages and bytes to download, or files.

    By default, prints for each architecture the size of the layers to download for image B,
    differences in CUDA, driver and GPUs, and the wheels and Debian packages that B adds, removes or
    changes. If more than 20 packages differ, lists only the main packages and counts the others;
    --full lists all packages. An image in a registry is read from its attached lock, without
    downloading layers.

    With --files, paths, types, modes, owners, link targets, attributes, contents and configuration
    must be equal. Times and the division into layers can differ. Nothing is unpacked to disk.

    Examples:

        imgbuild diff cu124-vllm cu130-vllm

        imgbuild diff cu124-vllm@main cu124-vllm --full

        imgbuild diff registry.example/rl:cu124-vllm-20261114 registry.example/rl:cu124-vllm

        imgbuild diff --files build/cu124-vllm image.tar --json

        imgbuild diff --builder docker cu124-vllm
    """
    docker = builder == "docker"
    all_names = [*(names or []), *selection.named_targets]
    if not docker and (len(all_names) != 2 or selection.everything):
        message = f"two images are required, {len(all_names)} given"
        hint = "pass two images, or targets with --builder docker"
        if len(all_names) == 1 and not files:
            hint = (
                f"to list earlier digests of a target, run: imgbuild show {all_names[0]} --history;"
                f" {hint}"
            )
        raise InputError(message, hint=hint)
    if full and (files or docker):
        message = "--full cannot be used with --files or --builder docker"
        raise InputError(
            message, hint="omit --full; to list every difference between files, add --json"
        )
    if files or docker:
        work = SessionOptions(jobs=process_count(jobs), offline=offline)
        compare_files(all_names, selection, accept or [], work, docker=docker)
        return
    if accept:
        message = "--accept requires --files or --builder docker"
        raise InputError(message, hint="add --files, or omit --accept")
    client = RegistryClient(plain_http=plain_http or (), reporter=console)
    old, new = (
        diff_sides.select_arches(
            diff_sides.read_side(name, client, selection.matrix, console), selection.arches
        )
        for name in all_names
    )
    changes = image_diff.diff_sides(old, new)
    print_result(
        changes, fold_lines((image_diff.diff_lines if full else image_diff.diff_summary)(changes))
    )
    if not full and not console.json and image_diff.is_short(changes):
        console.info("to list every package, add --full")


COMMAND = create_command(diff)
