"""Tests reading index pages in every format, and the index to which a package is assigned."""

import datetime
import json

import msgspec
import pytest

from imgbuild.errors import FetchFailed, InputError
from imgbuild.http.client import HttpClient, TextPage
from imgbuild.index.pages import (
    IndexAddress,
    IndexFile,
    IndexLookup,
    fill_address,
    index_addresses,
    package_of_file,
    parse_upload_time,
    read_json_api,
    read_page,
)
from imgbuild.matrix.model import PackageIndex
from tests.support import samples
from tests.support.local_index import LocalIndex
from tests.support.rows import each_row
from tests.support.servers import FileSite, serve_site

SHA = "a" * 64


def page(text, url="https://index.example/simple/demo/", kind="text/html"):
    return TextPage(url, text, kind, 200)


def test_links_of_an_html_index_page_are_joined_and_unescaped():
    text = (
        '<a href="../../f/demo-1.0%2Bcu124-py3-none-any.whl#sha256=' + SHA + '"'
        ' data-requires-python="&gt;=3.9" data-yanked="" data-core-metadata="sha256='
        + SHA
        + '">x</a>'
        '<a href="other.html">no file</a>'
    )
    (file,) = read_page(page(text))
    assert file.name == "demo-1.0+cu124-py3-none-any.whl"
    assert file.url == "https://index.example/f/demo-1.0%2Bcu124-py3-none-any.whl"
    assert (file.sha256, file.requires_python, file.yanked) == (SHA, ">=3.9", True)
    assert (file.metadata, file.metadata_sha256) == (True, SHA)
    assert str(file.version) == "1.0+cu124"


def test_html_base_element_and_plain_metadata_attribute_are_read():
    text = (
        '<base href="https://files.example/x/">'
        '<a href="demo-1.0.tar.gz" data-dist-info-metadata="true">x</a>'
    )
    (file,) = read_page(page(text))
    assert file.url == "https://files.example/x/demo-1.0.tar.gz"
    assert (file.sha256, file.metadata, file.metadata_sha256) == (None, True, None)


def test_fields_of_pep_700_are_read_from_a_json_page():
    document = {
        "files": [
            {
                "filename": "demo-1.0-py3-none-any.whl",
                "url": "demo-1.0-py3-none-any.whl",
                "hashes": {"sha256": SHA},
                "size": 12,
                "upload-time": "2025-06-19T23:59:59.5Z",
                "yanked": "because",
                "core-metadata": {"sha256": SHA},
            }
        ]
    }
    (file,) = read_page(page(json.dumps(document), kind="application/vnd.pypi.simple.v1+json"))
    assert (file.size, file.yanked, file.metadata_sha256) == (12, True, SHA)
    assert file.url == "https://index.example/simple/demo/demo-1.0-py3-none-any.whl"
    assert file.uploaded == datetime.datetime(2025, 6, 19, 23, 59, 59, 500000, datetime.UTC)


def test_urls_of_the_json_api_can_be_relative():
    document = {"releases": {"1.0": [{"filename": "demo-1.0.zip", "url": "../../p/demo-1.0.zip"}]}}
    files = read_json_api(page(json.dumps(document), url="https://index.example/pypi/demo/json"))
    assert files["demo-1.0.zip"].url == "https://index.example/p/demo-1.0.zip"


