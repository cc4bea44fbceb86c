"""Resolves the inputs of an extension, and reuses those of the published target.

System packages are added to the base. A published wheel that was built from an sdist is built again
if it is not in the cache, because its METADATA is required.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from imgbuild.cache.context import Context
from imgbuild.cache.download import FileRequest, fetch_all
from imgbuild.deb import apt, archive
from imgbuild.errors import FetchFailed
from imgbuild.index.catalogue import OfferedFile, wheel_of_sdist
from imgbuild.index.pages import IndexFile, IndexLookup
from imgbuild.index.remote_wheel import FACT as METADATA
from imgbuild.index.remote_wheel import LOCKED_PREFIX
from imgbuild.lock.resolution import Deb, LockedFile, Resolution, Wheel
from imgbuild.matrix.model import DebianBase
from imgbuild.solve import sdist_wheel, sdists
from imgbuild.solve.base import ResolvedBase, resolve_base
from imgbuild.solve.problem import SolveProblem
from imgbuild.values import Sha256


def resolve_published_base(problem: SolveProblem) -> ResolvedBase:
    """Return the resolved base of a target.

    If the target extends a published target, this is the published base with added packages. Raises
    the same errors as `resolve_base` and `apt.added_debs`.
    """
    base, arch, context = problem.base, problem.arch, problem.context
    row = problem.row
    if row is None or arch not in row.published.lock.arch:
        return resolve_base(base, arch, context)
    published = row.published.lock.arch[arch]
    debs = published.debs
    requested = problem.requirements.debian
    if requested and isinstance(base, DebianBase):

        def _control(deb: Deb) -> dict[str, str]:
            urls = partial(apt.deb_urls, deb, base)
            paths = fetch_all([FileRequest(locked=deb, urls=urls)], context, title=deb.package)
            return archive.read_control(paths[deb.sha256])

        added = apt.added_debs(base, arch, debs, requested, _control, context)
        debs = tuple(sorted((*debs, *added), key=lambda deb: deb.package))
    return ResolvedBase(
        debs=debs,
        layers=published.base_layers,
        manifest=published.base_manifest,
        files=published.base_files,
        security=published.security,
        tools=published.tools,
        python=published.python,
    )


class PublishedWheels:
    """Provides published wheels that were built from sdists, and builds them again if necessary."""

    def __init__(
        self,
        published: Resolution,
        indexes: IndexLookup,
        python: str,
        root: Callable[[], Path],
        context: Context,
    ) -> None:
        self._built = {item.package: item for item in published.built}
        self._indexes = indexes
        self._python = python
        self._root = root
        self._context = context

    @property
    def packages(self) -> tuple[str, ...]:
        """The names of the packages, sorted."""
        return tuple(self._built)

    def metadata(self, package: str, sdist: IndexFile) -> bytes:
        """Return METADATA of the published wheel of `package`."""
        del sdist  # the lock has which
        stored = self._context.store.fact(METADATA, self._built[package].wheel.sha256)
        return stored if stored is not None else sdist_wheel.wheel_metadata(self.path(package))

    def path(self, package: str) -> Path:
        """Return the path of the published wheel of `package`.

        The wheel is built again if it is not in the cache.
        """
        built = self._built[package]
        return self._context.store.file(built.wheel.sha256) or sdists.rebuild_wheel(
            built,
            self._indexes,
            self._root(),
            self._python,
            self._context,
            hint="the build is not reproducible; report this to the target's publisher",
        )


def offered_files(published: Resolution) -> dict[str, OfferedFile]:
    """Map each package to its published wheel, or the sdist from which the wheel was built.

    The URL of a file is looked up only when the file is read.
    """
    wheels = {wheel.package: OfferedFile(wheel=_file(wheel)) for wheel in published.wheels}
    sdists = {built.package: _file(built.sdist) for built in published.built}
    return wheels | {
        package: OfferedFile(wheel=wheel_of_sdist(package, sdist), sdist=sdist)
        for package, sdist in sdists.items()
    }


def wheel_address(indexes: IndexLookup, wheels: Mapping[Sha256, Wheel], sha256: Sha256) -> str:
    """Return the URL of a wheel on its index.

    Raises FetchFailed if the index does not contain the wheel.
    """
    wheel = wheels[sha256]
    addresses = indexes.file_urls(wheel.package, wheel)
    if not addresses:
        message = f"{wheel.file} is no longer on the index {wheel.index}"
        raise FetchFailed(message, hint="choose a newer release of the published target")
    return addresses[0]


def _file(locked: LockedFile) -> IndexFile:
    url = f"{LOCKED_PREFIX}{locked.sha256}"
    return IndexFile(name=locked.file, url=url, sha256=locked.sha256, size=locked.size)
