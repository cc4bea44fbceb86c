"""Tests reading METADATA from the metadata file or the wheel, and locked files."""

import hashlib

import pytest

from imgbuild.errors import IntegrityError
from imgbuild.http.client import HttpClient
from imgbuild.index.pages import IndexFile
from imgbuild.index.remote_wheel import BlockCache, lock_file, lock_wheel, read_wheel_metadata
from tests.support.local_index import wheel_bytes
from tests.support.servers import FileSite, serve_site

NAME = "demo-1.0-py3-none-any.whl"
DATA = wheel_bytes("demo", "1.0", ["numpy"])
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def site():
    with serve_site(FileSite(files={NAME: DATA})) as server:
        yield server


def test_metadata_file_is_read_instead_of_the_wheel(site, store):
    beside = b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"
    site.files[f"{NAME}.metadata"] = beside
    file = IndexFile(
        name=NAME,
        url=site.url(NAME),
        metadata=True,
        metadata_sha256=hashlib.sha256(beside).hexdigest(),
    )
    assert read_wheel_metadata(file, HttpClient(attempts=1), store) == beside
    assert site.received_requests(NAME) == []


def test_metadata_file_must_match_the_hash_on_the_index(site, store):
    site.files[f"{NAME}.metadata"] = b"Name: demo\n"
    file = IndexFile(name=NAME, url=site.url(NAME), metadata=True, metadata_sha256="0" * 64)
    with pytest.raises(IntegrityError, match="does not match the index"):
        read_wheel_metadata(file, HttpClient(attempts=1), store)


def test_wheel_is_read_if_its_metadata_file_is_missing(site, store):
    file = IndexFile(name=NAME, url=site.url(NAME), metadata=True, sha256=SHA)
    assert b"Requires-Dist: numpy" in read_wheel_metadata(file, HttpClient(attempts=1), store)


def test_wheel_metadata_is_cached_by_hash(site, store):
    file = IndexFile(name=NAME, url=site.url(NAME), sha256=SHA)
    first = read_wheel_metadata(file, HttpClient(attempts=1), store)
    site.files.clear()
    assert read_wheel_metadata(file, HttpClient(attempts=1), store) == first


@pytest.mark.parametrize("suffix", [True, False])
def test_size_and_hash_missing_on_the_index_are_determined(site, suffix):
    site.suffix_ranges = suffix
    locked = lock_file(IndexFile(name=NAME, url=site.url(NAME)), HttpClient(attempts=1))
    assert (locked.size, locked.sha256) == (len(DATA), SHA)
    sized = lock_wheel(
        "demo", "1.0", "own", IndexFile(name=NAME, url=site.url(NAME), sha256=SHA), HttpClient()
    )
    assert (sized.size, sized.sha256, sized.index) == (len(DATA), SHA, "own")


@pytest.mark.parametrize("limit", [2, 100])
def test_adjacent_ranges_of_a_remote_wheel_are_fetched_in_one_block(site, limit):
    blob = bytes(range(256)) * 40
    site.files["blob"] = blob
    ranges = BlockCache(HttpClient(attempts=1), block=1000, limit=limit)
    address = site.url("blob")
    assert ranges.part_end(address, 10) == (blob[-10:], len(blob))
    pieces = [(0, 10), (10, 500), (990, 20), (995, 5), (0, len(blob)), (10_000, 240), (3, 3000)]
    for start, length in pieces:
        assert ranges.fetch_part(address, start, length) == blob[start : start + length]
    if limit == 100:
        assert len(site.received_requests("blob")) == 4  # the end, block 0, block 1, all the others


def test_blocks_of_a_remote_wheel_with_unknown_size_are_read(site):
    site.files["blob"] = b"0123456789"
    assert BlockCache(HttpClient(attempts=1)).fetch_part(site.url("blob"), 2, 3) == b"234"
    assert BlockCache(HttpClient(attempts=1)).fetch_bytes(site.url("blob")) == b"0123456789"
