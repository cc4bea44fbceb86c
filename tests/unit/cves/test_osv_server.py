"""Tests queries, pages, the cache and invalid responses of a server with the OSV API."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.cves.installed import InstalledSource
from imgbuild.cves.osv_server import QUERY, OsvServer
from imgbuild.cves.severity import Rating
from imgbuild.errors import ImgbuildError
from imgbuild.http.client import HttpClient
from tests.support import advisories
from tests.support.advisories import (
    HEADERS,
    OLD_VERSION,
    OPENSSL,
    REGEX,
    TORCH,
    OsvSite,
    advisory_names,
    debian,
    pypi,
    read_advisory,
)
from tests.support.rows import each_row

NOW = datetime.datetime(2026, 11, 25, 12, tzinfo=datetime.UTC)
HOUR, DAY = datetime.timedelta(hours=1), datetime.timedelta(days=1)
PACKAGES = (
    pypi("torch", "2.5.1"),
    pypi("vllm", "0.8.5.post1"),
    pypi("pip", "25.0"),
    debian("openssl", OLD_VERSION),
)
FOUND = [
    ("openssl", "CVE-2024-6119"),
    ("openssl", "DEBIAN-CVE-2024-6119"),
    ("torch", TORCH),
    ("vllm", HEADERS),
    ("vllm", REGEX),
]


@pytest.fixture(name="site")
def _site() -> Iterator[OsvSite]:
    with advisories.serve(advisories.advisory_site()) as site:
        yield site


class Asking:
    """Queries a site as an OSV server with a shared cache."""

    def __init__(self, site: OsvSite, folder: Path) -> None:
        self.site = site
        self.folder = folder

    def __call__(self, now: datetime.datetime = NOW, *, offline: bool = False) -> OsvServer:
        """Return the server for queries at the time `now`."""
        http = HttpClient(attempts=2, first_wait=0.01, offline=offline)
        return OsvServer(self.site.url, Context(Store.open(self.folder), http), now)


@pytest.fixture(name="asking")
def _asking(site: OsvSite, tmp_path: Path) -> Asking:
    return Asking(site, tmp_path / "cache")


def test_advisories_are_found_for_each_version(asking: Asking) -> None:
    answer = asking().find_advisories(PACKAGES)
    assert advisory_names(answer.advisories) == FOUND
    assert answer.of == f"{asking.site.url}, 2026-11-25"
    assert asking.site.asked.count("/v1/querybatch") == 1
    rated = {advisory.ids[0]: (advisory.severity, advisory.fixed) for advisory in answer.advisories}
    assert rated[TORCH] == ("critical", "2.6.0")
    assert rated[REGEX] == ("medium", "0.9.0")
    assert rated["DEBIAN-CVE-2024-6119"] == ("high", "3.0.14-1~deb12u2")


def test_missing_severity_of_a_debian_advisory_is_read_from_the_cve(asking: Asking) -> None:
    del asking.site.records[OPENSSL]["severity"]
    of_openssl = PACKAGES[3:]
    assert [advisory.severity for advisory in asking().find_advisories(of_openssl).advisories] == [
        "unknown"
    ] * 2
    # A missing advisory is also cached for a day.
    asking.site.records["CVE-2024-6119"] = {
        **read_advisory(REGEX),
        "id": "CVE-2024-6119",
        "aliases": [],
    }
    assert [advisory.severity for advisory in asking().find_advisories(of_openssl).advisories] == [
        "unknown"
    ] * 2
    asking.site.records[OPENSSL]["modified"] = "2026-11-26T00:00:00Z"
    advisories = asking(NOW + DAY).find_advisories(of_openssl).advisories
    assert [(advisory.severity, advisory.score) for advisory in advisories] == [("medium", 6.5)] * 2
    request_count = len(asking.site.asked)
    assert asking(NOW + DAY, offline=True).find_advisories(of_openssl).advisories == advisories
    assert len(asking.site.asked) == request_count


def test_query_for_many_packages_is_split_into_several_requests(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imgbuild.cves.osv_server.BATCH", 3)
    assert advisory_names(asking().find_advisories(PACKAGES).advisories) == FOUND
    assert asking.site.asked.count("/v1/querybatch") == 2


def test_all_pages_of_an_osv_response_are_read(asking: Asking) -> None:
    asking.site.page = 1
    assert advisory_names(asking().find_advisories(PACKAGES).advisories) == FOUND
    assert asking.site.asked.count("/v1/querybatch") == 2


def test_osv_responses_are_cached_for_a_day_and_longer_in_offline_mode(asking: Asking) -> None:
    first = asking().find_advisories(PACKAGES)
    request_count = len(asking.site.asked)
    assert asking(NOW + 23 * HOUR).find_advisories(PACKAGES) == first
    assert asking(NOW + 9 * DAY, offline=True).find_advisories(PACKAGES) == first
    assert len(asking.site.asked) == request_count
    assert asking(NOW + DAY).find_advisories(PACKAGES).of == f"{asking.site.url}, 2026-11-26"
    # The advisories were not modified: only the query is repeated.
    assert asking.site.asked[request_count:] == ["/v1/querybatch"]


def test_modified_advisory_is_fetched_again(asking: Asking) -> None:
    asking().find_advisories(PACKAGES)
    asking.site.records[TORCH]["modified"] = "2026-11-26T00:00:00Z"
    asking.site.records[TORCH]["withdrawn"] = "2026-11-26T00:00:00Z"
    left = [entry for entry in FOUND if entry[1] != TORCH]
    assert advisory_names(asking(NOW + DAY).find_advisories(PACKAGES).advisories) == left


def test_offline_query_without_a_cached_response_suggests_scanner_reports(asking: Asking) -> None:
    asking().find_advisories(PACKAGES[:1])
    with pytest.raises(ImgbuildError, match="--offline is set") as error:
        asking(offline=True).find_advisories(PACKAGES)
    assert "--report" in (error.value.hint or "")


def test_invalid_cached_osv_response_is_requested_again(asking: Asking) -> None:
    asking().find_advisories(PACKAGES)
    store = Store.open(asking.folder)
    for key in (package.key for package in PACKAGES):
        question = msgspec.json.encode((asking.site.url, *key)).decode()
        assert store.fact(QUERY, question) is not None
        store.put_fact(QUERY, question, b"[]")
    assert advisory_names(asking().find_advisories(PACKAGES).advisories) == FOUND
    assert asking.site.asked.count("/v1/querybatch") == 2


def test_busy_osv_server_is_retried(asking: Asking) -> None:
    asking.site.refusals = [503]
    assert advisory_names(asking().find_advisories(PACKAGES).advisories) == FOUND
    asking.site.refusals = [503, 503]
    with pytest.raises(ImgbuildError, match="503"):
        asking(NOW + DAY).find_advisories(PACKAGES)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/querybatch", b"<html>", "OSV response"),
        ("/v1/querybatch", b"[]", "OSV response"),
        ("/v1/querybatch", b'{"results": [{}]}', "1 responses to 4 queries"),
        ("/v1/querybatch", b'{"results": [{"vulns": [{"id": 1}]}, {}, {}, {}]}', "OSV response"),
        (
            "/v1/querybatch",
            b'{"results": [{"vulns": [{"id": "../../secret"}]}, {}, {}, {}]}',
            "lists the invalid advisory ID '../../secret'",
        ),
        (
            "/v1/querybatch",
            b'{"results": [{"next_page_token": "1"}, {}, {}, {}]}',
            "responses to 1 queries",
        ),
        (f"/v1/vulns/{TORCH}", b"{}", "missing required field `id`"),
        (f"/v1/vulns/{TORCH}", b'{"id": "GHSA-0000-0000-0000"}', "another advisory, GHSA-0000"),
        (f"/v1/vulns/{TORCH}", b" " * (33 << 20), "sent a document of more than"),
    ],
)
def test_invalid_osv_responses_are_refused(
    asking: Asking, path: str, body: bytes, message: str
) -> None:
    asking.site.raw[path] = body
    with pytest.raises(ImgbuildError) as error:
        asking().find_advisories(PACKAGES)
    text = " ".join((error.value.message, *map(str, getattr(error.value, "problems", ()))))
    assert message in text
    assert "localhost" in text
    # No invalid response was cached.
    del asking.site.raw[path]
    assert advisory_names(asking().find_advisories(PACKAGES).advisories) == FOUND


def test_endless_pages_of_an_osv_response_are_refused(asking: Asking) -> None:
    package = pypi("torch", "2.5.1")
    asking.site.raw["/v1/querybatch"] = b'{"results": [{"next_page_token": "more"}]}'
    with pytest.raises(ImgbuildError, match="more than 100 pages"):
        asking().find_advisories([package])


@each_row(
    "address",
    ["osv/PyPI", "http://", "http://[bad", "http://u:secret@host:99999", "http://host:x/osv"],
)
def test_invalid_osv_url_is_refused(tmp_path: Path, address: str) -> None:
    context = Context(Store.open(tmp_path / "cache"), HttpClient())
    with pytest.raises(ImgbuildError, match="not an HTTP URL") as error:
        OsvServer(address, context, NOW)
    assert "secret" not in error.value.message


def test_vulnerabilities_of_cpython_are_queried_by_repository_and_tag(
    site: OsvSite, tmp_path: Path
) -> None:
    repository = "https://github.com/python/cpython"
    ranges = [{"type": "GIT", "repo": f"{repository}.git", "events": [{"introduced": "0"}]}]
    site.about["GIT", repository, "v3.12.1"] = ["PSF-2024-3"]
    site.records["PSF-2024-3"] = {
        "id": "PSF-2024-3", "modified": "2024-06-17T00:00:00Z", "aliases": ["CVE-2024-0450"],
        "summary": "zipfile is vulnerable to quoted-overlap", "affected": [
            {"ranges": ranges, "database_specific": {"severity": "MODERATE"}},
            {"ranges": [{"type": "GIT", "repo": "https://github.com/pypy/pypy", "events": []}],
             "database_specific": {"severity": "CRITICAL"}},
        ],
    }  # fmt: skip
    python = InstalledSource(ecosystem="GIT", name="cpython", version="3.12.1")
    (advisory,) = Asking(site, tmp_path)().find_advisories([python]).advisories
    assert advisory.ids == ("PSF-2024-3", "CVE-2024-0450")
    assert (advisory.severity, advisory.fixed) == (Rating.MEDIUM, "")
