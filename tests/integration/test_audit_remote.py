"""Tests that the audit reads Python code of large remote wheels without complete downloads."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.package_set import PackageSet, open_package_set
from imgbuild.cache.store import Store
from imgbuild.http.client import HttpClient
from imgbuild.index.pages import SIMPLE_TYPES, read_page
from imgbuild.lock.resolution import Wheel
from imgbuild.solve import uv
from imgbuild.values import Arch
from tests.support import audited, prepared_program
from tests.support.servers import FileSite, serve_site

BINARY = random.Random(3).randbytes(20 << 20)


class Counting:
    """Counts the ranges and bytes requested from `http`."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http
        self.requests = 0
        self.length = 0

    def fetch_part(self, url: str, start: int, length: int) -> bytes:
        self.requests += 1
        self.length += length
        return self._http.fetch_part(url, start, length)

    def part_end(self, url: str, length: int) -> tuple[bytes, int]:
        self.requests += 1
        self.length += length
        return self._http.part_end(url, length)

    def fetch_bytes(self, url: str) -> bytes:
        raise AssertionError(url)

    def hash_remote_file(self, url: str) -> tuple[str, int]:
        raise AssertionError(url)


def package_set_of(wheel: Wheel, url: str, http: Counting, store: Store) -> PackageSet:
    """A partial package set with one remote wheel."""
    library = Library(store, http, processes=1)
    return open_package_set(
        [wheel],
        library,
        python="3.11",
        arch=Arch.X86_64,
        glibc="2.36",
        locate=lambda _: url,
        partial=True,
    )


def test_modules_of_a_large_wheel_are_read_by_ranges(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "big/__init__.py": "from big.a import one\n",
        "big/_c.abi3.so": BINARY,
        "big/z/__init__.py": "",
    }
    files |= {f"big/m{number:03}.py": f"VALUE = {number}\n" for number in range(300)}
    wheel, path = audited.wheel(tmp_path / "site", "big", "1.0", files)
    store = Store.open(tmp_path / "cache")
    with serve_site(FileSite(files={wheel.file: path.read_bytes()})) as site:
        http = Counting(HttpClient(attempts=1))
        package_set = package_set_of(wheel, site.url(wheel.file), http, store)
        package_set.prefetch(package_set.modules_of("big"))
        assert package_set.module("big.m299") is not None
        assert http.requests <= 5
        assert http.length < 1 << 20
        package_set.wheels["big"].save()
        again = Counting(HttpClient(attempts=1))
        later = package_set_of(wheel, site.url(wheel.file), again, store)
        assert later.module("big.m007") == package_set.module("big.m007")
        assert again.requests == 0


@pytest.mark.network
def test_wheel_is_read_from_the_public_index(tmp_path: Path) -> None:
    http = HttpClient()
    page = http.text(f"{uv.default_index().rstrip('/')}/vllm/", accept=SIMPLE_TYPES)
    (file,) = (
        file
        for file in read_page(page)
        if file.is_wheel and str(file.version) == "0.9.2" and "x86_64" in file.name
    )
    size = http.part_end(file.url, 1)[1]
    wheel = Wheel(
        package="vllm",
        version="0.9.2",
        index="pypi",
        file=file.name,
        size=size,
        sha256=file.sha256 or "0" * 64,
    )
    counted = Counting(http)
    package_set = package_set_of(wheel, file.url, counted, Store.open(tmp_path / "cache"))
    names = [name for name in package_set.modules_of("vllm") if name.startswith("vllm.entrypoints")]
    package_set.prefetch(names)
    facts = package_set.module("vllm.entrypoints.llm")
    assert facts is not None
    assert counted.length < size / 50
    metadata = package_set.metadata("vllm")
    assert metadata is not None
    assert any(line.startswith("transformers") for line in metadata.requires)


@pytest.mark.network
@pytest.mark.parametrize(
    ("numpy", "status"), [("2.2.6", 4), pytest.param("1.26.4", 0, marks=pytest.mark.long)]
)
def test_wheels_compiled_for_a_different_numpy_are_reported(numpy: str, status: int) -> None:
    pins = ("opencv-python-headless==4.9.0.80", f"numpy=={numpy}")
    options = ("--python", "3.11", "--arch", "x86_64", "--json")
    words = ("audit", *pins, *options)
    done = prepared_program.run_prepared(words, cwd=Path.cwd(), env=os.environ)
    assert done.returncode == status, done.stderr
    (report,) = json.loads(done.stdout)
    errors = [finding["where"] for finding in report["findings"] if finding["severity"] == "error"]
    assert errors == (["opencv-python-headless 4.9.0.80 cv2/cv2.abi3.so"] if status else [])
