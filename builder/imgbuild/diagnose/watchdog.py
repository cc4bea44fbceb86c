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
PROGRESS = re.compile(
    r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+),? last completed (?:NCCL )?work:"
    r" (?P<completed>-?\d+)"
)
SOURCE = re.compile(r"(?:rank|default)[ =]?(\d{1,6})")


class RankState(msgspec.Struct):
    """The numbers of a rank's last works, or -1 for values that the log does not contain."""

    rank: int
    number: int
    operation: str = ""
    timed_out: int = -1
    enqueued: int = -1
    completed: int = -1


class WatchdogReports(msgspec.Struct):
    """The states of the ranks whose watchdog has reported something."""

    ranks: dict[int, RankState] = {}

    def read_line(self, line: LogLine) -> None:
        """Read the report in a line, if there is one."""
        text = line.text
        if "ork" not in text:
            return
        timeout, progress = TIMEOUT.search(text), PROGRESS.search(text)
        if timeout is None and progress is None:
            return
        match = RANK.search(text) or SOURCE.search(line.source)
        if match is None:
            return
        rank = int(match[1])
        state = self.ranks.setdefault(rank, RankState(rank, line.number))
        if timeout is not None and state.timed_out < 0:
            state.timed_out, state.operation = int(timeout["seq"]), timeout["op"]
        if progress is not None and state.enqueued < 0:
            state.enqueued, state.completed = int(progress["enqueued"]), int(progress["completed"])

    def stopped_first(self) -> list[RankState]:
        """Return the ranks that stopped before the others, according to their last works.

        The result is empty if all ranks stopped at the same work.
        """
        enqueued = {
            state.rank: state.enqueued for state in self.ranks.values() if state.enqueued >= 0
        }
        if enqueued and min(enqueued.values()) < max(enqueued.values()):
            least = min(enqueued.values())
            return [self.ranks[rank] for rank, work in sorted(enqueued.items()) if work == least]
        timed_out = {s.rank: s.timed_out for s in self.ranks.values() if s.timed_out >= 0}
        if timed_out and min(timed_out.values()) < max(timed_out.values()):
            least = min(timed_out.values())
            return [self.ranks[rank] for rank, work in sorted(timed_out.items()) if work == least]
        return []

    def absent_ranks(self) -> list[int]:
        """Return ranks below the highest rank that timed out whose watchdog reports nothing."""
        reported = {state.rank for state in self.ranks.values() if state.timed_out >= 0}
        return [rank for rank in range(max(reported, default=-1)) if rank not in reported][:64]
