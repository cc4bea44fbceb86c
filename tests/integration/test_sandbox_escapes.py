"""Tests that sandbox escapes (tests/support/escapes.py) fail, as root and as other users."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.container import sandbox, seccomp
from imgbuild.container.sandbox import UntrustedUser
from imgbuild.system import process
from tests.support import needs
from tests.support.sandboxed import (
    PYTHON,
    REPOSITORY,
    Place,
    run_as_ordinary_user,
    run_inside,
    sandbox_place,
    try_escapes,
)

pytestmark = pytest.mark.engine
USERS = {
    "root": None,
    "user": (1000, 1001),
    "confined": UntrustedUser(host_id=sandbox.spare_id(), memory=1 << 30, processes=100),
}
# Errors from a failed attempt: from the filter, or from the kernel for a missing permission or
# object. Attempts that only the filter stops are in FILTERED.
STOPPED = {
    *("EPERM", "EACCES", "ENOSYS", "ENOENT", "EROFS", "EAFNOSUPPORT", "ECONNREFUSED"),
    *("none", "empty"),
}
FILTERED = {
    **dict.fromkeys(
        (
            *("keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd"),
            *("io_uring_setup", "kexec_load", "init_module", "finit_module", "file_handle"),
            *("trace_oneself", "trace_process_1", "mount_over_etc", "unmount_proc_sys"),
            *("remount_writable", "fsopen_proc", "setattr_writable", "new_namespaces"),
            *("clone_namespace", "enter_namespace", "tiocsti", "tiocsti_with_high_bits"),
            *("tioclinux", "call_of_another_architecture", "chroot_and_up", "pivot_root"),
            *("chroot_in_a_user_namespace", "open_tree", "move_mount"),
        ),
        "EPERM",
    ),
    "clone3_namespace": "ENOSYS",
    **dict.fromkeys(
        ("hypervisor", "crypto_socket", "packet_socket", "sockets_of_other_families"),
        "EAFNOSUPPORT",
    ),
}
# Without the filter these still reach no file, process, setting or service of the host.
UNFILTERED_OPEN = {
    *("new_namespaces", "trace_oneself", "keyctl", "add_key", "request_key", "hypervisor"),
    *("crypto_socket", "io_uring_setup", "tiocsti", "tiocsti_with_high_bits", "userfaultfd"),
    *("clone_namespace", "enter_namespace", "open_tree", "unfiltered_process"),
    "sockets_of_other_families",
}


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Iterator[Place]:
    needs.user_namespaces()
    tmp_path.chmod(0o755)
    with sandbox_place(tmp_path) as place:
        yield place


def check(outcomes: dict[str, str], *, root: bool) -> None:
    """Check that every attempt fails, and that the seccomp filter prevents its part."""
    assert {name: how for name, how in outcomes.items() if how == "escaped"} == {}
    assert {name: outcomes[name] for name in FILTERED} == FILTERED
    assert {name: how for name, how in outcomes.items() if how not in STOPPED} == {}
    assert not root or outcomes["mode_of_null"] == "EROFS"


@pytest.mark.parametrize("user", USERS)
def test_sandbox_escapes_fail(place, user):
    needs.require_root()
    assert seccomp.filter_program() is not None
    check(try_escapes(place, user=USERS[user]), root=user == "root")


@pytest.mark.parametrize("user", USERS)
def test_sandbox_escapes_fail_without_seccomp(place, user, monkeypatch):
    monkeypatch.setattr(sandbox, "_filter", lambda: b"")
    outcomes = try_escapes(place, user=USERS[user])
    assert {name for name, how in outcomes.items() if how == "escaped"} <= UNFILTERED_OPEN


@pytest.mark.parametrize("user", [None, (1000, 1001)], ids=["root", "user"])
def test_sandbox_escapes_fail_as_ordinary_user(user):
    body = f"import json; print(json.dumps(escapes.try_escapes(place, user={user})))"
    check(json.loads(run_as_ordinary_user(body)), root=False)


def test_open_folder_of_the_host_is_not_accessible_in_the_sandbox(place, monkeypatch):
    """In CVE-2024-21626, the runtime left a folder of the host open in the process."""
    folder, start = os.open("/", os.O_RDONLY), process.run_command
    monkeypatch.setattr(
        process,
        "run_command",
        lambda full, *, check, descriptors: start(
            full, check=check, descriptors=[*descriptors, folder]
        ),
    )
    words = (PYTHON, "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))")
    try:
        for number in (folder, *range(3, 16)):
            completed = run_inside(
                place, "/usr/bin/cat", "etc/passwd", cwd=f"/proc/self/fd/{number}"
            )
            assert completed.stdout == ""
            assert "cannot change to the folder" in completed.stderr
        assert (
            run_inside(place, *words).stdout == "['0', '1', '2', '3']\n"
        )  # 3 is the listing itself
    finally:
        os.close(folder)


def test_sandbox_program_cannot_be_executed(place):
    (place.root / "etc/self").symlink_to("/proc/self/exe")
    script = place.root / "etc/script"
    script.write_text("#!/etc/self\n")
    script.chmod(0o755)
    for command in ("/proc/self/exe", "/etc/self", "/etc/script"):
        completed = run_inside(place, command, "-c", "print('started')")
        assert completed.stdout == ""
        assert "is the sandbox program" in completed.stderr


def test_command_cannot_access_host_terminal(place):
    assert run_inside(place, "/usr/bin/cat", "/dev/tty").status != 0
    look = "import os; print(os.getsid(0) == os.getpid())"
    assert run_inside(place, PYTHON, "-c", look).stdout == "True\n"


def test_sandbox_has_a_separate_session_and_core_limit():
    """A limit of one byte prevents core files and, unlike 0, programs of the host."""
    body = """
