"""Tests that the user is not root, caches are writable, and the image has no driver library."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from smoke_support import expectation, finish, has_driver, loads_driver, site_packages

# Variables with the folder in which the stack stores compiled or downloaded files.
CACHES = (
    "HOME",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "TRITON_HOME",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TORCH_HOME",
    "VLLM_CACHE_ROOT",
    "FLASHINFER_WORKSPACE_BASE",
    "NUMBA_CACHE_DIR",
    "MPLCONFIGDIR",
    "CUDA_CACHE_PATH",
    "UV_CACHE_DIR",
    "PIP_CACHE_DIR",
    "RAY_TMPDIR",
    "PYTHONPYCACHEPREFIX",
)


def user_problems() -> list[str]:
    """Check that the user is not root, because some packages behave differently as root."""
    problems = []
    if os.getuid() == 0:
        problems.append("the user is root (user id 0)")
    elif single_user():
        print("only one user id is mapped here, so root's files look like the user's")
    elif os.access(site_packages(), os.W_OK):
        problems.append(f"{site_packages()} is writable by user ID {os.getuid()}")
    try:
        getpass.getuser()
    except (KeyError, OSError) as error:
        problems.append(f"user id {os.getuid()} has no name, which torch needs: {error!r}")
    return problems


def single_user() -> bool:
    """Return whether this process is in a user namespace with one user ID."""
    rows = Path("/proc/self/uid_map").read_text("ascii").splitlines()
    return sum(int(row.split()[2]) for row in rows) == 1


def cache_problems() -> list[str]:
    """Check that every cache folder of the environment and of the image is writable."""
    folders = {name: os.environ[name] for name in CACHES if os.environ.get(name)}
    if Path(folders.get("PYTHONPYCACHEPREFIX", "/")).is_relative_to(sys.prefix):
        print("bytecode is part of the environment, so it need not be writable")
        del folders["PYTHONPYCACHEPREFIX"]
    folders["/tmp"] = "/tmp"
    if os.statvfs("/").f_flag & os.ST_RDONLY:  # a SIF, whose entry point moves the caches
        print("the root is read-only: folders of the image are not writable")
    else:
        folders["the image's cache"] = expectation()["cache"]
        folders["the work folder"] = expectation()["workdir"]
    problems = []
    for name, folder in sorted(folders.items()):
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as stream:
                stream.write(b"x")
        except OSError as error:
            problems.append(f"{name}: cannot write to {folder}: {error.strerror}")
    return problems


def driver_problems() -> list[str]:
    """Check that the image contains no libcuda, which would replace the host's library."""
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False)
    if listed.returncode != 0:  # Triton uses it to find the driver
        return [f"ldconfig -p: {listed.stderr.strip()}"]
    libraries = [row.strip() for row in listed.stdout.splitlines() if "libcuda.so" in row]
    for folder, _, names in os.walk(expectation()["prefix"]):
        libraries.extend(f"{folder}/{name}" for name in names if name.startswith("libcuda.so"))
    if not libraries and loads_driver():  # by LD_LIBRARY_PATH
        rows = Path("/proc/self/maps").read_text("utf-8").splitlines()
        libraries = sorted({row.split(maxsplit=5)[5] for row in rows if "/libcuda.so" in row})
    return [f"a CUDA driver library is in the image: {place}" for place in libraries]


def main() -> None:
    """Run all checks and report every problem."""
    problems = [*user_problems(), *cache_problems()]
    if has_driver():
        driver = "the host's driver is present, so a copy in the image cannot be distinguished"
    else:
        driver = "no driver library"
        problems += driver_problems()
    finish(problems, f"user id {os.getuid()}, caches writable, {driver}")


if __name__ == "__main__":
    main()
