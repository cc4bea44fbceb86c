"""Checks requirements of tests: each function returns a program or skips the test.

With IMGBUILD_NO_SKIP=1, as in .ci/run, a missing program or service is a failure. Insufficient disk
space is also a failure unless IMGBUILD_SMALL_DISK=1 is set.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import socket
import subprocess
import time
import urllib.parse
from pathlib import Path
from typing import NoReturn

import pytest

ENGINES = Path("/run/imgbuild-engines/env")
ROOM = "make room"  # the remedy where a disk is too full
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
INSTALL = "run tools/engines as root on Debian 12"


def is_strict() -> bool:
    """Whether a test that cannot run here is a failure."""
    return os.environ.get("IMGBUILD_NO_SKIP") == "1"


def is_long_run() -> bool:
    """Whether the tests marked `long` run."""
    return os.environ.get("IMGBUILD_LONG") == "1"


def small_disk() -> bool:
    """Whether a test may be skipped for lack of disk space although other skips are failures."""
    return os.environ.get("IMGBUILD_SMALL_DISK") == "1"


def skip_or_fail(what: str, remedy: str) -> NoReturn:
    """Skip the running test, or fail it if skipping is not allowed."""
    text = f"{what}; {remedy}"
    if is_strict():
        pytest.fail(f"skipping is not allowed here: {text}", pytrace=False)
    pytest.skip(text, allow_module_level=True)


def engines_ready() -> bool:
    """Whether .ci/run has installed the engines. True if .ci/run is not used."""
    ready = os.environ.get("IMGBUILD_ENGINES_READY")
    return not ready or Path(ready).exists()


@functools.cache
def wait_for_engines() -> None:
    """Wait until .ci/run has installed the engines."""
    while not engines_ready():
        time.sleep(0.5)


def remedy(reason: str) -> str:
    """The remedy for a skip: install all engines, or the remedy in the reason."""
    return "sudo tools/engines" if INSTALL in reason else reason.rpartition("; ")[2]


def require_tool(name: str, package: str | None = None) -> str:
    """The path of program `name`, from the Debian `package` (by default of the same name)."""
    path = shutil.which(name) or shutil.which(name, path=SBIN)
    if path is None:
        skip_or_fail(f"{name} is not installed", f"apt-get install {package or name}, or {INSTALL}")
    return path


def require_root() -> None:
    """Skip the test unless it runs as root."""
    if os.geteuid() != 0:
        skip_or_fail("this test requires root", "run it with sudo")


def user_namespaces() -> str:
    """The `unshare` command. Requires that this user can create user namespaces."""
    unshare = require_tool("unshare", "util-linux")
    if not _answers(unshare, "--user", "--map-root-user", "--mount", "true"):
        skip_or_fail(
            "user namespaces are not allowed",
            "set sysctl kernel.unprivileged_userns_clone=1 and user.max_user_namespaces above 0",
        )
    return unshare


def require_docker() -> str:
    """The `docker` command. Requires an engine that uses the containerd image store."""
    path = require_tool("docker", "docker.io docker-cli")
    if not _answers(path, "info"):
        skip_or_fail("no Docker Engine responds", INSTALL)
    if "io.containerd.snapshotter" not in _output(path, "info", "--format", "{{.DriverStatus}}"):
        skip_or_fail("Docker does not use the containerd image store", INSTALL)
    return path


def require_buildx() -> str:
    """The `docker` command. Requires a running engine and buildx."""
    path = require_docker()
    if not _answers(path, "buildx", "version"):
        skip_or_fail("buildx is not installed", f"apt-get install docker-buildx, or {INSTALL}")
    return path


def require_docker20() -> dict[str, str]:
    """Environment variables for `docker` to use the Docker 20.10 of tools/engines."""
    path = require_tool("docker", "docker.io docker-cli")
    host = _engine("IMGBUILD_DOCKER20_HOST")
    extra = {"DOCKER_HOST": host}
    if not host or not _answers(path, "info", extra=extra):
        skip_or_fail("no Docker 20.10 responds", INSTALL)
    return extra


def require_podman() -> str:
    """The `podman` command, if it can list its images."""
    path = require_tool("podman")
    if not _answers(path, "info"):
        skip_or_fail("podman does not respond", INSTALL)
    return path


def require_apptainer() -> str:
    """The `apptainer` command, 1.4 or newer."""
    path = require_tool("apptainer", "apptainer of Debian sid")
    version = _output(path, "--version").split()[-1:]
    if not version or tuple(map(int, version[0].split("-")[0].split(".")[:2])) < (1, 4):
        skip_or_fail(f"apptainer does not run, or is older than 1.4: {version}", INSTALL)
    return path


def require_registry() -> str:
    """The HOST:PORT of an empty registry with plain HTTP on this machine."""
    address = _engine("IMGBUILD_REGISTRY")
    host, _, port = address.partition(":")
    try:
        with socket.create_connection((host, int(port or 0)), timeout=5):
            return address
    except OSError:
        skip_or_fail("no registry responds on this machine", INSTALL)


def require_slurm() -> dict[str, str]:
    """Environment variables for Slurm commands to use the Slurm of tools/engines."""
    path = require_tool("sinfo", "slurm-wlm munge")
    extra = {"SLURM_CONF": _engine("IMGBUILD_SLURM_CONF")}
    if not extra["SLURM_CONF"] or not _answers(path, "--noheader", extra=extra):
        skip_or_fail("no Slurm responds", INSTALL)
    return extra


def require_emulator(arch: str) -> str:
    """The static user-mode emulator of `arch`, as `uname -m` names it."""
    return require_tool(f"qemu-{arch}-static", "qemu-user-static")


def require_network() -> None:
    """Skip the test unless the package index configured for uv responds."""
    if not _index_answers():
        skip_or_fail(
            "the package index does not respond",
            "connect to a network, or set PIP_INDEX_URL or UV_DEFAULT_INDEX to a reachable index",
        )


def require_disk_space(gigabytes: float = 10) -> None:
    """Skip the test unless the folder for temporary files has enough gigabytes free."""
    folder = Path(os.environ.get("TMPDIR", "/tmp"))
    free = shutil.disk_usage(folder).free / 1e9
    if free < gigabytes:
        text = f"{folder} has {free:.1f} GB free, but {gigabytes} GB are required"
        if small_disk():
            pytest.skip(f"{text}; {ROOM}", allow_module_level=True)
        skip_or_fail(text, ROOM)


@functools.cache
def _index_answers() -> bool:
    from uv import find_uv_bin

    completed = subprocess.run(
        [find_uv_bin(), "pip", "compile", "--emit-index-url", "--quiet", "-"],
        input=b"",
        capture_output=True,
        check=False,
    )
    words = completed.stdout.decode().split()
    urls = [url for flag, url in itertools.pairwise(words) if flag == "--index-url"]
    parts = urllib.parse.urlsplit(urls[0] if urls else "")
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    # Behind a proxy the name may not resolve here; the download itself will fail or not.
    if os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"):
        return True
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=20):
            return True
    except OSError:
        return False


def _engine(name: str) -> str:
    """A value from the environment or from the file of tools/engines."""
    if name in os.environ:
        return os.environ[name]
    lines = ENGINES.read_text().splitlines() if ENGINES.exists() else []
    pairs = dict(line.split("=", 1) for line in lines if "=" in line)
    return pairs.get(name, "")


def _answers(*command: str, extra: dict[str, str] | None = None) -> bool:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(extra or {})},
            capture_output=True,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
