"""Reads the reports of NCCL's watchdogs for each rank."""

# A separate module: a state of all ranks.
from __future__ import annotations

import re

import msgspec

from imgbuild.diagnose.prefixes import LogLine

TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+),"
    r" OpType=(?P<op>\w+)"
)
RANK = re.compile(r"[\[ (]Rank (\d{1,6})\]")
GROUP = re.compile(r"PG (?:GUID )?(\d+)")
PROGRESS = re.compile(
    r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+),?"
    r"(?: last started work: -?\d+ \([^)]{0,80}\),)?"
    r" last completed (?:NCCL )?work: (?P<completed>-?\d+)"
)
SOURCE = re.compile(r"(?:rank|default)[ =]?(\d{1,6})")
STACK = "Stack trace of the failed collective"
FRAME = re.compile(r"#\d+ \S+ from (?P<file>\S+):(?P<line>\d+)\s*$")
INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<")
DEFAULT_GROUPS = ("0", "")  # of all ranks


class RankState(msgspec.Struct):
    """The numbers of a rank's last works in a group, or -1 if the log does not contain them.

    `place` is the file and line of the program that waits in the work.
    """

    rank: int
    number: int
    operation: str = ""
    timed_out: int = -1
    enqueued: int = -1
    completed: int = -1
    place: str = ""


class WatchdogReports(msgspec.Struct):
    """The states of the ranks whose watchdog has reported something, for each process group.

    Works are numbered in each group, so that only numbers of the same group can be compared.
    `waiting` is the rank whose stack is being read.
    """

    groups: dict[str, dict[int, RankState]] = {}
    waiting: RankState | None = None

    def read_line(self, line: LogLine) -> None:
        """Read the report in a line, if there is one."""
        text = line.text
        if self.waiting is not None and self._read_frame(text):
            return
        if "ork" not in text and STACK not in text:
            return
        match = SOURCE.search(line.source) or RANK.search(text)
        if match is None:
            return
        rank = int(match[1])
        if STACK in text:
            states = [states[rank] for states in self.groups.values() if rank in states]
            self.waiting = max(states, key=lambda state: state.timed_out, default=None)
            return
        timeout, progress = TIMEOUT.search(text), PROGRESS.search(text)
        if timeout is None and progress is None:
            return
        group = GROUP.search(text)
        states_of = self.groups.setdefault(group[1] if group else "", {})
        state = states_of.setdefault(rank, RankState(rank, line.number))
        if timeout is not None and state.timed_out < 0:
            state.timed_out, state.operation = int(timeout["seq"]), timeout["op"]
        if progress is not None and state.enqueued < 0:
            state.enqueued, state.completed = int(progress["enqueued"]), int(progress["completed"])

    def _read_frame(self, text: str) -> bool:
        """Read a frame of the stack of `waiting`, innermost first. Return False for other lines."""
        frame = FRAME.match(text.strip())
        if frame is None or self.waiting is None:
            return False
        if not INSTALLED.search(frame["file"]):
            self.waiting.place = f"{frame['file']}:{frame['line']}"
            self.waiting = None
        return True

    @property
    def states(self) -> list[RankState]:
        """The ranks of the group whose time-out, or other report, is the first in the log."""
        return list(self.groups[self._group].values()) if self.groups else []

    @property
    def _group(self) -> str:
        return min(
            self.groups,
            key=lambda group: min(
                (state.timed_out < 0, state.number) for state in self.groups[group].values()
            ),
        )

    def stopped_first(self) -> list[RankState]:
        """Return the ranks that stopped before the others, according to their last works.

        The result is empty if all ranks stopped at the same work.
        """
        for works in (
            [(state.enqueued, state) for state in self.states if state.enqueued >= 0],
            [(state.timed_out, state) for state in self.states if state.timed_out >= 0],
        ):
            numbers = [work for work, _ in works]
            if works and min(numbers) < max(numbers):
                stopped = [state for work, state in works if work == min(numbers)]
                return sorted(stopped, key=lambda state: state.rank)
        return []

    def different_operations(self) -> list[RankState]:
        """Return ranks that timed out in the same work, one for each of its several operations."""
        waiting = [state for state in self.states if state.timed_out >= 0]
        operations = {state.operation: state for state in reversed(waiting)}
        same = len({state.timed_out for state in waiting}) == 1
        several = sorted(operations.values(), key=lambda state: state.rank)
        return several if same and len(several) > 1 else []

    def absent_ranks(self) -> list[int]:
        """Return ranks below the highest rank that timed out whose watchdog reports nothing."""
        if not self.groups or self._group not in DEFAULT_GROUPS:
            return []
        reported = {state.rank for state in self.states if state.timed_out >= 0}
        return [rank for rank in range(max(reported, default=-1)) if rank not in reported][:64]
