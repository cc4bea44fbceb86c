"""Publishes releases of small packages on a local index, for tests of learned constraints."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path

from imgbuild.audit.packages.library import Library
from imgbuild.cache.store import Store
from imgbuild.http.client import HttpClient
from imgbuild.index.candidates import FileRules
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.pages import IndexAddress, IndexLookup
from imgbuild.learn.boundaries import ReleaseCatalogue
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support.local_index import LocalIndex
from tests.support.servers import FileSite, serve_site

Sources = Mapping[str, str]


def publish_releases(
    index: LocalIndex, package: str, releases: Mapping[str, Sources], *, year: int = 2024
) -> None:
    """Publish the releases of `package`, one each month from January of `year`."""
    for month, (version, sources) in enumerate(releases.items()):
        files = {path: text.encode() for path, text in sources.items()}
        day = f"{year + month // 12}-{month % 12 + 1:02d}-01T00:00:00Z"
        index.wheel(package, version, files=files, uploaded=day)


@contextlib.contextmanager
def release_catalogue(
    folder: Path, index: LocalIndex, *, pins: Mapping[str, str] | None = None
) -> Iterator[tuple[ReleaseCatalogue, FileSite]]:
    """The library for `index` with a cut-off date before all releases, and its server."""
    site = FileSite(files=index.site_files())
    with serve_site(site):
        http = HttpClient(attempts=1)
        store = Store.open(folder / "cache")
        tags = WheelTags(python="3.11.2", glibc="2.36", arch=Arch.X86_64)
        rules = FileRules(as_of=datetime.date(2020, 1, 1), tags=tags, pins=dict(pins or {}))
        place = IndexAddress(name="pypi", address=site.url("simple"))
        catalogue = FileCatalogue(
            IndexLookup({"pypi": place}, {}, "pypi", http), rules, http, store
        )
        with Library(store, http) as library:
            yield ReleaseCatalogue(catalogue, library, store), site
