"""What every source of advisories answers: which of them are about which package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from imgbuild.cves.installed import InstalledSource
from imgbuild.cves.severity import Rating


class Advisory(msgspec.Struct, frozen=True, kw_only=True):
    """An advisory that is about a package. `ids` are its own id and those of the same elsewhere.

    `fixed` is the lowest version after the package's that has the fix, "" if none is known; `note`
    what the source says beside, such as that Debian will not update for it.
    """

    ids: tuple[str, ...]
    package: InstalledSource
    severity: Rating
    score: float | None = None
    summary: str = ""
    fixed: str = ""
    note: str = ""
    source: str


class Uncompared(msgspec.Struct, frozen=True):
    """An advisory that names a package, of which it is unknown whether it is about its version."""

    package: InstalledSource
    text: str


class SourceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The advisories about some packages. `of` names the source and its date."""

    of: str
    advisories: tuple[Advisory, ...]
    unread: tuple[Uncompared, ...] = ()


class AdvisorySource(Protocol):
    """Where advisories come from: a server, a downloaded database, Debian's tracker."""

    def find(self, packages: Sequence[InstalledSource]) -> SourceAnswer:
        """The advisories about `packages`."""
        ...
