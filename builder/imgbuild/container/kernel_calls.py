"""Makes system calls for the sandbox through ctypes, for example for mounts and the filter.

Only the standard library is imported, for the reasons in `enclosure`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import struct

# linux/sched.h, linux/mount.h, linux/prctl.h, linux/capability.h
NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC = 1, 2, 4, 8, 32, 4096, 16384
PRIVATE, DETACH = 1 << 18, 2
KEPT_MOUNT_FLAGS = {
    1: 1,
    2: 2,
    4: 4,
    8: 8,
    1024: 1024,
    2048: 2048,
    4096: 1 << 21,
}  # statvfs → mount flags
PDEATHSIG, DUMPABLE, SECCOMP, CAPBSET_DROP, NO_NEW_PRIVS, AMBIENT = 1, 4, 22, 24, 38, 47
CAPABILITIES = 64
# Capabilities of root in the sandbox, for files and accounts: CHOWN, DAC_OVERRIDE, FOWNER, FSETID,
# KILL, SETGID, SETUID, NET_BIND_SERVICE, SETFCAP.
PRIVILEGED_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 10, 31)
CAPABILITY_VERSION = 0x20080522
NUMBERS = {
    "x86_64": {"pivot_root": 155, "capset": 126},
    "aarch64": {"pivot_root": 41, "capset": 91},
}
ESCAPED_OCTAL = re.compile(rb"\\([0-7]{3})")

libc = ctypes.CDLL(None, use_errno=True)


class EnclosureError(Exception):
    """The sandbox cannot be created, or the command cannot be started."""


def check_result(result: int, what: str) -> None:
    """Raise EnclosureError with errno of the last C call if `result` is not 0."""
    if result != 0:
        message = f"cannot {what}: {os.strerror(ctypes.get_errno())}"
        raise EnclosureError(message)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> int:
    """Make the system call `mount`. Returns 0, or -1 with errno set."""
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    return int(libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(data) if data else None))


def prctl(option: int, value: int = 0, *more: object) -> int:
    """Make the system call `prctl`. Returns 0, or -1 with errno set. Omitted arguments are 0."""
    rest = [*more, *(ctypes.c_ulong(0),) * (3 - len(more))]
    return int(libc.prctl(option, ctypes.c_ulong(value), *rest))


def system_call(name: str, *arguments: object) -> int:
    """Make a system call that has no function in the C library. Returns 0, or -1 with errno set."""
    return int(libc.syscall(NUMBERS[os.uname().machine][name], *arguments))


def bind_mount(source: str, target: str, what: str) -> None:
    """Mount `source`, and the mounts below it, at `target`. `what` is its name in errors."""
    check_result(mount(source, target, None, BIND | REC), f"bind {what}")


def add_mount_flags(place: str, flags: int) -> None:
    """Add `flags` to a mount. Other flags are kept, because the kernel can have locked them."""
    current = os.statvfs(place).f_flag
    retained = sum(mount_flag for bit, mount_flag in KEPT_MOUNT_FLAGS.items() if current & bit)
    check_result(
        mount(None, place, None, REMOUNT | BIND | retained | flags), f"restrict the mount {place}"
    )


def restrict_mounts(target: str, flags: int) -> None:
    """Add mount flags to `target` and all mounts below it."""
    with open("/proc/self/mountinfo", "rb") as file:
        lines = file.read().splitlines()
    for line in lines:
        place = os.fsdecode(
            ESCAPED_OCTAL.sub(lambda match: bytes((int(match[1], 8),)), line.split()[4])
        )
        if place == target or place.startswith(f"{target}/"):
            try:
                add_mount_flags(place, flags)
            except PermissionError:  # not accessible to the command either
                continue


def change_user(user: tuple[int, int], capabilities: tuple[int, ...]) -> None:
    """Change the user and group ID, and permanently drop all capabilities except `capabilities`."""
    for number in range(CAPABILITIES):
        if number not in capabilities and prctl(CAPBSET_DROP, number) != 0:
            if ctypes.get_errno() == errno.EINVAL:
                break  # above the last one of this kernel
            check_result(-1, "drop capabilities")
    uid, gid = user
    with contextlib.suppress(PermissionError):  # denied to the user who created the namespace
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    prctl(AMBIENT, 4)  # PR_CAP_AMBIENT_CLEAR_ALL
    mask = sum(1 << number for number in capabilities)
    header = struct.pack("Ii", CAPABILITY_VERSION, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = struct.pack("6I", low, low, 0, high, high, 0)
    check_result(system_call("capset", header, data), "drop capabilities")
    check_result(prctl(NO_NEW_PRIVS, 1), "set no_new_privs")


def load_filter(program: bytes) -> None:
    """Apply a filter of system calls to this process.

    `program` is BPF code with 8 bytes per instruction.
    """
    buffer = ctypes.create_string_buffer(program, len(program))
    descriptor = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    pointer = ctypes.create_string_buffer(descriptor, len(descriptor))
    check_result(libc.prctl(SECCOMP, ctypes.c_ulong(2), pointer, 0, 0), "load the filter")
