"""Tests downloads from a local server, with and without faults."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imgbuild.cache.context import Context
from imgbuild.cache.download import FileRequest, fetch_all
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, IntegrityError, Interrupted, WorkFailed
from imgbuild.http.client import HttpClient
from imgbuild.lock.resolution import LockedFile
from imgbuild.values import sha256
from tests.support.servers import FileSite, serve_site
from tests.unit.cache.test_transfer import Recorder

DATA = bytes(range(256)) * 2000


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


@pytest.fixture
def site() -> Iterator[FileSite]:
    with serve_site(FileSite(files={"x.whl": DATA})) as site:
        yield site


@pytest.fixture
def http() -> HttpClient:
    return HttpClient(attempts=4, first_wait=0.001, timeout=(5, 5))


def locked(data: bytes = DATA, name: str = "x.whl") -> LockedFile:
    return LockedFile(file=name, size=len(data), sha256=sha256(data))


def want(*urls: str, data: bytes = DATA) -> FileRequest:
    return FileRequest(locked(data), lambda: urls)


def named(site: FileSite, name: str) -> FileRequest:
    return FileRequest(locked(site.files[name], name), lambda: [site.url(name)])


def fetch(store: Store, http: HttpClient, *wants: FileRequest) -> dict[str, Path]:
    return fetch_all(wants, Context(store, http), title="test")


def begin(store: Store, data: bytes, whole: bytes = DATA) -> Path:
    """Write a partial file, as an interrupted download leaves it."""
    path = store.root / "partial" / sha256(whole)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def starts(site: FileSite, path: str = "x.whl") -> list[str]:
    return [headers.get("Range", "all") for headers in site.received_requests(path)]


def test_downloaded_file_is_not_requested_again(
    store: Store, http: HttpClient, site: FileSite
) -> None:
    paths = fetch(store, http, want(site.url("x.whl")))
    assert paths[sha256(DATA)].read_bytes() == DATA

    def never() -> Sequence[str]:
        message = "the store has it"
        raise AssertionError(message)

    assert fetch(store, http, FileRequest(locked(), never)) == paths
    assert starts(site) == ["all"]
    assert list((store.root / "partial").iterdir()) == []


def test_many_files_are_downloaded_in_parallel(
    store: Store, http: HttpClient, site: FileSite
) -> None:
    files = {f"f{number}": bytes([number]) * (number * 5000) for number in range(30)}
    site.files.update(files)
    wants = [named(site, name) for name in files]
    paths = fetch(store, http, *wants, *wants)
    assert {sha256(data) for data in files.values()} == set(paths)
    assert all(paths[sha256(data)].read_bytes() == data for data in files.values())
    assert len(site.requests) == len(files) - 1, (
        "an empty file requires no request, and a repeated file no second one"
    )


def test_at_most_four_downloads_run_at_once(store: Store, http: HttpClient, site: FileSite) -> None:
    gate = threading.Barrier(4, timeout=20)
    site.before = lambda _path: (gate.wait(), None)[1]
    files = {f"f{number}": bytes([number]) * 100 for number in range(8)}
    site.files.update(files)
    fetch(store, http, *(named(site, name) for name in files))
    assert not gate.broken


@pytest.mark.parametrize("ranges", [True, False])
def test_interrupted_download_resumes(
    store: Store, http: HttpClient, site: FileSite, ranges: bool
) -> None:
    site.ranges = ranges
    begin(store, DATA[:1000])
    assert fetch(store, http, want(site.url("x.whl")))[sha256(DATA)].read_bytes() == DATA
    assert starts(site) == ["bytes=1000-"]


def test_announcement_of_a_resumed_download_has_the_remaining_size(
    store: Store, http: HttpClient, site: FileSite
) -> None:
    seen = Recorder()
    data = DATA * (1 + 3_000_000 // len(DATA))
    begin(store, data[:1_000_000], data)
    site.files["large"] = data
    request = want(site.url("large"), data=data)
    fetch_all([request], Context(http=http, store=store, reporter=seen), title="fetching")
    size = len(data) / 1e6
    assert seen.messages == [
        f"fetching: 1 file, {size - 1:.1f} MB to download (1.0 MB already downloaded)"
    ]
    assert seen.bars == [(0, len(data))]


def test_complete_partial_file_needs_no_request(store: Store, http: HttpClient) -> None:
    begin(store, DATA)
    paths = fetch(store, http, want("http://localhost:1/never"))
    assert paths[sha256(DATA)].read_bytes() == DATA


def test_partial_file_with_different_content_is_discarded(
    store: Store, http: HttpClient, site: FileSite
) -> None:
    begin(store, b"z" * 1000)
    assert fetch(store, http, want(site.url("x.whl")))[sha256(DATA)].read_bytes() == DATA
    assert starts(site) == ["bytes=1000-", "all"]


def test_partial_file_that_is_too_long_is_discarded(
    store: Store, http: HttpClient, site: FileSite
) -> None:
    begin(store, DATA + b"more")
    fetch(store, http, want(site.url("x.whl")))
    assert starts(site) == ["all"]


def test_download_resumes_at_the_last_byte_after_a_dropped_connection(
    store: Store, http: HttpClient, site: FileSite
) -> None:
    site.cuts = [100_000, 100_000, 0]
    fetch(store, http, want(site.url("x.whl")))
    assert starts(site) == ["all", "bytes=100000-", "bytes=200000-", "bytes=200000-"]


def test_download_without_content_length_is_retried_after_a_dropped_connection(
    store: Store, http: HttpClient, site: FileSite
) -> None:
    site.announce = False
    site.cuts = [100_000]
    assert fetch(store, http, want(site.url("x.whl")))[sha256(DATA)].read_bytes() == DATA
    assert starts(site) == ["all", "bytes=100000-"]


def test_download_with_repeated_drops_fails_and_keeps_the_partial_file(
    store: Store, http: HttpClient, site: FileSite
) -> None:
    site.cuts = [10] * 50
    with pytest.raises(FetchFailed, match=r"closed early|connection failed"):
        fetch(store, http, want(site.url("x.whl")))
    assert len(site.requests) == 4
    assert (store.root / "partial" / sha256(DATA)).read_bytes() == DATA[:40]
    site.cuts = []
    fetch(store, http, want(site.url("x.whl")))
    assert starts(site)[-1] == "bytes=40-"


def test_file_that_changes_on_the_server_during_download_is_refused(
    store: Store, http: HttpClient, site: FileSite
) -> None:
    begin(store, DATA[:1000])
    site.files["x.whl"] = DATA[::-1]
    with pytest.raises(
        IntegrityError, match=r"x\.whl from localhost:\d+: expected sha256"
    ) as caught:
        fetch(store, http, want(site.url("x.whl", "me:secret")))
    assert sha256(DATA) in caught.value.message
    assert sha256(DATA[::-1]) in caught.value.message
    assert "secret" not in caught.value.message
    assert store.file(sha256(DATA)) is None
    assert starts(site) == ["bytes=1000-", "all"]


@pytest.mark.parametrize("announce", [True, False])
@pytest.mark.parametrize("other", [DATA + b"!", DATA[:1500]])
@pytest.mark.parametrize("begun", [0, 1000, 2000])
def test_downloaded_file_of_a_different_size_is_refused(
    store: Store, http: HttpClient, site: FileSite, announce: bool, other: bytes, begun: int
) -> None:
    """Status 416 is also handled: the partial file is longer than the file on the server."""
    site.files["x.whl"] = other
    site.announce = announce
    begin(store, DATA[:begun])
    with pytest.raises(IntegrityError, match=f"expected {len(DATA)} bytes"):
        fetch(store, http, want(site.url("x.whl")))
    assert store.file(sha256(DATA)) is None


def test_short_download_without_content_length_is_refused(
    store: Store, http: HttpClient, site: FileSite
) -> None:
    """Without length and ranges, a short file looks like a dropped connection."""
    site.files["x.whl"] = DATA[:1500]
    site.announce = site.ranges = False
    with pytest.raises(FetchFailed, match="closed early"):
        fetch(store, http, want(site.url("x.whl")))
    assert len(site.requests) == 4


def test_next_url_is_tried_after_a_failed_download(
    store: Store, http: HttpClient, site: FileSite
) -> None:
    site.files["bad/x.whl"] = DATA[::-1]
    urls = [site.url("none/x.whl"), site.url("bad/x.whl"), site.url("x.whl")]
    assert fetch(store, http, want(*urls))[sha256(DATA)].read_bytes() == DATA
    assert [path for _, path, _ in site.requests] == ["/none/x.whl", "/bad/x.whl", "/x.whl"]


def test_download_fails_if_no_url_has_the_file(
    store: Store, http: HttpClient, site: FileSite
) -> None:
    urls = [site.url("one/x.whl", "me:secret"), site.url("two/x.whl") + "?token=secret"]
    with pytest.raises(FetchFailed, match="could not download") as caught:
        fetch(store, http, want(*urls))
    assert "one/x.whl: 404" in caught.value.message
    assert "two/x.whl: 404" in caught.value.message
    assert "secret" not in caught.value.message + str(caught.value.hint)
    with pytest.raises(FetchFailed, match="no longer available from any index"):
        fetch(store, http, want())


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_download_from_a_busy_server_is_retried(
    store: Store, http: HttpClient, site: FileSite, status: int
) -> None:
    site.refusals = [(status, {}), (status, {"Retry-After": "0"})]
    fetch(store, http, want(site.url("x.whl")))
    assert len(site.requests) == 3


def test_download_from_busy_server_fails_after_last_retry(
    store: Store, http: HttpClient, site: FileSite
) -> None:
    site.refusals = [(503, {})] * 20
    with pytest.raises(FetchFailed, match="503"):
        fetch(store, http, want(site.url("x.whl")))
    assert len(site.requests) == 4


@pytest.mark.parametrize("status", [400, 403, 404, 410, 451])
def test_download_request_that_is_refused_is_not_retried(
    store: Store, http: HttpClient, site: FileSite, status: int
) -> None:
    site.refusals = [(status, {})]
    with pytest.raises(FetchFailed, match=str(status)):
        fetch(store, http, want(site.url("x.whl")))
    assert len(site.requests) == 1


def test_retry_after_header_above_the_limit_is_reported(http: HttpClient, site: FileSite) -> None:
    site.refusals = [(429, {"Retry-After": "86400"})]
    with pytest.raises(FetchFailed, match="429") as caught:
        http.fetch_bytes(site.url("x.whl"))
    assert "86400 s" in str(caught.value.hint)


def test_damaged_cached_file_is_downloaded_again(
    store: Store, http: HttpClient, site: FileSite
) -> None:
    path = fetch(store, http, want(site.url("x.whl")))[sha256(DATA)]
    path.chmod(0o644)
    path.write_bytes(b"short")
    assert fetch(store, http, want(site.url("x.whl")))[sha256(DATA)].read_bytes() == DATA


def test_error_for_a_wrong_size_in_the_lock_names_the_file(
    store: Store, http: HttpClient, site: FileSite
) -> None:
    fetch(store, http, want(site.url("x.whl")))
    wrong = LockedFile(file="x.whl", size=1, sha256=sha256(DATA))
    with pytest.raises(IntegrityError, match="expected 1 bytes according to the lock"):
        fetch_all([FileRequest(wrong, list)], Context(store, http), title="test")


def test_download_fails_early_if_disk_space_is_insufficient(store: Store, http: HttpClient) -> None:
    vast = LockedFile(file="vast", size=1 << 60, sha256="0" * 64)
    with pytest.raises(WorkFailed, match="GB of free space") as caught:
        fetch_all([FileRequest(vast, list)], Context(store, http), title="test")
    assert caught.value.hint


def test_failed_download_stops_other_downloads_and_keeps_partial_files(
    store: Store, http: HttpClient, site: FileSite
) -> None:
    big = bytes(8_000_000)
    site.files |= {"big": big}
    site.pause = 0.01
    arrived = threading.Event()
    site.before = lambda path: arrived.set() if path == "/big" else None

    def later() -> Sequence[str]:
        arrived.wait(10)
        return [site.url("none")]

    with pytest.raises(FetchFailed, match="404"):
        fetch(
            store,
            http,
            FileRequest(locked(big, "big"), lambda: [site.url("big")]),
            FileRequest(locked(), later),
        )
    assert store.file(sha256(big)) is None
    assert (store.root / "partial" / sha256(big)).stat().st_size < len(big)


def test_ctrl_c_keeps_partial_files(
    store: Store, http: HttpClient, site: FileSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt is raised in the main thread while it waits, as in Python."""
    big = bytes(range(250)) * 40_000
    site.files |= {"big": big}
    site.pause = 0.005
    partial = store.root / "partial" / sha256(big)
    original = threading.Thread.join

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        if partial.exists() and partial.stat().st_size > 100_000:
            monkeypatch.undo()
            raise KeyboardInterrupt
        original(thread, 0.01)

    monkeypatch.setattr(threading.Thread, "join", join)
    with pytest.raises(Interrupted) as caught:
        fetch(store, http, FileRequest(locked(big, "big"), lambda: [site.url("big")]))
    assert "run the command again" in str(caught.value.hint)
    partial_size = partial.stat().st_size
    assert 100_000 < partial_size < len(big)
    site.pause = 0
    assert fetch(store, http, FileRequest(locked(big, "big"), lambda: [site.url("big")]))
    assert starts(site, "big")[-1] == f"bytes={partial_size}-"


