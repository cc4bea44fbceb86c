"""Explains failures that require the whole log."""

# A separate module: others require one line.
from __future__ import annotations

from imgbuild.diagnose.finding import Reason
from imgbuild.diagnose.log import ParsedLog
from imgbuild.diagnose.rules import FindingConfidence


def watchdog_reason(log: ParsedLog) -> tuple[Reason, int] | None:
    """Return the rank that stopped first, and the line of its watchdog.

    Return None if the log contains no report of a watchdog.
    """
    ranks = log.watchdogs.ranks
    if not ranks:
        return None
    first = min(ranks.values(), key=lambda state: state.number)
    stopped, absent = log.watchdogs.stopped_first(), log.watchdogs.absent_ranks()
    cause = "a collective of NCCL timed out: a rank did not enter it"
    confidence: FindingConfidence = "medium"
    if stopped:
        state = stopped[0]
        who = ", ".join(str(each.rank) for each in stopped[:16])
        plural = "ranks" if len(stopped) > 1 else "rank"
        work = max(state.enqueued, state.timed_out)
        cause = (
            f"{plural} {who} stopped first, after work {work}; the other ranks wait in a later"
            " collective"
        )
        confidence = "high"
    elif 0 < len(absent) < len(ranks):
        who = ", ".join(map(str, absent[:16]))
        cause = (
            f"the watchdogs of all ranks but {who} timed out: {who} did not enter the collective"
        )
    operation = next((state.operation for state in ranks.values() if state.operation), "")
    if operation:
        cause += f" ({operation})"
    return Reason(
        code="IMG908",
        cause=cause,
        confidence=confidence,
        cure="check that rank's output for an exception or a slow step; set"
        " TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 and pass the dumps to"
        " imgbuild diagnose; if the step is only slow, raise the timeout"
        " (init_process_group(timeout=…), ddp_timeout)",
    ), first.number
