"""Tests that the archive of a standalone Python is downloaded once and checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, InputError, IntegrityError
from imgbuild.http.client import HttpClient
from imgbuild.matrix.model import StandalonePython
from imgbuild.solve import standalone
from imgbuild.values import Arch, sha256
from tests.support.servers import FileSite, serve_site
from tests.support.standalone_python import pack_archive, sample_entries

X86 = Arch.X86_64
NAME = "cpython-3.12.11+20260101-x86_64-unknown-linux-gnu-install_only.tar.gz"
PATH = NAME.replace("+", "%2B")


@pytest.fixture(name="site")
def _site() -> Iterator[FileSite]:
    with serve_site(FileSite(files={PATH: pack_archive(sample_entries())})) as site:
        yield site


@pytest.fixture(name="context")
def _context(tmp_path: Path) -> Context:
    return Context(Store.open(tmp_path / "cache"), HttpClient(attempts=1))


def source(site: FileSite, digest: str = "", arch: Arch = X86) -> StandalonePython:
    return StandalonePython(
        version="3.12",
        origin="standalone",
        archives={arch: site.url(PATH)},
        sha256={arch: digest} if digest else {},
    )


def test_standalone_python_archive_is_locked_with_all_fields(site, context):
    locked = standalone.fetch_archive(source(site), X86, context)
    data = site.files[PATH]
    assert (locked.file, locked.size, locked.sha256) == (NAME, len(data), sha256(data))
    assert locked.version == "3.12.11"


@pytest.mark.parametrize("named", [True, False])
def test_standalone_python_archive_is_downloaded_once(site, context, named):
    python = source(site, sha256(site.files[PATH]) if named else "")
    first = standalone.fetch_archive(python, X86, context)
    count = len(site.requests)
    assert standalone.fetch_archive(python, X86, context) == first
    assert len(site.requests) == count


def test_standalone_python_archive_with_a_different_digest_is_refused(site, context):
    with pytest.raises(IntegrityError, match=f"the matrix has {'0' * 64}") as caught:
        standalone.fetch_archive(source(site, "0" * 64), X86, context)
    assert sha256(site.files[PATH]) in caught.value.message
    assert "the checksums" in str(caught.value.hint)


def test_architecture_without_a_standalone_python_archive_is_refused(site, context):
    with pytest.raises(InputError, match=r"no archive of Python 3\.12 for arm64"):
        standalone.fetch_archive(source(site), Arch.ARM64, context)


def test_unavailable_or_unusable_standalone_python_archive_is_refused(site, context):
    with pytest.raises(IntegrityError, match="is not a program for arm64"):
        standalone.fetch_archive(source(site, arch=Arch.ARM64), Arch.ARM64, context)
    site.files[PATH] = b"<html>not found</html>"
    other = Context(Store.open(context.store.root / "other"), HttpClient(attempts=1))
    with pytest.raises(IntegrityError, match=r"^cpython-3\.12\.11"):
        standalone.fetch_archive(source(site), X86, other)
    del site.files[PATH]
    other = Context(Store.open(context.store.root / "third"), HttpClient(attempts=1))
    with pytest.raises(FetchFailed, match="404") as caught:
        standalone.fetch_archive(source(site), X86, other)
    assert "copy of the archive on another server to `archives`" in str(caught.value.hint)


def test_cached_standalone_python_archive_needs_no_server(site, context):
    offline = Context(context.store, HttpClient(attempts=1, offline=True))
    with pytest.raises(FetchFailed):
        standalone.fetch_archive(source(site), X86, offline)
    locked = standalone.fetch_archive(source(site), X86, context)
    assert standalone.fetch_archive(source(site), X86, offline) == locked


def test_file_name_of_a_python_archive_must_have_plain_characters():
    assert standalone.file_name("https://x.example/a%2Fb%00%20c.tar.gz") == "a_b__c.tar.gz"
