"""Ways out of the sandbox (tests/support/escapes.py), tried as root and as other users."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from imgbuild.container import sandbox, seccomp
from imgbuild.container.sandbox import Bind, Confined, Root
from imgbuild.system.process import Result
from tests.support import needs, ordinary

pytestmark = pytest.mark.engine
REPOSITORY = Path(__file__).parents[2]
WAYS = REPOSITORY / "tests/support/escapes.py"
USERS = {
    "root": None,
    "user": (1000, 1001),
    "confined": Confined(host_id=sandbox.spare_id(), memory=1 << 30, processes=100),
}
# What may stop a way: the filter's own error, or one of the kernel for lack of a right or of the
# thing itself. Ways that only the filter stops are in FILTERED.
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
# Without the filter these still lead to no file, process, setting or service of the host.
UNFILTERED_OPEN = {
    *("new_namespaces", "trace_oneself", "keyctl", "add_key", "request_key", "hypervisor"),
    *("crypto_socket", "io_uring_setup", "tiocsti", "tiocsti_with_high_bits", "userfaultfd"),
    *("clone_namespace", "enter_namespace", "open_tree", "unfiltered_process"),
    "sockets_of_other_families",
}


class Place(NamedTuple):
    """A root with a Python, a file outside of it, and a port that a service of the host has."""

    root: Path
    secret: Path
    port: int


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Iterator[Place]:
    needs.user_namespaces()
    tmp_path.chmod(0o755)
    with place_in(tmp_path) as found:
        yield found


class place_in:  # noqa: N801  # used like a function
    """A `Place` in a folder, while the host's services run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.abstract = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> Place:
        root, secret = self.folder / "root", self.folder / "secret"
        root.mkdir()
        for name in ("lib", "lib64", "bin"):
            (root / name).symlink_to(f"usr/{name}")
        for name in ("etc", "usr"):
            (root / name).mkdir()
        secret.write_text("secret of the host", encoding="utf-8")
        port = self.listening.getsockname()[1]
        self.abstract.bind(f"\0imgbuild-test-{port}")
        self.abstract.listen()
        return Place(root, secret, port)

    def __exit__(self, *_: object) -> None:
        self.listening.close()
        self.abstract.close()


def inside(place: Place, *command: str, **options: object) -> Result:
    """Run `command` with the host's /usr, read-only, in the root."""
    binds = [
        Bind(source=Path("/usr"), target="/usr"),
        Bind(source=WAYS, target="/opt/escapes.py"),
    ]
    return sandbox.run(Root(path=place.root), command, binds=binds, **options)  # type: ignore[arg-type]


def tried(place: Place, **options: object) -> dict[str, str]:
    """The ways out and what stopped each, but for those that nothing had to stop."""
    words = (str(ordinary.SYSTEM), "/opt/escapes.py", str(place.secret), str(place.port))
    done = inside(place, *words, **options)
    assert done.status == 0, done
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def check(found: dict[str, str], *, root: bool) -> None:
    """Every way is stopped, and by the filter where it is the filter's to stop."""
    assert {name: how for name, how in found.items() if how == "escaped"} == {}
    assert {name: found[name] for name in FILTERED} == FILTERED
    assert {name: how for name, how in found.items() if how not in STOPPED} == {}
    assert not root or found["mode_of_null"] == "EROFS"


@pytest.mark.parametrize("user", USERS)
def test_no_way_leads_out(place, user):
    needs.root()
    assert seccomp.program() is not None
    check(tried(place, user=USERS[user]), root=user == "root")


@pytest.mark.parametrize("user", USERS)
def test_without_the_filter_no_way_leads_to_the_host(place, user, monkeypatch):
    monkeypatch.setattr(sandbox, "_filter", lambda: b"")
    found = tried(place, user=USERS[user])
    escaped = {name for name, how in found.items() if how == "escaped"}
    assert escaped <= UNFILTERED_OPEN


WRAPPED = pytest.mark.parametrize("wrapped", [False, True], ids=["own", "bubblewrap"])
AS_ORDINARY = """
import sys
from pathlib import Path
from imgbuild.container import bubblewrap
from tests.integration import test_sandbox_escapes as escapes
from tests.support import ordinary
if sys.argv[2] == "True":
    assert bubblewrap.usable()
else:
    bubblewrap.usable = lambda: False
with escapes.place_in(Path(sys.argv[1])) as place:
"""