@each_row(
    ("text", "expected"),
    [
        ("2025-06-20T00:00:00", datetime.datetime(2025, 6, 20, tzinfo=datetime.UTC)),
        ("2025-06-20T02:00:00+02:00", datetime.datetime(2025, 6, 20, tzinfo=datetime.UTC)),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_upload_times_are_parsed(text, expected):
    assert parse_upload_time(text) == expected


def test_templates_of_index_urls_are_filled():
    index = PackageIndex(url="https://x.example/{cuda_tag}/torch{torch}/", upload_times="none")
    assert (
        fill_address(index, cuda="12.4", torch="2.6.0+cu124") == "https://x.example/cu124/torch2.6/"
    )
    with pytest.raises(InputError, match="does not pin torch"):
        fill_address(index, cuda="12.4", torch=None)


def test_only_indexes_of_the_target_are_located():
    matrix = samples.matrix()
    addresses = index_addresses(
        matrix, matrix.targets["small"], lambda: "https://default.example/simple"
    )
    assert addresses == {
        "pypi": IndexAddress(name="pypi", address="https://default.example/simple")
    }


def test_json_api_provides_upload_times_and_sizes():
    index = LocalIndex()
    index.wheel("demo", "1.0", uploaded="2025-06-19T10:00:00Z")
    with serve_site(FileSite(files=index.site_files())) as site:
        place = IndexAddress(name="pypi", address=site.url("simple/"))
        (file,) = IndexLookup({"pypi": place}, {}, "pypi", HttpClient(attempts=1)).files("Demo")
    assert file.uploaded == datetime.datetime(2025, 6, 19, 10, tzinfo=datetime.UTC)
    assert file.size == len(index.published[0].data)


def test_json_api_entry_with_a_different_hash_than_the_page_is_ignored():
    index, forged = LocalIndex(), LocalIndex()
    index.wheel("demo", "1.0")
    forged.wheel("demo", "1.0", files={"demo/other.py": b""}, uploaded="2020-01-01T00:00:00Z")
    files = index.site_files() | {"pypi/demo/json": forged.site_files()["pypi/demo/json"]}
    with serve_site(FileSite(files=files)) as site:
        place = IndexAddress(name="pypi", address=site.url("simple/"))
        (file,) = IndexLookup({"pypi": place}, {}, "pypi", HttpClient(attempts=1)).files("demo")
    assert file.uploaded is None


def test_index_page_is_requested_once_and_a_missing_page_is_not_an_error():
    index = LocalIndex()
    index.wheel("demo", "1.0")
    with serve_site(FileSite(files=index.site_files(api=False))) as site:
        place = IndexAddress(name="pypi", address=site.url("simple"))
        indexes = IndexLookup({"pypi": place}, {}, "pypi", HttpClient(attempts=1))
        assert len(indexes.files("demo")) == len(indexes.files("demo")) == 1
        assert indexes.files("absent") == ()
    assert len(site.received_requests("simple/demo/")) == 1


def test_refused_index_request_is_an_error():
    with serve_site(FileSite(refusals=[(403, {})])) as site:
        place = IndexAddress(name="pypi", address=site.url("simple"))
        with pytest.raises(FetchFailed, match="403"):
            IndexLookup({"pypi": place}, {}, "pypi", HttpClient(attempts=1)).files("demo")


def test_unpaired_surrogate_on_an_index_page_is_an_error():
    text = json.dumps({"files": [{"filename": "demo-1.tar.gz", "url": "\ud800"}]})
    with pytest.raises(msgspec.DecodeError):
        read_page(page(text, kind="application/json"))


def test_flat_index_page_has_several_packages():
    links = (
        '<a href="f/demo-1.0-py3-none-any.whl">a</a><a href="f/other-2.0-py3-none-any.whl">b</a>'
    )
    with serve_site(FileSite(files={"links": links.encode()})) as site:
        place = IndexAddress(name="own", address=site.url("links"), flat=True, timed=False)
        indexes = IndexLookup({"own": place}, {}, "own", HttpClient(attempts=1))
        assert [file.name for file in indexes.files("other")] == ["other-2.0-py3-none-any.whl"]


def test_package_is_requested_only_from_its_assigned_index():
    assigned_index, default = LocalIndex(), LocalIndex()
    assigned_index.wheel("demo", "1.0")
    default.wheel("demo", "99.0")
    with (
        serve_site(FileSite(files=assigned_index.site_files(api=False))) as first,
        serve_site(FileSite(files=default.site_files(api=False))) as second,
    ):
        located = {
            "own": IndexAddress(name="own", address=first.url("simple"), timed=False),
            "pypi": IndexAddress(name="pypi", address=second.url("simple")),
        }
        indexes = IndexLookup(located, {"demo": "own"}, "pypi", HttpClient(attempts=1))
        assert [str(file.version) for file in indexes.files("demo")] == ["1.0"]
        assert second.requests == []


def test_version_with_5000_digits_is_invalid() -> None:
    for name in (f"demo-{'9' * 5000}.tar.gz", f"demo-{'9' * 5000}-py3-none-any.whl"):
        assert package_of_file(name) is None
        assert IndexFile(name=name, url="").version is None
