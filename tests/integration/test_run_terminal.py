"""Tests the terminal of a command of `imgbuild run --through root`: keys, size and modes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.test_run_command import TARGET, project, words
from tests.support import needs, sandboxed
from tests.support.typing_session import TypingSession, typing_session

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs.user_namespaces()
    folder = tmp_path_factory.mktemp("terminal")
    project(folder)
    return folder


@contextmanager
def running(
    folder: Path, script: str, *options: str, term: str = "vt220", stderr: int | None = None
) -> Iterator[TypingSession]:
    env = {**os.environ, "IMGBUILD_CACHE": str(folder / "cache"), "TERM": term}
    env["HF_HOME"] = str(folder)
    command = [sys.executable, *words("root", "-q", *options, script=script)]
    with typing_session(command, cwd=folder, env=env, stderr=stderr) as session:
        yield session


def test_command_has_a_sandbox_terminal_with_type_and_size(folder: Path) -> None:
    script = "busybox tty; echo $TERM; busybox stty size; : </dev/tty && echo opened; exit 5"
    with running(folder, script) as session:
        assert session.status() == 5
    assert session.text == "/dev/pts/0\r\nvt220\r\n24 80\r\nopened\r\n"


def test_terminal_type_option_is_passed_to_command(folder: Path) -> None:
    with running(folder, "echo $TERM", "-e", "TERM=xterm-256color") as session:
        assert session.status() == 0
    assert session.text == "xterm-256color\r\n"


def test_terminal_resize_is_forwarded(folder: Path) -> None:
    script = "trap 'busybox stty size; exit' WINCH; echo ready; while :; do busybox sleep 0.1; done"
    with running(folder, script) as session:
        session.expect("ready")
        session.resize(50, 132)
        assert session.expect(r"\d+ \d+") == "50 132"
        assert session.status() == 0


def test_ctrl_c_interrupts_program_but_not_shell(folder: Path) -> None:
    with running(folder, "sh -i") as session:
        session.expect("# ")
        session.type("sh -c 'echo $((100 + 23)); exec busybox sleep 1000'\n")
        session.expect("123")
        session.type("\x03")
        session.expect("# ")
        session.type("exit 9\n")
        assert session.status() == 9


def test_ctrl_c_stops_program_without_shell(folder: Path) -> None:
    with running(folder, "echo ready; exec busybox sleep 1000") as session:
        session.expect("ready")
        session.type("\x03")
        assert session.status() == 130


def test_ctrl_z_stops_program_and_fg_resumes_it(folder: Path) -> None:
    with running(folder, "sh -i") as session:
        session.expect("# ")
        session.type("sh -c 'echo $((100 + 23)); busybox cat'\n")
        session.expect("123")
        session.type("one\n")
        session.expect("one\r\none\r\n")
        session.type("\x1a")
        session.expect("Stopped")
        session.type("fg; exit 3\n")
        session.expect(r"exit 3\r\n.*busybox cat.*\r\n")
        session.type("two\n\x04")
        session.expect("two\r\ntwo\r\n")
        assert session.status() == 3


def test_terminal_is_in_raw_mode_during_a_run_and_is_restored(folder: Path) -> None:
    ends = ("exit 0", "kill -9 $$", "no-such-program", "read line")
    for script in ends:
        with running(folder, f"echo ready; {script}") as session:
            before = session.modes()
            session.expect("ready")
            if script == "read line":
                assert session.modes() != before
                # the starter of the sandbox is killed, and all processes in it with it
                session.process.send_signal(signal.SIGTERM)
            session.status()
            assert session.modes() == before, script


def test_run_in_a_terminal_returns_the_exit_status_of_the_command(folder: Path) -> None:
    for script, status in {"exit 7": 7, "kill -9 $$": 137, "no-such-program": 127}.items():
        with running(folder, script) as session:
            assert session.status() == status


def test_missing_program_is_reported_on_the_terminal(folder: Path) -> None:
    env = {**os.environ, "IMGBUILD_CACHE": str(folder / "cache"), "HF_HOME": str(folder)}
    command = [sys.executable, "-m", "imgbuild", "run", TARGET, "--arch", "x86_64"]
    with typing_session(
        [*command, "--through", "root", "-q", "--", "absent"], cwd=folder, env=env
    ) as session:
        assert session.status() == 127
    assert session.text == "imgbuild: cannot start absent: No such file or directory\r\n"


def test_large_terminal_input_and_output_are_complete(folder: Path) -> None:
    script = "busybox stty raw -echo; echo ready; busybox head -c 300000 | busybox wc -c"
    with running(folder, script) as session:
        session.expect("ready")
        for _ in range(30):
            session.type("x" * 10000)
        session.expect("300000")
        assert session.status() == 0
    with running(folder, "busybox seq 1 50000") as session:
        assert session.status() == 0
    assert session.text.split() == [str(number) for number in range(1, 50001)]


def test_stderr_redirected_to_a_file_is_separate_from_the_terminal(
    folder: Path, tmp_path: Path
) -> None:
    with (
        (tmp_path / "errors").open("wb") as errors,
        running(folder, "echo out; echo err >&2", stderr=errors.fileno()) as session,
    ):
        assert session.status() == 0
    assert session.text == "out\r\n"
    assert (tmp_path / "errors").read_bytes() == b"err\n"


def test_bytes_are_passed_unchanged_without_a_terminal(folder: Path) -> None:
    data = bytes(range(256)) * 100 + b"\r\n\x03\x1a\x04"
    done = subprocess.run(
        [sys.executable, *words("root", "-q", script="busybox tty >&2; busybox cat")],
        cwd=folder,
        env={**os.environ, "IMGBUILD_CACHE": str(folder / "cache"), "HF_HOME": str(folder)},
        input=data,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, data, b"not a tty\n")


def test_command_of_an_ordinary_user_has_a_terminal() -> None:
    script = "tty; stty size; echo ready; read line; echo got $line; exec sleep 1000"
    body = (
        "streams = escapes.sandbox.StreamMode.TERMINAL\n"
        f"sys.exit(escapes.run_inside(place, 'sh', '-c', {script!r}, streams=streams).status)"
    )
    with (
        sandboxed.ordinary_command(body) as (command, env),
        typing_session(command, cwd=Path("/"), env=env) as session,
    ):
        assert session.expect(r"/dev/\S+") == "/dev/pts/0"
        session.expect("24 80")
        session.expect("ready")
        session.type("word\n")
        session.expect("got word")
        session.type("\x03")
        assert session.status() == 130
