"""Reads the dependency graphs of locked targets for `imgbuild why` and `imgbuild tree`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from imgbuild.attest.sbom import packages
from imgbuild.cli._selection import at_most_one_arch, choose_locks
from imgbuild.cli._targets import FilterOptions
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import installed_wheels
from imgbuild.matrix import project_paths
from imgbuild.pipeline import locked_packages
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import SessionOptions, open_session
from imgbuild.show import dependencies
from imgbuild.show.dependencies import DependencyGraph
from imgbuild.values import Arch, native_arch


def locks_of_targets(selection: FilterOptions, names: Sequence[str]) -> list[tuple[Lock, Arch]]:
    """Read the locks of the targets `names` (default: all), each with one architecture."""
    arch = at_most_one_arch(selection.arches, "only one architecture can be shown")
    patterns = [*names, *selection.named_targets]
    chosen = choose_locks(
        selection.project(names), patterns, everything=not patterns, arches=[arch] if arch else []
    )
    return [(item.lock, native_arch(item.arches)[0]) for item in chosen]


def dependency_graphs(
    selection: FilterOptions, chosen: Sequence[tuple[Lock, Arch]], *, offline: bool
) -> Iterator[tuple[Lock, DependencyGraph]]:
    """Yield each lock with its dependency graph.

    Requirements of wheels are read from the records of the project and the catalogue. For a wheel
    without a record, METADATA is read from the cache or from an index of the matrix. Raises
    FetchFailed if METADATA cannot be read.
    """
    names = [lock.target for lock, _ in chosen]
    records = packages.recorded_packages(
        [project_paths.catalogue_project().images, selection.project(names).images]
    )
    for lock, arch in chosen:
        wheels = installed_wheels(lock.arch[arch])
        lacking = [wheel for wheel in wheels if wheel.sha256 not in records]
        if lacking:
            inputs = open_inputs(
                open_session(selection.matrix, SessionOptions(offline=offline), names)
            )
            records |= locked_packages.read_package_records(lock, lacking, inputs)
        requires = locked_packages.package_requirements(wheels, records)
        yield lock, dependencies.dependency_graph(lock, arch, requires)
