"""Tests reading pages and wheels from the configured package index."""

from __future__ import annotations

import re
import zipfile
from io import BytesIO
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import pytest

from imgbuild.cache.context import Context
from imgbuild.cache.download import FileRequest, fetch_all
from imgbuild.cache.store import Store
from imgbuild.http.client import HttpClient, RequestRefused
from imgbuild.lock.resolution import LockedFile
from tests.support import downloads

pytestmark = pytest.mark.network


def index() -> str:
    """The default index of this machine's uv."""
    words = downloads.index_words()
    return words[words.index("--index-url") + 1].rstrip("/")


def test_wheel_is_fetched_from_the_index(tmp_path: Path) -> None:
    http = HttpClient()
    page = http.text(f"{index()}/six/", accept="text/html")
    link = re.findall(r'href="([^"]+-1\.17\.0-[^"]+\.whl#sha256=[0-9a-f]{64})"', page.text)[-1]
    url, fragment = urldefrag(urljoin(page.url, link))
    end, size = http.part_end(url, 1000)
    assert http.fetch_part(url, 0, 4) == b"PK\x03\x04"
    assert http.fetch_part(url, size - 1000, 1000) == end
    locked = LockedFile(file="six.whl", size=size, sha256=fragment.removeprefix("sha256="))
    store = Store.open(tmp_path / "cache")
    path = fetch_all([FileRequest(locked, lambda: [url])], Context(store, http), title="six")[
        locked.sha256
    ]
    assert "six.py" in zipfile.ZipFile(BytesIO(path.read_bytes())).namelist()


def test_missing_package_is_reported() -> None:
    with pytest.raises(RequestRefused) as caught:
        HttpClient().text(f"{index()}/imgbuild-has-no-such-package/")
    assert caught.value.status == 404
