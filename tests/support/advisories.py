"""Provides real advisories in OSV format, a server for them, and a project to check."""

from __future__ import annotations

import contextlib
import http.server
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from imgbuild import codec
from imgbuild.attest.sbom.packages import Package, SbomPackages, packages_path
from imgbuild.cves.installed import InstalledSource
from imgbuild.cves.source import Advisory
from imgbuild.lock import lock_file
from imgbuild.lock.resolution import Deb, Resolution
from imgbuild.matrix.load import load_matrix
from imgbuild.plan import image_digests
from imgbuild.plan.plan import create_plan
from imgbuild.values import Arch
from tests.support import extended, samples
from tests.support.matrix_text import VALID_MATRIX
from tests.support.servers import serve_requests

DATA = Path(__file__).parents[1] / "data/osv"
TORCH, PYNCCL, HEADERS, REGEX = (
    "GHSA-53q9-r3pm-6pq6", "GHSA-hjq4-87xh-g4fv", "GHSA-rxc4-3w6r-4v47", "GHSA-w6q7-j642-7c25"
)  # fmt: skip
OPENSSL, UPDATE = "DEBIAN-CVE-2024-6119", "DSA-5764-1"
ALL_ADVISORIES = (TORCH, PYNCCL, HEADERS, REGEX, OPENSSL, UPDATE)
TARGET = "cu124-vllm"
OLD_VERSION = "3.0.14-1~deb12u1"  # of openssl, one update before the fix


def read_advisory(name: str) -> dict[str, Any]:
    """The advisory `name` as decoded JSON."""
    document: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return document


def pypi(name: str, version: str) -> InstalledSource:
    """A package of PyPI."""
    return InstalledSource(ecosystem="PyPI", name=name, version=version)


def debian(name: str, version: str) -> InstalledSource:
    """A source package of Debian 12."""
    return InstalledSource(
        ecosystem="Debian:12", name=name, version=version, binaries=(("libssl3", version),)
    )


def advisory_names(advisories: Sequence[Advisory]) -> list[tuple[str, str]]:
    """The package and the first ID of each advisory, sorted."""
    return sorted((advisory.package.name, advisory.ids[0]) for advisory in advisories)


@dataclass
class OsvSite:
    """The responses of the server. `about` contains advisory IDs by (ecosystem, name, version).

    A response contains up to `page` IDs. `raw` replaces the body of a response by path. `asked`
    contains the path of each request, and `refusals` the statuses of the first responses.
    """

    about: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    raw: dict[str, bytes] = field(default_factory=dict)
    refusals: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    page: int = 1000
    url: str = ""

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        """The status and body of the response to a request."""
        self.asked.append(path)
        if self.refusals:
            return self.refusals.pop(0), b""
        if path in self.raw:
            return 200, self.raw[path]
        if path == "/v1/querybatch":
            queries = json.loads(body)["queries"]
            return 200, json.dumps({"results": [self._result(query) for query in queries]}).encode()
        name = unquote(path.removeprefix("/v1/vulns/"))
        if name not in self.records:
            return 404, b'{"code": 5, "message": "Bug not found."}'
        return 200, json.dumps(self.records[name]).encode()

    def _result(self, query: dict[str, Any]) -> dict[str, Any]:
        package = query["package"]
        ids = self.about.get((package["ecosystem"], package["name"], query["version"]), [])
        start = int(query.get("page_token", 0))
        part = ids[start : start + self.page]
        result: dict[str, Any] = {}
        if part:
            result["vulns"] = [
                {
                    "id": identity,
                    "modified": self.records.get(identity, {}).get("modified", "2025-01-01"),
                }
                for identity in part
            ]
        if start + self.page < len(ids):
            result["next_page_token"] = str(start + self.page)
        return result


class _OsvHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: OsvSite

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self._send(*self.site.answer(self.path, b""))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._send(*self.site.answer(self.path, body))

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def serve(site: OsvSite) -> Iterator[OsvSite]:
    """Serve `site` on a free port."""
    with serve_requests(_OsvHandler, site=site) as port:
        site.url = f"http://localhost:{port}"
        yield site


def advisory_site() -> OsvSite:
    """A site with all advisories about the packages of `write_project`."""
    about = {
        ("PyPI", "vllm", "0.8.5.post1"): [HEADERS, REGEX],
        ("PyPI", "torch", "2.5.1"): [TORCH],
        ("Debian:12", "openssl", OLD_VERSION): [OPENSSL, UPDATE],
    }
    return OsvSite(about=about, records={name: read_advisory(name) for name in ALL_ADVISORIES})


def write_project(folder: Path, accepted: str = "", vllm: str = "0.8.5.post1") -> None:
    """Write a matrix and a lock in `folder`, with torch 2.5.1+cu124, vllm and an old openssl.

    `accepted` contains lines of the target's `accept_cves`. `vllm` is the locked version of vllm.
    """
    text = VALID_MATRIX.replace('torch: "2.6.0"', 'torch: "2.5.1"', 1)
    (folder / "matrix.yaml").write_text(text + accepted, encoding="utf-8")
    digest = samples.deb("libssl3", OLD_VERSION)
    debs = (
        Deb(
            file=f"pool/main/o/openssl/libssl3_{OLD_VERSION}_amd64.deb",
            size=10,
            sha256=digest.sha256,
            package="libssl3",
            version=OLD_VERSION,
            arch="amd64",
        ),
        samples.deb("python3", "3.11.2-1+b1"),
    )
    resolution = Resolution(
        wheels=(samples.wheel("torch", "2.5.1+cu124"), samples.wheel("vllm", vllm)),
        debs=debs,
    )
    lock = lock_file.make_lock(
        load_matrix(folder / "matrix.yaml"), TARGET, {Arch.X86_64: resolution}
    )
    images = folder / "images"
    codec.write_document(lock_file.lock_path(images, TARGET), lock)
    metadata = {
        debs[0].sha256: Package(file=debs[0].file, source="openssl"),
        debs[1].sha256: Package(file=debs[1].file, source="python3-defaults"),
    }
    codec.write_document(packages_path(images), SbomPackages(packages=metadata))


def write_digests(folder: Path) -> str:
    """Write the digests of the project lock, including the manifest digest."""
    lock = lock_file.read_lock(folder / "images", TARGET)
    target_digests = image_digests.compute_digests(
        lock, extended.invented_records([create_plan(lock, Arch.X86_64)])
    )
    codec.write_document(image_digests.digests_path(folder / "images", TARGET), target_digests)
    return target_digests.arch[Arch.X86_64].manifest
