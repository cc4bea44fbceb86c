"""Sets up a sandbox (namespaces, user IDs, privileges, limits, terminal) and runs a command.

Four processes are used. The first stays outside of the sandbox, maps user IDs and waits. The second
creates the namespaces and waits. The third, which is process 1 of the namespaces, sets up the root,
drops all privileges and waits. The fourth executes the command. No module is imported after the
change of the root, because it would be loaded from the image. To start fast, this module,
`enclosure_root`, `kernel_calls` and `control_groups` import only the standard library.
"""

from __future__ import annotations

import _socket  # avoids the many modules that `socket` imports
import base64
import contextlib
import errno
import fcntl
import json
import os
import resource
import select
import signal
import stat
import struct
import sys
import termios

from imgbuild.container.control_groups import control_groups, remove_groups, write_kernel_file
from imgbuild.container.enclosure_root import EnclosureJob, change_root, make_root, mount_overlay
from imgbuild.container.kernel_calls import (
    DUMPABLE,
    NEWCGROUP,
    NEWIPC,
    NEWNET,
    NEWNS,
    NEWPID,
    NEWUSER,
    NEWUTS,
    PDEATHSIG,
    PRIVILEGED_CAPABILITIES,
    EnclosureError,
    change_user,
    check_result,
    libc,
    load_filter,
    prctl,
)

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "imgbuild sandbox: "
MEMORY_DESCRIPTOR = 3  # exit status of a probe if the changes of an overlay are in memory
FAILED, NOT_STARTED, NOT_FOUND = 125, 126, 127  # as in Docker
NAMESPACES_ACTION = "create namespaces"
MESSAGE = struct.Struct("=ci")
DESCRIPTORS = 1 << 16  # more than the few that `sandbox` leaves open
INTERPRETERS = 5  # limit of nested script interpreters in the kernel


class HelperPipes:
    """Two pipes that send requests of the second and third process to the first process."""

    def __init__(self) -> None:
        self.asked, self._ask = os.pipe()
        self._answer, self.answered = os.pipe()

    def close_first_process_ends(self) -> None:
        """Close the pipe ends of the first process, in the second process."""
        os.close(self.asked)
        os.close(self.answered)

    def close_write_end(self) -> None:
        """Close the write end in the first process, so that the end of requests is detected."""
        os.close(self._ask)

    def name(self, process: int) -> None:
        """Send the ID of the process for which `map_ids` requests a mapping."""
        os.write(self._ask, MESSAGE.pack(b"p", process))

    def map_ids(self) -> None:
        """Request a mapping of user IDs for the new user namespace, and wait for it."""
        os.write(self._ask, MESSAGE.pack(b"u", 0))
        self.wait()

    def wait(self) -> bytes:
        """Read the next response, which is one byte. Exits if the first process has ended."""
        answer = os.read(self._answer, 1)
        if not answer:
            os._exit(FAILED)
        return answer

    def is_alone(self) -> bool:
        """Return whether the first process has ended."""
        poll = select.poll()
        poll.register(self._answer, 0)
        return bool(poll.poll(0))


def serve_requests(helper: HelperPipes, job: EnclosureJob) -> None:
    """Map IDs on request, in the first process, until the other processes have ended."""
    process, is_requested = 0, False
    while message := os.read(helper.asked, MESSAGE.size):
        kind, number = MESSAGE.unpack(message)
        process, is_requested = (number, is_requested) if kind == b"p" else (process, True)
        # a request may arrive before the process's parent has sent its ID
        if not process or not is_requested:
            continue
        is_requested = False
        maps = {name: id_map(name, index, job) for index, name in enumerate(("uid", "gid"))}
        if os.geteuid() != 0:
            write_kernel_file(f"/proc/{process}/setgroups", "deny")
        for name, text in maps.items():
            write_kernel_file(f"/proc/{process}/{name}_map", text)
        os.write(helper.answered, b"m")


def id_map(name: str, index: int, job: EnclosureJob) -> str:
    """Return the content of `uid_map` (`index` 0) or `gid_map` (1).

    If the caller is not root, one ID is mapped to the caller. If the caller is root, one ID is
    mapped to `host_id` or, without `host_id`, all IDs are mapped to themselves.
    """
    inside = job.user[index]
    if os.geteuid() != 0:
        return f"{inside} {(os.geteuid, os.getegid)[index]()} 1\n"
    if job.host_id is not None:
        return f"{inside} {job.host_id} 1\n"
    with open(f"/proc/self/{name}_map", encoding="utf-8") as file:
        lines = [line.split() for line in file]
    return "".join(f"{first} {first} {count}\n" for first, _, count in lines)


