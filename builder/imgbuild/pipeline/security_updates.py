"""Which security updates of Debian the base of a lock lacks as of today."""

from __future__ import annotations

from collections.abc import Iterable

from imgbuild.cache.context import Context
from imgbuild.deb import apt
from imgbuild.errors import ImgbuildError
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.model import Base, DebianBase

SHOWN = 5


def report(locks: Iterable[tuple[Lock, Base]], context: Context) -> None:
    """Say, once for each base, which updates the Debian packages of `locks` lack.

    Nothing but a detail is said if the security suite cannot be read: a lock does not need it.
    """
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for lock, base in locks:
        arch, resolution = next(iter(lock.arch.items()))
        packages = (lock.base.name, tuple(deb.sha256 for deb in resolution.debs))
        if not isinstance(base, DebianBase) or packages in seen:
            continue
        seen.add(packages)
        try:
            date, updates = apt.security_updates(base, resolution.debs, arch, context)
        except ImgbuildError as error:
            context.reporter.detail(f"security updates of {lock.base.name}: {error.message}")
            continue
        if updates:
            context.reporter.info(_text(lock, date, updates, len(resolution.debs)))


def _text(lock: Lock, date: str, updates: tuple[apt.SecurityUpdate, ...], total: int) -> str:
    named = ", ".join(f"{update.package} {update.fixed}" for update in updates[:SHOWN])
    more = f" and {len(updates) - SHOWN} more" if len(updates) > SHOWN else ""
    count = "has a security update" if len(updates) == 1 else "have security updates"
    return f"{lock.base.name}: {len(updates)} of {total} packages {count} ({date}): {named}{more}"
