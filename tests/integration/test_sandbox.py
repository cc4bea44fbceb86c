"""Tests commands in a root folder, as root and as an ordinary user."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imgbuild.container import sandbox
from imgbuild.container.sandbox import BindMount
from imgbuild.errors import InputError, WorkFailed
from imgbuild.system.files import remove_tree
from imgbuild.system.process import ProcessResult
from tests.support import images, needs, ordinary
from tests.support.layer_files import unpack_layer_files

pytestmark = pytest.mark.engine
# The loopback is up, and the host name resolves to it.
# The listener's own input stays open: at its end the other nc would stop too early.
TALK = (
    "mkfifo /tmp/open; exec 3<>/tmp/open; nc -l -p 5000 <&3 >/tmp/heard &"
    " for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do"
    " echo said by itself | nc imgbuild 5000 && break; sleep 1; done; wait; cat /tmp/heard"
)
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module", name="root")
def _root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    needs.user_namespaces()
    folder = tmp_path_factory.mktemp("sandbox")
    _, blob = images.shell_layer(folder / "blobs")
    unpack_layer_files([blob], folder / "root")
    yield folder / "root"
    remove_tree(folder / "root")


@pytest.fixture(name="shell")
def _shell(root: Path) -> Callable[..., ProcessResult]:
    def shell(script: str, **options: object) -> ProcessResult:
        command = ["sh", "-c", script]
        return sandbox.run_in_sandbox(sandbox.SandboxRoot(path=root), command, **options)  # type: ignore[arg-type]

    return shell


def test_command_sees_only_the_files_of_the_image(shell, root):
    completed = shell("ls /; pwd; cat /etc/passwd; id -u; hostname", cwd="/bin")
    assert completed.status == 0, completed
    assert completed.stdout.split() == [
        *("bin", "dev", "etc", "proc", "sys", "tmp"),
        *("/bin", "root:x:0:0::/:/bin/sh", "0", "imgbuild"),
    ]


def test_sandbox_returns_exit_status_and_output_of_the_command(shell):
    completed = shell("cat; echo out; echo bad >&2; exit 7")
    assert (completed.status, completed.stdout, completed.stderr) == (7, "out\n", "bad\n")
    assert shell("kill -9 $$").status == 128 + signal.SIGKILL


def test_read_only_root_allows_new_files_only_in_tmp(shell):
    script = "for place in / /etc /tmp /dev/shm; do (echo >$place/new) && echo $place; done"
    completed = shell(script, readonly=True)
    assert completed.stdout.split() == ["/tmp", "/dev/shm"], completed
    assert "/etc/new: Read-only file system" in completed.stderr
    assert shell(script).stdout.split() == ["/", "/etc", "/tmp", "/dev/shm"]


def test_only_requested_environment_variables_are_visible(shell, monkeypatch):
    monkeypatch.setenv("SECRET", "s3cr3t")
    completed = shell("env", env={"A": "two words", "PATH": "/bin"})
    variables = dict(line.split("=", 1) for line in completed.stdout.splitlines())
    assert variables["A"] == "two words"
    assert variables["HOME"] == "/root"
    assert "SECRET" not in variables


def test_sandbox_sees_only_its_processes(shell):
    completed = shell("ls -d /proc/[0-9]* | cat")
    # The waiting first process, the shell, and the two processes of the pipe.
    assert 1 < len(completed.stdout.split()) <= 4


def test_sandbox_without_network_has_only_loopback(shell):
    completed = shell("ls /sys/class/net /proc/sys/net/ipv4/conf; ip -o addr; " + TALK)
    assert completed.status == 0, completed
    lines = [line for line in completed.stdout.splitlines() if line.startswith(("1:", "2:", "3:"))]
    assert {line.split()[1] for line in lines} == {"lo"}
    assert "127.0.0.1/8" in completed.stdout
    assert "said by itself" in completed.stdout


def test_sandbox_with_network_uses_host_network(shell):
    completed = shell("ls /proc/sys/net/ipv4/conf; cat /etc/resolv.conf", network=True)
    hosts = {path.name for path in Path("/proc/sys/net/ipv4/conf").iterdir()}
    assert hosts <= set(completed.stdout.split())
    assert Path("/etc/resolv.conf").read_text() in completed.stdout


def test_scratch_folders_of_the_sandbox_are_temporary(shell, root):
    for _ in range(2):
        completed = shell(
            "ls /tmp /dev/shm; touch /tmp/imgbuild-x /dev/shm/imgbuild-x; stat -c %a /tmp /dev/shm"
        )
        assert sorted(completed.stdout.split()) == ["/dev/shm:", "/tmp:", "1777", "1777"]
    assert not (root / "tmp/imgbuild-x").exists()
    assert not Path("/dev/shm/imgbuild-x").exists()


def test_bind_mounts_are_read_only_by_default(shell, tmp_path):
    (tmp_path / "file").write_text("from the host")
    tmp_path.chmod(0o755)
    bound = BindMount(source=tmp_path, target="/mnt/in")
    reading = shell("cat /mnt/in/file; touch /mnt/in/new", binds=[bound])
    assert reading.stdout == "from the host"
    assert reading.status != 0
    assert not (tmp_path / "new").exists()
    writing = BindMount(source=tmp_path, target="/tmp/work/in", writable=True)
    assert shell("echo done >/tmp/work/in/new", binds=[writing]).status == 0
    assert (tmp_path / "new").read_text() == "done\n"


def test_single_file_can_be_bind_mounted(shell, tmp_path):
    (tmp_path / "file").write_text("one file")
    for target in ("/opt/file", "/tmp/file"):
        completed = shell(
            f"cat {target}", binds=[BindMount(source=tmp_path / "file", target=target)]
        )
        assert completed.stdout == "one file"


@pytest.fixture(name="image")
def _image(root: Path, tmp_path: Path) -> Path:
    """A root folder with links to `tmp_path/outside`."""
    image = tmp_path / "image"
    shutil.copytree(root / "bin", image / "bin", symlinks=True)
    (tmp_path / "outside").mkdir()
    (image / "sys").symlink_to(tmp_path / "outside")
    (image / "etc").symlink_to("../../outside")
    (image / "new").symlink_to(f"../../../../../..{tmp_path}/outside/new")
    return image


def test_mount_points_are_created_inside_image(image, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").write_text("a file\n")
    targets = ("/a/b", "relative", "/../../up", "/new/in")
    binds = [BindMount(source=tmp_path / "data/file", target=target) for target in targets]
    binds.append(BindMount(source=tmp_path / "data", target="/folder"))
    script = "cat /a/b /relative /up /new/in /folder/file /outside/hosts; ls -d /etc/hosts"
    done = sandbox.run_in_sandbox(
        sandbox.SandboxRoot(path=image), ["sh", "-c", script], binds=binds
    )
    assert done.status == 0, done.stderr
    assert done.stdout.startswith("a file\n" * 5 + "127.0.0.1 ")
    assert list((tmp_path / "outside").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "image", "outside"]


def test_mount_points_do_not_follow_links_in_mounts(image, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "out").symlink_to(tmp_path / "outside/deep")
    (tmp_path / "file").write_text("a file\n")
    binds = [
        BindMount(source=data, target="/data", writable=True),
        BindMount(source=tmp_path / "file", target="/data/out/in"),
    ]
    words = ["cat", f"{tmp_path}/outside/deep/in"]
    done = sandbox.run_in_sandbox(sandbox.SandboxRoot(path=image), words, binds=binds)
    assert done.stdout == "a file\n", done.stderr
    assert list((tmp_path / "outside").iterdir()) == []


def test_link_in_place_of_a_mounted_file_is_replaced(image, tmp_path):
    (image / "outside").mkdir()
    (image / "outside/hosts").symlink_to(tmp_path / "victim")
    done = sandbox.run_in_sandbox(sandbox.SandboxRoot(path=image), ["cat", "/etc/hosts"])
    assert done.stdout.startswith("127.0.0.1 ")
    assert not (image / "outside/hosts").is_symlink()
    assert not (tmp_path / "victim").exists()


def test_mount_point_below_file_is_an_error(image, tmp_path):
    binds = [BindMount(source=tmp_path, target="/bin/busybox/x")]
    with pytest.raises(InputError, match="mount point /bin/busybox/x: "):
        sandbox.run_in_sandbox(sandbox.SandboxRoot(path=image), ["true"], binds=binds)


@pytest.mark.parametrize("target", ["/bin", "/bin/..", "/bin/"])
def test_file_cannot_be_mounted_on_a_folder(image, tmp_path, target):
    file = tmp_path / "file"
    file.write_text("text")
    with pytest.raises(InputError, match=f"mount point {target}: Is a directory"):
        sandbox.run_in_sandbox(
            sandbox.SandboxRoot(path=image), ["true"], binds=[BindMount(source=file, target=target)]
        )


def test_command_cannot_change_kernel_settings_of_the_host(shell):
    completed = shell("touch /sys/new; echo 1 >/sys/kernel/profiling")
    assert completed.status != 0
    assert "Read-only" in completed.stderr


def test_standard_devices_work_in_the_sandbox(shell):
    completed = shell("echo gone >/dev/null; stat -c %F /dev/null /dev/urandom")
    assert completed.stdout.splitlines() == ["character special file"] * 2


def test_bind_mounted_device_is_usable(shell):
    """Only bind-mounted devices, such as those of GPUs, exist in the sandbox."""
    device = BindMount(source=Path("/dev/zero"), target="/dev/nvidia-test", writable=True)
    script = "stat -c %F /dev/nvidia-test; busybox head -c 1 /dev/nvidia-test | busybox od"
    for user in (None, (1000, 1001)):
        done = shell(script, binds=[device], user=user)
        assert done.stdout == "character special file\n0000000 000000\n0000001\n", done.stderr
    assert "No such file" in shell("stat /dev/nvidia-test").stderr


def test_missing_working_folder_in_the_sandbox_is_reported(shell):
    completed = shell("true", cwd="/absent")
    assert completed.status != 0
    assert "absent" in completed.stderr


def mounts(root: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if str(root) in line]


def test_killed_sandbox_leaves_no_mounts_or_processes(root):
    mark = "3.14159265"
    script = (
        "from pathlib import Path; from imgbuild.container.sandbox import SandboxRoot,"
        " run_in_sandbox\n"
        f"run_in_sandbox(SandboxRoot(path=Path({str(root)!r})), ['sh', '-c', 'sleep {mark}1 &"
        f" sleep {mark}0000'])"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        wait(lambda: len(running(mark)) >= 2)
        assert not mounts(root)  # nor during the run: the mounts are the command's alone
        process.send_signal(signal.SIGKILL)
    wait(lambda: not running(mark))
    assert not mounts(root)


def running(mark: str) -> list[str]:
    """The processes with `mark` in an argument."""
    process_ids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if words[0] == "sleep" and any(mark in word for word in words):
            process_ids.append(path.parent.name)
    return process_ids


def wait(condition: Callable[[], bool]) -> None:
    for _ in range(300):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("waited for 30 seconds")


@pytest.fixture(name="user_folder")
def _user_folder() -> Iterator[Path]:
    with ordinary.nobody_home() as folder:
        yield folder


def test_ordinary_user_unpacks_and_runs(user_folder):
    record, blob = images.shell_layer(user_folder)
    script = f"""
