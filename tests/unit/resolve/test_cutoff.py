"""Tests the cut-off date derived from the pins of a request."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from imgbuild import codec
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.http.client import HttpClient
from imgbuild.lock import lock_file
from imgbuild.matrix.model import Matrix, PackageIndex
from imgbuild.matrix.project_paths import Project
from imgbuild.resolve import cutoff, resolve_request, stored
from imgbuild.resolve.resolve_request import ResolveRequest
from imgbuild.values import Arch
from tests.support import samples
from tests.support.local_index import LocalIndex
from tests.support.servers import FileSite, serve_site

MARGIN = cutoff.MARGIN


@pytest.fixture
def site() -> Iterator[FileSite]:
    local_index = LocalIndex()
    local_index.wheel("torch", "2.6.0", uploaded="2024-01-10T12:00:00Z")
    local_index.wheel(
        "torch", "2.6.0", uploaded="2024-06-01T00:00:00Z", tag="cp312-cp312-linux_x86_64"
    )
    local_index.wheel("trl", "1.0", uploaded="2024-03-05T00:00:00Z")
    local_index.wheel("trl", "2.0", uploaded="2024-05-05T00:00:00Z")
    with serve_site(FileSite(files=local_index.site_files())) as opened:
        yield opened


def matrix_of(site: FileSite) -> Matrix:
    here = {"pypi": PackageIndex(url=site.url("simple"))}
    return msgspec.structs.replace(samples.matrix(), indexes=here)


def derived(site: FileSite, folder: Path, *wants: str) -> datetime.date:
    requests, _ = resolve_request.parse_requests(wants, [], {})
    request = ResolveRequest(requests=requests, arches=(Arch.X86_64,))
    project = Project(matrix=folder / "matrix.yaml")
    context = Context(Store.open(folder / "cache"), HttpClient(attempts=1))
    return cutoff.derive_cutoff(request, project, matrix_of(site), context)


@pytest.mark.parametrize(
    ("wants", "day"),
    [
        (("torch==2.6.0", "trl"), datetime.date(2024, 1, 10)),
        (("torch==2.6.0", "trl==1.0"), datetime.date(2024, 3, 5)),
        (("torch==2.6.0", "trl>=1.5"), datetime.date(2024, 5, 5)),
    ],
)
def test_cutoff_date_is_the_first_upload_of_the_newest_pin_plus_a_margin(
    site: FileSite, tmp_path: Path, wants: tuple[str, ...], day: datetime.date
) -> None:
    assert derived(site, tmp_path, *wants) == day + MARGIN


def test_cutoff_date_without_a_pin_is_today(site: FileSite, tmp_path: Path) -> None:
    assert derived(site, tmp_path, "torch>=2", "trl") == resolve_request.today_utc()


def test_cutoff_date_without_upload_times_is_the_date_of_the_lock_or_today(
    site: FileSite, tmp_path: Path
) -> None:
    site.files = {path: data for path, data in site.files.items() if not path.startswith("pypi/")}
    assert derived(site, tmp_path, "torch==2.6.0") == resolve_request.today_utc()
    path = lock_file.lock_path(tmp_path / "images", "small")
    path.parent.mkdir(parents=True)
    lock = samples.lock()
    path.write_bytes(codec.encode(lock))
    assert derived(site, tmp_path, "torch==2.6.0") == datetime.date.fromisoformat(lock.as_of)
    assert derived(site, tmp_path, "torch==2.6.0", "trl==1.0") == resolve_request.today_utc()


def test_cutoff_date_is_cached_for_the_day(site: FileSite, tmp_path: Path) -> None:
    requests, _ = resolve_request.parse_requests(["torch==9.9"], [], {})
    request = ResolveRequest(requests=requests, arches=(Arch.X86_64,), cuda="12.4")
    project = Project(matrix=tmp_path / "matrix.yaml")
    context = Context(Store.open(tmp_path / "cache"), HttpClient(attempts=1))
    first = stored.cached_answer(request, project, matrix_of(site), (), context)
    request_count = len(site.requests)
    assert stored.cached_answer(request, project, matrix_of(site), (), context) == first
    assert len(site.requests) == request_count
    stored.cached_answer(
        msgspec.structs.replace(request, cuda="12.6"), project, matrix_of(site), (), context
    )
    fresh = Context(context.store, HttpClient(attempts=1))
    stored.cached_answer(request, project, matrix_of(site), (), fresh, again=True)
    assert len(site.requests) > request_count
