"""Determines the default `as_of` of a request: the cut-off date for uploads.

Packages that work together are released at about the same time. A solver that can use files from
much later finds package sets that nobody has tried.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from packaging.specifiers import SpecifierSet

from imgbuild.cache.context import Context
from imgbuild.index.pages import IndexAddress, IndexFile, IndexLookup
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.resolve import resolve_request
from imgbuild.resolve.resolve_request import RequestedPackage, ResolveRequest
from imgbuild.solve import uv

MARGIN = datetime.timedelta(days=180)  # compatible releases of others usually appear within it


def derive_cutoff(
    request: ResolveRequest, project: Project, matrix: Matrix, context: Context
) -> datetime.date:
    """Return the newest upload date of the requested versions plus a margin, but at most today.

    For a range, the date of its first version counts. If the index gives no date for a version, the
    first `as_of` of a lock with this version is used. The result is today if nothing is pinned, or
    if the date of a pin is unknown. Raises FetchFailed if an index does not respond.
    """
    today = resolve_request.today_utc()
    if all(requested.pin is None for requested in request.requests):
        return today
    days = [datetime.date.min]
    for requested in request.requests:
        if not requested.spec:
            continue
        day = _index_date(requested, request, matrix, context) or _lock_date(
            requested, project, matrix
        )
        if day is None and requested.pin is not None:
            return today
        days.append(day or datetime.date.min)
    return min(today, max(days))


def _index_date(
    requested: RequestedPackage, request: ResolveRequest, matrix: Matrix, context: Context
) -> datetime.date | None:
    name = request.indexes.get(requested.package, matrix.default_index)
    index = matrix.indexes[name]
    if index.upload_times != "index" or "{" in (index.url or ""):
        return None
    place = IndexAddress(name=name, address=index.url or uv.default_index(), flat=index.flat)
    files = IndexLookup({name: place}, {}, name, context.http).files(requested.package)
    first = first_upload(files, requested.spec)
    return None if first is None else min(first.date(), datetime.date.max - MARGIN) + MARGIN


def first_upload(files: Sequence[IndexFile], spec: str) -> datetime.datetime | None:
    """Return the time of the first upload of a version in `spec`, or None if unknown."""
    specifiers = SpecifierSet(spec)
    times = [
        file.uploaded
        for file in files
        if file.uploaded is not None
        and file.version is not None
        and specifiers.contains(file.version)
    ]
    return min(times, default=None)


def _lock_date(
    requested: RequestedPackage, project: Project, matrix: Matrix
) -> datetime.date | None:
    days = [
        datetime.date.fromisoformat(lock.as_of)
        for name in project.locked_targets()
        if name in matrix.targets
        and _has_requested(lock := lock_file.read_lock(project.images, name), requested)
    ]
    return min(days, default=None)


def _has_requested(lock: Lock, requested: RequestedPackage) -> bool:
    specifiers = SpecifierSet(requested.spec)
    versions = (each.versions.get(requested.package) for each in lock.arch.values())
    return any(version is not None and specifiers.contains(version) for version in versions)
