"""Tests finding the rank that stopped first from NCCL's watchdogs and flight-recorder dumps."""

from __future__ import annotations

import io
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from imgbuild.diagnose import flight
from imgbuild.diagnose.diagnosis import diagnose_log, diagnose_paths
from imgbuild.errors import InputError
from tests.support.rows import each_row

WATCHDOG = (
    "[rank{rank}]:[E1120 18:12:33.123456789 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog"
    " caught collective"
    " operation timeout: WorkNCCL(SeqNum={work}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1,"
    " Timeout(ms)=600000)"
    " ran for 600012 milliseconds before timing out.\n"
    "[rank{rank}]:[E1120 18:12:33.223456789 ProcessGroupNCCL.cpp:1834] [PG ID 0 PG GUID"
    " 0(default_pg) Rank {rank}]"
    " Exception (either an error or timeout) detected by watchdog at work: {work}, last enqueued"
    " NCCL work:"
    " {enqueued}, last completed NCCL work: {completed}.\n"
)


def watchdogs(works: dict[int, int]) -> str:
    return "".join(
        WATCHDOG.format(rank=rank, work=work, enqueued=work, completed=work - 1)
        for rank, work in works.items()
    )


def test_rank_with_the_least_completed_work_is_reported_as_stopped_first() -> None:
    text = watchdogs({0: 44, 1: 44, 2: 41, 3: 44})
    finding = diagnose_log(io.BytesIO(text.encode()), "log").findings[0]
    assert finding.code == "IMG908"
    assert finding.cause.startswith("rank 2 stopped first, after work 41")


def test_rank_without_a_watchdog_message_is_reported_as_missing() -> None:
    text = watchdogs({0: 44, 1: 44, 3: 44})
    finding = diagnose_log(io.BytesIO(text.encode()), "log").findings[0]
    assert "all ranks but 2" in finding.cause


PREFIX = "[rank{rank}]:[E1130 21:41:13.911578995 ProcessGroupNCCL.cpp:741] [PG GUID {group}(group)"
REPORT = (
    PREFIX + " Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={work},"
    " OpType={operation}, NumelIn=8, NumelOut=8, Timeout(ms)=20000) ran for 20041 milliseconds\n"
    "[rank{rank}]:[E1130 21:41:17.226081315 ProcessGroupNCCL.cpp:785] Stack trace of the failed"
    " collective: \n"
    "#0 all_reduce from /opt/venv/lib/python3.11/site-packages/torch/distributed/c10d.py:3906\n"
    "#1 step from /workspace/train.py:{rank}7\n"
)
SIGNAL = (
    PREFIX + " Rank {rank}] Received a dump signal due to a collective timeout from rank 0. Last"
    " enqueued NCCL work: {work}, last completed NCCL work: {work}.This is most likely caused by\n"
)
STATUS = (
    PREFIX + " Rank {rank}] failure detected by watchdog at work sequence id: {work} PG status:"
    " last enqueued work: {work}, last started work: -1 (), last completed work: 4\n"
)


@each_row(
    ("text", "cause"),
    [
        (
            REPORT.format(rank=0, group=0, work=5, operation="ALLREDUCE")
            + STATUS.format(rank=0, group=0, work=5)
            + SIGNAL.format(rank=1, group=0, work=4),
            (
                "rank 1 stopped first, after work 4; the other ranks wait in a later collective"
                " (ALLREDUCE); rank 0 waits at /workspace/train.py:07"
            ),
        ),
        (
            REPORT.format(rank=0, group=0, work=5, operation="ALLREDUCE")
            + REPORT.format(rank=1, group=0, work=5, operation="_ALLGATHER_BASE"),
            (
                "the ranks call different collectives as work 5: rank 0 ALLREDUCE, rank 1"
                " _ALLGATHER_BASE; rank 0 waits at /workspace/train.py:07, rank 1 waits at"
                " /workspace/train.py:17"
            ),
        ),
        (  # the works of another group have numbers of their own
            REPORT.format(rank=0, group=0, work=5, operation="ALLREDUCE")
            + STATUS.format(rank=0, group=0, work=5)
            + SIGNAL.format(rank=1, group=3, work=2),
            (
                "a collective of NCCL timed out: a rank did not enter it (ALLREDUCE); rank 0 waits"
                " at /workspace/train.py:07"
            ),
        ),
    ],
)
def test_reports_of_a_group_are_compared(text: str, cause: str) -> None:
    finding = diagnose_log(io.BytesIO(text.encode()), "log").findings[0]
    assert (finding.code, finding.cause) == ("IMG908", cause)


