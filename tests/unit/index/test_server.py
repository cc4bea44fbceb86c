"""Tests the responses of the local index to uv."""

import datetime
import json
from contextlib import ExitStack

import pytest

from imgbuild.audit.packages.reading import parse_metadata
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.http.client import HttpClient
from imgbuild.index.candidates import FileRules
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.pages import IndexAddress, IndexLookup
from imgbuild.index.server import amend_metadata, serve_index
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support.local_index import LocalIndex, sdist_bytes
from tests.support.servers import FileSite, serve_site

AS_OF = datetime.date(2025, 6, 20)


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def catalogue(stack, tmp_path, index, *, pins=None, api=True, sdists=None, site=None):
    site = site or FileSite()
    site.files.update(index.site_files(api=api))
    stack.enter_context(serve_site(site))
    place = IndexAddress(name="pypi", address=site.url("simple"))
    http = HttpClient(attempts=1)
    rules = FileRules(
        as_of=AS_OF,
        tags=WheelTags(python="3.11.2", glibc="2.36", arch=Arch.X86_64),
        pins=pins or {},
    )
    indexes = IndexLookup({"pypi": place}, {}, "pypi", http)
    return FileCatalogue(indexes, rules, http, Store.open(tmp_path / "cache"), sdists=sdists)


def served(stack, served_catalogue, package):
    address = stack.enter_context(serve_index(served_catalogue))
    page = HttpClient(attempts=1).text(f"{address}{package}/")
    assert page.content_type == "application/vnd.pypi.simple.v1+json"
    return json.loads(page.text)["files"]


def test_page_of_the_local_index_has_only_usable_files(stack, tmp_path):
    index = LocalIndex()
    index.wheel("demo", "1.0", uploaded="2025-06-19T23:59:59Z")
    index.wheel("demo", "1.1", uploaded="2025-06-20T00:00:00Z")
    index.wheel("demo", "0.9", yanked=True)
    index.wheel("demo", "0.8", tag="cp311-cp311-win_amd64")
    index.add("demo", "demo-0.7.tar.gz", sdist_bytes("demo", "0.7", {}))
    (file,) = served(stack, catalogue(stack, tmp_path, index), "demo")
    assert file["filename"] == "demo-1.0-py3-none-any.whl"
    assert file["core-metadata"] is True
    assert file["size"] == len(index.published[0].data)
    assert file["upload-time"] == "2025-06-19T23:59:59.000000Z"
    assert file["hashes"].keys() == {"sha256"}


def test_cutoff_date_applies_to_each_file_of_the_index(stack, tmp_path):
    index = LocalIndex()
    index.wheel("demo", "1.0", tag="cp311-cp311-manylinux_2_17_x86_64")
    index.wheel("demo", "1.0", tag="cp311-cp311-manylinux_2_28_x86_64", uploaded="2025-07-01")
    names = [file["filename"] for file in served(stack, catalogue(stack, tmp_path, index), "demo")]
    assert names == ["demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"]


def test_local_index_reads_metadata_of_a_remote_wheel_with_range_requests(stack, tmp_path):
    index = LocalIndex()
    blob = bytes(range(256)) * 4000
    index.wheel("demo", "1.0", ["numpy<2"], files={"demo/a.bin": blob, "demo/b.bin": blob})
    site = FileSite()
    (file,) = served(stack, catalogue(stack, tmp_path, index, site=site), "demo")
    text = HttpClient(attempts=1).text(file["url"] + ".metadata").text
    assert "Requires-Dist: numpy<2" in text
    requests = site.received_requests("packages/demo-1.0-py3-none-any.whl")
    assert requests
    assert all("Range" in headers for headers in requests)
    HttpClient(attempts=1).text(file["url"] + ".metadata")
    assert len(site.received_requests("packages/demo-1.0-py3-none-any.whl")) == len(requests)


def test_local_index_reads_metadata_from_a_server_without_ranges(stack, tmp_path):
    index = LocalIndex()
    index.wheel("demo", "1.0", ["numpy<2"])
    served_catalogue = catalogue(stack, tmp_path, index, site=FileSite(ranges=False))
    assert b"numpy<2" in (served_catalogue.metadata("demo", "demo-1.0-py3-none-any.whl") or b"")
    assert served_catalogue.metadata("demo", "demo-2.0-py3-none-any.whl") is None


def test_error_for_an_invalid_wheel_is_cached(stack, tmp_path):
    index = LocalIndex()
    index.add("demo", "demo-1.0-py3-none-any.whl", b"not a zip at all")
    served_catalogue = catalogue(stack, tmp_path, index)
    (file,) = served(stack, served_catalogue, "demo")
    with pytest.raises(FetchFailed, match="400"):
        HttpClient(attempts=1).text(file["url"] + ".metadata")
    assert [type(failure) for failure in served_catalogue.failures] == [IntegrityError]
    assert "demo-1.0-py3-none-any.whl is not a valid wheel" in served_catalogue.failures[0].message


