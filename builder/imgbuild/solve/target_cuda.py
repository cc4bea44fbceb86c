"""Finds constraints for a target's CUDA release, and checks chosen packages."""

# A separate module: size.
from __future__ import annotations

from collections.abc import Mapping, Sequence

from packaging.requirements import Requirement
from packaging.version import Version

from imgbuild.errors import NoSolution
from imgbuild.index import cuda_releases
from imgbuild.index.catalogue import FileCatalogue, OfferedFile
from imgbuild.index.pages import IndexFile
from imgbuild.index.remote_wheel import read_wheel_metadata
from imgbuild.solve import refusal
from imgbuild.solve.open_torch import OpenTorch
from imgbuild.solve.problem import SolveProblem


def find_cuda_release(
    problem: SolveProblem, catalogue: FileCatalogue, open_torch: OpenTorch | None
) -> cuda_releases.CudaRelease:
    """Return the newest patch release of the target's CUDA release that torch allows.

    `open_torch` is the torch of a project that does not pin it. Raises NoSolution if torch has no
    CUDA on this architecture, or allows no release.
    """
    name, target, context = problem.name, problem.target, problem.context
    torch: list[Requirement] = []
    pin = target.pins.get("torch") or (open_torch.version if open_torch is not None else None)
    offer = pinned_file(catalogue, "torch", pin) if pin else None
    if offer is not None:
        torch_metadata = read_wheel_metadata(offer.wheel, catalogue.ranges, context.store)
        torch = cuda_releases.active_requirements(torch_metadata, catalogue.rules.tags.markers)
        refuse_cpu_build(problem, catalogue, offer.wheel, torch)
    files = catalogue.indexes.files(cuda_releases.METAPACKAGE)
    wheels = {file.version: file for file in files if file.is_wheel and file.version is not None}
    release, reasons = cuda_releases.first_compatible(
        cuda_releases.releases_of_minor(wheels, target.cuda),
        lambda version: read_wheel_metadata(wheels[version], context.http, context.store),
        torch,
    )
    if release is None:
        message = f"{name}: no release of CUDA {target.cuda} is compatible with torch {pin}"
        raise NoSolution(
            message,
            reasons=reasons or (f"{cuda_releases.METAPACKAGE} has no release {target.cuda}",),
            hint="set the target's CUDA version to the CUDA release of torch",
        )
    components = len(release.components)
    context.reporter.detail(
        f"CUDA {release.version}: {components} components are pinned to this release"
    )
    for reason in reasons:
        context.reporter.detail(f"skipped {reason}")
    return release


def pinned_file(catalogue: FileCatalogue, package: str, pin: str) -> OfferedFile | None:
    """Return the best file of the pinned version.

    A pin without a local part also matches a version with a local part, such as `2.6.0+cu124`.
    """
    requested = Version(pin)
    versions = {
        offer.wheel.version
        for offer in catalogue.offered_files(package)
        if offer.wheel.version is not None
        and requested in (offer.wheel.version, Version(offer.wheel.version.public))
    }
    return catalogue.chosen(package, max(versions)) if versions else None


def refuse_cpu_build(
    problem: SolveProblem,
    catalogue: FileCatalogue,
    torch: IndexFile,
    requires: Sequence[Requirement],
) -> None:
    """Raise NoSolution if the torch wheel is a CPU build or for another CUDA release."""
    version, target = torch.version, problem.target
    index = catalogue.indexes.place("torch").name
    arch = catalogue.rules.tags.arch.wheel
    tag = "cu" + target.cuda.replace(".", "")
    if version is None:
        return
    if cuda_releases.is_cpu_build(version, requires):
        reason = (
            f"torch {version} for {arch} on the index {index} requires no CUDA library: a CPU build"
        )
    elif version.local and version.local.startswith("cu") and not version.local.startswith(tag):
        reason = f"torch {version} is not built for CUDA {target.cuda}"
    else:
        return
    message = f"{problem.name} cannot be solved for {problem.arch}"
    reasons = (f"{reason} ({torch.name})", *refusal.pin_refusals(catalogue))
    raise NoSolution(
        message, reasons=reasons, hint="assign torch to an index that has a CUDA build"
    )


def check_components(
    problem: SolveProblem, release: cuda_releases.CudaRelease, versions: Mapping[str, str]
) -> None:
    """Raise NoSolution if a chosen NVIDIA component is for another CUDA release."""
    broken = cuda_releases.release_violations(release, versions)
    if broken:
        message = f"{problem.name} on {problem.arch} would mix CUDA releases"
        raise NoSolution(
            message, reasons=broken, hint="pin the package that requires this component"
        )
    for text in cuda_releases.packages_outside_release(release, versions):
        problem.context.reporter.detail(f"CUDA {release.version} has no component {text}")
