"""What a source of advisories returns for packages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from imgbuild.cves.installed import InstalledSource
from imgbuild.cves.severity import Rating


class Advisory(msgspec.Struct, frozen=True, kw_only=True):
    """An advisory about a package. `ids` are its own id and its aliases.

    `fixed` is the lowest version after the package's that has the fix, "" if none is known. `note`
    is a remark of the source, such as that Debian does not plan an update.
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
    """An advisory whose versions could not be compared with that of the package."""

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