def main(job: EnclosureJob) -> int:
    """Run the first process, which starts the others. Returns the exit status of the command."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the command handles these
    prctl(PDEATHSIG, signal.SIGKILL)
    helper = HelperPipes()
    process = os.fork()
    if process == 0:
        exit_with_result(lambda: isolate_process(helper, job))
    helper.close_write_end()
    groups = control_groups(job.limits, process) if job.limits else []
    os.write(helper.answered, b"g" if groups else b"n")
    try:
        serve_requests(helper, job)
        return wait_for(process)
    finally:
        remove_groups(groups)


def exit_with_result(function: Callable[[], int]) -> None:
    """Exit with the status that `function` returns, or with the status of the error it raises."""
    status = FAILED
    try:
        status = function()
    except Exception as error:  # noqa: BLE001  # nobody above could print it
        os.write(2, f"{MARK}{error}\n".encode(errors="replace"))
    finally:
        os._exit(status)


def wait_for(process: int) -> int:
    """Wait for a child process, and reap other children that end before it.

    Returns the exit status as in a shell.
    """
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == process:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def isolate_process(helper: HelperPipes, job: EnclosureJob) -> int:
    """Run the second process, which creates the namespaces and waits for the third process."""
    helper.close_first_process_ends()
    prctl(PDEATHSIG, signal.SIGKILL)
    grouped = helper.wait() == b"g"
    flags = NEWPID | NEWIPC | NEWUTS | (0 if job.network else NEWNET)
    job.mapped = os.geteuid() != 0 or libc.unshare(flags) != 0
    if job.mapped:
        check_result(libc.unshare(NEWUSER), NAMESPACES_ACTION)
        helper.name(os.getpid())
        helper.map_ids()
        check_result(libc.unshare(flags), NAMESPACES_ACTION)
    process = os.fork()
    if process == 0:
        exit_with_result(lambda: process_one(helper, job, grouped=grouped))
    helper.name(process)
    return wait_for(process)


def process_one(helper: HelperPipes, job: EnclosureJob, *, grouped: bool) -> int:
    """Run process 1 of the namespaces, which sets up the root and starts the command."""
    sys.path.clear()
    sys.meta_path.clear()
    umask = os.umask(0o022)
    check_result(libc.unshare(NEWNS | NEWCGROUP), NAMESPACES_ACTION)
    check_result(libc.sethostname(job.hostname.encode(), len(job.hostname)), "set the host name")
    if not job.network:
        start_network()
    interpreter = file_identity("/proc/self/exe")
    in_memory = mount_overlay(job)
    if job.probe:
        return MEMORY_DESCRIPTOR if in_memory else 0
    make_root(job)
    change_root(job.root)
    if not job.mapped and libc.unshare(NEWUSER) == 0:  # not supported by every kernel
        helper.map_ids()
    elif not job.mapped and job.outer_proc:
        check_result(-1, f"{NAMESPACES_ACTION} of users, which the existing /proc needs")
    elif not job.mapped and job.host_id is not None:
        job.user = (job.host_id, job.host_id)
    set_limits(job.limits, grouped=grouped)
    change_user(job.user, PRIVILEGED_CAPABILITIES if job.privileged else ())
    prctl(DUMPABLE, 0)  # prevents reading this process or its /proc/1/exe
    prctl(PDEATHSIG, signal.SIGKILL)
    if helper.is_alone():
        return FAILED
    os.umask(umask)
    program = base64.b64decode(job.filter)
    if program:
        load_filter(program)
    controlled = job.console is not None and open_terminal(job.console)
    os.closerange(3, DESCRIPTORS)
    process = os.fork()
    if process == 0:
        start_command(job, interpreter, controlled=controlled)
    return wait_for(process)


def start_network() -> None:
    """Start the loopback interface of the new network namespace.

    All users can use ping and low ports, as in Docker.
    """
    datagram_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(
        datagram_socket.fileno(), 0x8914, struct.pack("16sh", b"lo", 0x41)
    )  # SIOCSIFFLAGS: up
    datagram_socket.close()
    for name, value in (("ping_group_range", "0 2147483647"), ("ip_unprivileged_port_start", "0")):
        try:
            write_kernel_file(f"/proc/sys/net/ipv4/{name}", value)
        except OSError:  # a group that is not mapped, or a read-only /proc
            continue


def set_limits(limits: dict[str, int], *, grouped: bool) -> None:
    """Set resource limits.

    If `grouped` is false, no control groups exist, and memory and processes are limited here, too.
    """
    # 1: no program of the host receives a core dump
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    if limits and not grouped:
        for kind, value in (("DATA", limits["memory"]), ("NPROC", limits["processes"])):
            number = getattr(resource, f"RLIMIT_{kind}")
            _, hard = resource.getrlimit(number)
            allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (allowed, allowed))


def open_terminal(console: int) -> bool:
    """Open a new terminal as stdin, stdout and stderr, and send its main side to `console`.

    stderr is only changed if it is a terminal. Returns False if the kernel does not allow a new
    terminal.
    """
    try:
        master, terminal = os.openpty()
    except OSError:
        return False
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", master))
    _socket.socket(fileno=console).sendmsg([b"t"], [rights])
    for descriptor in range(3 if os.isatty(2) else 2):
        os.dup2(terminal, descriptor)
    return True


def start_command(
    job: EnclosureJob, interpreter: tuple[int, int, bytes], *, controlled: bool
) -> None:
    """Execute the command, in the fourth process. On failure, exit with a status as in a shell."""
    command, cwd = job.command, job.cwd
    status, text = NOT_STARTED, f"cannot change to the folder {cwd}"
    try:
        if controlled or not job.terminal:
            os.setsid()  # prevents input to a terminal of the host
        if controlled:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        for descriptor in range(3):
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                os.close(descriptor)  # a folder of the host
        os.chdir(cwd)
        if not os.getcwd().startswith("/"):
            message = "the working folder is outside of the image"
            raise EnclosureError(message)
        text, status = f"cannot start {command[0]}", NOT_FOUND
        execute_command(command, job.env, interpreter)
    except (EnclosureError, OSError) as error:
        if not isinstance(error, FileNotFoundError):
            status = NOT_STARTED
        reason = error.strerror if isinstance(error, OSError) else str(error)
        os.write(2, f"imgbuild: {text}: {reason}\n".encode(errors="replace"))
    finally:
        os._exit(status)


def file_identity(path: str) -> tuple[int, int, bytes]:
    """Return the device, inode and mount ID of a file."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        with contextlib.suppress(FileNotFoundError):  # /proc belongs to other processes
            with open(f"/proc/self/fdinfo/{descriptor}", "rb") as file:
                fields = dict(line.split(b":", 1) for line in file.read().splitlines())
            return status.st_dev, status.st_ino, fields[b"mnt_id"].strip()
        return status.st_dev, status.st_ino, b""
    finally:
        os.close(descriptor)


