"""Provides functions for cases of the GPU tiers: finding and sharing GPUs, and starting servers.

No function creates a CUDA context or initializes the driver, because vLLM forks its engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from smoke_log import cause, first_error
from smoke_support import finish

# Open files with the locks of this process's GPU, held until it and its children have ended.
_TURNS: list[Any] = []
# The index of this process's GPU and the number of GPUs that cases share, if it has selected one.
_SELECTED: list[tuple[int, int]] = []
LAST_PORT = 65535
# Requests to the loopback never use a proxy, regardless of the environment.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def require(count: int = 1, *, every: bool = False) -> None:
    """End the case as failed unless there are `count` GPUs and the driver's library.

    A case for one GPU then uses only one GPU, unless it tests `every` GPU. A missing GPU is a
    failure and not a skip, because a GPU tier that tested nothing must not pass.
    """
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        sys.exit(f"error: no GPU found: the driver's library cannot be loaded: {error}")
    available = len(visible())
    if available < count:
        sys.exit(f"error: {available} GPU(s) found, {count} needed")
    if count == 1 and not every:
        select()


def visible() -> list[str]:
    """Return the GPUs that this process may use, from CUDA_VISIBLE_DEVICES or /dev."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is not None:
        return [name for name in names.split(",") if name.strip() and name.strip() != "-1"]
    devices = [path.name for path in Path("/dev").glob("nvidia*")]
    return sorted(name for name in devices if re.fullmatch(r"nvidia\d+", name))


def select() -> None:
    """Make only one GPU visible to this process and its children. Cases alternate between GPUs.

    Call it before other imports, because an import can initialize the driver, after which the
    visible GPUs cannot change. With several visible GPUs, the Trainer of transformers uses
    DataParallel, in which the GRPOTrainer of TRL cannot train.
    """
    gpus = names()
    if _SELECTED or len(gpus) < 2:
        return
    count = min(len(gpus), sharing())
    index = _next() % count
    _SELECTED.append((index, count))
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus[index]
    print(f"its GPU: {gpus[index]}")


