"""Finds a newer base for a row.

A base with `security:` uses the security updates of the day of the lock, which only snapshots of
this day or later contain. The archives of a standalone Python are part of the base, too. Therefore,
a new row gets a new base, and other rows keep their bases.
"""

# A separate module: other modules update packages.
from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from imgbuild.cache.context import Context
from imgbuild.deb import apt
from imgbuild.errors import ImgbuildError
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.model import Base, DebianBase
from imgbuild.update import python_releases
from imgbuild.update.axes import CoolDown
from imgbuild.update.python_releases import PythonUpdate

STAMP = re.compile(r"(?<=/)(\d{8})T\d{6}Z(?=/|\Z)")
DATE = "%Y%m%d"


class BaseSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A newer base with its name.

    `before` and `after` are the dates of the Debian snapshots, or "" if no Debian package is newer.
    `updates` is the number of newer packages. `python` is a newer release of the standalone Python.
    """

    name: str
    base: DebianBase
    before: str = ""
    after: str = ""
    updates: int = 0
    python: PythonUpdate | None = None


def find_newer_base(
    bases: Mapping[str, Base], name: str, lock: Lock | None, cool_down: CoolDown, context: Context
) -> BaseSnapshot | None:
    """Find a newer base `name`. Return None if neither a Debian package nor Python is newer.

    If a source cannot be read, a warning is printed, and the current values are kept.
    """
    base, today = bases[name], cool_down.today.strftime(DATE)
    if not isinstance(base, DebianBase):
        return None
    new_name = f"{re.sub(r'-[0-9]{8}$', '', name)}-{today}"
    renewed = _debian(BaseSnapshot(name=new_name, base=base), name, lock, today, context)
    renewed = _python(renewed, name, cool_down, context)
    same = bases.get(new_name)
    if renewed.base == base or (same is not None and same != renewed.base):
        return None
    return renewed


def _debian(
    snapshot: BaseSnapshot, name: str, lock: Lock | None, after: str, context: Context
) -> BaseSnapshot:
    """Add newer Debian archives to `snapshot` if they have updates for packages of `lock`."""
    base = snapshot.base
    if base.security is None or lock is None:
        return snapshot
    days = [match[1] for address in base.security for match in STAMP.finditer(address)]
    before = min(days, default=after)
    if before >= after:
        return snapshot
    dated = msgspec.structs.replace(
        base,
        mirrors=tuple(_dated_address(address, after) for address in base.mirrors),
        security=tuple(_dated_address(address, after) for address in base.security),
    )
    arch, resolution = next(iter(lock.arch.items()))
    try:
        _, updates = apt.security_updates(dated, resolution.debs, arch, context)
    except ImgbuildError as error:
        context.reporter.warn(f"{name}: security updates are unknown: {error.message}")
        return snapshot
    if not updates:
        return snapshot
    return msgspec.structs.replace(
        snapshot, base=dated, before=before, after=after, updates=len(updates)
    )


def _python(
    snapshot: BaseSnapshot, name: str, cool_down: CoolDown, context: Context
) -> BaseSnapshot:
    source = snapshot.base.standalone_python
    if source is None:
        return snapshot
    before = None if cool_down.days is None else cool_down.cut_day
    try:
        newest = python_releases.find_newer_release(source, context, before)
    except ImgbuildError as error:
        context.reporter.warn(f"{name}: Python releases are unknown: {error.message}")
        return snapshot
    if newest is None:
        return snapshot
    source = msgspec.structs.replace(source, archives=newest.archives, sha256=newest.sha256)
    base = msgspec.structs.replace(snapshot.base, python_source=source)
    return msgspec.structs.replace(snapshot, base=base, python=newest)


def _dated_address(address: str, day: str) -> str:
    return STAMP.sub(f"{day}T000000Z", address)
