"""Pins of a project that require versions excluded by its other lines, from METADATA alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packaging.requirements import Requirement

from imgbuild.project import agreement
from imgbuild.project.model import Declared
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import Obstacle
from imgbuild.system.syntax import parse_requirement
from imgbuild.values import normalize


def contradictions(
    required: Iterable[tuple[PackageDemand, Sequence[Requirement]]],
    demands: Iterable[PackageDemand],
    declared: Declared,
) -> list[Obstacle]:
    """The pins whose METADATA no version of another demanded package satisfies.

    `required` are pins with their requirements. Overridden packages and packages installed without
    dependencies are left to the solver.
    """
    lines = declared.requirements
    free = {each.package for each in lines if each.no_deps}
    decided = {each.package for each in lines if each.kind == "override"}
    bounds: Mapping[str, PackageDemand] = {
        each.package: each
        for each in demands
        if each.spec and each.package not in decided and each.package not in free
    }
    return [
        Obstacle(
            package=pin.package,
            demand=str(pin),
            cause="version",
            reason=f"requires {needed.name}{needed.specifier}, and {other} is required"
            f" ({', '.join(map(str, other.places))})",
            places=pin.places,
            version=pin.pin or "",
        )
        for pin, requirements in required
        if pin.package not in free
        for needed in requirements
        if (other := bounds.get(normalize(needed.name))) is not None and needed.url is None
        if not (pin.locked and other.locked)  # the tool that locked them has more information
        if not agreement.compatible(
            parse_requirement(f"{other.package}{other.spec}"),
            parse_requirement(f"{other.package}{needed.specifier}"),  # without its marker
        )
    ]