def test_exception_of_another_rank_is_reported_as_cause_of_a_timeout() -> None:
    text = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/workspace/train.py", line 8, in step\n[rank1]:     score(batch)\n'
        "[rank1]: ZeroDivisionError: division by zero\n" + watchdogs({0: 44, 2: 44})
    )
    findings = diagnose_log(io.BytesIO(text.encode()), "log").findings
    assert "division by zero" in findings[0].cause


def entry(number: int, name: str = "nccl:all_reduce", sizes: object = ((4,),)) -> dict[str, Any]:
    return {
        "process_group": ("0", "default_pg"), "collective_seq_id": number, "profiling_name": name,
        "input_sizes": sizes, "state": "scheduled", "is_p2p": False,
    }  # fmt: skip


def dump(
    folder: Path,
    rank: int,
    entries: list[dict[str, Any]],
    *,
    as_json: bool = False,
    group: str = "0",
) -> None:
    value = {
        "version": "2.10", "entries": entries,
        "pg_config": {group: {"name": group, "desc": "default_pg", "ranks": "[0, 1, 2]"}},
    }  # fmt: skip
    data = json.dumps(value).encode() if as_json else pickle.dumps(value)
    (folder / f"nccl_trace_rank_{rank}").write_bytes(data)


@pytest.mark.parametrize("as_json", [False, True])
def test_rank_that_never_entered_a_collective_is_found_in_dumps(
    tmp_path: Path, as_json: bool
) -> None:
    for rank, last in ((0, 7), (1, 5), (2, 7)):
        dump(tmp_path, rank, [entry(number) for number in range(1, last + 1)], as_json=as_json)
    (finding,) = diagnose_paths([tmp_path]).findings
    assert finding.code == "IMG909"
    assert finding.cause.startswith("rank 1 never entered collective 6 (all_reduce)")


@each_row("group", ["0", ""])  # gloo's configuration of the default group has no name
def test_rank_without_a_dump_is_reported(tmp_path: Path, group: str) -> None:
    for rank in (0, 2):
        dump(tmp_path, rank, [entry(1), entry(2)], group=group)
    assert (
        diagnose_paths([tmp_path]).findings[0].cause.startswith("rank 1 of group 0 wrote no dump")
    )


def test_ranks_with_different_collectives_are_found_in_dumps(tmp_path: Path) -> None:
    dump(tmp_path, 0, [entry(1), entry(2, "nccl:broadcast")])
    dump(tmp_path, 1, [entry(1), entry(2)])
    dump(tmp_path, 2, [entry(1), entry(2)])
    cause = diagnose_paths([tmp_path]).findings[0].cause
    assert "different collectives at number 2" in cause
    assert "broadcast" in cause


def test_dumps_of_matching_ranks_have_no_finding(tmp_path: Path) -> None:
    for rank in range(3):
        dump(tmp_path, rank, [entry(1), entry(2)])
    assert diagnose_paths([tmp_path]).findings == ()


def test_collective_that_runs_in_all_ranks_is_reported(tmp_path: Path) -> None:
    for rank in range(3):
        dump(tmp_path, rank, [entry(1), {**entry(2), "state": "started"}])
    (finding,) = diagnose_paths([tmp_path]).findings
    assert finding.cause.startswith("all ranks entered collective 2 (all_reduce) of group 0")


def test_folder_without_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no files"):
        diagnose_paths([tmp_path])


def test_hostile_texts_in_a_dump_are_bounded_and_escaped(tmp_path: Path) -> None:
    sizes: list[Any] = ["x"]
    for _ in range(60):
        sizes = [sizes, sizes]  # its representation has 2**60 texts
    for rank in range(2):
        calls = [entry(number, "\x1b[2J\n::error::x", sizes) for number in range(1, rank + 2)]
        dump(tmp_path, rank, calls)
    cause = diagnose_paths([tmp_path]).findings[0].cause
    assert "rank 0 never entered collective 2 (\\x1b[2J ::error::x)" in cause