look = "import os, resource; print(os.getsid(0) != 0, resource.getrlimit(resource.RLIMIT_CORE))"
print(escapes.run_inside(place, escapes.PYTHON, "-c", look).stdout)
"""
    assert run_as_ordinary_user(body).split(maxsplit=1) == ["True", "(1, 1)\n\n"]


def test_command_user_has_no_groups_of_root(place):
    needs.require_root()
    before = os.getgroups()
    os.setgroups([4242])
    try:
        look = "import os; print(os.getgroups())"
        assert run_inside(place, PYTHON, "-c", look, user=(1000, 1001)).stdout == "[]\n"
    finally:
        os.setgroups(before)


FLAGS = """
import os
wanted = os.ST_NOSUID | os.ST_NODEV
print([path for path in ("/", "/usr", "/tmp", "/dev/shm")
       if os.statvfs(path).f_flag & wanted != wanted])
"""


def test_devices_and_setuid_programs_have_no_effect_in_the_sandbox(place):
    assert run_inside(place, PYTHON, "-c", FLAGS).stdout == "[]\n"
    body = f"print(escapes.run_inside(place, escapes.PYTHON, '-c', {FLAGS!r}).stdout)"
    assert run_as_ordinary_user(body) == "[]\n\n"


def test_missing_libseccomp_is_reported_once(place, monkeypatch, capsys):
    monkeypatch.setattr(seccomp, "LIBRARY", "libabsent.so.2")
    for cached_function in (seccomp.filter_program, sandbox._filter):
        cached_function.cache_clear()
    try:
        for _ in range(2):
            assert run_inside(place, "/usr/bin/true").status == 0
    finally:
        for cached_function in (seccomp.filter_program, sandbox._filter):
            cached_function.cache_clear()
    assert capsys.readouterr().err.count("is not installed") == 1


COMMANDS = """
import os
from imgbuild.container.sandbox import BindMount, SandboxRoot
binds = [
    BindMount(source=Path("/usr"), target="/usr"),
    BindMount(source=place.secret, target="/opt/file"),
    BindMount(source=place.secret.parent / "open", target="/tmp/in/folder", writable=True),
]
(place.secret.parent / "open").mkdir()
def show(script, *, command=(), cwd="/etc", **options):
    words = command or ("/usr/bin/sh", "-c", script)
    root = SandboxRoot(path=place.root)
    options |= {"cwd": cwd, "env": {"A": "two words"}}
    done = escapes.sandbox.run_in_sandbox(root, words, binds=binds, **options)
    print(done.status, done.stdout, "absent" in done.stderr)
for user in (None, (1000, 1001)):
    show("id -u; id -g; pwd; hostname; cat /etc/hosts /opt/file; exit 7", user=user)
    show("kill -9 $$", user=user)
    show("env | sort", user=user)
    show("stat -c '%a %F' /tmp /dev/shm /dev/null /proc /etc", user=user)
    show("for f in / /etc /tmp /tmp/in/folder /dev/shm /opt /sys; do (echo >$f/x) && echo $f; done",
         user=user, readonly=True)
    show("for f in /etc /tmp /opt/file; do (echo >>$f) && echo $f; done; rm -f /etc/x", user=user)
    show("ls /sys/class/net | grep -x lo; cat /etc/resolv.conf", user=user, network=True)
show("", command=("/absent",))
show("", command=("absent", "word"))
show("", command=("sh", "-c", "echo by PATH"))
show("true", cwd="/absent")
print(sorted(os.listdir(place.secret.parent / "open")))
"""


def test_command_of_an_ordinary_user_keeps_user_id_exit_status_and_files():
    lines = run_as_ordinary_user(COMMANDS).split("\n")
    assert lines[-2] == "['x']"
    assert "7 0" in lines
    assert "7 1000" in lines
    assert lines.count("137  False") == 2
    assert "two words" in "".join(lines)
    assert [line for line in lines if line.endswith(("127  True", "126  True"))]


# Root of a container, without permission to create namespaces, or on a host that forbids user
# namespaces, or of a rootless container whose /proc is partly hidden, so that a new one fails.
HINDRANCES = {
    "no-admin": ["setpriv", "--bounding-set", "-sys_admin"],
    "no-users": [
        *("unshare", "--user", "--map-root-user", "--mount", "sh", "-c"),
        'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"',
        "sh",
    ],
    "hidden-proc": [
        *("unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c"),
        'mount -t tmpfs none /proc/fs; exec unshare --user --map-root-user "$@"',
        "sh",
    ],
}
AS_ROOT = """
import json, sys
from pathlib import Path
from tests.support import sandboxed as escapes
with escapes.sandbox_place(Path(sys.argv[1])) as place:
    print(json.dumps(escapes.try_escapes(place, user=None)))
"""


def hindered(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*words, sys.executable, "-c", AS_ROOT, folder],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join((str(REPOSITORY / "builder"), str(REPOSITORY))),
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("kind", HINDRANCES)
def test_sandbox_escapes_fail_with_limited_namespaces(tmp_path, kind):
    needs.require_root()
    done = hindered(HINDRANCES[kind], tmp_path)
    assert done.returncode == 0, done.stderr
    ways = json.loads(done.stdout)
    if kind == "hidden-proc":  # it is the /proc of the caller, as is process 1
        for name in ("processes_of_the_host", "more_rights", "unfiltered_process"):
            assert ways.pop(name) == "escaped"
    check(ways, root=True)


def test_missing_support_for_namespaces_is_reported(tmp_path):
    needs.require_root()
    done = hindered([*HINDRANCES["no-users"], "setpriv", "--bounding-set", "-all"], tmp_path)
    assert "ToolMissing: this machine does not allow the sandbox: cannot create" in done.stderr
