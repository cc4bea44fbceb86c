"""Tests that a local folder works as an index, with a page, complete files and ranges."""

from __future__ import annotations

from pathlib import Path

import pytest

from imgbuild.cache.context import Context
from imgbuild.cache.download import FileRequest, fetch_all
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed
from imgbuild.http.client import HttpClient, RequestRefused
from imgbuild.index.pages import IndexAddress, IndexLookup
from imgbuild.index.remote_wheel import lock_wheel, read_wheel_metadata
from imgbuild.values import sha256
from tests.support.local_index import wheel_bytes
from tests.support.servers import FileSite, serve_site

NAME = "flash_attn-2.8.3+cu12torch2.9-cp311-cp311-linux_x86_64.whl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    wheels_folder = tmp_path / "my wheels"
    wheels_folder.mkdir()
    data = wheel_bytes(
        "flash-attn", "2.8.3+cu12torch2.9", ["einops"], tag="cp311-cp311-linux_x86_64"
    )
    (wheels_folder / NAME).write_bytes(data)
    (wheels_folder / "notes.txt").write_text("built by hand", encoding="utf-8")
    (wheels_folder / "sub").mkdir()
    return wheels_folder


def indexes(address: str, http: HttpClient) -> IndexLookup:
    place = IndexAddress(name="wheels", address=address, flat=True, timed=False)
    return IndexLookup({"wheels": place}, {}, "wheels", http)


def test_wheel_in_a_folder_is_found_read_locked_and_copied(folder: Path, tmp_path: Path) -> None:
    http, store = HttpClient(attempts=1), Store.open(tmp_path / "cache")
    data = (folder / NAME).read_bytes()
    (file,) = indexes(f"{folder.as_uri()}/", http).files("flash-attn")
    assert file.name == NAME
    assert b"Requires-Dist: einops" in read_wheel_metadata(file, http, store)
    wheel = lock_wheel("flash-attn", "2.8.3+cu12torch2.9", "wheels", file, http)
    assert (wheel.file, wheel.size, wheel.sha256) == (NAME, len(data), sha256(data))
    have = fetch_all(
        [FileRequest(locked=wheel, urls=lambda: [file.url])], Context(store, http), title="test"
    )
    assert have[wheel.sha256].read_bytes() == data


@pytest.mark.parametrize(("start", "length"), [(0, 4), (10, 100), (100, 1)])
def test_range_of_local_file_is_served(folder: Path, start: int, length: int) -> None:
    data = (folder / NAME).read_bytes()
    assert (
        HttpClient().fetch_part((folder / NAME).as_uri(), start, length)
        == data[start : start + length]
    )


def test_range_at_the_end_of_a_local_file_is_read(folder: Path) -> None:
    data = (folder / NAME).read_bytes()
    assert HttpClient().part_end((folder / NAME).as_uri(), 50) == (data[-50:], len(data))
    assert HttpClient().part_end((folder / NAME).as_uri(), 10**6) == (data, len(data))


def test_range_beyond_the_end_of_a_local_file_is_refused(folder: Path) -> None:
    with pytest.raises(RequestRefused) as caught:
        HttpClient().fetch_part((folder / NAME).as_uri(), 10**6, 1)
    assert caught.value.status == 416


def test_missing_wheel_folder_has_no_packages(tmp_path: Path) -> None:
    assert indexes(f"{tmp_path.as_uri()}/none/", HttpClient()).files("flash-attn") == ()


def test_page_from_a_server_cannot_link_to_a_local_file(folder: Path) -> None:
    link = f'<a href="{(folder / NAME).as_uri()}">{NAME}</a>'
    with serve_site(FileSite(files={"links.html": link.encode()})) as site:
        assert indexes(site.url("links.html"), HttpClient(attempts=1)).files("flash-attn") == ()


def test_server_cannot_redirect_to_a_local_file(folder: Path) -> None:
    site = FileSite(redirects={"/away": (folder / NAME).as_uri()})
    with serve_site(site), pytest.raises(FetchFailed, match="which is not an HTTP URL"):
        HttpClient(attempts=1).fetch_bytes(site.url("away"))
