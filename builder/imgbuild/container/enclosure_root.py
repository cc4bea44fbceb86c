"""Mounts the files of a command in the sandbox: root, /dev, /proc, /sys, /tmp and binds.

Like the other modules of the enclosure, this module imports only the standard library (see
`enclosure`).
"""

from __future__ import annotations

import errno
import os

from imgbuild.container.kernel_calls import (
    DETACH,
    NODEV,
    NOEXEC,
    NOSUID,
    PRIVATE,
    RDONLY,
    REC,
    EnclosureError,
    add_mount_flags,
    bind_mount,
    check_result,
    libc,
    mount,
    restrict_mounts,
    system_call,
)

NODES = ("null", "zero", "full", "random", "urandom")
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
         "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"}  # fmt: skip
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
MAKE_POINT = "make the mount point"
HIDDEN_FILES = ("kcore", "keys", "latency_stats", "timer_list", "sched_debug", "acpi", "scsi")
READONLY_FILES = ("sys", "sysrq-trigger", "irq", "bus", "fs")


class EnclosureJob:
    """The command to run in the sandbox, and its environment."""

    root: str  # the folder of the host
    changes: str  # an empty folder of the host for changes, or empty
    overlay: str  # options of an overlay over `root` with its upper folder in `changes`
    probe: bool  # only mount that overlay
    binds: list[tuple[bool, str, str]]  # writable, source, path in the image
    network: bool  # whether the command uses the network of the host
    readonly: bool
    terminal: bool
    console: int | None  # a socket for the master side of the command's terminal
    hostname: str
    user: tuple[int, int]
    host_id: int | None  # the ID of `user` on the host, if root starts the command
    privileged: bool  # whether the command has the capabilities PRIVILEGED
    limits: dict[str, int]  # "memory" in bytes and "processes", or empty
    filter: str  # BPF instructions in base64, or empty
    command: list[str]
    env: dict[str, str]
    cwd: str
    mapped: bool  # set here: the user namespace is the outermost one
    outer_proc: bool = False  # set here: /proc is that of the caller

    def __init__(self, values: dict[str, object]) -> None:
        self.__dict__.update(values)


def mount_point(root: str, path: str, *, folder: bool) -> str:
    """Create `path` in the image at `root` if it is missing. Returns the location on the host.

    The location is always inside the image, because the kernel resolves links below `root`. If the
    last component is a link to a folder, the link is followed. Any other link is replaced by a
    file.
    """
    outside = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chroot(root)
        os.chdir("/")
        above, name = (f"/{path}", "") if folder else os.path.split(f"/{path}")
        place = os.path.realpath(above)
        os.makedirs(place, exist_ok=True)
        if not folder:
            place = os.path.join(place, name)
            if os.path.islink(place):
                os.unlink(place)
            if os.path.isdir(place):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not os.path.exists(place):
                os.close(os.open(place, NEW_FILE, 0o644))
    except OSError as error:
        message = f"cannot {MAKE_POINT} {path}: {error.strerror}"
        raise EnclosureError(message) from error
    finally:
        os.fchdir(outside)
        os.chroot(".")
        os.close(outside)
    return f"{root}/{place.lstrip('/')}".rstrip("/")


