"""Runs Debian's docker-registry on a free port, with a separate folder and log.

`memory_registry` provides slow and broken registries.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support import needs

PROGRAM = "docker-registry"
ENGINES = Path("/opt/imgbuild-engines/registry-root/usr/bin") / PROGRAM
SECONDS_TO_ANSWER = 30
LINE = re.compile(r'"(?P<method>[A-Z]+) (?P<path>/v2/\S*) HTTP/[\d.]+" (?P<status>\d{3})')
CONFIGURATION = """\
version: 0.1
log: {{level: warn, accesslog: {{disabled: false}}}}
storage:
  delete: {{enabled: true}}
  filesystem: {{rootdirectory: {folder}/storage}}
http: {{addr: "{address}"}}
"""


@dataclass(frozen=True)
class ReceivedRequest:
    """A request with the status of its response."""

    method: str
    path: str
    status: int


@dataclass(frozen=True)
class OwnRegistry:
    """A running registry. Docker uses plain HTTP with `host`."""

    host: str
    folder: Path

    @property
    def storage(self) -> Path:
        """The folder with the files of the registry."""
        return self.folder / "storage"

    def blobs(self) -> dict[str, int]:
        """The size of every stored blob, by digest."""
        return {
            f"sha256:{path.parent.name}": path.stat().st_size
            for path in self.storage.rglob("blobs/sha256/*/*/data")
        }

    def received_requests(self) -> list[ReceivedRequest]:
        """Every request so far."""
        text = (self.folder / "log").read_text(errors="replace")
        return [
            ReceivedRequest(match["method"], match["path"], int(match["status"]))
            for match in LINE.finditer(text)
        ]

    def writes(self, since: int = 0) -> list[ReceivedRequest]:
        """The requests that changed the registry, starting at index `since`."""
        return [
            request
            for request in self.received_requests()[since:]
            if request.method not in ("GET", "HEAD")
        ]


def registry_program() -> str:
    """The docker-registry program."""
    if ENGINES.exists():
        return str(ENGINES)
    return shutil.which(PROGRAM) or needs.require_tool(PROGRAM)


@contextlib.contextmanager
def serve_registry(
    folder: Path, settings: Mapping[str, str] | None = None
) -> Iterator[OwnRegistry]:
    """Run a registry that stores its files in `folder`, which is removed at the end.

    `settings` contains REGISTRY_… variables, which override the configuration.
    """
    folder.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{free.getsockname()[1]}"
    (folder / "config.yml").write_text(CONFIGURATION.format(folder=folder, address=host))
    with (folder / "log").open("wb") as log:
        running = subprocess.Popen(
            [registry_program(), "serve", str(folder / "config.yml")],
            env={**os.environ, **(settings or {})},
            stdout=log,
            stderr=log,
        )
    try:
        _wait_for_registry(running, host, folder / "log")
        yield OwnRegistry(host=host, folder=folder)
    finally:
        running.terminate()
        running.wait()
        shutil.rmtree(folder)


def _wait_for_registry(running: subprocess.Popen[bytes], host: str, log: Path) -> None:
    name, _, port = host.partition(":")
    deadline = time.monotonic() + SECONDS_TO_ANSWER
    while time.monotonic() < deadline and running.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((name, int(port)), timeout=5):
            return
        time.sleep(0.1)
    message = f"the registry does not answer: {log.read_text(errors='replace')}"
    raise AssertionError(message)
