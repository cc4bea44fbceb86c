"""`imgbuild why`: which packages need a package, and what bounds its version."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from imgbuild.cli import _dependencies
from imgbuild.cli._help import command
from imgbuild.cli._options import Offline, complete_target
from imgbuild.cli._output import aligned, answer, count, size_text
from imgbuild.cli._targets import Filter
from imgbuild.cli._verb import verb
from imgbuild.errors import ImgbuildError, InputError, NothingSelected
from imgbuild.lock.lock_file import Lock, lock_path
from imgbuild.matrix import constraints
from imgbuild.matrix.constraints import Constraint
from imgbuild.plan import image_digests
from imgbuild.plan.plan import plan
from imgbuild.project_paths import Project
from imgbuild.show import dependencies
from imgbuild.show.dependencies import PackageLayer, VersionReason
from imgbuild.values import Arch, normalize

PACKAGE = Annotated[str, typer.Argument(metavar="PACKAGE", help="A package, such as transformers.")]
TARGET = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="A locked target. Default: all that have the package, one line each.",
        autocompletion=complete_target,
        show_default=False,
    ),
]


@verb
def why(selection: Filter, package: PACKAGE, name: TARGET = None, offline: Offline = False) -> None:
    """Show why a package is in a target, and what bounds its version.

    Lists the requirements of the target and of the packages that need it, learned constraints with
    their evidence, and the cut-off day. Requirements are those of the locked wheels' METADATA,
    which `imgbuild lock` records; requirements that it could not record are read from the index.
    The last line lists the layers that change if only the version of this package changes, with
    their sizes.

    Examples:

        imgbuild why transformers cu124-vllm

        imgbuild why numpy

        imgbuild why torch cu130-vllm --arch arm64 --json
    """
    if name and lock_path(selection.project().images, package).exists():
        message = f"{package} is a target; the package is the first argument"
        raise InputError(message, hint=f"imgbuild why {name} {package}")
    package_name = normalize(package)
    chosen = _dependencies.locked(selection, [name] if name else [])
    several = len(chosen) > 1
    if several:
        chosen = [(lock, arch) for lock, arch in chosen if package_name in lock.arch[arch].versions]
        if not chosen:
            message = f"no locked target has the package {package}"
            raise NothingSelected(message, hint="imgbuild show TARGET --packages lists packages")
    else:
        lock, arch = chosen[0]
        dependencies.package_name(package, lock.arch[arch].versions, lock.target)
    learned = constraints.read(selection.project([name] if name else []).images)
    reasons = [
        msgspec.structs.replace(
            dependencies.why(graph, package_name, lock.as_of, learned),
            layer=_layer(selection.project([lock.target]), lock, graph.arch, package_name),
        )
        for lock, graph in _dependencies.graphs(selection, chosen, offline=offline)
    ]
    if several:
        rows = [
            (reason.target, reason.version, dependencies.in_short(reason)) for reason in reasons
        ]
        answer(reasons, aligned([("target", package_name, "bounds"), *rows]))
    else:
        answer(reasons, [line for reason in reasons for line in _lines(reason)])


def _lines(reason: VersionReason) -> Iterator[str]:
    yield f"{reason.package} {reason.version} in {reason.target} ({reason.arch})"
    rows = [("", *pair) for pair in dependencies.why_lines(reason)]
    yield from aligned(rows)
    if reason.bounds:
        yield from textwrap.wrap(
            f"all of these together: {reason.bounds}", 80, initial_indent="  ",
            subsequent_indent="    ", break_on_hyphens=False,
        )  # fmt: skip
    for constraint in reason.learned:
        yield from textwrap.wrap(
            _learned(constraint, reason), 80, initial_indent="  ", subsequent_indent="    ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip

    if reason.layer is not None:
        yield from textwrap.wrap(
            _layer_text(reason.package, reason.layer), 80, initial_indent="  ",
            subsequent_indent="    ", break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


def _learned(constraint: Constraint, reason: VersionReason) -> str:
    """A learned constraint: on the package, or why it does not have another version."""
    if constraint.package == reason.package and not constraint.covers(reason.version):
        return f"learned, of versions other than {reason.version}: {constraint}"
    return f"learned: {constraint}"


def _layer(project: Project, lock: Lock, arch: Arch, package: str) -> PackageLayer | None:
    """The layers that another version changes; None for a lock without current digests."""
    try:
        digests = image_digests.read_digests(project.images, lock)
    except ImgbuildError:
        return None
    return dependencies.layer_of(plan(lock, arch), digests.arch[arch].layers, package)


def _layer_text(package: str, layer: PackageLayer) -> str:
    others = f", with {count(layer.others, 'other package')}" if layer.others else ""
    size = f"{layer.size:,} bytes" + (f" ({size_text(layer.size)})" if layer.size > 1e6 else "")
    more = f" and {', '.join(layer.layers[1:])}" if layer.layers[1:] else ""
    return (
        f"layer {layer.position}, {layer.name}{others}: another version of {package} alone changes"
        f" it{more}, {size} to pull; all other layers stay"
    )


COMMAND = command(why)
