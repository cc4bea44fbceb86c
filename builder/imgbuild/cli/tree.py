"""Implements `imgbuild tree`, which shows the dependency tree of a locked target."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from imgbuild.cli import _dependencies
from imgbuild.cli._help import create_command
from imgbuild.cli._options import Offline, complete_target
from imgbuild.cli._output import fit_lines, print_result
from imgbuild.cli._selection import single_target
from imgbuild.cli._targets import FilterOptions
from imgbuild.cli._verb import create_verb, option
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


@create_verb
def tree(
    selection: FilterOptions,
    name: TARGET,
    package: PACKAGE = None,
    invert: Annotated[
        bool,
        option(
            "--invert",
            "Invert the tree: show the packages that require PACKAGE.",
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
    above. Requirements are read from the same sources as in `imgbuild why`. --json writes the
    packages and dependencies of the tree as flat lists.

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
    chosen = _dependencies.locks_of_targets(selection, [name])
    single_target([lock.target for lock, _ in chosen])
    lock, arch = chosen[0]
    if package is not None:
        package = dependencies.package_name(package, lock.arch[arch].versions, lock.target)
    [(_, graph)] = _dependencies.dependency_graphs(selection, chosen, offline=offline)
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
    print_result(shown, fit_lines([_printable_line(line) for line in drawn.tree_lines(roots)]))
    console.info(f"{len(reached)} of {len(graph.packages)} packages of {graph.target} {graph.arch}")


def _printable_line(line: str) -> str:
    """Convert a line of the tree to ASCII if stdout cannot encode its box-drawing characters."""
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return line.translate(str.maketrans("├└─│", "|`-|"))
    return line


COMMAND = create_command(tree)
