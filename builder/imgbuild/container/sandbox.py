"""Runs commands in an unpacked image in a sandbox, with or without root.

The command runs in new namespaces, so that no mount and no process remains when the command ends or
imgbuild is killed. The command sees only the image and bind mounts, and cannot gain privileges.
Most administrative system calls are denied. `enclosure` implements the sandbox in the process that
this module starts.
"""

from __future__ import annotations

import base64
import contextlib
import enum
import functools
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

import imgbuild
from imgbuild.container import seccomp
from imgbuild.container.enclosure import FAILED, MARK, NAMESPACES_ACTION
from imgbuild.container.enclosure_root import MAKE_POINT
from imgbuild.errors import InputError, ToolMissing, WorkFailed
from imgbuild.system import process
from imgbuild.system.terminal import SentTerminal

HOSTNAME = "imgbuild"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RESOLVER = Path("/etc/resolv.conf")
RDMA = Path("/dev/infiniband")  # bound if the network of the host is used
SETTINGS = Path("/proc/sys")
CONTAINER = "start a container with --security-opt seccomp=unconfined or --privileged"
REMEDY = f"run as root, or allow users to create namespaces; {CONTAINER}"
# A kernel setting, its values that forbid and allow user namespaces, and the kernels that have it.
FORBIDDING_SETTINGS = (
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0", "AppArmor (Ubuntu 24.04)"),
    ("kernel.unprivileged_userns_clone", "0", "1", "the kernel (older Debian)"),
    ("user.max_user_namespaces", "0", "10000", "the kernel"),
)
START = (
    "import sys; sys.path.append({!r}); from imgbuild.container.enclosure import run_job; run_job()"
)
# An ID of no user of the host, from a range for container managers; else that of nobody.
SPARE, NOBODY = 1_878_982_000, 65534


class SandboxRoot(msgspec.Struct, frozen=True, kw_only=True):
    """An unpacked image at `path`.

    Commands write to the folder `changes` if it is set, and otherwise to `path`. If the disk of
    `changes` does not support overlays, changes are kept in memory until the command ends.
    """

    path: Path
    changes: Path | None = None

    def places(self) -> dict[str, str]:
        """Return the fields of a job that describe the root.

        Raises InputError if the path is not a folder.
        """
        root = self.path.resolve()
        if not root.is_dir():
            message = f"cannot use {root} as a root folder, because it is not a folder"
            raise InputError(message, hint="unpack the image into a folder that you own")
        if self.changes is None:
            return {"root": str(root), "changes": "", "overlay": ""}
        changes = self.changes.resolve()
        layers = {
            "lowerdir": root, "upperdir": changes / "upperdir", "workdir": changes / "workdir"
        }  # fmt: skip
        shown = ",".join(f"{name}={_escape_option(folder)}" for name, folder in layers.items())
        return {"root": str(root), "changes": str(changes), "overlay": shown}


