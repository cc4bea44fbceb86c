"""Reads properties of this machine, such as GPUs, driver, container engines and architecture.

A machine without a GPU is not an error. Values that cannot be read are empty.
"""

from __future__ import annotations

import csv
import os
import platform
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from imgbuild.container import engine
from imgbuild.system import process, programs
from imgbuild.values import Arch, Bytes

DRIVER_FILE = Path("/proc/driver/nvidia/version")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (read for its size; nothing is written there)
CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
# Drivers before 510 do not support compute_cap, and return nothing if it is queried.
QUERIES = (
    ("name", "driver_version", "memory.total", "compute_cap"),
    ("name", "driver_version", "memory.total"),
)
MEBIBYTE = 1 << 20
_VERSION = re.compile(r"\d{3}\.\d+(?:\.\d+)?")


class HostGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU. `capability` is the compute capability ("9.0"), or "" if unknown."""

    name: str
    memory: Bytes = 0
    capability: str = ""


class RuntimeSupport(msgspec.Struct, frozen=True, kw_only=True):
    """A container runtime on this machine. `gpus` is set if containers can use GPUs."""

    name: str
    version: str
    gpus: bool


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A machine. `driver` is the version of the NVIDIA driver ("580.65.06"), or "".

    `igzip` is set if the program igzip is installed, which containerd and Docker use to decompress
    layers faster. `described` is set for another machine, with only architecture, driver and GPUs.
    """

    arch: Arch | None
    kernel: str = ""
    glibc: str = ""
    driver: str = ""
    gpus: tuple[HostGpu, ...] = ()
    engines: tuple[RuntimeSupport, ...] = ()
    shared_memory: Bytes = 0
    igzip: bool = False
    described: bool = False

    @property
    def host_phrase(self) -> str:
        """The words for the machine in messages."""
        return "the machine" if self.described else "this machine"


def read_host() -> Host:
    """Read the properties of this machine."""
    driver, gpus = _gpus()
    return Host(
        arch=_arch(platform.machine()),
        kernel=platform.release(),
        glibc=glibc_version(),
        driver=driver or driver_version(_text(DRIVER_FILE)),
        gpus=gpus,
        engines=tuple(_engines()),
        shared_memory=shutil.disk_usage(SHARED_MEMORY).total if SHARED_MEMORY.is_dir() else 0,
        igzip=programs.find_on_path("igzip") is not None,
    )


def accelerator_host() -> Host:
    """Read only the architecture, driver and GPUs, which is faster than `read_host`."""
    driver, gpus = _gpus()
    return Host(
        arch=_arch(platform.machine()),
        driver=driver or driver_version(_text(DRIVER_FILE)),
        gpus=gpus,
    )


def parse_gpus(text: str) -> tuple[str, tuple[HostGpu, ...]]:
    """Return the driver and GPUs in the CSV output of `nvidia-smi` for one of `QUERIES`."""
    driver = ""
    gpus = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) < len(QUERIES[-1]):
            continue
        name, driver, memory, *more = (cell.strip() for cell in row)
        size = re.match(r"\d+", memory)
        capability = more[0] if more and re.fullmatch(r"\d+\.\d+", more[0]) else ""
        gpus.append(
            HostGpu(
                name=name,
                memory=int(size[0]) * MEBIBYTE if size else 0,
                capability=capability,
            )
        )
    return driver, tuple(gpus)


def _gpus() -> tuple[str, tuple[HostGpu, ...]]:
    program = programs.find_on_path("nvidia-smi")
    if program is None:
        return "", ()
    for query in QUERIES:
        command = [program, f"--query-gpu={','.join(query)}", "--format=csv,noheader"]
        answer = process.run_command(command, check=False)
        if answer.status == 0:
            return parse_gpus(answer.stdout)
    return "", ()


def driver_version(text: str) -> str:
    """Return the driver version in `text`, which is the content of a file in /proc."""
    first = text.partition("\n")[0]
    match = _VERSION.search(first) if "NVRM" in first else None
    return match[0] if match else ""


def _engines() -> Iterable[RuntimeSupport]:
    for kind in ("docker", "podman"):
        container_engine = engine.find_engine(kind)
        if container_engine is not None:
            gpus = _has_runtime(container_engine) if kind == "docker" else False
            yield RuntimeSupport(
                name=kind, version=container_engine.version, gpus=gpus or _has_cdi()
            )
    for name in ("apptainer", "singularity"):
        program = programs.find_on_path(name)
        answer = process.run_command([program, "--version"], check=False) if program else None
        version = re.search(r"\d+(?:\.\d+)+\S*", answer.stdout) if answer else None
        if version is not None:
            # It binds the driver's libraries by itself (--nv).
            yield RuntimeSupport(name=name, version=version[0], gpus=True)
            break


def _has_runtime(docker: engine.Engine) -> bool:
    answer = process.run_command(
        docker.command("info", "--format", "{{json .Runtimes}}"), check=False
    )
    return '"nvidia"' in answer.stdout


def _has_cdi() -> bool:
    return any(
        "nvidia" in path.name
        for folder in CDI_FOLDERS
        if folder.is_dir()
        for path in folder.iterdir()
    )


def _arch(machine: str) -> Arch | None:
    try:
        return Arch.parse(machine)
    except ValueError:
        return None


def glibc_version() -> str:
    """Return the glibc version of this machine, or "" if it uses another C library."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (OSError, ValueError):
        return ""
    return version if name == "glibc" else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