def test_dump_that_needs_more_memory_than_its_size_allows_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(b"\x80\x05\x96" + (1 << 46).to_bytes(8, "little") + b".")  # BYTEARRAY8
    with pytest.raises(InputError, match="MemoryError"):
        diagnose_paths([file])


def test_dump_with_a_nested_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "nccl_trace_rank_0"
    key = b")" + b"2\x86" * 60  # a tuple that contains the empty tuple 2**60 times
    file.write_bytes(b"\x80\x02}(" + key + b"Nu.")
    with pytest.raises(InputError, match="a key is a tuple"):
        diagnose_paths([file])


def test_failure_of_a_rank_explains_a_timeout_in_the_log_of_another(tmp_path: Path) -> None:
    logs = {
        "rank0.log": "[rank0]:[E515 11:24:07.118 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught"
        " collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1,"
        " Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n",
        "rank1.log": "step 1\nstep 2\nTraceback (most recent call last):\n"
        '  File "/w/train.py", line 3, in <module>\n    out = model(x)\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
    }
    files = [tmp_path / name for name in logs]
    for file in files:
        file.write_text(logs[file.name], encoding="utf-8")
    found = diagnose_paths(files)
    assert "memory" in found.findings[0].cause
    assert found.findings[0].lines[-1].file == str(files[1])
    assert len(found.findings) == 1
    assert "timeout" in found.consequences[0].lines[-1].text


def test_message_for_a_reference_in_a_dump_is_short(tmp_path: Path) -> None:
    nested: list[Any] = ["x"]
    for _ in range(60):
        nested = [nested, nested]
    data = pickle.dumps(nested)
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(data[:-1] + b"Q.")  # BINPERSID
    with pytest.raises(InputError, match="UnpicklingError") as raised:
        diagnose_paths([file])
    assert len(raised.value.message) < 400


class Harm:
    """Runs a command when it is unpickled by a reader that allows classes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_pickled_code_in_a_dump_is_refused_and_not_run(tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    data = pickle.dumps({"entries": [Harm(harm)]})
    with pytest.raises(InputError, match="not a flight-recorder dump"):
        flight.read_dump(data, "rank_0")
    assert not harm.exists()


@each_row(
    "data",
    [
        b"\x80\x04",
        b"\x80\x04K\x01.",
        b"\x80\x02J\x01",
        b"{}",
        b'{"entries": 3}',
        b"\x80\x04]q\x00(h\x00h\x00e.",
    ],
)
def test_a_damaged_dump_is_an_error(data: bytes) -> None:
    with pytest.raises(InputError, match="not a flight-recorder dump"):
        flight.read_dump(data, "rank_0")


CYCLE: list[object] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "groups", [{"0": {"ranks": ["x"]}}, {"0": {"ranks": [None]}}, {"0": {"ranks": [[]]}}]
)
def test_dump_with_invalid_process_groups_is_an_error(groups: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="not a flight-recorder dump"):
        flight.read_dump(pickle.dumps({"entries": [], "pg_config": groups}), "rank_0")


def test_dump_entries_of_unsupported_kinds_are_ignored() -> None:
    entries = [
        {"collective_seq_id": 10**5000, "process_group": "a"},
        {"collective_seq_id": "1", "process_group": "a"},
        {"collective_seq_id": 1, "process_group": CYCLE, "input_sizes": CYCLE},
    ]
    dumps = [
        flight.read_dump(pickle.dumps({"entries": each, "rank": 10**5000}), f"rank_{rank}")
        for rank, each in enumerate([entries, entries[:2]])
    ]
    assert [dump.rank for dump in dumps] == [0, 1]
    assert flight.flight_findings(dumps) == []


def test_pipes_in_a_folder_of_logs_are_ignored(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "run.log").write_text("RuntimeError: CUDA error: device-side assert triggered\n")
    (finding,) = diagnose_paths([tmp_path]).findings
    assert finding.code == "IMG506"
