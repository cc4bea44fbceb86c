"""Selects a build of torch for the CUDA release of a row that does not pin torch.

Each version of torch on an index is built for one CUDA release. METADATA does not prevent a
resolver from mixing releases, such as `nvidia-cudnn-cu13` with CUDA 12.
"""

from __future__ import annotations

import re

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.errors import NoSolution
from imgbuild.index import cuda_releases
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.remote_wheel import read_wheel_metadata
from imgbuild.solve import torch
from imgbuild.solve.problem import SolveProblem
from imgbuild.solve.torch import TORCH, TorchBuild
from imgbuild.values import normalize_package

VERSION = re.compile(r"\btorch==([0-9][0-9.]*[0-9])")


class OpenTorch(msgspec.Struct, frozen=True, kw_only=True):
    """The torch version that determines the CUDA components, and a specifier of allowed builds.

    `builds` contains all builds of torch, and `cuda` is the CUDA release of the target.
    """

    version: str
    spec: str
    cuda: str
    builds: tuple[TorchBuild, ...]

    @property
    def line(self) -> str:
        """The specifier as a requirement line."""
        return f"{TORCH}{self.spec}"

    def torch_notes(self, text: str) -> tuple[str, ...]:
        """Return notes on torch versions that appear in uv's explanation `text`."""
        named = set(VERSION.findall(text))
        others = [each for each in self.builds if str(each.version) in named and each.cuda]
        if self.spec not in text and not others:
            return ()
        return (
            f"only torch{self.spec} is built for CUDA {self.cuda}",
            *(
                f'{each}: to allow it, set cuda: "{each.cuda}" in the row of matrix.yaml'
                for each in others
                if each.cuda != self.cuda
            ),
        )


def find_torch(
    problem: SolveProblem, catalogue: FileCatalogue, preferred: str | None
) -> OpenTorch | None:
    """Return the torch for a row without a pin.

    `preferred` is the version in the published target. It is used if it is allowed and no exact
    engine of the project requires another version. Return None if the row has a pin, or if the
    project does not use torch. Raises NoSolution, with the CUDA release of every version, if no
    build that the project accepts is for the CUDA release of the row.
    """
    target, specs = problem.target, problem.requirements.versions
    if problem.row is None or TORCH in target.pins or not (preferred or TORCH in specs):
        return None
    context = problem.context
    builds = torch.torch_builds(
        catalogue, lambda wheel: read_wheel_metadata(wheel, catalogue.ranges, context.store)
    )
    accepted = SpecifierSet(specs.get(TORCH, ""))
    fitting = [
        each.version for each in builds if each.cuda == target.cuda and each.version in accepted
    ]
    if not fitting:
        message = f"{problem.name}: no torch{accepted} is built for CUDA {target.cuda}"
        reasons = (torch.cuda_summary(builds),) if builds else ()
        hint = "use a target with the CUDA release of an accepted torch, or set cuda: in the row"
        raise NoSolution(message, reasons=reasons, hint=hint)
    engines = _engine_torch_versions(problem, catalogue)
    usable = [version for version in fitting if version in engines] or fitting
    first = Version(preferred) if preferred and Version(preferred) in usable else max(usable)
    spec = torch.matching_specifier(fitting, (each.version for each in builds))
    return OpenTorch(version=str(first), spec=spec, cuda=target.cuda, builds=builds)


def _engine_torch_versions(problem: SolveProblem, catalogue: FileCatalogue) -> SpecifierSet:
    accepted, markers = SpecifierSet(), catalogue.rules.tags.markers
    for name in torch.ENGINES:
        version = problem.requirements.pins.get(name)
        offer = catalogue.chosen(name, Version(version)) if version else None
        if offer is None or offer.sdist is not None:
            continue
        text = read_wheel_metadata(offer.wheel, catalogue.ranges, problem.context.store)
        for item in cuda_releases.active_requirements(text, markers):
            if normalize_package(item.name) == TORCH:
                accepted &= item.specifier
    return accepted
