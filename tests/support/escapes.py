"""Attempts sandbox escapes; runs in the sandbox with the Python of the image.

The arguments are the path of a file of the host that is not in the image, and a port of the host.
Each function is one escape. The output is JSON that maps the name of each escape to "escaped" or to
the name of the error that prevented it. The escapes are from a review of this project and from
published vulnerabilities: CVE-2019-5736 and CVE-2024-21626 of runc, CVE-2017-5226 and
CVE-2023-28100 (TIOCSTI and TIOCLINUX), CVE-2022-0492 (release_agent), CVE-2020-15257 (abstract
sockets) and CVE-2014-3519 (file handles).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import socket
import stat
import sys
import termios
from collections.abc import Callable
from pathlib import Path

SECRET, PORT = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
# x86_64 and aarch64
NUMBERS = {
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273),
    "open_by_handle_at": (304, 265), "ptrace": (101, 117), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "setns": (308, 268),
    "unshare": (272, 97), "fsopen": (430, 430), "move_mount": (429, 429), "open_tree": (428, 428),
    "mount_setattr": (442, 442), "quotactl": (179, 60), "reboot": (169, 142), "acct": (163, 89),
    "syslog": (103, 116), "swapon": (167, 224), "clone3": (435, 435), "clone": (56, 220),
    "ioctl": (16, 29), "process_vm_readv": (310, 270),
}  # fmt: skip
ROW = 0 if os.uname().machine == "x86_64" else 1
WAYS: dict[str, Callable[[], object]] = {}


class StoppedError(Exception):
    """Raised if something other than an error number prevents the escape."""


def register_escape(function: Callable[[], object]) -> Callable[[], object]:
    """Register an escape. If the function returns, the escape has succeeded."""
    WAYS[function.__name__] = function
    return function


def system_call(name: str, *arguments: object) -> int:
    """Make a system call. Raises OSError if it fails."""
    result = libc.syscall(NUMBERS[name][ROW], *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return int(result)


def read_secret(root: str) -> None:
    """Read the secret below `root`. Raises StoppedError if it is missing or another file."""
    try:
        text = Path(root + SECRET).read_text(encoding="utf-8")
    except OSError as error:
        raise StoppedError(errno.errorcode[error.errno or 0]) from error
    if text != "secret of the host":
        raise StoppedError(text)


@register_escape
def chroot_and_up() -> None:
    root = os.open("/", os.O_RDONLY)
    os.makedirs("/tmp/inner", exist_ok=True)
    os.chroot("/tmp/inner")
    os.fchdir(root)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    read_secret("")


@register_escape
def chroot_in_a_user_namespace() -> None:
    system_call("unshare", 0x10000000 | 0x20000)
    chroot_and_up()


@register_escape
def above_the_root() -> None:
    read_secret("/.." * 64)


@register_escape
def open_folders() -> None:
    for number in os.listdir("/proc/self/fd"):
        for up in range(40):
            place = f"/proc/self/fd/{number}" + "/.." * up + SECRET
            if os.path.exists(place):
                read_secret(f"/proc/self/fd/{number}" + "/.." * up)
                return
    raise StoppedError("none")


@register_escape
def roots_of_processes() -> None:
    for number in filter(str.isdigit, os.listdir("/proc")):
        for link in ("root", "cwd"):
            for up in range(10):
                place = f"/proc/{number}/{link}" + "/.." * up
                if os.path.exists(place + SECRET):
                    read_secret(place)
                    return
    raise StoppedError("none")


@register_escape
def program_of_process_1() -> None:
    os.open("/proc/1/exe", os.O_WRONLY)


@register_escape
def memory_of_process_1() -> None:
    os.open("/proc/1/mem", os.O_RDWR)


@register_escape
def trace_process_1() -> None:
    system_call("ptrace", 16, 1, 0, 0)


@register_escape
def trace_oneself() -> None:
    system_call("ptrace", 0, 0, 0, 0)


@register_escape
def mount_over_etc() -> None:
    system_call("mount", b"tmpfs", b"/etc", b"tmpfs", 0, None)


@register_escape
def unmount_proc_sys() -> None:
    system_call("umount2", b"/proc/sys", 2)


@register_escape
def remount_writable() -> None:
    system_call("mount", None, b"/proc/sys", None, 32 | 4096, None)


@register_escape
def fsopen_proc() -> None:
    system_call("fsopen", b"proc", 0)


@register_escape
def setattr_writable() -> None:
    system_call("mount_setattr", -100, b"/sys", 0, (ctypes.c_uint64 * 4)(0, 1, 0, 0), 32)


@register_escape
def new_namespaces() -> None:
    system_call("unshare", 0x10000000 | 0x20000)


@register_escape
def clone_namespace() -> None:
    # A thread's flags with the new namespace's are invalid: no child is made either way.
    system_call("clone", 0x10000000 | 0x200, 0, 0, 0, 0)


@register_escape
def clone3_namespace() -> None:
    system_call("clone3", (ctypes.c_uint64 * 8)(0x10000000), 64)


@register_escape
def enter_namespace() -> None:
    system_call("setns", os.open("/proc/self/ns/net", os.O_RDONLY), 0)


def _terminal(request: int) -> None:
    _, slave = os.openpty()
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)  # else the kernel itself refuses
    system_call("ioctl", slave, ctypes.c_ulong(request), ctypes.c_char_p(b"x"))


@register_escape
def tiocsti() -> None:
    _terminal(0x5412)


@register_escape
def tiocsti_with_high_bits() -> None:
    _terminal(0x5412 | 1 << 32)


@register_escape
def tioclinux() -> None:
    _terminal(0x541C)


@register_escape
def call_of_another_architecture() -> None:
    if ROW == 0 and libc.syscall(0x40000000 | 272, 0x10000000) == 0:  # unshare of x32
        return
    raise OSError(ctypes.get_errno() or errno.EPERM, "x32")


@register_escape
def file_handle() -> None:
    system_call("open_by_handle_at", 0, (ctypes.c_uint32 * 4)(8, 1, 2, 0), 0)


def _plain_call(name: str) -> Callable[[], object]:
    return lambda: system_call(name, 0, 0, 0, 0, 0)


for _name in (
    *("keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd", "acct"),
    *("io_uring_setup", "kexec_load", "init_module", "finit_module", "quotactl", "reboot"),
    *("syslog", "swapon", "pivot_root", "open_tree", "move_mount"),
):
    WAYS[_name] = _plain_call(_name)


@register_escape
def disk_node() -> None:
    os.mknod("/tmp/disk", 0o600 | stat.S_IFBLK, os.makedev(8, 0))
    os.open("/tmp/disk", os.O_RDONLY)


@register_escape
def other_nodes() -> None:
    allowed = {"null", "zero", "full", "random", "urandom", "ptmx", "pts", "shm", "core", "console"}
    more = set(os.listdir("/dev")) - allowed - {"fd", "stdin", "stdout", "stderr", "tty"}
    if not more:
        raise StoppedError("none")


@register_escape
def mode_of_null() -> None:
    os.chmod("/dev/null", 0o666)


@register_escape
def kernel_setting() -> None:
    with open("/proc/sys/kernel/core_pattern", "r+", encoding="utf-8") as file:
        text = file.read()
        file.seek(0)
        file.write(text)


@register_escape
def sysrq() -> None:
    os.open("/proc/sysrq-trigger", os.O_WRONLY)


@register_escape
def sys_file() -> None:
    os.open("/sys/kernel/profiling", os.O_WRONLY)


@register_escape
def release_agent() -> None:
    agents = list(Path("/sys/fs/cgroup").rglob("release_agent"))
    if not agents:
        raise StoppedError("none")
    os.open(agents[0], os.O_WRONLY)


@register_escape
def physical_memory() -> None:
    with open("/proc/kcore", "rb") as file:
        if not file.read(1):
            raise StoppedError("empty")


@register_escape
def processes_of_the_host() -> None:
    if len(list(filter(str.isdigit, os.listdir("/proc")))) < 5:
        raise StoppedError("none")


@register_escape
def host_service() -> None:
    socket.create_connection(("127.0.0.1", PORT), timeout=5)


@register_escape
def abstract_socket() -> None:
    socket.socket(socket.AF_UNIX).connect(f"\0imgbuild-test-{PORT}")


@register_escape
def hypervisor() -> None:
    socket.socket(40, socket.SOCK_STREAM)


@register_escape
def crypto_socket() -> None:
    socket.socket(38, socket.SOCK_SEQPACKET)


@register_escape
def packet_socket() -> None:
    socket.socket(17, socket.SOCK_RAW)


@register_escape
def sockets_of_other_families() -> None:
    # The kernel checks the type, which does not exist, before the family; the filter does not.
    for family in set(range(46)) - {1, 2, 10, 16}:
        if libc.socket(family, 999, 0) >= 0 or ctypes.get_errno() != errno.EAFNOSUPPORT:
            return
    raise OSError(errno.EAFNOSUPPORT, "socket")


@register_escape
def more_rights() -> None:
    # Of all capabilities only those about files and accounts, and only for root.
    allowed = 0x800004FB if os.getuid() == 0 else 0
    for process in ("self", "1"):
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
        fields = dict(line.split(":\t", 1) for line in lines)
        kinds = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
        if fields["NoNewPrivs"] != "1" or any(int(fields[kind], 16) & ~allowed for kind in kinds):
            return
    raise StoppedError("none")


@register_escape
def unfiltered_process() -> None:
    for process in ("self", "1"):
        if "Seccomp:\t2\n" not in Path(f"/proc/{process}/status").read_text(encoding="utf-8"):
            return
    raise StoppedError("none")


def try_escape(function: Callable[[], object]) -> str:
    """Try an escape in a new process, because some escapes change the root or the user."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            function()
            text = "escaped"
        except StoppedError as error:
            text = str(error)
        except OSError as error:
            text = errno.errorcode.get(error.errno or 0, str(error))
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        text = file.read().decode()
    os.wait()
    return text or "killed"


if __name__ == "__main__":
    print(json.dumps({name: try_escape(function) for name, function in WAYS.items()}))
