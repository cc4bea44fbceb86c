"""Tests the cache with concurrent and killed processes, and on a full disk."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.cache import prune
from imgbuild.cache.store import Store
from imgbuild.values import sha256
from tests.support import needs
from tests.support.servers import FileSite, serve_site

REPOSITORY = Path(__file__).parents[2]

DOWNLOAD = """
import json, sys
from pathlib import Path
from imgbuild.errors import ImgbuildError
from imgbuild.cache.context import Context
from imgbuild.cache.download import FileRequest, fetch_all
from imgbuild.http.client import HttpClient
from imgbuild.lock.resolution import LockedFile
from imgbuild.cache.store import Store

root, wanted, ballast = json.loads(sys.argv[1])
store = Store.open(Path(root))

def want(name, size, sha256, url):
    def urls():
        if ballast:
            with Path(ballast).open("wb") as file:
                try:
                    while True:
                        file.write(bytes(4096))
                        file.flush()
                except OSError:
                    pass
        return [url]
    return FileRequest(LockedFile(file=name, size=size, sha256=sha256), urls)

try:
    with store.scratch() as folder:
        (folder / "half").write_bytes(b"half")
        context = Context(store, HttpClient())
        found = fetch_all([want(*one) for one in wanted], context, title="test")
except ImgbuildError as error:
    print(f"{type(error).__name__}: {error.message}", file=sys.stderr)
    sys.exit(error.exit_code)
print(json.dumps({name: str(path) for name, path in found.items()}))
"""

ADD_BLOBS = """
import sys
from pathlib import Path
from imgbuild.cache.store import Store
from imgbuild.values import sha256
store = Store.open(Path(sys.argv[1]))
number = 0
while True:
    data = number.to_bytes(4, "big") * 50_000
    with store.scratch() as folder:
        (folder / "layer").write_bytes(data)
        store.add_blob(folder / "layer", f"sha256:{sha256(data)}")
        store.put_fact("kind", str(number), data[:1000])
    number += 1
    print(number, flush=True)
