"""Creates the seccomp filter of system calls in the sandbox with libseccomp.

The filter denies system calls that commands do not need and sandbox escapes have used: new
namespaces and mounts, tracing, kernel keys, bpf, io_uring, modules, and faked terminal input.
"""

# A separate module: a policy.
from __future__ import annotations

import ctypes
import errno
import functools
import os
import tempfile

from imgbuild.errors import WorkFailed

LIBRARY = "libseccomp.so.2"
MISSING_MESSAGE = (
    f"{LIBRARY} is not installed, so system calls in the sandbox are not filtered; to install "
    "it, run: apt-get install libseccomp2"
)

# From seccomp.h of libseccomp 2.
ALLOW_ACTION = 0x7FFF0000
DENY_ACTION = 0x00050000  # plus the error number
MASKED_EQ = 7
EQ, GT = 4, 6
BAD_ARCH = 2  # the attribute for the action on calls of another architecture, such as 32-bit ones
RESOLVE_ERROR = -1

DENIED_CALLS = (
    *("mount", "umount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr"),
    *("move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"),
    *("unshare", "setns", "ptrace", "keyctl", "add_key", "request_key", "bpf"),
    *("perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module"),
    *("open_by_handle_at", "fanotify_init", "quotactl", "quotactl_fd", "swapon", "swapoff"),
    *("acct", "reboot", "syslog", "settimeofday", "clock_settime", "clock_settime64"),
    *("clock_adjtime", "clock_adjtime64", "iopl", "ioperm", "modify_ldt", "vm86", "vm86old"),
    *("sethostname", "setdomainname", "vhangup", "uselib", "nfsservctl", "lookup_dcookie"),
)
# CLONE_NEW*: NS, CGROUP, UTS, IPC, USER, PID, NET. clone does not take CLONE_NEWTIME.
NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
TERMINAL = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
LOW_WORD_MASK = 0xFFFFFFFF  # the kernel ignores the upper half of ioctl's second argument
FAMILIES = (1, 2, 10, 16)  # of sockets: AF_UNIX, AF_INET, AF_INET6, AF_NETLINK


class ArgumentCheck(ctypes.Structure):
    """`struct scmp_arg_cmp`: argument number, comparison and values."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


@functools.cache
def filter_program() -> bytes | None:
    """Return the filter as BPF instructions for this architecture, or None without libseccomp.

    Raises WorkFailed if libseccomp cannot create the filter.
    """
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(ALLOW_ACTION)))
    try:
        _check_result(
            library.seccomp_attr_set(context, BAD_ARCH, ctypes.c_uint32(DENY_ACTION | errno.EPERM))
        )
        _fill_filter(library, context)
        return _export_program(library, context)
    finally:
        library.seccomp_release(context)


def _fill_filter(library: ctypes.CDLL, context: ctypes.c_void_p) -> None:
    for name in DENIED_CALLS:
        _deny_call(library, context, name, errno.EPERM)
    # Flags of clone3 are in memory, which a filter cannot read; the C library then uses clone.
    _deny_call(library, context, "clone3", errno.ENOSYS)
    for flag in NAMESPACES:
        _deny_call(library, context, "clone", errno.EPERM, ArgumentCheck(0, MASKED_EQ, flag, flag))
    for request in TERMINAL:
        _deny_call(
            library,
            context,
            "ioctl",
            errno.EPERM,
            ArgumentCheck(1, MASKED_EQ, LOW_WORD_MASK, request),
        )
    for family in range(max(FAMILIES)):
        if family not in FAMILIES:
            equal = ArgumentCheck(0, EQ, family, 0)
            _deny_call(library, context, "socket", errno.EAFNOSUPPORT, equal)
    above = ArgumentCheck(0, GT, max(FAMILIES), 0)
    _deny_call(library, context, "socket", errno.EAFNOSUPPORT, above)


def _deny_call(
    library: ctypes.CDLL,
    context: ctypes.c_void_p,
    name: str,
    error: int,
    comparison: ArgumentCheck | None = None,
) -> None:
    number = library.seccomp_syscall_resolve_name(name.encode())
    if number == RESOLVE_ERROR:  # unknown to this version of the library
        return
    count = ctypes.c_uint(0 if comparison is None else 1)
    action = ctypes.c_uint32(DENY_ACTION | error)
    array = (ArgumentCheck * 1)(*(() if comparison is None else (comparison,)))
    _check_result(library.seccomp_rule_add_array(context, action, number, count, array))


def _check_result(result: int) -> None:
    if result != 0:
        message = f"{LIBRARY} cannot create the system call filter: {os.strerror(-result)}"
        raise WorkFailed(message)


def _export_program(library: ctypes.CDLL, context: ctypes.c_void_p) -> bytes:
    with tempfile.TemporaryFile() as file:
        _check_result(library.seccomp_export_bpf(context, file.fileno()))
        file.seek(0)
        return file.read()