from pathlib import Path
import os
from imgbuild.container.sandbox import SandboxRoot, run_in_sandbox
from imgbuild.system.files import remove_tree
from imgbuild.oci.reader import LayerFile
from imgbuild.oci.unpack import unpack_layers
assert os.geteuid() != 0
root = Path({str(user_folder)!r}) / "root"
unpack_layers([LayerFile(path=Path({str(blob)!r}), diff_id={record.diff_id!r})], root)
place = SandboxRoot(path=root)
print(run_in_sandbox(place, ["sh", "-c", "id -u; ip -o addr; touch /mine"]))
print(run_in_sandbox(place, ["sh", "-c", "echo net; cat /etc/resolv.conf"], network=True))
remove_tree(root)
assert not root.exists()
"""
    done = subprocess.run(
        [*ordinary.as_nobody(), ordinary.nobody_python(user_folder), "-B", "-c", script],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY / "builder")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert r"status=0, stdout='0\n1: lo" in done.stdout
    assert r"status=0, stdout='net\n" in done.stdout
    assert not (user_folder / "root").exists()


def test_setup_failure_is_distinguished_from_command_failure(root, shell, monkeypatch):
    assert shell("exit 125").status == 125
    monkeypatch.setattr(sandbox, "_filter", lambda: b"no instruction ")
    with pytest.raises(WorkFailed, match="cannot load the filter"):
        shell("true")


def test_command_runs_as_ordinary_user(shell):
    completed = shell("id -u; id -g; touch /new", user=(1000, 1001))
    assert completed.stdout.split() == ["1000", "1001"]
    if os.geteuid() == 0:
        assert completed.status != 0  # the folder is root's
