"""Reads the dependency graphs of locked targets for `imgbuild why` and `imgbuild tree`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from imgbuild.attest.sbom import packages
from imgbuild.cli._selection import at_most_one, choose
from imgbuild.cli._targets import Filter
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import installed_wheels
from imgbuild.matrix import project_paths
from imgbuild.pipeline import locked_packages
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import Options, open_session
from imgbuild.show import dependencies
from imgbuild.show.dependencies import Graph
from imgbuild.values import Arch, of_machine


def locked(selection: Filter, names: Sequence[str]) -> list[tuple[Lock, Arch]]:
    """The locks of `names` (default: all), each with one architecture."""
    arch = at_most_one(selection.arches, "only one architecture can be shown")
    patterns = [*names, *selection.named]
    chosen = choose(
        selection.project(names), patterns, everything=not patterns, arches=[arch] if arch else []
    )
    return [(item.lock, of_machine(item.arches)[0]) for item in chosen]


def graphs(
    selection: Filter, chosen: Sequence[tuple[Lock, Arch]], *, offline: bool
) -> Iterator[tuple[Lock, Graph]]:
    """The graph of each lock.

    The project or the catalogue records the requirements of wheels. For other wheels, the matrix
    and the cache or the index are read.

    Raises FetchFailed if METADATA of a wheel cannot be read.
    """
    names = [lock.target for lock, _ in chosen]
    records = packages.recorded([project_paths.catalogue().images, selection.project(names).images])
    for lock, arch in chosen:
        wheels = installed_wheels(lock.arch[arch])
        lacking = [wheel for wheel in wheels if wheel.sha256 not in records]
        if lacking:
            inputs = open_inputs(open_session(selection.matrix, Options(offline=offline), names))
            records |= locked_packages.read(lock, lacking, inputs)
        requires = locked_packages.requirements(wheels, records)
        yield lock, dependencies.graph(lock, arch, requires)
