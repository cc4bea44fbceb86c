"""Defines the data that sources of advisories return."""

from __future__ import annotations

import msgspec

from imgbuild.cves.installed import InstalledSource
from imgbuild.cves.severity import Rating


class Advisory(msgspec.Struct, frozen=True, kw_only=True):
    """An advisory about a package. `ids` are its ID and aliases.

    `fixed` is the lowest fixed version above the installed version, or "" if unknown. `note` is a
    remark from the source, such as the update with the fix.
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
    """The advisories about packages in a source.

    `of` is the name of the source, followed by the date if the source is a server. `unread` lists
    entries of the source that were not checked, and `unqueried` lists packages without data.
    """

    of: str
    advisories: tuple[Advisory, ...]
    unread: tuple[str, ...] = ()
    unqueried: tuple[InstalledSource, ...] = ()
