"""Advisories from Debian's security tracker, in the form of its `data/json`.

    {source: {CVE: {description, releases: {suite: {status, fixed_version, urgency, nodsa}}}}}

It also has the vulnerabilities that Debian has not fixed or does not plan to fix.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.cves import severity
from imgbuild.cves.installed import PYPI, InstalledSource
from imgbuild.cves.severity import Rating
from imgbuild.cves.source import Advisory, SourceAnswer, Uncompared
from imgbuild.deb import version as debian
from imgbuild.errors import InputError

NAME = "Debian's security tracker"
REMEDY = "it is the tracker's data/json: {source: {CVE: {releases: …}}}"


class TrackedRelease(msgspec.Struct, frozen=True):
    """The state of a vulnerability in one suite. `fixed_version` "0": never affected."""

    status: str
    fixed_version: str | None = None
    urgency: str | None = None
    nodsa: str | None = None


class TrackedCve(msgspec.Struct, frozen=True):
    """One vulnerability of a source package."""

    releases: dict[str, TrackedRelease]
    description: str | None = None


class DebianTracker:
    """The tracker's data in the file at `place`."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def find(self, packages: Sequence[InstalledSource]) -> SourceAnswer:
        """The advisories about the Debian packages among `packages`.

        InputError if the file has another form, or no data about a suite that is asked for.
        """
        asked = [package for package in packages if package.ecosystem != PYPI]
        # Only the packages in question are read: the file has 70 MB.
        documents = codec.read(
            self._place, dict[str, msgspec.Raw], what="document of the tracker", hint=REMEDY
        )
        found: list[Advisory] = []
        unread: list[Uncompared] = []
        suites: set[str] = set()
        for package in asked:
            if package.name not in documents:
                continue
            place = f"{self._place}: {package.name}"
            known = codec.decode(
                bytes(documents[package.name]), dict[str, TrackedCve],
                file=place, what="package of the tracker", hint=REMEDY,
            )  # fmt: skip
            for cve, entry in known.items():
                suites.update(entry.releases)
                try:
                    advisory = _advisory(cve, entry, package)
                except ValueError as error:
                    text = f"{cve} about {package.name}: {str(error)[:100]}"
                    unread.append(Uncompared(package, text))
                    continue
                found += [advisory] if advisory else []
        for suite in sorted({package.suite for package in asked} - suites):
            message = f"{self._place} has no data about the packages of the suite {suite}"
            raise InputError(message, hint=REMEDY)
        of = f"{self._place} ({NAME})"
        return SourceAnswer(of=of, advisories=tuple(found), unread=tuple(unread))


def _advisory(cve: str, entry: TrackedCve, package: InstalledSource) -> Advisory | None:
    """The advisory for `package`; None if its version is not affected, ValueError if unknown."""
    state = entry.releases.get(package.suite)
    if state is None:
        return None
    fixed = ""
    if state.status == "resolved":
        fixed = state.fixed_version or "0"
        if debian.compare(package.version, fixed) >= 0:
            return None
    elif state.status not in ("open", "undetermined"):
        message = f"unknown status {state.status!r}"
        raise ValueError(message)
    notes = [*(["not determined yet"] if state.status == "undetermined" else []),
             *([f"no update is planned: {state.nodsa}"] if state.nodsa else [])]  # fmt: skip
    return Advisory(
        ids=(cve,),
        package=package,
        severity=severity.of_word(state.urgency) if state.urgency else Rating.UNKNOWN,
        summary=" ".join((entry.description or "").split()),
        fixed=fixed,
        note="; ".join(notes),
        source=NAME,
    )
