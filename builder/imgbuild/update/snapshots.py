"""A newer Debian snapshot for the base of a row (separate: it is about bases, not packages).

A base with `security:` takes the security updates of the day of the lock, and its archives hold
them only from a snapshot of that day on. So a new row gets a base of its day; other rows keep
theirs.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping

import msgspec

from imgbuild.cache.context import Context
from imgbuild.deb import apt
from imgbuild.errors import ImgbuildError
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.model import Base, DebianBase

STAMP = re.compile(r"(?<=/)(\d{8})T\d{6}Z(?=/|\Z)")
DATE = "%Y%m%d"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A base of a newer day under its name, and how many packages it has in newer versions."""

    name: str
    base: DebianBase
    before: str
    after: str
    updates: int


def newer(
    bases: Mapping[str, Base], name: str, lock: Lock | None, today: datetime.date, context: Context
) -> Snapshot | None:
    """The base `name` as of today; None if it has no snapshot, or no package of `lock` is newer.

    An archive that cannot be read is a warning: then the row keeps its base.
    """
    base, after = bases[name], today.strftime(DATE)
    if not isinstance(base, DebianBase) or base.security is None or lock is None:
        return None
    days = [match[1] for address in base.security for match in STAMP.finditer(address)]
    before = min(days, default=after)
    if before >= after:
        return None
    dated = msgspec.structs.replace(
        base,
        mirrors=tuple(_dated(address, after) for address in base.mirrors),
        security=tuple(_dated(address, after) for address in base.security),
    )
    arch, resolution = next(iter(lock.arch.items()))
    try:
        _, updates = apt.security_updates(dated, resolution.debs, arch, context)
    except ImgbuildError as error:
        context.reporter.warn(f"{name}: security updates are unknown: {error.message}")
        return None
    if not updates:
        return None
    new_name = f"{re.sub(r'-[0-9]{8}$', '', name)}-{after}"
    same = bases.get(new_name)
    if same is not None and same != dated:
        return None
    return Snapshot(name=new_name, base=dated, before=before, after=after, updates=len(updates))


def _dated(address: str, day: str) -> str:
    return STAMP.sub(f"{day}T000000Z", address)