def test_concurrent_threads_with_one_cache_folder_download_a_file_once(
    store: Store, http: HttpClient, site: FileSite
) -> None:
    site.pause = 0.01
    downloads: list[dict[str, Path]] = []

    def work() -> None:
        downloads.append(fetch(Store.open(store.root), HttpClient(), want(site.url("x.whl"))))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: work(), range(3)))
    assert len(downloads) == 3
    assert all(paths[sha256(DATA)].read_bytes() == DATA for paths in downloads)
    assert starts(site) == ["all"]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    size=st.integers(0, 400_000),
    begun=st.binary(max_size=30),
    right=st.integers(0, 400_000),
    cuts=st.lists(st.integers(0, 400_000), max_size=3),
    ranges=st.booleans(),
    announce=st.booleans(),
)
def test_downloaded_file_is_correct_after_any_server_fault(
    tmp_path_factory: pytest.TempPathFactory,
    http: HttpClient,
    size: int,
    begun: bytes,
    right: int,
    cuts: list[int],
    ranges: bool,
    announce: bool,
) -> None:
    """Tests any partial file, up to three dropped connections, and any kind of server."""
    data = (DATA * 2)[:size]
    store = Store.open(tmp_path_factory.mktemp("cache"))
    begin(store, data[:right] + begun, data)
    with serve_site(
        FileSite(files={"x": data}, cuts=list(cuts), ranges=ranges, announce=announce)
    ) as site:
        file_request = FileRequest(locked(data, "x"), lambda: [site.url("x")])
        try:
            paths = fetch_all([file_request], Context(store, http), title="test")
        except FetchFailed:
            assert not ranges, "a server with ranges must complete the file in four attempts"
            assert store.file(sha256(data)) is None
        else:
            assert paths[sha256(data)].read_bytes() == data
