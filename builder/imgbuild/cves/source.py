"""What a source of advisories returns for packages."""

from __future__ import annotations

import msgspec

from imgbuild.cves.installed import InstalledSource
from imgbuild.cves.severity import Rating


class Advisory(msgspec.Struct, frozen=True, kw_only=True):
    """An advisory about a package. `ids` are its own id and its aliases.

    `fixed` is the lowest version after the package's that has the fix, "" if none is known. `note`
    is a remark of the source, such as which update has the fix.
    """

    ids: tuple[str, ...]
    package: InstalledSource
    severity: Rating
    score: float | None = None
    summary: str = ""
    fixed: str = ""
    note: str = ""
    source: str


class SourceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The advisories about some packages. `of` names the source, and a server's date.

    `unread` is what the source has that was not looked at.
    """

    of: str
    advisories: tuple[Advisory, ...]
    unread: tuple[str, ...] = ()
