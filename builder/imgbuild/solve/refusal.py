"""Explains why a target has no solution."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterable

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.index.candidates import (
    exclusion_reason,
    is_sdist,
    same_version,
    wheel_platform,
    wheel_platform_and_python,
)
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.pages import IndexFile
from imgbuild.matrix.fields import SDIST_ENDINGS
from imgbuild.matrix.model import Matrix
from imgbuild.system.amounts import join_first
from imgbuild.values import Arch

SHOWN_VERSIONS = 4
STEPS = 6  # of the resolver's explanation
LINE = 300  # letters of a step
_ABSENT = re.compile(r"there are no versions of ([a-z0-9][a-z0-9.-]*)(?= |,|$)")
_FIRST_WORD = re.compile(r"^(?:And b|B)ecause ")
SHOWN_SPAN = datetime.timedelta(days=365)


def pin_refusals(catalogue: FileCatalogue) -> tuple[str, ...]:
    """Return a reason for each pin without a usable file."""
    pins = sorted(catalogue.rules.pins.items())
    return tuple(
        reason for package, version in pins if (reason := pin_refusal(catalogue, package, version))
    )


def pin_refusal(catalogue: FileCatalogue, package: str, version: str) -> str | None:
    """Return why a version has no usable file, and the nearest version that has one.

    Return None if it has a usable file.
    """
    offers = catalogue.offered_files(package)
    if any(same_version(offer.wheel.version, version) for offer in offers):
        return None
    index = catalogue.indexes.place(package).name
    files = catalogue.indexes.files(package)
    if not files:
        return f"{package}: the index {index} has no such package"
    named = [file for file in files if same_version(file.version, version)]
    near = nearest_versions(
        Version(version), versions_within_a_year(catalogue, package, Version(version))
    )
    none = "no similar version is compatible" if offers else "no version is compatible"
    fitting = f"nearest compatible: {' and '.join(near)}" if near else none
    if not named:
        return f"{package} {version}: the index {index} has no such version; {fitting}"
    return f"{package} {version}: {_refusal_reason(catalogue, package, named)}; {fitting}"


def versions_within_a_year(
    catalogue: FileCatalogue, package: str, version: Version
) -> list[Version]:
    """Return the available versions that are at most a year older than `version`.

    Older pure wheels are not alternatives. For example, tensordict 0.1.2 is compatible with all
    machines, but lacks most features of 0.6.2.
    """
    files = catalogue.indexes.files(package)
    times = [f.uploaded for f in files if f.uploaded and same_version(f.version, str(version))]
    earliest = min(times) - SHOWN_SPAN if times else None
    return [
        wheel.version
        for wheel in (offer.wheel for offer in catalogue.offered_files(package))
        if wheel.version is not None
        and (
            earliest is None
            or wheel.version > version
            or wheel.uploaded is None
            or wheel.uploaded >= earliest
        )
    ]


def range_refusal(catalogue: FileCatalogue, package: str, spec: str) -> str:
    """Return why no version of `package` in `spec` is usable."""
    index = catalogue.indexes.place(package).name
    allowed = SpecifierSet(spec)
    files = [
        file
        for file in catalogue.indexes.files(package)
        if file.version is not None and allowed.contains(file.version, prereleases=True)
    ]
    if files:
        newest = max(file.version for file in files if file.version is not None)
        named = [file for file in files if file.version == newest]
        return f"{package} {newest}: {_refusal_reason(catalogue, package, named)}"
    versions = [offer.wheel.version for offer in catalogue.offered_files(package)]
    top = max((version for version in versions if version is not None), default=None)
    return f"the newest {package} on the index {index} is {top}"


def package_refusal(catalogue: FileCatalogue, package: str) -> str:
    """Return why `package` has no usable version."""
    files = catalogue.indexes.files(package)
    if not files:
        return f"the index {catalogue.indexes.place(package).name} has no such package"
    versions = [file.version for file in files if file.version is not None]
    named = [file for file in files if file.version == max(versions, default=None)]
    return _refusal_reason(catalogue, package, named)


def _refusal_reason(catalogue: FileCatalogue, package: str, files: list[IndexFile]) -> str:
    rules, timed = catalogue.rules, catalogue.indexes.place(package).timed
    wheels = [file for file in files if file.is_wheel]
    if not any(file.is_wheel or is_sdist(file) for file in files):
        ends = " and ".join(SDIST_ENDINGS)
        names = ", ".join(sorted(file.name for file in files)[:SHOWN_VERSIONS])
        return f"no wheel exists, and sdists are supported as {ends}, not as {names}"
    if not wheels:
        what = "only an sdist" if any(is_sdist(file) for file in files) else "no wheel"
        return f"{what} exists, and the matrix does not list {package} under `sdists`"
    against = {file.name: exclusion_reason(file, package, rules, timed=timed) for file in wheels}
    machine = [file for file in wheels if rules.tags.is_compatible(file.name)]
    if machine:
        reasons = Counter(str(against[file.name]) for file in machine)
        return "; ".join(f"its wheel {reason}" for reason in reasons)
    arch = rules.tags.arch
    arch_wheels = [
        file for file in wheels if arch.wheel in file.name or file.name.endswith("-any.whl")
    ]
    missing = (
        f"no wheel for Python {rules.tags.python} and glibc {rules.tags.glibc} among its Linux "
        f"{arch.wheel} wheels"
        if arch_wheels
        else f"no Linux {arch.wheel} wheel"
    )
    has = sorted(
        {
            wheel_platform_and_python(file.name) if arch_wheels else wheel_platform(file.name)
            for file in wheels
        }
    )
    span = _span(catalogue, package, files)
    return f"{missing}{span} (it has {join_first(has, SHOWN_VERSIONS)})"


def _span(catalogue: FileCatalogue, package: str, files: list[IndexFile]) -> str:
    """Return a clause on adjacent versions that are unusable for the same reason, or ""."""
    tags = catalogue.rules.tags
    fits: dict[Version, bool] = {}
    for file in catalogue.indexes.files(package):
        if file.is_wheel and file.version is not None and not file.version.is_prerelease:
            fits[file.version] = fits.get(file.version, False) or tags.is_compatible(file.name)
    versions = sorted(fits)
    position = next((at for at, v in enumerate(versions) if v == files[0].version), None)
    if position is None:
        return ""
    low = high = position
    while low > 0 and not fits[versions[low - 1]]:
        low -= 1
    while high < len(versions) - 1 and not fits[versions[high + 1]]:
        high += 1
    if low == high:
        return ""
    return f", nor has any version from {versions[low]} to {versions[high]}"


def nearest_versions(requested: Version, versions: Iterable[Version]) -> tuple[str, ...]:
    """Return the versions next below and above `requested`, preferably final releases."""
    every = list(versions)
    pool = [version for version in every if not version.is_prerelease] or every
    older = max((version for version in pool if version < requested), default=None)
    newer = min((version for version in pool if version > requested), default=None)
    return tuple(str(version) for version in (older, newer) if version is not None)


def alternative_targets(matrix: Matrix, name: str, arch: Arch) -> tuple[str, ...]:
    """Return the other targets in the matrix for `arch`, those with the same CUDA release first."""
    cuda = matrix.targets[name].cuda
    others = [
        (target.cuda != cuda, other)
        for other, target in matrix.targets.items()
        if other != name and arch in target.arch and arch not in target.exclude
    ]
    return tuple(other for _, other in sorted(others))


def explanation(catalogue: FileCatalogue, text: str) -> tuple[str, ...]:
    """Return the lines of uv's explanation, with reasons for packages without a usable version."""
    absent = dict.fromkeys(_ABSENT.findall(" ".join(text.split())))
    notes = (f"{package}: {package_refusal(catalogue, package)}" for package in absent)
    return (*resolver_lines(text), *notes)


def resolver_lines(text: str) -> tuple[str, ...]:
    """Return the lines of uv's explanation, shortened and without box-drawing characters.

    The lines lead from the declared requirements to the conclusion, followed by intermediate steps.
    """
    words = " ".join(line.strip(" │╰─▶\u00d7╭├") for line in text.splitlines())
    start = words.find("Because")
    chain = words[start:] if start >= 0 else words
    chain = re.split(r"\s+hint: ", chain, maxsplit=1)[0]
    parts = chain.replace(" And because ", "\nAnd because ").splitlines()
    steps = [_FIRST_WORD.sub("", part.strip()) for part in parts]
    if len(steps) > STEPS:
        left_out = f"… {len(steps) - STEPS + 1} steps of the resolver's explanation …"
        steps = [*steps[:2], left_out, *steps[3 - STEPS :]]
    return tuple(step if len(step) <= LINE else f"{step[: LINE - 1]}…" for step in steps)
