"""Finds updates of the base and Python of a locked image, and known vulnerabilities.

All sources are optional: if a source cannot be read, the result contains the error.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping

import msgspec

from imgbuild.attest.sbom.packages import Package
from imgbuild.cache.context import Context
from imgbuild.cves import check
from imgbuild.cves.check import CveCase, CvePolicy, CveReport
from imgbuild.cves.osv_server import OsvServer
from imgbuild.deb import apt
from imgbuild.errors import ImgbuildError
from imgbuild.http.client import HttpClient
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.model import Base, DebianBase
from imgbuild.update import python_releases
from imgbuild.update.python_releases import PythonUpdate
from imgbuild.values import Arch, Sha256


class DebianUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A Debian package with a newer version in the archive."""

    package: str
    version: str
    newest: str
    security: bool


class BaseUpdates(msgspec.Struct, frozen=True, kw_only=True):
    """The newer versions of the Debian packages of an image on one architecture.

    `packages` is the number of packages, and `date` is the date of the security suite. `error` is
    set if updates are unknown. `python` is a newer release of the standalone Python, and
    `python_error` is set if releases are unknown.
    """

    base: str
    arch: Arch
    packages: int
    date: str = ""
    updates: tuple[DebianUpdate, ...] = ()
    error: str = ""
    python: PythonUpdate | None = None
    python_error: str = ""


class KnownVulnerabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The report of `imgbuild cves` on an image, or the reason why there is no report."""

    arch: Arch
    report: CveReport | None = None
    error: str = ""


def base_updates(lock: Lock, base: Base, arch: Arch, context: Context) -> BaseUpdates:
    """Return the updates of the Debian packages and of the standalone Python of `lock`."""
    debs = lock.arch[arch].debs
    state = BaseUpdates(base=lock.base.name, arch=arch, packages=len(debs))
    if not isinstance(base, DebianBase):
        return msgspec.structs.replace(state, error="the base is a registry image")
    state = add_python_update(state, base, context)
    try:
        date, security = apt.security_updates(base, debs, arch, context)
        others = apt.archive_updates(base, debs, arch, context)
    except ImgbuildError as error:
        return msgspec.structs.replace(state, error=error.message.partition("\n")[0])
    fixed = {update.package for update in security}
    updates = [
        DebianUpdate(
            package=update.package,
            version=update.version,
            newest=update.fixed,
            security=update.package in fixed,
        )
        for update in (*security, *(each for each in others if each.package not in fixed))
    ]
    return msgspec.structs.replace(state, date=date, updates=tuple(updates))


def add_python_update(state: BaseUpdates, base: DebianBase, context: Context) -> BaseUpdates:
    """Add the newest release of the standalone Python of `base` to `state`, if it is newer."""
    if base.standalone_python is None:
        return state
    try:
        newest = python_releases.find_newer_release(base.standalone_python, context)
    except ImgbuildError as error:
        return msgspec.structs.replace(state, python_error=error.message.partition("\n")[0])
    return msgspec.structs.replace(state, python=newest)


def image_vulnerabilities(
    case: CveCase, records: Mapping[Sha256, Package], context: Context
) -> KnownVulnerabilities:
    """Return the vulnerabilities of an image's packages according to OSV's server."""
    http = HttpClient(offline=context.http.offline, attempts=1)  # it is no reason to wait
    now = datetime.datetime.now(datetime.UTC)
    policy = CvePolicy(today=now.date())
    try:
        server = OsvServer(None, msgspec.structs.replace(context, http=http), now)
        (report,) = check.check_cves([case], records, server.find_advisories, policy)
    except ImgbuildError as error:
        return KnownVulnerabilities(arch=case.arch, error=error.message)
    return KnownVulnerabilities(arch=case.arch, report=report)
