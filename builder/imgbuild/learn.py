"""From a finding to a constraint: which versions of B would do, and for which versions of A.

Comes in: an error of an audit, with its evidence. Goes out: a `Constraint` that keeps the clash out
of every world, or None where nothing can be learned. Two boundaries are looked for: the version of
B where the name came or went, and, where A is free to move, the versions of A that ask for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec
from packaging.version import Version

from imgbuild.constraints import Constraint
from imgbuild.probe import Release, Shelf, asks, boundary, lacks
from imgbuild.report import Evidence, Finding, Relation

UNNAMED: Final = (Relation.SYMBOL, Relation.LIBRARY, Relation.ABI, Relation.CUDA, Relation.ARGUMENT)
NEVER: Final = "<0"  # no version of the other package will do
# The packages that others import without declaring them, by module. What gets into an image unasked
# must be reviewed: no name is guessed, since anybody may publish under one, and what METADATA names
# under an extra is optional by its authors' own word.
_BROUGHT_BY: Final = {"pkg_resources": "setuptools", "setuptools": "setuptools"}


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Which versions of the other package will do: a specifier, and where the name changed."""

    spec: str
    came: str = ""
    went: str = ""


def learn(finding: Finding, shelf: Shelf, pinned: Collection[str]) -> Constraint | None:
    """The constraint that `finding` proves; None if it has no evidence to learn from.

    `pinned` are the packages that the target holds at one version.
    """
    evidence = finding.evidence
    if evidence is None or not evidence.version:
        return None
    missing = evidence.relation is Relation.PACKAGE
    other = _BROUGHT_BY.get(evidence.subject.partition(".")[0], "") if missing else evidence.other
    found = bounds(evidence, shelf)
    if not other or found is None:
        return None
    return Constraint(
        package=evidence.package,
        versions=own_range(evidence, shelf, pinned),
        needs=f"{other}{found.spec}",
        missing=missing,
        check=finding.check,
        file=evidence.file,
        line=evidence.line,
        name=evidence.subject,
        came=found.came,
        went=found.went,
        read_in=evidence.version,
        against=evidence.other_version,
    )


def bounds(evidence: Evidence, shelf: Shelf) -> Bounds | None:
    """Which versions of the other package would do; None if nothing tells.

    What the evidence says itself counts first (a window, a rule). Names are looked up in other
    versions; where these two packages alone do not clash, a third one has a hand in it, and no
    version of the other is to blame. Of binaries it is only known that these two do not fit.
    """
    if evidence.spec or evidence.relation is Relation.PACKAGE:
        return Bounds(spec=evidence.spec)
    if not evidence.other_version:
        return None
    this_one = Bounds(spec=f"!={Version(evidence.other_version).public}")
    releases = shelf.releases(evidence.other)
    start = _place(releases, evidence.other_version)
    if start is None or evidence.relation in UNNAMED:
        return this_one
    if lacks(shelf, evidence, releases[start]) is not True:
        return None

    def persists(release: Release) -> bool:
        return lacks(shelf, evidence, release) is True

    for step in _directions(evidence, shelf, releases[start]):
        bad, good = boundary(releases, start, persists, step)
        if good is not None and step < 0:
            return Bounds(spec=f"<{bad.version.public}", went=str(bad.version))
        if good is not None:
            return Bounds(spec=f">={good.version.public}", came=str(good.version))
    return Bounds(spec=NEVER)


def _directions(evidence: Evidence, shelf: Shelf, other: Release) -> tuple[int, int]:
    """Where to look first: back, if the other package is the younger one, else ahead."""
    own = shelf.release(evidence.package, evidence.version)
    if own is None or own.uploaded is None or other.uploaded is None:
        return (-1, 1)
    return (-1, 1) if other.uploaded > own.uploaded else (1, -1)


def own_range(evidence: Evidence, shelf: Shelf, pinned: Collection[str]) -> str:
    """The versions of the package itself that ask for the same, as a specifier.

    One alone where the package is pinned, or where only this version was judged.
    """
    alone = f"=={evidence.version}"
    releases = shelf.releases(evidence.package)
    start = _place(releases, evidence.version)
    if evidence.package in pinned or start is None or not asks(shelf, evidence, releases[start]):
        return alone

    def persists(release: Release) -> bool:
        return asks(shelf, evidence, release)

    low, _ = boundary(releases, start, persists, -1)
    high, _ = boundary(releases, start, persists, 1)
    if low is high:
        return alone
    return f">={low.version.public},<={high.version.public}"


def _place(releases: Sequence[Release], version: str) -> int | None:
    wanted = Version(version)
    return next((at for at, item in enumerate(releases) if item.version == wanted), None)
