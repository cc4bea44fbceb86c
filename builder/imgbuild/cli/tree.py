"""Implements `imgbuild tree`, which shows the dependency tree of a locked target."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from imgbuild.cli import _dependencies
from imgbuild.cli._help import command
from imgbuild.cli._options import Offline, complete_target
from imgbuild.cli._output import answer, fitted
from imgbuild.cli._selection import single
from imgbuild.cli._targets import Filter
from imgbuild.cli._verb import option, verb
from imgbuild.errors import InputError
from imgbuild.show import dependencies
from imgbuild.system.console import console

TARGET = Annotated[
    str,
    typer.Argument(metavar="TARGET", help="A locked target.", autocompletion=complete_target),
]
PACKAGE = Annotated[
    str | None,
    typer.Argument(
        metavar="PACKAGE",
        help="The root of the tree. Default: the packages that the target declares.",
        show_default=False,
    ),
]


@verb
def tree(
    selection: Filter,
    name: TARGET,
    package: PACKAGE = None,
    invert: Annotated[
        bool,
        option(
            "--invert",
            "Show the packages that require PACKAGE instead of its dependencies.",
            often=True,
        ),
    ] = False,
    depth: Annotated[
        int | None,
        option(
            "--depth",
            "The maximum depth of the tree.",
            metavar="N",
            min=0,
            often=True,
            setting=True,
        ),
    ] = None,
    offline: Offline = False,
) -> None:
    """Show the dependency tree of a target.

    Each line shows the requirement in brackets. (*) marks a package whose dependencies are listed
    above. Requirements are the same as for `imgbuild why`. --json writes the packages and
    dependencies of the tree as flat lists.

    Examples:

        imgbuild tree cu124-vllm --depth 1

        imgbuild tree cu124-vllm trl

        imgbuild tree cu124-vllm numpy --invert --depth 2
    """
    if invert and package is None:
        message = "--invert requires PACKAGE"
        raise InputError(
            message, hint=f"specify a package, for example: imgbuild tree {name} numpy --invert"
        )
    chosen = _dependencies.locked(selection, [name])
    single([lock.target for lock, _ in chosen])
    lock, arch = chosen[0]
    if package is not None:
        package = dependencies.package_name(package, lock.arch[arch].versions, lock.target)
    [(_, graph)] = _dependencies.graphs(selection, chosen, offline=offline)
    drawn = dependencies.DependencyTree(graph, invert=invert, depth=depth)
    roots = [package] if package is not None else sorted(graph.roots)
    reached = drawn.reached(roots)
    shown = msgspec.structs.replace(
        graph,
        packages={key: value for key, value in graph.packages.items() if key in reached},
        dependencies=tuple(
            dependency
            for dependency in graph.dependencies
            if {dependency.package, dependency.needs} <= reached
        ),
    )
    answer(shown, fitted([_printable(line) for line in drawn.lines(roots)]))
    console.info(f"{len(reached)} of {len(graph.packages)} packages of {graph.target} {graph.arch}")


def _printable(line: str) -> str:
    """Convert a line of the tree to ASCII if stdout does not support the characters of branches."""
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return line.translate(str.maketrans("├└─│", "|`-|"))
    return line


COMMAND = command(tree)