def test_internal_error_of_the_local_index_is_recorded(stack, tmp_path, monkeypatch):
    index = LocalIndex()
    index.wheel("demo", "1.0")
    served_catalogue = catalogue(stack, tmp_path, index)
    monkeypatch.setattr(served_catalogue, "_hide", lambda package, version: {}[package])
    address = stack.enter_context(serve_index(served_catalogue))
    with pytest.raises(FetchFailed, match="400"):
        HttpClient(attempts=1).text(f"{address}demo/")
    assert [type(failure) for failure in served_catalogue.failures] == [KeyError]


def test_local_index_serves_neither_unknown_packages_nor_wheels(stack, tmp_path):
    index = LocalIndex()
    index.wheel("demo", "1.0")
    address = stack.enter_context(serve_index(catalogue(stack, tmp_path, index)))
    for url in (f"{address}absent/", f"{address[:-7]}files/demo/demo-1.0-py3-none-any.whl"):
        with pytest.raises(FetchFailed, match="404"):
            HttpClient(attempts=1).text(url)


def test_allowed_sdist_is_offered_if_no_wheel_exists(stack, tmp_path):
    index = LocalIndex()
    for version in ("1.0", "1.1"):
        index.add("demo-pkg", f"demo_pkg-{version}.tar.gz", sdist_bytes("demo_pkg", version, {}))
    index.wheel("demo-pkg", "1.1")
    builds = []

    def build(package, sdist):
        builds.append((package, sdist.name))
        return b"Metadata-Version: 2.1\nName: demo-pkg\nVersion: 1.0\n"

    served_catalogue = catalogue(stack, tmp_path, index, sdists={"demo-pkg": build})
    files = {file["filename"]: file for file in served(stack, served_catalogue, "demo-pkg")}
    assert sorted(files) == ["demo_pkg-1.0-py3-none-any.whl", "demo_pkg-1.1-py3-none-any.whl"]
    wheel_of_sdist = files["demo_pkg-1.0-py3-none-any.whl"]
    assert wheel_of_sdist["hashes"] == {}
    assert builds == []  # serving a page builds nothing
    assert "Version: 1.0" in HttpClient(attempts=1).text(wheel_of_sdist["url"] + ".metadata").text
    assert builds == [("demo-pkg", "demo_pkg-1.0.tar.gz")]


def test_failing_remote_index_is_reported_by_the_local_index(stack, tmp_path):
    served_catalogue = catalogue(stack, tmp_path, LocalIndex(), site=FileSite(refusals=[(403, {})]))
    address = stack.enter_context(serve_index(served_catalogue))
    with pytest.raises(FetchFailed, match="400"):
        HttpClient(attempts=1).text(f"{address}demo/")
    assert "403" in served_catalogue.failures[0].message


def test_learned_constraints_change_only_the_metadata(stack, tmp_path):
    index = LocalIndex()
    index.wheel("Demo_Pkg", "1.0", ["numpy<2"])
    index.wheel("Demo_Pkg", "1.1", ["numpy<2"])
    served_catalogue = catalogue(stack, tmp_path, index)

    def amend(package, version):
        return (
            ["vllm>=0.11.1", "setuptools"] if (package, str(version)) == ("demo-pkg", "1.1") else []
        )

    address = stack.enter_context(serve_index(served_catalogue, amend))
    page = json.loads(HttpClient(attempts=1).text(f"{address}demo-pkg/").text)
    texts = {
        file["filename"]: HttpClient(attempts=1).text(file["url"] + ".metadata").text
        for file in page["files"]
    }
    old, new = (parse_metadata(texts[name]) for name in sorted(texts))
    assert old.requires == ("numpy<2",)
    assert new.requires == ("vllm>=0.11.1", "setuptools", "numpy<2")
    assert (new.name, new.version) == ("Demo_Pkg", "1.1")
    real = served_catalogue.metadata("demo-pkg", "Demo_Pkg-1.1-py3-none-any.whl")
    assert parse_metadata((real or b"").decode()).requires == ("numpy<2",)


@pytest.mark.parametrize(
    "data",
    [
        b"Metadata-Version: 2.1\nName: a\nVersion: 1\n\nText.\n\nRequires-Dist: no\n",
        b"Metadata-Version: 1.0\r\nName: a\r\nDescription: x\r\n        \r\n        y\r\n",
        b"Name: a",
    ],
)
def test_metadata_with_added_requirements_is_valid(data):
    fields = parse_metadata(amend_metadata(data, ["b<2"]).decode())
    assert (fields.name, fields.requires) == ("a", ("b<2",))
    assert amend_metadata(data, []) == data
