"""Compares the ranks in dumps of PyTorch's flight recorder.

A dump is a trace of one rank by `torch.distributed`, in pickle or JSON format. The rank is the
number at the end of the file name, as written by PyTorch.
"""

# A separate module: not a log.
from __future__ import annotations

import io
import json
import pickle
import re
import reprlib
import resource
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeGuard

import msgspec

from imgbuild.diagnose.finding import LogFinding, ShownLine
from imgbuild.diagnose.rules import FindingConfidence
from imgbuild.errors import InputError
from imgbuild.system import quoting

LARGEST_DUMP = 512 << 20  # bytes of a dump
MOST_ENTRIES = 200_000
MEMORY_FACTOR = 64  # bytes of memory for each byte of a dump
LEAST_MEMORY = 1 << 30  # bytes
# Shared references of a pickle can nest a list in itself many times.
SIZES = reprlib.Repr()
SIZES.maxlevel = 3
DEFAULT_GROUP = "0"
RANK = re.compile(r"(\d{1,6})(?:\.(?:json|pkl|pickle|trace))?$")


class CollectiveCall(msgspec.Struct, frozen=True):
    """A collective that a rank enqueued."""

    sequence: int
    operation: str
    sizes: str
    state: str


class RankDump(msgspec.Struct, frozen=True):
    """The collectives of a rank by process group, in order.

    `groups` contains the ranks of each group.
    """

    rank: int
    calls: Mapping[str, tuple[CollectiveCall, ...]]
    groups: Mapping[str, tuple[int, ...]]


def _load_item(unpickler: Any) -> None:
    value, key = unpickler.stack.pop(), unpickler.stack.pop()
    _add_items(unpickler.stack[-1], (key, value))


def _load_items(unpickler: Any) -> None:
    items = unpickler.pop_mark()
    _add_items(unpickler.stack[-1], items)


def _load_dictionary(unpickler: Any) -> None:
    items = unpickler.pop_mark()
    built: dict[Any, Any] = {}
    _add_items(built, items)
    unpickler.append(built)


def _add_items(target: Any, items: Sequence[Any]) -> None:
    """Add keys and values to a dictionary. A key is a text or number.

    The hash of a tuple that contains itself many times, through shared references, has no end.
    """
    if not isinstance(target, dict):
        message = "items are added to a value that is not a dictionary"
        raise pickle.UnpicklingError(message)
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, (str, int, bytes)):
            message = f"a key is a {type(key).__name__}"
            raise pickle.UnpicklingError(message)
        target[key] = value


