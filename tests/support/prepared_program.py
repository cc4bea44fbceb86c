"""Runs the command line of imgbuild in a new process that has already imported all modules.

Tests use `run_prepared` to run a command as a user does, if they do not test the start. Each test
process has one helper process that imports the modules of imgbuild and forks for each command. A
fork takes a hundredth of a second, a new interpreter half a second. Arguments, folder, environment,
streams, umask and exit functions are the same as in a new interpreter. Only fsync is disabled,
because no test simulates a power failure.

This file is also the program of the helper process, which does not import from `tests`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# What an interpreter and its libraries read when they start: another value needs another process.
READ_AT_START = re.compile(r"(?:PYTHON|LC_|LD_).*|LANG|LANGUAGE|TZ")
# Imported by functions of imgbuild when they run.
LIBRARIES = (
    "cryptography.hazmat.primitives.serialization", "cryptography.x509", "docker",
    "elftools.elf.elffile", "html.parser", "http.server", "jinja2", "multiprocessing",
    "packaging.metadata", "requests", "rich.progress", "rich.table", "ruamel.yaml", "uv", "yaml",
)  # fmt: skip


def run_prepared(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `imgbuild ARGUMENTS`. Returns the output and the exit status, negative after a signal."""
    if _at_start(env) != _at_start(os.environ):
        command = [sys.executable, "-m", "imgbuild", *arguments]
        return subprocess.run(
            command, cwd=cwd, env=dict(env), input=stdin, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    request = {
        "arguments": list(arguments), "cwd": str(cwd), "env": dict(env), "umask": _umask(),
    }  # fmt: skip
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        given.write((stdin or "").encode())
        given.seek(0)
        status = _process().run(request, [each.fileno() for each in (given, out, err)])
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode().replace("\r\n", "\n").replace("\r", "\n"))
    return subprocess.CompletedProcess(["imgbuild", *arguments], status, *texts)


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if READ_AT_START.fullmatch(name)}


def _umask() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("\nUmask:")[2].split(maxsplit=1)[0], 8)


class _Process:
    """A process that has imported the modules and ends with this process.

    For each command, it receives a connection and file descriptors of the three streams.
    """

    def __init__(self) -> None:
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(other.fileno())],
                pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip

    def run(self, request: Mapping[str, Any], streams: Sequence[int]) -> int:
        """The exit status of a command with the given standard streams."""
        body = json.dumps(request).encode()
        connection, other = socket.socketpair()
        with connection:
            with other:
                socket.send_fds(self._control, [b"run"], [other.fileno(), *streams])
            connection.sendall(len(body).to_bytes(8, "big") + body)
            answer = _receive_bytes(connection, 8)
        return int.from_bytes(answer, "big", signed=True)

    def end(self) -> None:
        """End the process."""
        self._control.close()
        self._process.wait()


@functools.cache
def _process_of(pid: int) -> _Process:
    del pid  # a process forked from a test process needs its own
    process = _Process()
    atexit.register(process.end)
    return process


_LOCK = threading.Lock()


def _process() -> _Process:
    with _LOCK:
        return _process_of(os.getpid())


def _receive_bytes(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


# --- the process that has the modules ------------------------------------------------------------


def _prepare() -> None:
    import imgbuild

    for module in pkgutil.walk_packages(imgbuild.__path__, "imgbuild."):
        if not module.name.startswith("imgbuild.data") and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in LIBRARIES:
        importlib.import_module(name)
    os.fsync = lambda fd: None
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()


def _serve(control: socket.socket) -> None:
    """Fork for each command. Returns in the new process, after setting up its state."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 8, 4)
        if not message:  # the tests have ended
            os._exit(0)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    control.close()
    pid = os.fork()
    connection = socket.socket(fileno=descriptors[0])
    streams = descriptors[1:]
    if pid:
        for stream in streams:
            os.close(stream)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.sendall(status.to_bytes(8, "big", signed=True))
        os._exit(0)
    request = json.loads(
        _receive_bytes(connection, int.from_bytes(_receive_bytes(connection, 8), "big"))
    )
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[1:] = request["arguments"]


def _end_process(status: object) -> None:
    """End the process without freeing all modules, which takes 60 ms.

    Returns if the interpreter must print something: a status that is a text, or an error of
    stdout.
    """
    if not isinstance(status, int | None):
        return
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit((status or 0) & 0xFF)


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    _prepare()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    import imgbuild.cli

    sys.argv[0] = str(Path(imgbuild.__file__).with_name("__main__.py"))
    try:
        imgbuild.cli.main()
    except SystemExit as end:
        _end_process(end.code)
        raise
    _end_process(0)
