"""Finds OSV advisories that a newer version fixes. Fixes are exempt from the cool-down."""

from __future__ import annotations

import datetime

from imgbuild.cache.context import Context
from imgbuild.cves.installed import PYPI, InstalledSource, public_version
from imgbuild.cves.osv_server import OsvServer
from imgbuild.cves.source import Advisory
from imgbuild.errors import FetchFailed
from imgbuild.values import normalize_package


class UpdateAdvisories:
    """Looks up advisories with OSV's API at `address`.

    If the server does not respond, a warning is printed, and no version counts as a fix.
    """

    def __init__(self, address: str | None, context: Context, now: datetime.datetime) -> None:
        self._server = OsvServer(address, context, now)
        self._reporter = context.reporter
        self._reachable = True
        self._by_version: dict[tuple[str, str], tuple[Advisory, ...]] = {}

    def fixed(self, package: str, present: str, newer: str) -> tuple[str, ...]:
        """Return the IDs of advisories on version `present` that do not apply to `newer`."""
        before = self._advisories_about(package, present)
        if not before:
            return ()
        names = {
            name for advisory in self._advisories_about(package, newer) for name in advisory.ids
        }
        gone = [item for item in before if item.fixed and not names.intersection(item.ids)]
        return tuple(sorted({item.ids[0] for item in gone})) if self._reachable else ()

    def _advisories_about(self, package: str, version: str) -> tuple[Advisory, ...]:
        key = (normalize_package(package), public_version(version))
        if key not in self._by_version and self._reachable:
            source = InstalledSource(ecosystem=PYPI, name=key[0], version=key[1])
            try:
                self._by_version[key] = self._server.find_advisories([source]).advisories
            except FetchFailed as error:
                self._reachable = False
                self._reporter.warn(
                    "cannot look up security fixes, so the cool-down applies to all "
                    f"releases: {error.message}"
                )
        return self._by_version.get(key, ())
