"""Measures the wall time and peak memory of a command and its child processes.

Linux only, since memory is read from /proc.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

INTERVAL = 0.2  # seconds between two measurements of memory


class CommandMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of a command.

    `seconds` is the wall time. `memory` is the peak of all processes together in bytes, with shared
    pages counted once (sampled Pss). `largest` is the largest resident set of one process in bytes.
    """

    seconds: float
    memory: int
    largest: int


class Sampler(threading.Thread):
    """Records the peak memory of `roots` and descendants, minus the initial memory of `daemons`."""

    def __init__(self, roots: Sequence[int], daemons: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._roots = [*roots, *daemons]
        self._before = process_memory(daemons)
        self._end = threading.Event()

    def run(self) -> None:
        """Sample until `end` is called."""
        while not self._end.wait(INTERVAL):
            self.peak = max(self.peak, process_memory(self._roots) - self._before)

    def end(self) -> None:
        """Stop sampling. Afterwards, `peak` is final."""
        self._end.set()
        self.join()


def measure_command(
    command: Sequence[str | Path],
    *,
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
    daemons: Sequence[int] = (),
) -> CommandMeasure:
    """Run `command`. Raises CalledProcessError if it fails.

    `daemons` are processes that work for the command, such as dockerd. The growth of their memory
    is added to the command's memory.
    """
    shown = " ".join(str(word) for word in command)
    print(f"$ {shown}", file=sys.stderr, flush=True)
    started = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, **(env or {})}, stdout=sys.stderr
    )
    sampler = Sampler([process.pid], daemons)
    sampler.start()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    sampler.end()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, shown)
    largest = usage.ru_maxrss * 1024
    print(f"  {seconds:.2f} s", file=sys.stderr, flush=True)
    return CommandMeasure(seconds=seconds, memory=max(sampler.peak, largest), largest=largest)


def process_memory(roots: Sequence[int]) -> int:
    """Return the memory of `roots` and all descendants in bytes. Shared pages count once."""
    if not roots:
        return 0
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children[_parent(entry)].append(int(entry.name))
    total, waiting = 0, list(roots)
    while waiting:
        process = waiting.pop()
        total += _process_memory(process)
        waiting.extend(children[process])
    return total


def _parent(entry: Path) -> int:
    try:
        # The name before the last parenthesis may hold spaces; state and parent follow it.
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0


def _process_memory(process: int) -> int:
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:  # it has ended, or is another user's
        return 0
    fields = dict(line.split(":", 1) for line in text.splitlines()[1:])
    return int(fields.get("Pss", "0 kB").split()[0]) * 1024


def describe_machine() -> str:
    """Return a description of this machine and its load, in one line."""
    cpus = [line for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    model = cpus[0].partition(":")[2].strip() if cpus else platform.machine()
    total = next((line.split()[1] for line in _lines("/proc/meminfo") if "MemTotal" in line), "0")
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{len(os.sched_getaffinity(0))} cores of {model}, {int(total) / 2**20:.0f} GiB of memory,"
        f" Linux {platform.release()}, Python {platform.python_version()}, load {load}"
    )


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