def as_ordinary(body: str, *, wrapped: bool) -> str:
    """What `body` prints, which an ordinary user runs with a `place`."""
    if wrapped:
        needs.tool("bwrap", "bubblewrap")
    with ordinary.home() as folder:
        (folder / "place").mkdir(mode=0o755)
        os.chown(folder / "place", folder.stat().st_uid, folder.stat().st_gid)
        python, script = ordinary.python(folder), AS_ORDINARY + textwrap.indent(body, "    ")
        done = subprocess.run(
            [*ordinary.become(), python, "-B", "-c", script, folder / "place", str(wrapped)],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join((str(REPOSITORY / "builder"), str(REPOSITORY))),
            },
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@WRAPPED
@pytest.mark.parametrize("user", [None, (1000, 1001)], ids=["root", "user"])
def test_no_way_leads_out_for_an_ordinary_caller(wrapped, user):
    body = f"import json; print(json.dumps(escapes.tried(place, user={user})))"
    found = json.loads(as_ordinary(body, wrapped=wrapped))
    if wrapped:  # process 1 has the same user, and as few rights: more_rights looks at it, too
        assert found.pop("memory_of_process_1") == "escaped"
    check(found, root=False)


def test_a_folder_that_is_left_open_is_no_working_folder(place, monkeypatch):
    """As in CVE-2024-21626, if imgbuild itself left a folder of the host open in the process."""
    folder, start = os.open("/", os.O_RDONLY), sandbox.processes.run
    monkeypatch.setattr(
        sandbox.processes,
        "run",
        lambda full, *, check, descriptors: start(
            full, check=check, descriptors=[*descriptors, folder]
        ),
    )
    words = (str(ordinary.SYSTEM), "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))")
    try:
        for number in (folder, *range(3, 16)):
            found = inside(place, "/usr/bin/cat", "etc/passwd", cwd=f"/proc/self/fd/{number}")
            assert found.stdout == ""
            assert "cannot change to the folder" in found.stderr
        assert inside(place, *words).stdout == "['0', '1', '2', '3']\n"  # 3 is the listing itself
    finally:
        os.close(folder)


def test_the_program_of_the_sandbox_cannot_be_started(place):
    (place.root / "etc/self").symlink_to("/proc/self/exe")
    script = place.root / "etc/script"
    script.write_text("#!/etc/self\n")
    script.chmod(0o755)
    for command in ("/proc/self/exe", "/etc/self", "/etc/script"):
        found = inside(place, command, "-c", "print('started')")
        assert found.stdout == ""
        assert "is the program of the sandbox itself" in found.stderr


def test_a_terminal_is_not_the_commands(place):
    found = inside(place, "/usr/bin/cat", "/dev/tty")
    assert found.status != 0
    look = "import os; print(os.getsid(0) == os.getpid())"
    assert inside(place, str(ordinary.SYSTEM), "-c", look).stdout == "True\n"


BOMB = """
import os, sys, time
made = 0
try:
    while made < 300:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        made += 1
except OSError:
    pass
print("made", made)
sys.stdout.flush()
os.kill(-1, 9)
"""


def test_processes_and_memory_are_limited(place):
    confined = Confined(host_id=sandbox.spare_id(), memory=200 << 20, processes=50)
    found = inside(place, str(ordinary.SYSTEM), "-c", BOMB, user=confined)
    word, count = found.stdout.split()
    assert word == "made"
    assert 0 < int(count) < 50
    take = "data = b'x' * (400 << 20); print('taken')"
    found = inside(place, str(ordinary.SYSTEM), "-c", take, user=confined)
    assert found.stdout == ""
    assert found.status != 0


@WRAPPED
def test_without_control_groups_each_process_is_limited(wrapped):
    body = """
confined = escapes.Confined(memory=200 << 20, processes=50)
for code in (escapes.BOMB, 'data = bytearray(400 << 20); print("taken")'):
    print(escapes.inside(place, str(ordinary.SYSTEM), '-c', code, user=confined).stdout.strip())
"""
    bomb, taken = as_ordinary(body, wrapped=wrapped).splitlines()
    assert 0 < int(bomb.partition("made ")[2]) < 50
    assert taken == ""


