"""The command line of bubblewrap for a job of the sandbox, where bubblewrap is installed.

Only users without root start programs with it: it cannot map more than one user id, nor become
another user of the host. The filter of system calls and the limits are those of `enclosure`.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from imgbuild.container.enclosure_root import EnclosureJob
from imgbuild.container.kernel_calls import PRIVILEGED
from imgbuild.system import process, programs

PROGRAM = "bwrap"
NAMES = {
    0: "CHOWN", 1: "DAC_OVERRIDE", 3: "FOWNER", 4: "FSETID", 5: "KILL", 6: "SETGID", 7: "SETUID",
    10: "NET_BIND_SERVICE", 31: "SETFCAP",
}  # fmt: skip


@functools.cache
def usable() -> bool:
    """Whether this user, who is not root, can start programs with bubblewrap."""
    program = programs.which(PROGRAM)
    if os.geteuid() == 0 or program is None or programs.which("prlimit") is None:
        return False
    if Path(program).stat().st_uid != 0 or os.access(program, os.W_OK):
        return False  # a command could write to it, as process 1 of the namespaces
    probe = [PROGRAM, "--unshare-user", "--unshare-pid", "--bind", "/", "/", "--proc", "/proc"]
    return process.run([*probe, "true"], check=False).status == 0


def command(job: EnclosureJob, arguments: int) -> list[str]:
    """The command; `arguments` is the descriptor of a file with the options."""
    limits = ["--core=1"]
    if job.limits:
        limits += [f"--data={job.limits['memory']}", f"--nproc={job.limits['processes']}"]
    return ["prlimit", *limits, PROGRAM, "--args", str(arguments), "--", *job.command]


def options(job: EnclosureJob, *, filtered: int | None, hosts: int) -> bytes:
    """The options for --args: `filtered` and `hosts` are open files of the filter and /etc/hosts.

    They are not arguments, which other users can see, since they contain the environment.
    """

    def _inside(point: str) -> str:
        return f"/{Path(point).relative_to(job.root)}".removesuffix("/.")

    words = [
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
        *("--unshare-cgroup-try", "--die-with-parent", "--hostname", job.hostname),
        *("--uid", str(job.user[0]), "--gid", str(job.user[1]), "--cap-drop", "ALL"),
        *(() if job.network else ("--unshare-net",)),
        *(() if job.terminal else ("--new-session",)),
        *("--bind", job.root, "/", "--proc", _inside(job.proc), "--dev", _inside(job.dev)),
        *("--ro-bind", "/sys", _inside(job.sys)),
        *("--perms", "1777", "--tmpfs", _inside(job.tmp)),
        *("--perms", "1777", "--tmpfs", f"{_inside(job.dev)}/shm"),
        *("--ro-bind-data", str(hosts), _inside(job.hosts)),
    ]
    for number in PRIVILEGED if job.privileged else ():
        words += ["--cap-add", f"CAP_{NAMES[number]}"]
    for writable, source, point in job.binds:
        kind = "--dev-bind" if source.startswith("/dev/") else "--bind" if writable else "--ro-bind"
        words += [kind, source, _inside(point)]
    if job.readonly:
        words += ["--remount-ro", "/"]
    words += ["--clearenv", "--chdir", job.cwd]
    for name, value in job.env.items():
        words += ["--setenv", name, value]
    if filtered is not None:
        words += ["--seccomp", str(filtered)]
    return b"".join(os.fsencode(word) + b"\0" for word in words)
