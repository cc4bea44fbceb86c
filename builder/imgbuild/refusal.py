"""Why a world is impossible: a short chain of reasons with evidence, and what is nearest.

Comes in: a target, the catalogue of what it may use, and the resolver's own words. Goes out: the
reasons of a `WorldImpossible`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from packaging.version import Version

from imgbuild.gateway import Catalogue
from imgbuild.indexes import File
from imgbuild.matrix.model import Matrix
from imgbuild.selection import described, is_sdist, objection, same_version
from imgbuild.values import Arch

SHOWN = 4


def of_pins(catalogue: Catalogue) -> tuple[str, ...]:
    """One reason for each pin of which no file may be used; empty if every pin has one."""
    pins = sorted(catalogue.rules.pins.items())
    return tuple(
        reason for package, version in pins if (reason := of_pin(catalogue, package, version))
    )


def of_pin(catalogue: Catalogue, package: str, version: str) -> str | None:
    """Why no file of `package` `version` may be used, and which version is nearest; or None."""
    offers = catalogue.offers(package)
    if any(same_version(offer.wheel.version, version) for offer in offers):
        return None
    index = catalogue.indexes.place(package).name
    files = catalogue.indexes.files(package)
    if not files:
        return f"{package}: the index {index} has no such package"
    named = [file for file in files if same_version(file.version, version)]
    known = {offer.wheel.version for offer in offers if offer.wheel.version is not None}
    near = nearest(Version(version), known)
    fitting = f"nearest that fits: {' and '.join(near)}" if near else "no version of it fits"
    if not named:
        return f"{package} {version}: the index {index} has no such version; {fitting}"
    return f"{package} {version}: {_why(catalogue, package, named)}; {fitting}"


def _why(catalogue: Catalogue, package: str, files: list[File]) -> str:
    rules, timed = catalogue.rules, catalogue.indexes.place(package).timed
    wheels = [file for file in files if file.is_wheel]
    if not wheels:
        what = "only an sdist" if any(is_sdist(file) for file in files) else "no wheel"
        return f"{what} exists, and sdists: of the matrix does not list {package}"
    against = {file.name: objection(file, package, rules, timed=timed) for file in wheels}
    machine = [file for file in wheels if rules.tags.fits(file.name)]
    if machine:
        reasons = Counter(str(against[file.name]) for file in machine)
        return "; ".join(f"its wheel {reason}" for reason in reasons)
    arch = rules.tags.arch
    has = sorted({described(file.name) for file in wheels})
    own = [file for file in wheels if arch.wheel in file.name or file.name.endswith("-any.whl")]
    lacking = (
        f"no wheel for Python {rules.tags.python} and glibc {rules.tags.glibc} among its Linux "
        f"{arch.wheel} wheels"
        if own
        else f"no Linux {arch.wheel} wheel"
    )
    more = f" and {len(has) - SHOWN} more" if len(has) > SHOWN else ""
    return f"{lacking} (it has {', '.join(has[:SHOWN])}{more})"


def nearest(wanted: Version, known: Iterable[Version]) -> tuple[str, ...]:
    """The next older and the next newer of `known`, as far as they exist; final releases if any."""
    every = list(known)
    pool = [version for version in every if not version.is_prerelease] or every
    older = max((version for version in pool if version < wanted), default=None)
    newer = min((version for version in pool if version > wanted), default=None)
    return tuple(str(version) for version in (older, newer) if version is not None)


def alternatives(matrix: Matrix, name: str, arch: Arch) -> tuple[str, ...]:
    """The other targets of the matrix that have `arch`, those of the same CUDA first."""
    cuda = matrix.targets[name].cuda
    others = [
        (target.cuda != cuda, other)
        for other, target in matrix.targets.items()
        if other != name and arch in target.arch and arch not in target.exclude
    ]
    return tuple(other for _, other in sorted(others))


def of_resolver(text: str) -> tuple[str, ...]:
    """Uv's explanation as lines, without its tree marks; a long chain is cut."""
    words = " ".join(line.strip(" │╰─▶\u00d7╭├") for line in text.splitlines())
    start = words.find("Because")
    chain = words[start:] if start >= 0 else words
    steps = [step.strip() for step in chain.replace(" And because ", "\nAnd because ").splitlines()]
    return tuple(steps[:12])