def _next() -> int:
    """Return the number of cases of this run that have already selected a GPU."""
    path = os.environ.get("SMOKE_TURN")
    if not path:
        return 0
    with Path(f"{path}-next").open("a+", encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        number = stream.tell()  # one character for each case
        stream.write(".")
    return number


def turn(*, alone: bool = False) -> None:
    """Wait for a place at a GPU. Call it after the imports, before the first use of the GPU.

    At most SMOKE_SHARE cases use the GPUs at the same time. A case that must be `alone` on its GPU
    waits until no other case uses it, and no other case starts there meanwhile.
    """
    path = os.environ.get("SMOKE_TURN")
    if not path or _TURNS:
        return
    started = time.monotonic()
    index, count = _SELECTED[0] if _SELECTED else (0, 1)
    with Path(f"{path}-queue-{index}").open("w", encoding="ascii") as queue:
        fcntl.flock(queue, fcntl.LOCK_EX)
        places = range(index, sharing(), count)
        if alone:
            _TURNS.extend(_taken(f"{path}-{place}", wait=True) for place in places)
        while not _TURNS:
            for place in places:
                lock = _taken(f"{path}-{place}", wait=False)
                if lock is not None:
                    _TURNS.append(lock)
                    break
            else:
                time.sleep(0.05)
    waited = time.monotonic() - started
    print(f"waited {waited:.1f} s for the GPU")
    if os.environ.get("SMOKE_WAITED"):  # does not count for the time limit
        Path(os.environ["SMOKE_WAITED"]).write_text(str(waited), "ascii")


def sharing() -> int:
    """Return the number of cases that may use the GPUs at the same time."""
    return int(os.environ.get("SMOKE_SHARE") or 1)


def _taken(path: str, *, wait: bool) -> Any:
    """Lock the file `path`. Returns None if another process holds the lock and `wait` is false."""
    stream = Path(path).open("w", encoding="ascii")  # noqa: SIM115  # held until the end
    try:
        fcntl.flock(stream, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        return None
    return stream


def names() -> list[str]:
    """Return the names of the GPUs that this process may use, for CUDA_VISIBLE_DEVICES."""
    gpus = visible()
    if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        return gpus
    return [str(number) for number in range(len(gpus))]


def age() -> float:
    """Return the seconds since this process started, minus the time it waited for the GPU."""
    ticks = int(Path("/proc/self/stat").read_text("ascii").rpartition(")")[2].split()[19])
    began = ticks / os.sysconf("SC_CLK_TCK")
    waited = Path(os.environ.get("SMOKE_WAITED") or "absent")
    idle = float(waited.read_text("ascii")) if waited.exists() else 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began - idle


def timeout_factor() -> float:
    """Return the factor by which time limits are multiplied."""
    return float(os.environ.get("SMOKE_TIMEOUT_FACTOR") or 1)


def script(name: str) -> str:
    """Return the path of the command `name` in the tested environment."""
    return str(Path(sys.executable).with_name(name))


def free_port() -> int:
    """Return an unused loopback port. SGLang adds 10,000 to it for gRPC."""
    port = LAST_PORT
    while port + 10_000 > LAST_PORT:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = int(listener.getsockname()[1])
    return port


def as_torchrun() -> None:
    """Set the environment that `torchrun --nproc-per-node 1` gives its process.

    TRL before 0.19 reads these variables for a colocated vLLM but does not set them.
    """
    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }


def follow(command: Sequence[str], env: dict[str, str] | None = None) -> str:
    """Run `command` as `output` does. Ends the case if the command fails."""
    printed, status = output(command, env)
    if status != 0:
        sys.exit(status)
    return printed


def output(command: Sequence[str], env: dict[str, str] | None = None) -> tuple[str, int]:
    """Run `command`, print its output immediately, and return it with the exit status.

    The log of a case is therefore complete even if the case times out.
    """
    rows = []
    with subprocess.Popen(
        list(command), env=env, text=True, errors="replace", stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for row in process.stdout:
            print(row, end="", flush=True)
            rows.append(row)
    return "".join(rows), process.returncode


@contextlib.contextmanager
def server(
    command: Sequence[str], health: str, seconds: float, env: dict[str, str] | None = None
) -> Iterator[None]:
    """Run `command` as a server in the block, which starts once GET `health` succeeds.

    If the server exits or does not respond within `seconds`, the case fails with the server's log.
    """
    log = Path(f"server-{free_port()}.log")
    print("starting:", *command)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            list(command),
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
        )
    try:
        _await(process, health, time.monotonic() + seconds * timeout_factor(), log)
        yield
    except BaseException:
        print(f"--- {log}\n{log.read_text('utf-8', 'replace')}\n--- end of {log}")
        raise
    finally:
        _end(process)


def _await(process: subprocess.Popen[bytes], health: str, deadline: float, log: Path) -> None:
    while True:
        with contextlib.suppress(OSError), DIRECT.open(health, timeout=5) as answer:
            if answer.status == 200:
                return
        if process.poll() is not None:
            why = first_error(log.read_text("utf-8", "replace"))
            sys.exit(f"error: the server ended with status {process.returncode}: {why}")
        if time.monotonic() > deadline:
            why = cause(log.read_text("utf-8", "replace"))
            sys.exit(f"error: the server does not respond to {health}{why and f': {why}'}")
        time.sleep(0.5)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def end(problems: list[str], good: str) -> NoReturn:
    """End the case as `finish` does, but without waiting for the processes of an engine.

    vLLM waits five seconds before it kills its processes. The runner kills them immediately.
    """
    status: object = 1
    try:
        finish(problems, good)
    except SystemExit as ended:
        status = ended.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 1)


def text(url: str, seconds: float = 30) -> str:
    """Return the text at a URL."""
    with DIRECT.open(url, timeout=seconds * timeout_factor()) as answer:
        return str(answer.read(), "utf-8")


def get(url: str, seconds: float = 30) -> Any:
    """Return the JSON document at a URL."""
    return json.loads(text(url, seconds))


def post(url: str, document: dict[str, Any], seconds: float = 120) -> Any:
    """Send a JSON document, and return the JSON response.

    Raises RuntimeError with the text of an HTTP error.
    """
    request = urllib.request.Request(
        url,
        data=json.dumps(document).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with DIRECT.open(request, timeout=seconds * timeout_factor()) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        message = f"{url} answered {error.code}: {error.read().decode(errors='replace')}"
        raise RuntimeError(message) from error