def make_devices(dev: str, *, terminal: bool) -> None:
    """Create a /dev with safe device nodes, separate pseudo-terminals, and shared memory."""
    check_result(mount("tmpfs", dev, "tmpfs", NOSUID | NOEXEC, "mode=755"), "mount /dev")
    for name in (*NODES, *(("tty",) if terminal else ())):
        os.close(os.open(f"{dev}/{name}", NEW_FILE, 0o644))
        bind_mount(f"/dev/{name}", f"{dev}/{name}", f"/dev/{name}")
        # it belongs to the host: keep mode and owner
        add_mount_flags(f"{dev}/{name}", RDONLY | NOSUID | NOEXEC)
    for name, target in LINKS.items():
        os.symlink(target, f"{dev}/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"{dev}/{name}")
    flags = NOSUID | NODEV
    check_result(mount("tmpfs", f"{dev}/shm", "tmpfs", flags, "mode=1777"), "mount /dev/shm")
    # Not every kernel allows them in a user namespace; without them a command uses pipes.
    mount("devpts", f"{dev}/pts", "devpts", NOSUID | NOEXEC, "newinstance,ptmxmode=0666,mode=620")


def make_proc(proc: str, job: EnclosureJob) -> None:
    """Create a /proc for the new processes, without files that modify or expose the machine.

    In a container, /proc is partly hidden, and the kernel does not allow a new /proc. Then, the
    existing /proc is bound, which is safe only in a separate user namespace.
    """
    if mount("proc", proc, "proc", NOSUID | NODEV | NOEXEC) != 0:
        job.outer_proc = True
        bind_mount("/proc", proc, "/proc")
        restrict_mounts(proc, NOSUID | NODEV | NOEXEC)
    for name in READONLY_FILES:
        if os.path.exists(f"{proc}/{name}"):
            bind_mount(f"{proc}/{name}", f"{proc}/{name}", f"/proc/{name}")
            restrict_mounts(f"{proc}/{name}", RDONLY)
    for name in HIDDEN_FILES:
        path = f"{proc}/{name}"
        if os.path.isdir(path):
            flags = RDONLY | NOSUID | NODEV | NOEXEC
            check_result(mount("tmpfs", path, "tmpfs", flags), f"hide /proc/{name}")
        elif os.path.exists(path):
            bind_mount("/dev/null", path, f"/dev/null over /proc/{name}")
            add_mount_flags(path, RDONLY | NOSUID | NOEXEC)


def make_sys(sys_: str) -> None:
    """Create a read-only /sys, or bind the existing /sys if the kernel does not allow a new one."""
    flags = RDONLY | NOSUID | NODEV | NOEXEC
    if mount("sysfs", sys_, "sysfs", flags) != 0:
        bind_mount("/sys", sys_, "/sys")
        restrict_mounts(sys_, flags)


def mount_overlay(job: EnclosureJob) -> bool:
    """Make mounts private to the namespace, and mount an overlay over the root if requested.

    Returns True if changes are kept in memory because the disk does not support overlays.
    """
    check_result(mount(None, "/", None, REC | PRIVATE), "make mounts private")
    if not job.changes:
        return False
    for in_memory in (False, True):
        if in_memory and mount("tmpfs", job.changes, "tmpfs", NOSUID | NODEV, "mode=700") != 0:
            break
        for name in ("upperdir", "workdir"):
            os.makedirs(f"{job.changes}/{name}", exist_ok=True)
        for more in (
            ",userxattr",
            "",
        ):  # old kernels lack this option and allow overlays only as root
            if mount("overlay", job.root, "overlay", 0, job.overlay + more) == 0:
                return in_memory
    check_result(-1, f"mount an overlay over {job.root}")
    return False


def make_root(job: EnclosureJob) -> None:
    """Mount all files that the command can access below `job.root`."""
    root = job.root
    bind_mount(root, root, root)
    restrict_mounts(root, NOSUID | NODEV)
    make_proc(mount_point(root, "proc", folder=True), job)
    make_devices(mount_point(root, "dev", folder=True), terminal=job.terminal)
    make_sys(mount_point(root, "sys", folder=True))
    tmp = mount_point(root, "tmp", folder=True)
    check_result(mount("tmpfs", tmp, "tmpfs", NOSUID | NODEV, "mode=1777"), "mount /tmp")
    with open(f"{tmp}/hosts", "w", encoding="utf-8") as file:
        file.write(f"127.0.0.1 localhost {job.hostname}\n::1 localhost\n")
    bind_mount(f"{tmp}/hosts", mount_point(root, "etc/hosts", folder=False), "/etc/hosts")
    os.unlink(f"{tmp}/hosts")
    for writable, source, path in job.binds:
        point = mount_point(root, path, folder=os.path.isdir(source))
        bind_mount(source, point, source)
        nodev = 0 if source.startswith("/dev/") else NODEV
        restrict_mounts(point, NOSUID | nodev | (0 if writable else RDONLY))
    if job.readonly:
        add_mount_flags(root, RDONLY)


def change_root(root: str) -> None:
    """Change the root of this process to `root`, and unmount the old root."""
    os.chdir(root)
    check_result(system_call("pivot_root", b".", b"."), "change the root (pivot_root)")
    check_result(libc.umount2(b".", DETACH), "unmount the old root")
    os.chdir("/")
