"""Tests the limits on processes and memory of sandboxed commands, and their user ID."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.container import control_groups, sandbox
from imgbuild.container.sandbox import UntrustedUser
from tests.support import needs
from tests.support.sandboxed import PYTHON, Place, run_as_ordinary_user, run_inside, sandbox_place

pytestmark = pytest.mark.engine


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Iterator[Place]:
    needs.user_namespaces()
    tmp_path.chmod(0o755)
    with sandbox_place(tmp_path) as place:
        yield place


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


def test_processes_and_memory_of_a_sandbox_are_limited(place):
    confined = UntrustedUser(host_id=sandbox.spare_id(), memory=200 << 20, processes=50)
    completed = run_inside(place, PYTHON, "-c", BOMB, user=confined)
    word, count = completed.stdout.split()
    assert word == "made"
    assert 0 < int(count) < 50
    take = "data = b'x' * (400 << 20); print('taken')"
    completed = run_inside(place, PYTHON, "-c", take, user=confined)
    assert completed.stdout == ""
    assert completed.status != 0


SPARE = """
from imgbuild.container.sandbox import spare_id
from imgbuild.errors import ToolMissing
try:
    print(spare_id())
except ToolMissing as error:
    print(error)
"""


def test_namespace_with_a_single_user_id_runs_no_command_as_root():
    """The ID 65534 is not mapped, as in containers of users without subordinate IDs."""
    unshare = needs.user_namespaces()
    done = subprocess.run(
        [unshare, "--user", "--map-root-user", sys.executable, "-c", SPARE],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    expected = "cannot be built as root" if os.geteuid() == 0 else "0\n"
    assert expected in done.stdout


TOGETHER = """
import os, time
made = []
for _ in range(4):
    end, other = os.pipe()
    made.append((end, os.fork()))
    if made[-1][1] == 0:
        held = b"x" * (80 << 20)
        os.write(other, b"1")
        time.sleep(60)
        os._exit(0)
    os.close(other)
for end, _ in made:
    os.read(end, 1)  # it holds its bytes, or was killed for them, as an earlier one may be
time.sleep(0.2)
print(sum(os.waitpid(child, os.WNOHANG) == (0, 0) for _, child in made))
os.kill(-1, 9)
"""


def test_control_groups_limit_memory_of_all_processes_together(place):
    confined = UntrustedUser(host_id=sandbox.spare_id(), memory=200 << 20, processes=50)
    places = [base for base, _ in control_groups.group_places(confined.limits())]
    if not all(os.access(base, os.W_OK) for base in places):
        needs.skip_or_fail(
            "control groups cannot be created", "run it as root, outside of a container"
        )
    abandoned = Path(places[0], "imgbuild-4194305")  # an id above all that there are
    abandoned.mkdir(exist_ok=True)
    before = {path for base in places for path in Path(base).glob("imgbuild-*")}
    completed = run_inside(place, PYTHON, "-c", TOGETHER, user=confined)
    assert completed.stdout in ("", "0\n", "1\n", "2\n")  # 80 MiB each
    after = {path for base in places for path in Path(base).glob("imgbuild-*")}
    ended = [path for path in after if not Path("/proc", path.name.partition("-")[2]).exists()]
    assert set(ended) - before == set()
    assert not abandoned.exists()


def test_control_groups_limit_swap_of_a_sandbox():
    limits = {"memory": 200 << 20, "processes": 50}
    places = [base for base, _ in control_groups.group_places(limits)]
    if not all(os.access(base, os.W_OK) for base in places):
        needs.skip_or_fail(
            "control groups cannot be created", "run it as root, outside of a container"
        )
    with subprocess.Popen(["sleep", "10"]) as process:
        groups = control_groups.control_groups(limits, process.pid)
        assert groups
        swap_files = [Path(folder, name) for folder in groups for name in control_groups.SWAP]
        given = {path.name: int(path.read_text()) for path in swap_files if path.exists()}
        process.kill()
    control_groups.remove_groups(groups)
    if not given:
        needs.skip_or_fail("the kernel does not count swap", "start it with swapaccount=1")
    assert given in ({"memory.swap.max": 0}, {"memory.memsw.limit_in_bytes": 200 << 20})


def test_each_process_is_limited_if_control_groups_are_unavailable():
    body = (
        f"BOMB = {BOMB!r}"
        """
confined = escapes.sandbox.UntrustedUser(memory=200 << 20, processes=50)
for code in (BOMB, 'data = bytearray(400 << 20); print("taken")'):
    print(escapes.run_inside(place, escapes.PYTHON, '-c', code, user=confined).stdout.strip())
"""
    )
    bomb, taken = run_as_ordinary_user(body).splitlines()
    assert 0 < int(bomb.partition("made ")[2]) < 50
    assert taken == ""


def test_confined_user_is_mapped_to_an_unused_host_id(place):
    needs.require_root()
    (place.root / "etc/mine").mkdir()
    os.chown(place.root / "etc/mine", sandbox.spare_id() or 0, 0)
    look = "import os; open('/etc/mine/new', 'w').close(); print(os.getuid(), os.getgid())"
    words = (PYTHON, "-c", look)
    confined = UntrustedUser(host_id=sandbox.spare_id(), memory=1 << 30, processes=100)
    assert run_inside(place, *words, user=confined).stdout == "1000 1000\n"
    assert (place.root / "etc/mine/new").stat().st_uid == sandbox.spare_id()
