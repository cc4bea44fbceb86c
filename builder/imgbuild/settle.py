"""settle: resolve, audit, learn, resolve again, until nothing is wrong or nothing more is learned.

Comes in: a target, the architectures, what was learned before. Goes out: a resolution for each
architecture whose audit is clean, and what was learned on the way. No wheel is downloaded for it:
what the audit reads of Python code and METADATA comes by ranges. Each thing is written down as soon
as it is learned, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from imgbuild.constraints import Constraint
from imgbuild.fetch import Http
from imgbuild.matrix.model import Matrix
from imgbuild.report import Report
from imgbuild.resolution import Resolution
from imgbuild.store import Store
from imgbuild.values import Arch

Keep = Callable[[Iterable[Constraint]], tuple[Constraint, ...]]


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """A world without errors for each architecture, what was learned, and after how many rounds."""

    resolutions: Mapping[Arch, Resolution]
    reports: Mapping[Arch, Report]
    learned: tuple[Constraint, ...]
    rounds: int


def settle(
    matrix: Matrix,
    name: str,
    arches: Sequence[Arch],
    store: Store,
    http: Http,
    known: Sequence[Constraint],
    keep: Keep,
) -> Settled:
    """Target `name` resolved so that its audit is clean; `keep` writes down what was learned.

    WorldImpossible, with the chain and its evidence, if there is no such world.
    """
    raise NotImplementedError
