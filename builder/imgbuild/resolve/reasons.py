"""Explains why a resolution contains each package at its version."""

# A separate module: explanations only.
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from imgbuild.attest.sbom import needs
from imgbuild.index import cuda_releases
from imgbuild.matrix.constraints import Constraint
from imgbuild.system.syntax import valid_requirement
from imgbuild.values import normalize_package


class RequirementLink(msgspec.Struct, frozen=True, kw_only=True):
    """A requirement of `dependent` on `package`. `spec` is empty for any version."""

    dependent: str
    package: str
    spec: str


def requirement_links(
    metadata: Mapping[str, bytes], markers: Mapping[str, str]
) -> tuple[RequirementLink, ...]:
    """Return the requirements between packages in `metadata`, with those of requested extras."""
    lines = {
        package: filter(valid_requirement, cuda_releases.requirement_lines(data))
        for package, data in metadata.items()
    }
    keys = {
        (need.package, normalize_package(need.requirement.name), str(need.requirement.specifier))
        for need in needs.applied_requirements(lines, markers)
    }
    return tuple(
        RequirementLink(dependent=dependent, package=package, spec=spec)
        for dependent, package, spec in sorted(keys)
    )


def version_reasons(
    versions: Mapping[str, str],
    origins: Mapping[str, str],
    requirement_links: Sequence[RequirementLink],
    learned: Iterable[Constraint],
) -> dict[str, tuple[str, ...]]:
    """Map each package to the reasons for its presence and its version, strongest first.

    `origins` maps packages to the origin of the request, such as "requested: vllm==0.9.2".
    """
    relevant = [
        entry
        for entry in learned
        if entry.package in versions
        and entry.other in versions
        and entry.restricts_other_for(versions[entry.package])
    ]
    reasons: dict[str, tuple[str, ...]] = {}
    for package in versions:
        incoming = [
            link
            for link in requirement_links
            if link.package == package and link.dependent != package
        ]
        exact = [link for link in incoming if "==" in link.spec]
        words = [origins[package]] if package in origins else []
        words += [f"{link.dependent} requires {link.spec}" for link in exact]
        words += [f"learned: {entry}" for entry in relevant if entry.other == package]
        loose = [f"{link.dependent} {link.spec}".strip() for link in incoming if link not in exact]
        if loose:
            words.append(f"for {', '.join(loose)}")
        reasons[package] = tuple(words)
    return reasons