class BindMount(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder of the host, mounted at the absolute path `target`."""

    source: Path
    target: str
    writable: bool = False


class StreamMode(enum.Enum):
    """The stdin, stdout and stderr of a command."""

    CAPTURED = enum.auto()
    INHERITED = enum.auto()  # the streams of this process
    TERMINAL = enum.auto()  # a separate terminal, connected to that of this process


class UntrustedUser(msgspec.Struct, frozen=True, kw_only=True):
    """The user and limits for untrusted code.

    If the caller is root, the user has the ID `host_id` on the host, which no other user has. If
    the caller can create control groups, the limits `memory` (in bytes) and `processes` apply to
    the whole sandbox. Otherwise, `memory` applies to each process, and `processes` to the user.
    """

    ids: tuple[int, int] = (1000, 1000)
    host_id: int | None = None
    memory: int
    processes: int

    def limits(self) -> dict[str, int]:
        """Return the resource limits by name."""
        return {"memory": self.memory, "processes": self.processes}


def run_in_sandbox(
    root: SandboxRoot,
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    binds: Sequence[BindMount] = (),
    cwd: str = "/",
    user: tuple[int, int] | UntrustedUser | None = None,
    network: bool = False,
    readonly: bool = False,
    streams: StreamMode = StreamMode.CAPTURED,
) -> process.ProcessResult:
    """Run `command` in the image `root`, as the root user by default. The status is not checked.

    `user` is a pair of user and group IDs. With it, the command has no capabilities. The root user
    has only the capabilities that are required to install packages. If the caller is not root, only
    one user ID exists, and files owned by root appear to belong to this ID. With `readonly`, the
    image is read-only, except for `/tmp` and writable `binds`. The command has its own `/proc`,
    `/dev` and read-only `/sys`, an empty `/tmp` and `/dev/shm`, and only the environment variables
    in `env`. Without `network`, it has only a loopback interface.

    Raises ToolMissing if namespaces are not allowed on this machine, WorkFailed if the setup fails,
    and InputError if `root`, a bind or the path of a bind in the image cannot be used.
    """
    if not command:
        message = "the command is empty"
        raise InputError(message)
    confined = user if isinstance(user, UntrustedUser) else None
    job = {
        **root.places(),
        "binds": _sources(binds, network=network),
        "network": network,
        "readonly": readonly,
        "terminal": streams is not StreamMode.CAPTURED,
        "console": None,
        "hostname": HOSTNAME,
        "user": confined.ids if confined else user or (0, 0),
        "host_id": confined.host_id if confined else None,
        "privileged": user is None,
        "limits": confined.limits() if confined else {},
        "filter": base64.b64encode(_filter()).decode(),
        "command": [str(word) for word in command],
        "env": {"PATH": PATH, "HOME": "/root", **(env or {})},
        "cwd": cwd,
        "probe": False,
    }
    return _start_job(root, job, command, streams)


def _start_job(
    root: SandboxRoot,
    job: Mapping[str, object],
    shown: Sequence[str],
    streams: StreamMode = StreamMode.CAPTURED,
) -> process.ProcessResult:
    """Run `job` in a new process. `shown` are arguments that process lists show."""
    if streams is StreamMode.TERMINAL:
        return _start_on_terminal(job, shown)
    with _descriptor(json.dumps(job).encode()) as descriptor:
        full = _starter_command(descriptor, shown)
        if streams is StreamMode.INHERITED:
            status = process.run_in_foreground(full, kill=True, descriptors=[descriptor])
            return process.ProcessResult(status, "", "")
        result = process.run_command(full, check=False, descriptors=[descriptor])
    if result.status == FAILED and MARK in result.stderr:
        reason = result.stderr.rpartition(MARK)[2].strip()
        if reason.startswith(f"cannot {NAMESPACES_ACTION}"):
            message = f"this machine does not allow the sandbox: {reason}"
            raise ToolMissing(message, hint=_remedy())
        if reason.startswith(f"cannot {MAKE_POINT}"):
            message = f"the image at {root.path}: {reason}"
            raise InputError(message, hint="mount the file or folder at another path")
        message = f"the sandbox in {root.path} failed: {reason}"
        raise WorkFailed(message, hint=REMEDY)
    return result


def _remedy(settings: Path = SETTINGS) -> str:
    """Return a hint for forbidden namespaces, based on kernel settings in the folder `settings`."""
    for name, forbidding, allowing, owner in FORBIDDING_SETTINGS:
        path = settings / name.replace(".", "/")
        if path.exists() and path.read_text(encoding="ascii").strip() == forbidding:
            return (
                f"{owner} disables user namespaces ({name} is {forbidding}); run `sudo sysctl "
                f"{name}={allowing}`, or run as root; {CONTAINER}"
            )
    return REMEDY


def _start_on_terminal(job: Mapping[str, object], shown: Sequence[str]) -> process.ProcessResult:
    terminal = SentTerminal()
    console = terminal.sender.fileno()
    with _descriptor(json.dumps({**job, "console": console}).encode()) as descriptor:
        status = process.run_in_foreground(
            _starter_command(descriptor, shown), kill=True, descriptors=[descriptor, console],
            meanwhile=terminal.join,
        )  # fmt: skip
    return process.ProcessResult(status, "", "")


def _starter_command(descriptor: int, shown: Sequence[str]) -> list[str]:
    folder = str(Path(imgbuild.__file__).parent.parent)
    return [sys.executable, "-IS", "-c", START.format(folder), str(descriptor), *shown]


@contextlib.contextmanager
def _descriptor(data: bytes) -> Iterator[int]:
    """Open a memory file with `data`, which other users cannot see, unlike arguments."""
    descriptor = os.memfd_create("imgbuild-job")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


@functools.cache
def _filter() -> bytes:
    """Return the filter of system calls.

    Without libseccomp, it is empty, and a warning is printed.
    """
    program = seccomp.filter_program()
    if program is None:
        process.warn_user(seccomp.MISSING_MESSAGE)
    return program or b""


def spare_id() -> int | None:
    """Return a user ID without files on this machine, for builds that root starts.

    Returns None if the caller is not root. In a container with few IDs, the ID of the user `nobody`
    is used or, if it does not exist, the ID of the user that is mapped to root. Raises ToolMissing
    if root of the machine is the only user.
    """
    if os.geteuid() != 0:
        return None
    lines = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
    maps = [tuple(map(int, line.split())) for line in lines]
    for candidate in (SPARE, NOBODY):
        if any(first <= candidate < first + count for first, _, count in maps):
            return candidate
    if any(first == 0 and outside != 0 for first, outside, _ in maps):
        return 0
    message = "sdists cannot be built as root, and no other user ID is available"
    raise ToolMissing(message, hint="run as another user, or map more user IDs into this container")


def _sources(binds: Sequence[BindMount], *, network: bool) -> list[tuple[bool, str, str]]:
    """Return the binds for a job. Raises InputError if a source is missing."""
    shared = [path for path in (RESOLVER, RDMA) if network and path.exists()]
    binds = (*binds, *(BindMount(source=path, target=str(path)) for path in shared))
    try:
        return [
            (bind.writable, str(bind.source.resolve(strict=True)), bind.target) for bind in binds
        ]
    except OSError as error:
        message = f"cannot mount {error.filename}: {error.strerror}"
        raise InputError(
            message, hint="specify an existing file or folder of this machine"
        ) from error


def _escape_option(path: Path) -> str:
    return re.sub(r"([\\,:])", r"\\\1", str(path))


def overlay_place(folder: Path) -> Literal["disk", "memory"] | None:
    """Create the folder for changes of a root in the empty `folder`.

    Returns where the overlay stores changes, or None if an overlay cannot be mounted.
    """
    root = SandboxRoot(path=folder / "root", changes=folder / "changes")
    for place in (folder / "root", folder / "changes"):
        place.mkdir()
    job: dict[str, object] = {
        **root.places(),
        "probe": True,
        "network": True,
        "hostname": HOSTNAME,
        "user": (0, 0),
        "host_id": None,
        "limits": {},
    }
    try:
        return "disk" if _start_job(root, job, ("true",)).status == 0 else "memory"
    except WorkFailed:
        return None
