"""Tests deriving versions from commits, and the archive format."""

import gzip

import pytest

from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, InputError
from imgbuild.http.client import HttpClient
from imgbuild.solve import git_tree
from tests.support.rows import each_row

COMMIT = "abcdef0123456789abcdef0123456789abcdef01"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("git+https://me:word@a.example/x", "the URL contains a username or password"),
        ("git+ftp://a.example/x", "git+ftp is not the URL of a repository"),
        ("https://a.example/x-1-py3-none-any.whl", "not the URL of a git repository"),
    ],
)
def test_invalid_git_urls_are_refused_with_location_value_and_format(tmp_path, text, reason):
    context = Context(Store(tmp_path), HttpClient(offline=True))
    with pytest.raises(InputError) as raised:
        git_tree.fetch_git_url(text, "--replace x", context, form="write it as X")
    shown = text.replace("me:word@", "")
    assert raised.value.message.startswith(f"--replace x: {shown}: {reason}")
    assert raised.value.hint == "write it as X"
    assert "word@" not in raised.value.message


def test_error_for_an_unreachable_repository_has_a_location(tmp_path):
    context = Context(Store(tmp_path), HttpClient(offline=True))
    with pytest.raises(FetchFailed, match=r"^setup.py, line 3: https://a.example/x at HEAD is not"):
        git_tree.fetch_git_url("git+https://a.example/x", "setup.py, line 3", context, form="")


@each_row(
    ("tag", "distance", "version"),
    [
        ("v1.2.3", 0, "1.2.3"),
        ("release-1.2", 0, "1.2"),
        ("demo-v2.0rc1", 0, "2.0rc1"),
        ("v1.2.3", 4, "1.2.4.dev4+gabcdef012"),
        ("v2.0rc1", 4, "2.0rc2.dev4+gabcdef012"),
        ("1!2.0", 1, "1!2.1.dev1+gabcdef012"),
        ("v1.2-nightly-x", 3, "0.1.dev3+gabcdef012"),
        ("", 7, "0.1.dev7+gabcdef012"),
    ],
)
def test_package_version_is_derived_from_the_commit(tag, distance, version):
    assert git_tree.version_after_tag(tag, distance, COMMIT) == version


@each_row("size", [0, 1, 0xFFFF, 0x10000, 300_000])
def test_gzip_stream_without_compression_is_valid(size):
    data = bytes(number % 251 for number in range(size))
    pieces = [data[at : at + 1000] for at in range(0, size, 1000)]
    stored = b"".join(git_tree.gzip_pieces(pieces))
    assert gzip.decompress(stored) == data
    assert b"".join(git_tree.gzip_pieces([data])) == stored
