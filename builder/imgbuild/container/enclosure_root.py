"""The files that a command in the sandbox sees: its root, /dev, /proc, /sys, /tmp and binds.

Like the other modules of the enclosure it uses the standard library alone (see `enclosure`).
"""

from __future__ import annotations

import os

from imgbuild.container.kernel_calls import (
    DETACH,
    NODEV,
    NOEXEC,
    NOSUID,
    PRIVATE,
    RDONLY,
    REC,
    bind,
    checked,
    flag,
    libc,
    mount,
    restrict,
    system_call,
)

NODES = ("null", "zero", "full", "random", "urandom")
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
         "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"}  # fmt: skip
HIDDEN = ("kcore", "keys", "latency_stats", "timer_list", "sched_debug", "acpi", "scsi")
LOCKED = ("sys", "sysrq-trigger", "irq", "bus", "fs")


class EnclosureJob:
    """What is run, and where. Paths of mount points are those of the host, below `root`."""

    root: str
    proc: str
    dev: str
    sys: str
    tmp: str
    hosts: str
    overlay: str  # options of an overlay over `root`, or empty
    probe: bool  # only mount that overlay
    binds: list[tuple[bool, str, str]]  # writable, source, mount point
    network: bool  # whether the command has that of the host
    readonly: bool
    terminal: bool
    console: int | None  # a socket; the command gets a terminal, whose master side goes there
    hostname: str
    user: tuple[int, int]
    host_id: int | None  # the id outside of `user`, if root starts the command
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


def hosts_file(hostname: str) -> str:
    """The text of /etc/hosts in the sandbox."""
    return f"127.0.0.1 localhost {hostname}\n::1 localhost\n"


def reach(point: str, source: str) -> None:
    """Make the mount point for `source` if it is missing, as under a mount over its folder."""
    if os.path.lexists(point):
        return
    if os.path.isdir(source):
        os.makedirs(point)
        return
    os.makedirs(os.path.dirname(point), exist_ok=True)
    os.close(os.open(point, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644))


def make_devices(dev: str, *, terminal: bool) -> None:
    """A /dev with the harmless nodes, own pseudo-terminals, and shared memory."""
    checked(mount("tmpfs", dev, "tmpfs", NOSUID | NOEXEC, "mode=755"), "mount /dev")
    for name in (*NODES, *(("tty",) if terminal else ())):
        reach(f"{dev}/{name}", f"/dev/{name}")
        bind(f"/dev/{name}", f"{dev}/{name}", f"/dev/{name}")
        flag(f"{dev}/{name}", RDONLY | NOSUID | NOEXEC)  # it is the host's: no other mode or owner
    for name, target in LINKS.items():
        os.symlink(target, f"{dev}/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"{dev}/{name}")
    flags = NOSUID | NODEV
    checked(mount("tmpfs", f"{dev}/shm", "tmpfs", flags, "mode=1777"), "mount /dev/shm")
    # Not every kernel allows them in a user namespace; a command without them has pipes.
    mount("devpts", f"{dev}/pts", "devpts", NOSUID | NOEXEC, "newinstance,ptmxmode=0666,mode=620")


def make_proc(proc: str, job: EnclosureJob) -> None:
    """A /proc of the new processes, without its parts that change or show the machine.

    The /proc of a container is partly hidden, so that the kernel allows no new one: then that one
    is bound, which is safe only if the command is in a user namespace of its own.
    """
    if mount("proc", proc, "proc", NOSUID | NODEV | NOEXEC) != 0:
        job.outer_proc = True
        bind("/proc", proc, "/proc")
        restrict(proc, NOSUID | NODEV | NOEXEC)
    for name in LOCKED:
        if os.path.exists(f"{proc}/{name}"):
            bind(f"{proc}/{name}", f"{proc}/{name}", f"/proc/{name}")
            restrict(f"{proc}/{name}", RDONLY)
    for name in HIDDEN:
        path = f"{proc}/{name}"
        if os.path.isdir(path):
            flags = RDONLY | NOSUID | NODEV | NOEXEC
            checked(mount("tmpfs", path, "tmpfs", flags), f"hide /proc/{name}")
        elif os.path.exists(path):
            bind("/dev/null", path, f"/dev/null over /proc/{name}")
            flag(path, RDONLY | NOSUID | NOEXEC)


def make_sys(sys_: str) -> None:
    """A read-only /sys: a new one, or where the kernel does not allow it the existing one."""
    flags = RDONLY | NOSUID | NODEV | NOEXEC
    if mount("sysfs", sys_, "sysfs", flags) != 0:
        bind("/sys", sys_, "/sys")
        restrict(sys_, flags)


def mount_overlay(job: EnclosureJob) -> None:
    """Make mounts private to the namespace, and the overlay over the root, if there is one."""
    checked(mount(None, "/", None, REC | PRIVATE), "make mounts private")
    if job.overlay:
        made = mount("overlay", job.root, "overlay", 0, job.overlay)
        checked(made, f"mount an overlay over {job.root}")


def make_root(job: EnclosureJob) -> None:
    """Mount everything that the command sees below job.root."""
    root, tmp = job.root, job.tmp
    bind(root, root, root)
    restrict(root, NOSUID | NODEV)
    make_proc(job.proc, job)
    make_devices(job.dev, terminal=job.terminal)
    make_sys(job.sys)
    checked(mount("tmpfs", tmp, "tmpfs", NOSUID | NODEV, "mode=1777"), "mount /tmp")
    with open(f"{tmp}/hosts", "w", encoding="utf-8") as file:
        file.write(hosts_file(job.hostname))
    bind(f"{tmp}/hosts", job.hosts, "/etc/hosts")
    os.unlink(f"{tmp}/hosts")
    for writable, source, point in job.binds:
        reach(point, source)
        bind(source, point, source)
        nodev = 0 if source.startswith("/dev/") else NODEV
        restrict(point, NOSUID | nodev | (0 if writable else RDONLY))
    if job.readonly:
        flag(root, RDONLY)


def change_root(root: str) -> None:
    """Make `root` the root and unmount the old one for this process."""
    os.chdir(root)
    checked(system_call("pivot_root", b".", b"."), "change the root (pivot_root)")
    checked(libc.umount2(b".", DETACH), "unmount the old root")
    os.chdir("/")