def test_a_confined_user_is_nobody_outside(place):
    needs.root()
    (place.root / "etc/mine").mkdir()
    os.chown(place.root / "etc/mine", sandbox.spare_id() or 0, 0)
    look = "import os; open('/etc/mine/new', 'w').close(); print(os.getuid(), os.getgid())"
    words = (str(ordinary.SYSTEM), "-c", look)
    assert inside(place, *words, user=USERS["confined"]).stdout == "1000 1000\n"
    assert (place.root / "etc/mine/new").stat().st_uid == sandbox.spare_id()


def test_a_missing_library_is_told_once(place, monkeypatch, capsys):
    monkeypatch.setattr(seccomp, "LIBRARY", "libabsent.so.2")
    for made in (seccomp.program, sandbox._filter):
        made.cache_clear()
    try:
        for _ in range(2):
            assert inside(place, "/usr/bin/true").status == 0
    finally:
        for made in (seccomp.program, sandbox._filter):
            made.cache_clear()
    assert capsys.readouterr().err.count("is not installed") == 1


SAME = """
import os
binds = [
    escapes.Bind(source=Path("/usr"), target="/usr"),
    escapes.Bind(source=place.secret, target="/opt/file"),
    escapes.Bind(source=place.secret.parent / "open", target="/tmp/in/folder", writable=True),
]
(place.secret.parent / "open").mkdir()
def show(script, *, command=(), cwd="/etc", **options):
    words = command or ("/usr/bin/sh", "-c", script)
    root = escapes.Root(path=place.root)
    done = escapes.sandbox.run(root, words, binds=binds, cwd=cwd, env={"A": "two words"}, **options)
    print(done.status, done.stdout, "absent" in done.stderr)
for user in (None, (1000, 1001)):
    show("id -u; id -g; pwd; hostname; cat /etc/hosts /opt/file; exit 7", user=user)
    show("kill -9 $$", user=user)
    show("env | sort", user=user)
    show("stat -c '%a %F' /tmp /dev/shm /dev/null /proc /etc", user=user)
    show("for f in / /etc /tmp /tmp/in/folder /dev/shm /opt /sys; do (echo >$f/x) && echo $f; done",
         user=user, readonly=True)
    show("for f in /etc /tmp /opt/file; do (echo >>$f) && echo $f; done; rm -f /etc/x", user=user)
    show("ls /sys/class/net | wc -l; cat /etc/resolv.conf", user=user, network=True)
show("", command=("/absent",))
show("", command=("absent", "word"))
show("", command=("sh", "-c", "echo by PATH"))
show("true", cwd="/absent")
print(sorted(os.listdir(place.secret.parent / "open")))
"""


def test_both_ways_do_the_same():
    own, wrapped = (as_ordinary(SAME, wrapped=wrapped).split("\n") for wrapped in (False, True))
    assert own == wrapped
    assert own[-2] == "['x']"
    assert "7 0" in own
    assert "7 1000" in own
    assert own.count("137  False") == 2
    assert "two words" in "".join(own)
    assert [line for line in own if line.endswith(("127  True", "126  True"))]


# Root of a container, without the right to make namespaces, or where nobody may make one of users.
HINDRANCES = {
    "no-admin": ["setpriv", "--bounding-set", "-sys_admin"],
    "no-users": [
        *("unshare", "--user", "--map-root-user", "--mount", "sh", "-c"),
        'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"',
        "sh",
    ],
}
AS_ROOT = """
import json, sys
from pathlib import Path
from tests.integration import test_sandbox_escapes as escapes
with escapes.place_in(Path(sys.argv[1])) as place:
    print(json.dumps(escapes.tried(place, user=None)))
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
def test_no_way_leads_out_where_namespaces_are_limited(tmp_path, kind):
    needs.root()
    done = hindered(HINDRANCES[kind], tmp_path)
    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout), root=True)


def test_a_machine_without_namespaces_is_named(tmp_path):
    needs.root()
    words = [*HINDRANCES["no-users"], "setpriv", "--bounding-set", "-all"]
    done = hindered(words, tmp_path)
    assert "ToolMissing: this machine does not allow the sandbox: cannot create" in done.stderr
