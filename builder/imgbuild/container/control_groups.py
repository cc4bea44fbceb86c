"""Limits memory and processes of a command with control groups.

Like the other modules of the enclosure, this module imports only the standard library (see
`enclosure`).
"""

# A separate module: a kernel interface.
from __future__ import annotations

import contextlib
import os

GROUPS = "/sys/fs/cgroup"
# They exist if the kernel counts swap: bytes of swap, and of memory and swap together.
SWAP = ("memory.swap.max", "memory.memsw.limit_in_bytes")


def write_kernel_file(path: str, text: str) -> None:
    """Write `text` to a kernel file in a single call."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def control_groups(limits: dict[str, int], process: int) -> list[str]:
    """Create control groups with `limits` for `process`. Returns [] on failure."""
    folders = []
    try:
        for base, values in group_places(limits):
            remove_groups(abandoned_groups(base))
            folder = f"{base}/imgbuild-{os.getpid()}"
            os.mkdir(folder)
            folders.append(folder)
            for name, value in values.items():
                if name in SWAP and not os.path.exists(f"{folder}/{name}"):
                    continue
                write_kernel_file(f"{folder}/{name}", str(value))
            write_kernel_file(f"{folder}/cgroup.procs", str(process))
    except OSError:
        for folder in folders:
            with contextlib.suppress(OSError):
                write_kernel_file(f"{os.path.dirname(folder)}/cgroup.procs", str(process))
        remove_groups(folders)
        return []
    return folders


def abandoned_groups(base: str) -> list[str]:
    """Return the control groups in `base` that killed processes did not remove."""
    owners = {name: name.partition("-")[2] for name in os.listdir(base)}
    return [
        f"{base}/{name}"
        for name, owner in owners.items()
        if name.startswith("imgbuild-") and not os.path.exists(f"/proc/{owner}")
    ]


def group_places(limits: dict[str, int]) -> list[tuple[str, dict[str, int]]]:
    """Return the parent folders of control groups (version 2, or else 1) and their limit files."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        memberships = {line.split(":", 2)[1]: line.rstrip("\n").split(":", 2)[2] for line in file}
    memory, processes = limits["memory"], limits["processes"]
    if os.path.exists(f"{GROUPS}/cgroup.controllers"):
        values = {"memory.max": memory, SWAP[0]: 0, "pids.max": processes}
        place = f"{GROUPS}{memberships.get('', '/')}".rstrip("/")
        # A group that has processes cannot have groups with limits below it: they are siblings.
        return [(place if place == GROUPS else os.path.dirname(place), values)]
    bytes_ = {"memory.limit_in_bytes": memory, SWAP[1]: memory}
    named = {"memory": bytes_, "pids": {"pids.max": processes}}
    return [
        (f"{GROUPS}/{kind}{memberships.get(kind, '/')}".rstrip("/"), named[kind]) for kind in named
    ]


def remove_groups(folders: list[str]) -> None:
    """Remove control groups whose processes have ended."""
    for folder in folders:
        with contextlib.suppress(OSError):
            os.rmdir(folder)