"""


def command(store: Path, site: FileSite, names: list[str], ballast: str = "") -> list[str]:
    """The command line of a process that downloads `names` of `site`."""
    downloads = [
        (name, len(site.files[name]), sha256(site.files[name]), site.url(name)) for name in names
    ]
    return [sys.executable, "-c", DOWNLOAD, json.dumps([str(store), downloads, ballast])]


def start(line: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        line, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def until(path: Path, size: int, process: subprocess.Popen[str]) -> None:
    """Wait until the file at `path` has `size` bytes."""
    for _ in range(6000):
        if path.exists() and path.stat().st_size >= size:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    pytest.fail(f"{path} did not grow to {size} bytes")


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileSite]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    source = random.Random(1)
    files = {f"f{number}": source.randbytes(number * 20_000) for number in range(20)}
    with serve_site(
        FileSite(files={"big": source.randbytes(6_000_000), **files}, piece=1 << 14)
    ) as site:
        yield site


def test_download_resumes_after_repeated_kills(tmp_path: Path, site: FileSite) -> None:
    root, data = tmp_path / "cache", site.files["big"]
    partial = root / "partial" / sha256(data)
    site.pause = 0.005
    at_kill = []
    for size in (1, 1_000_000, 2_500_000, 5_000_000):
        process = start(command(root, site, ["big"]))
        until(partial, size, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        at_kill.append(partial.stat().st_size)
        assert data.startswith(partial.read_bytes())
        assert not list((root / "files").glob("*/*"))
        assert list((root / "scratch").glob("*/*/half")), (
            "the killed process left no scratch folder"
        )
    site.pause = 0
    done = subprocess.run(
        command(root, site, ["big"]), cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert Path(json.loads(done.stdout)[sha256(data)]).read_bytes() == data
    ranges = [headers.get("Range") for headers in site.received_requests("big")]
    assert ranges == [None, *(f"bytes={size}-" for size in at_kill)]
    assert list((root / "scratch").glob("*")) == [], "the next process did not remove the leftovers"
    assert list((root / "live").glob("*")) == []


def test_ctrl_c_stops_download_and_keeps_partial_file(tmp_path: Path, site: FileSite) -> None:
    root, data = tmp_path / "cache", site.files["big"]
    site.pause = 0.005
    process = start(command(root, site, ["big"]))
    until(root / "partial" / sha256(data), 500_000, process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Interrupted: stopped" in stderr
    assert "Traceback" not in stderr
    assert (root / "partial" / sha256(data)).stat().st_size >= 500_000


@pytest.mark.long
def test_concurrent_processes_share_one_cache(tmp_path: Path, site: FileSite) -> None:
    """Four processes download the same files, another is killed, and another prunes repeatedly."""
    root, names = tmp_path / "cache", [f"f{number}" for number in range(20)]
    site.pause = 0.002
    doomed = start(command(root, site, [*names, "big"]))
    processes = [start(command(root, site, names)) for _ in range(4)]
    until(root / "partial" / sha256(site.files["big"]), 100_000, doomed)
    doomed.kill()
    doomed.communicate()
    store = Store.open(root)
    while any(process.poll() is None for process in processes):
        prune.prune_cache(store, 0)
        time.sleep(0.02)
    for process in processes:
        stdout, stderr = process.communicate()
        assert process.returncode == 0, stderr
        assert set(json.loads(stdout)) == {sha256(site.files[name]) for name in names}
    subprocess.run(command(root, site, names), cwd=REPOSITORY, capture_output=True, check=True)
    assert all(store.file(sha256(site.files[name])) for name in names)
    assert prune.verify_entries(store, lambda _: None) == []


def test_processes_that_wait_for_a_download_fetch_the_file_once(
    tmp_path: Path, site: FileSite
) -> None:
    site.pause = 0.005
    processes = [start(command(tmp_path / "cache", site, ["big"])) for _ in range(3)]
    for process in processes:
        _, stderr = process.communicate()
        assert process.returncode == 0, stderr
    assert len(site.received_requests("big")) == 1


@pytest.mark.long
def test_waiting_process_continues_the_download_of_a_killed_process(
    tmp_path: Path, site: FileSite
) -> None:
    root, data = tmp_path / "cache", site.files["big"]
    site.pause = 0.005
    first = start(command(root, site, ["big"]))
    until(root / "partial" / sha256(data), 1_000_000, first)
    second = start(command(root, site, ["big"]))
    until(root / "partial" / sha256(data), 2_000_000, first)
    first.kill()
    first.communicate()
    _, stderr = second.communicate()
    assert second.returncode == 0, stderr
    ranges = [headers.get("Range") for headers in site.received_requests("big")]
    assert len(ranges) == 2
    assert int(str(ranges[1]).removeprefix("bytes=").removesuffix("-")) >= 2_000_000


def test_entries_used_by_live_process_are_not_pruned(tmp_path: Path, site: FileSite) -> None:
    """The process uses the cached file f5 while another download is running."""
    root = tmp_path / "cache"
    subprocess.run(
        command(root, site, ["f5", "f6"]), cwd=REPOSITORY, capture_output=True, check=True
    )
    site.pause = 0.01
    process = start(command(root, site, ["f5", "big"]))
    until(root / "partial" / sha256(site.files["big"]), 100_000, process)
    report = prune.clear_cache(Store.open(root))
    left = {entry.sha256: entry for entry in prune.list_entries(Store.open(root))}
    process.kill()
    process.communicate()
    assert set(left) == {sha256(site.files["f5"]), sha256(site.files["big"])}
    assert all(entry.in_use for entry in left.values())
    assert report.removed > 0
    prune.clear_cache(Store.open(root))
    assert prune.list_entries(Store.open(root)) == []


def test_process_killed_while_adding_layers_leaves_a_valid_cache(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    for rounds in range(6):
        process = start([sys.executable, "-c", ADD_BLOBS, str(root)])
        assert process.stdout is not None
        for _ in range(3 + rounds):
            process.stdout.readline()
        process.kill()
        process.communicate()
    store = Store.open(root)
    assert len(list((root / "blobs" / "sha256").iterdir())) >= 8
    assert prune.verify_entries(store, lambda _: None) == []
    with store.scratch():
        assert len(list((root / "scratch").iterdir())) == 1
    assert len(list((root / "live").iterdir())) == 1


def test_full_disk_is_reported_without_damage(tmp_path: Path, site: FileSite) -> None:
    """A real file system of 4 MB is filled before the download starts."""
    unshare = needs.user_namespaces()
    mount = needs.require_tool("mount")
    disk = tmp_path / "disk"
    disk.mkdir()
    line = command(disk / "cache", site, ["f19"], ballast=str(disk / "ballast"))
    script = f'{mount} -t tmpfs -o size=4m none {disk} && exec "$@"'
    done = subprocess.run(
        [unshare, "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", *line],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert f"WorkFailed: no space left for {disk}/cache" in done.stderr
    assert "Traceback" not in done.stderr
