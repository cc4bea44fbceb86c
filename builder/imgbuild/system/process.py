"""The one place that starts processes: logs each command so that it can be pasted back."""

from __future__ import annotations

import collections
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from imgbuild.errors import ToolMissing, WorkFailed
from imgbuild.system.console import console

PATIENCE = 20  # seconds that an interrupted command has to clean up
TAIL = 20  # lines of a command that failed that its error repeats


class Result(msgspec.Struct, frozen=True):
    """What a finished process left: exit status, stdout, stderr (text, bad bytes replaced).

    `seconds` is how long it ran, by the wall clock, where `run` ran it.
    """

    status: int
    stdout: str
    stderr: str
    seconds: float = 0.0


def find(program: str, *, remedy: str) -> str:
    """The path of `program` on PATH; ToolMissing with `remedy` as its hint if there is none."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin:/usr/local/sbin")
    if path is None:
        message = f"{program} is not installed"
        raise ToolMissing(message, hint=remedy)
    return path


def pasted(command: Sequence[str]) -> str:
    """`command` as one can paste it into a shell."""
    return shlex.join(command)


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    check: bool = True,
    stream: bool = False,
) -> Result:
    """Run `command` to its end. `env` adds to this process's own; `stream` gives it the terminal.

    WorkFailed, with the end of stderr, if `check` and the status is not 0.
    """
    console.detail(f"$ {pasted(command)}")
    started = time.monotonic()
    done = subprocess.run(
        command,
        env={**os.environ, **env} if env else None,
        cwd=cwd,
        input=stdin.encode() if stdin is not None else None,
        stdin=None if stdin is not None or stream else subprocess.DEVNULL,
        stdout=None if stream else subprocess.PIPE,
        stderr=None if stream else subprocess.PIPE,
        check=False,
    )
    seconds = time.monotonic() - started
    result = Result(done.returncode, _text(done.stdout), _text(done.stderr), seconds)
    if check and result.status != 0:
        raise failure(command, result)
    return result


def feed(
    command: Sequence[str], chunks: Iterable[bytes], *, env: Mapping[str, str] | None = None
) -> Result:
    """Run `command` with `chunks` streamed to its stdin; WorkFailed if its status is not 0.

    `env` adds to this process's own environment. Of what it says the end is kept. What `chunks`
    raises passes, and ends the program: it must not take half of its input for the whole.
    """
    console.detail(f"$ … | {pasted(command)}")
    said = [collections.deque[bytes](maxlen=TAIL) for _ in range(2)]
    with subprocess.Popen(
        command,
        env={**os.environ, **env} if env else None,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        # Read beside the writing: a program whose words nobody takes reads nothing more.
        listeners = [
            threading.Thread(target=kept.extend, args=(stream or (),), daemon=True)
            for kept, stream in zip(said, (process.stdout, process.stderr), strict=True)
        ]
        for listener in listeners:
            listener.start()
        try:
            _pour(process, chunks)
        except BaseException:
            process.kill()
            _pour(process, ())
            raise
        finally:
            for listener in listeners:
                listener.join()
    out, err = (_text(b"".join(lines)) for lines in said)
    result = Result(process.returncode, out, err)
    if result.status != 0:
        raise failure(command, result)
    return result


def _pour(process: subprocess.Popen[bytes], chunks: Iterable[bytes]) -> None:
    """Write `chunks` to a program, as long as it reads, and tell it that this is the end."""
    if process.stdin is None:
        return
    try:
        for chunk in chunks:
            process.stdin.write(chunk)
        process.stdin.close()
    except BrokenPipeError:
        console.detail("its input was closed early")
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def follow(
    command: Sequence[str],
    line: Callable[[str], None] | None,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    answer: IO[bytes] | None = None,
) -> int:
    """Run `command`, each line that it writes given to `line` as it comes; its status.

    Without `line` it writes to this process's own stderr, where it may draw on a terminal. With
    `answer` its stdout goes into that file, and only its stderr to `line`. An interrupt is
    passed on once, so that the command can clean up, and then goes on as it came; what would end
    this process (SIGTERM) is one meanwhile.
    """
    console.detail(f"$ {pasted(command)}")
    with (
        _interrupted_by(signal.SIGTERM),
        subprocess.Popen(
            command,
            env={**os.environ, **env} if env else None,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=answer or (sys.stderr if line is None else subprocess.PIPE),
            stderr=None if line is None else subprocess.PIPE if answer else subprocess.STDOUT,
            start_new_session=True,  # else the terminal interrupts it too, and twice means at once
        ) as process,
    ):
        try:
            for raw in process.stdout or process.stderr or ():
                if line is not None:
                    line(raw.decode(errors="replace").rstrip("\n"))
            return process.wait()
        except BaseException:
            _stop(process)
            raise


@contextlib.contextmanager
def _interrupted_by(sign: signal.Signals) -> Iterator[None]:
    """Let `sign` interrupt as Ctrl-C does, where signals can be taken: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(sign, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(sign, before)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it started: by an interrupt, and if that does not help by force."""
    for sign in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        try:
            process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            continue
        return


def failure(command: Sequence[str], result: Result) -> WorkFailed:
    """The error for a command that ended badly: its last lines and how to repeat it."""
    tail = "\n".join((result.stderr or result.stdout).strip().splitlines()[-TAIL:])
    message = f"{Path(command[0]).name} ended with status {result.status}"
    return WorkFailed(
        f"{message}:\n{tail}" if tail else message, hint=f"to repeat: {pasted(command)}"
    )


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")