class _PlainUnpickler(pickle._Unpickler):  # noqa: SLF001 (Python's own, whose opcodes can be replaced)
    """Reads dictionaries, lists, texts and numbers.

    Anything that would run code is rejected, and sets, whose members are hashed.
    """

    dispatch: ClassVar = {
        **{
            opcode: load
            for opcode, load in pickle._Unpickler.dispatch.items()  # noqa: SLF001
            if opcode not in (*pickle.EMPTY_SET, *pickle.ADDITEMS, *pickle.FROZENSET)
        },
        pickle.SETITEM[0]: _load_item,
        pickle.SETITEMS[0]: _load_items,
        pickle.DICT[0]: _load_dictionary,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Reject all classes."""
        message = _text(f"{module}.{name}")
        raise pickle.UnpicklingError(message)

    def persistent_load(self, pid: Any) -> Any:
        """Reject all references."""
        raise pickle.UnpicklingError(_text(pid))


def is_dump(first: bytes) -> bool:
    """Whether a file may be a dump, according to its first bytes."""
    if first[:1] == b"\x80" and first[1:2] in b"\x02\x03\x04\x05":
        return True
    return first.lstrip()[:1] == b"{" and (b'"entries"' in first or b'"pg_config"' in first)


def read_dump(data: bytes, name: str) -> RankDump:
    """Return the dump in `data`. Raises InputError if `data` is not a dump.

    `name` is the file name.
    """
    try:
        if data[:1] == b"\x80":
            with _limit_memory(LEAST_MEMORY + MEMORY_FACTOR * len(data)):
                value = _PlainUnpickler(io.BytesIO(data)).load()
        else:
            value = json.loads(data)
        return _parse_dump(value, name)
    except (
        pickle.UnpicklingError,
        ValueError,
        EOFError,
        IndexError,
        KeyError,
        AttributeError,
        TypeError,
        MemoryError,
        RecursionError,
        OverflowError,
        struct.error,
    ) as error:
        message = f"{name}: not a flight-recorder dump: {type(error).__name__}: {error}"
        raise InputError(
            message, hint="pass the files that TORCH_FR_DUMP_TEMP_FILE names"
        ) from error


@contextmanager
def _limit_memory(more: int) -> Iterator[None]:
    """Limit this process to `more` bytes in addition to its present memory.

    A few bytes can make the unpickler allocate a table of any size (PUT and sizes of bytes).
    """
    used = (
        int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        * resource.getpagesize()
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [used + more, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _text(value: Any) -> str:
    """Return a text or number on one line, or the start of another value."""
    return quoting.comment_line(value if isinstance(value, str) else SIZES.repr(value))[:80]


def _parse_dump(value: Any, name: str) -> RankDump:
    """Return the contents of a dump. Raises ValueError or TypeError if a value is invalid."""
    entries = value.get("entries") if isinstance(value, dict) else None
    if not isinstance(entries, list):
        message = "`entries` is not a list"
        raise TypeError(message)
    rank = value.get("rank")
    match = RANK.search(Path(name).name)
    if not _is_number(rank):
        rank = int(match[1]) if match else 0
    return RankDump(rank, _calls(entries[-MOST_ENTRIES:]), _groups(value))


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value < 1 << 63


def _calls(entries: Iterable[Any]) -> dict[str, tuple[CollectiveCall, ...]]:
    calls: dict[str, dict[int, CollectiveCall]] = {}
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("is_p2p"):
            continue
        group = entry.get("process_group") or entry.get("pg_name") or entry.get("pg_id")
        label = _text(group[0] if isinstance(group, (list, tuple)) and group else group)
        sequence = entry.get("collective_seq_id", entry.get("seq_id"))
        if not _is_number(sequence):
            continue
        operation = _text(entry.get("profiling_name", "")).removeprefix("nccl:")
        sizes, state = _text(entry.get("input_sizes", "")), _text(entry.get("state", ""))
        calls.setdefault(label, {})[sequence] = CollectiveCall(sequence, operation, sizes, state)
    return {
        label: tuple(call for _, call in sorted(group.items())) for label, group in calls.items()
    }


def _groups(value: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    groups = {}
    configured = value.get("pg_config")
    for label, group in configured.items() if isinstance(configured, dict) else ():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        numbers = re.findall(r"\d{1,7}", ranks[:1_000_000]) if isinstance(ranks, str) else ranks
        if isinstance(numbers, (list, tuple)):
            ranks = tuple(int(number) for number in numbers)
            # The default group has no name in the configuration of gloo.
            groups[_text(label) or DEFAULT_GROUP] = tuple(filter(_is_number, ranks))
    return groups


def flight_findings(dumps: Iterable[RankDump]) -> list[LogFinding]:
    """Return the differences between ranks, and collectives that all ranks wait in.

    The ranks differ in the number of their last collective, or in its type.
    """
    by_rank = {dump.rank: dump for dump in dumps}
    labels = sorted({label for dump in by_rank.values() for label in dump.calls})
    answers = []
    for label in labels:
        members = next((d.groups[label] for d in by_rank.values() if d.groups.get(label)), ())
        states = {
            rank: dump.calls.get(label, ())
            for rank, dump in by_rank.items()
            if label in dump.calls or rank in members
        }
        answers += (
            _different_collectives(label, states)
            or _lagging_ranks(label, states, members)
            or _stopped_collective(label, states)
        )
    return answers


def _different_collectives(
    label: str, states: Mapping[int, tuple[CollectiveCall, ...]]
) -> list[LogFinding]:
    """Return findings for ranks that entered different collectives at the same sequence number."""
    by_number: dict[int, dict[int, CollectiveCall]] = {}
    for rank, calls in states.items():
        for call in calls:
            by_number.setdefault(call.sequence, {})[rank] = call
    for number, calls_of in sorted(by_number.items()):
        kinds = {
            rank: (call.operation, call.sizes if "all_reduce" in call.operation else "")
            for rank, call in calls_of.items()
        }
        if len(set(kinds.values())) < 2:
            continue
        entered = sorted({f"{call.operation} {call.sizes}" for call in calls_of.values()})
        cause = (
            f"the ranks entered different collectives at number {number} of group {label}: "
            + "; ".join(entered[:4])
        )
        cure = (
            "make every rank run the same steps: give each rank data of the same length, and do not"
            " skip a step on only some ranks"
        )
        states_of = {
            rank: f"{number} {call.operation} {call.sizes} {call.state}"
            for rank, call in calls_of.items()
        }
        return [_finding(cause, states_of, cure)]
    return []


def _lagging_ranks(
    label: str, states: Mapping[int, tuple[CollectiveCall, ...]], members: tuple[int, ...]
) -> list[LogFinding]:
    """Return findings for ranks that are behind others, or that wrote no dump.

    The last collective of a rank that is behind has a lower number than in other ranks.
    """
    last = {rank: calls[-1].sequence if calls else 0 for rank, calls in states.items()}
    absent = sorted(set(members) - set(states))
    if not last or (min(last.values()) == max(last.values()) and not absent):
        return []
    most = max(last.values())
    missing = sorted(rank for rank, number in last.items() if number < most)
    waiting = next(calls[-1] for calls in states.values() if calls and calls[-1].sequence == most)
    first = min((last[rank] for rank in missing), default=most) + 1
    ahead = next(
        (call for calls in states.values() for call in calls if call.sequence == first), waiting
    )
    who = ", ".join(map(str, missing[:16] or absent[:16]))
    plural = "ranks" if len(missing or absent) > 1 else "rank"
    if missing:
        cause = (
            f"{plural} {who} never entered collective {ahead.sequence} ({ahead.operation}) of"
            f" group {label}; the others wait in it"
        )
    else:
        cause = (
            f"{plural} {who} of group {label} wrote no dump; the others wait in collective {most}"
            f" ({waiting.operation})"
        )
    cure = (
        f"check what {plural} {who} did then (py-spy dump --pid PID): an exception, a different"
        " branch or a slow step"
    )
    states_of = {rank: f"last collective {number}" for rank, number in last.items()}
    return [_finding(cause, states_of, cure, confidence="high" if missing else "medium")]


def _stopped_collective(
    label: str, states: Mapping[int, tuple[CollectiveCall, ...]]
) -> list[LogFinding]:
    """Return a finding if all ranks run the same collective.

    A kernel of NCCL that runs in all ranks does not depend on a rank that is late.
    """
    last = {rank: calls[-1] for rank, calls in states.items() if calls}
    if len(last) < 2 or any(call.state != "started" for call in last.values()):
        return []
    call = next(iter(last.values()))
    cause = (
        f"all ranks entered collective {call.sequence} ({call.operation}) of group {label}, and"
        " none completed it: the connection between GPUs or nodes, or a GPU, stopped"
    )
    cure = (
        "run again with NCCL_DEBUG=INFO; check dmesg of each node for Xid errors, nvidia-smi topo"
        " -m, ibstat and NCCL_SOCKET_IFNAME; test the nodes with all_reduce_perf of nccl-tests"
    )
    states_of = dict.fromkeys(last, f"started collective {call.sequence}")
    return [_finding(cause, states_of, cure, confidence="medium")]


def _finding(
    cause: str, states: Mapping[int, str], cure: str, *, confidence: FindingConfidence = "high"
) -> LogFinding:
    """Return a finding for a difference between ranks.

    `states` contains a line for each rank. Eight of the lines are shown.
    """
    lines = tuple(ShownLine(rank, f"rank {rank}: {text}") for rank, text in sorted(states.items()))
    return LogFinding(code="IMG909", cause=cause, lines=lines[:8], confidence=confidence, cure=cure)