def refuse_own(path: str, interpreter: tuple[int, int, bytes]) -> None:
    """Raise EnclosureError if `path` is the Python of the host, through /proc/self/exe.

    A command could open this file, and write to it as soon as it is no longer in use
    (CVE-2019-5736).
    """
    for _ in range(INTERPRETERS + 1):
        path_identity = file_identity(path)
        if path_identity[:2] == interpreter[:2] and path_identity[2] in (b"", interpreter[2]):
            message = f"{path} is the sandbox program"
            raise EnclosureError(message)
        with open(path, "rb") as file:
            head = file.read(256)
        words = head.partition(b"\n")[0][2:].split()
        if not head.startswith(b"#!") or not words:
            return
        path = os.fsdecode(words[0])


def execute_command(
    command: list[str], env: dict[str, str], interpreter: tuple[int, int, bytes]
) -> None:
    """Replace this process with the command. A program without a slash is looked up in $PATH."""
    name = command[0]
    places = (
        [name] if "/" in name else [f"{folder or '.'}/{name}" for folder in env["PATH"].split(":")]
    )
    failure: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for path in places:
        try:
            refuse_own(path, interpreter)
            os.execve(path, command, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                refuse_own("/bin/sh", interpreter)
                os.execve("/bin/sh", ["sh", path, *command[1:]], env)
            failure = error
    raise failure


def run_job() -> None:
    """Read a job from the file descriptor in the argument, run the job, and exit."""
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        job = EnclosureJob(json.loads(file.read()))
    exit_with_result(lambda: main(job))
