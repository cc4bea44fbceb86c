"""Runs commands as subprocesses, and handles output, exit status, timeouts and signals.

Commands are printed with `-v`. `system.programs` determines the executable and the environment.
"""

from __future__ import annotations

import collections
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import msgspec

from imgbuild.errors import ToolMissing, WorkFailed
from imgbuild.system import ending, programs
from imgbuild.system.console import console

CLEAN_UP_SECONDS = 20  # seconds that an interrupted command has to clean up
TAIL = 20  # lines of a failed command's output that its error repeats


class ProcessResult(msgspec.Struct, frozen=True):
    """A finished process: exit status, stdout and stderr (text, with invalid bytes replaced).

    `seconds` is the wall-clock time. Only `run_command` measures it.
    """

    status: int
    stdout: str
    stderr: str
    seconds: float = 0.0


def find_program(program: str, *, remedy: str) -> str:
    """Find `program` on PATH or in a folder for system programs. Returns its path.

    Raises ToolMissing, with `remedy` as its hint, if it is not installed.
    """
    path = programs.find_program(program)
    if path is None:
        message = f"{program} is not installed"
        raise ToolMissing(message, hint=remedy)
    return path


def _resolve_program(command: Sequence[str]) -> list[str]:
    return [find_program(command[0], remedy=f"install {command[0]}"), *command[1:]]


def warn_user(text: str) -> None:
    """Print a warning about the way commands are run, for example if a library is missing."""
    console.warn(text)


def shell_command(command: Sequence[str]) -> str:
    """Return `command` as a command line for a shell."""
    return shlex.join(command)


def run_command(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    check: bool = True,
    descriptors: Sequence[int] = (),
    limit: float | None = None,
) -> ProcessResult:
    """Run `command` and wait for its end.

    `env` is added to this process's environment, and the open `descriptors` are inherited. Raises
    WorkFailed if the command runs longer than `limit` seconds. With `check`, WorkFailed with the
    end of stderr is raised if the exit status is not 0.
    """
    console.detail(f"$ {shell_command(command)}")
    started = time.monotonic()
    try:
        done = subprocess.run(
            _resolve_program(command),
            env=programs.program_environment(command[0], env),
            cwd=cwd,
            input=stdin.encode() if stdin is not None else None,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            check=False,
            pass_fds=descriptors,
            timeout=limit,
        )
    except subprocess.TimeoutExpired as error:
        message = f"{shell_command(command)} timed out after {limit:.0f} s"
        raise WorkFailed(message, hint="to find the cause, run the command manually") from error
    seconds = time.monotonic() - started
    result = ProcessResult(done.returncode, _text(done.stdout), _text(done.stderr), seconds)
    if check and result.status != 0:
        raise command_error(command, result)
    return result


def run_in_foreground(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    end: Sequence[str] | None = None,
    kill: bool = False,
    descriptors: Sequence[int] = (),
    meanwhile: Callable[[], None] | None = None,
) -> int:
    """Run `command` with this process's terminal and streams. Returns the status as in a shell.

    `env` is added to this process's environment, and the open `descriptors` are inherited. SIGINT
    and SIGTERM are forwarded to the command, except for a SIGINT that the terminal has sent to both
    processes. With `kill`, SIGKILL is sent instead. On the second signal, the command `end` is run.
    `meanwhile` is called while the command runs.
    """
    console.detail(f"$ {shell_command(command)}")
    started: list[subprocess.Popen[bytes]] = []
    end_processes: list[subprocess.Popen[bytes]] = []
    signals: list[int] = []

    def _pass_signal(number: int, _: object) -> None:
        signals.append(number)
        if number != signal.SIGINT or not sys.stdin.isatty():
            for process in started:
                process.send_signal(signal.SIGKILL if kill else number)
        if len(signals) == 2 and end is not None:
            nowhere = subprocess.DEVNULL
            end_processes.append(
                subprocess.Popen(
                    _resolve_program(end),
                    env=programs.program_environment(end[0]),
                    stdin=nowhere,
                    stdout=nowhere,
                    stderr=nowhere,
                )
            )

    with (
        _handle_signals((signal.SIGINT, signal.SIGTERM), _pass_signal),
        subprocess.Popen(
            _resolve_program(command),
            env=programs.program_environment(command[0], env),
            pass_fds=descriptors,
        ) as process,
    ):
        started.append(process)
        if meanwhile is not None:
            meanwhile()
        status = process.wait()
    for process in end_processes:
        process.wait()
    return status if status >= 0 else ending.SIGNAL_STATUS - status


def feed_command(
    command: Sequence[str], chunks: Iterable[bytes], *, env: Mapping[str, str] | None = None
) -> ProcessResult:
    """Run `command` with `chunks` as its stdin. Raises WorkFailed if its status is not 0.

    `env` is added to this process's environment. Only the last lines of the output are kept. If
    `chunks` raises an error, the program is killed before it can process incomplete input.
    """
    console.detail(f"$ … | {shell_command(command)}")
    output = [collections.deque[bytes](maxlen=TAIL) for _ in range(2)]
    with subprocess.Popen(
        _resolve_program(command),
        env=programs.program_environment(command[0], env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        # Read while writing: a program blocked on a full output pipe stops reading its input.
        readers = [
            threading.Thread(target=tail.extend, args=(stream or (),), daemon=True)
            for tail, stream in zip(output, (process.stdout, process.stderr), strict=True)
        ]
        try:
            for reader in readers:
                reader.start()
            _write_stdin(process, chunks)
        except BaseException:
            process.kill()
            _write_stdin(process, ())
            raise
        finally:
            for reader in filter(threading.Thread.is_alive, readers):
                reader.join()
    out, err = (_text(b"".join(lines)) for lines in output)
    result = ProcessResult(process.returncode, out, err)
    if result.status != 0:
        raise command_error(command, result)
    return result


def _write_stdin(process: subprocess.Popen[bytes], chunks: Iterable[bytes]) -> None:
    if process.stdin is None:
        return
    try:
        for chunk in chunks:
            process.stdin.write(chunk)
        process.stdin.close()
    except BrokenPipeError:
        console.detail("the program closed its input early")
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def follow_output(
    command: Sequence[str],
    line: Callable[[str], None] | None,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> int:
    """Run `command`, call `line` with each line of its output, and return the exit status.

    Without `line`, the command writes to this process's stderr, where it can draw on a terminal. An
    interrupt is forwarded once, so that the command can clean up, and then raised.
    """
    console.detail(f"$ {shell_command(command)}")
    with subprocess.Popen(
        _resolve_program(command),
        env=programs.program_environment(command[0], env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if line is None else subprocess.PIPE,
        stderr=None if line is None else subprocess.STDOUT,
        start_new_session=True,  # or the terminal also interrupts it, and two interrupts end it
    ) as process:
        try:
            for raw in process.stdout or ():
                if line is not None:
                    line(raw.decode(errors="replace").rstrip("\n"))
            return process.wait()
        except BaseException:
            _stop_process(process)
            raise


def start_piped(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start `command` with pipes as stdin and stdout.

    The caller must close the pipes and wait for the process. The command has a separate process
    group, so that Ctrl-C in a terminal does not end it.
    """
    console.detail(f"$ {shell_command(command)}")
    return subprocess.Popen(
        _resolve_program(command),
        env=programs.program_environment(command[0]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
    )


@contextlib.contextmanager
def _handle_signals(
    signs: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """Call `handler` on `signs` in the block. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {sign: signal.signal(sign, handler) for sign in signs}
    try:
        yield
    finally:
        for sign, old in before.items():
            signal.signal(sign, old)


def _stop_process(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children with SIGINT and, after `CLEAN_UP_SECONDS`, with SIGKILL."""
    for sign in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        try:
            process.communicate(timeout=CLEAN_UP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return


def command_error(command: Sequence[str], result: ProcessResult) -> WorkFailed:
    """Return the error for a failed command, with the end of its output and the command line."""
    tail = "\n".join((result.stderr or result.stdout).strip().splitlines()[-TAIL:])
    message = f"{Path(command[0]).name} ended with status {result.status}"
    return WorkFailed(
        f"{message}:\n{tail}" if tail else message,
        hint=f"to repeat the command, run: {shell_command(command)}",
    )


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")
