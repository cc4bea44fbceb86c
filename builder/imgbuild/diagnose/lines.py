"""Reads the lines of a log that may report a failure.

A log may contain gigabytes, endless lines, escape sequences and bytes that are not text. Blocks
without a word of `SIGNALS` are skipped. Of lines that differ only in digits, the first `REPEATS`
are read. After `MOST_LINES` lines, only the end of the log is read.
"""

# A separate module: bounds of memory and work.
from __future__ import annotations

import codecs
import re
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from imgbuild.diagnose import records, system_messages
from imgbuild.diagnose.prefixes import LearnedPrefixes, LogLine
from imgbuild.errors import InputError

BLOCK = 1 << 20  # bytes
LONGEST_LINE = 1 << 14  # bytes of a line that are read; of a longer one the start and the end
HEAD = 3000  # lines at the start, with the versions and settings of the run, that are all read
EXCERPT = 200  # lines at the start that are matched with all rules, regardless of their words
WINDOW = 40  # lines after the start of a traceback, or a frame of it, that are all read
REPEATS = 12  # lines that differ in digits only
MOST_SHAPES = 200_000  # distinct lines whose occurrences are counted
MOST_LINES = 60_000  # that are read between the head and the last two blocks
LARGEST_LOG = 4 << 30  # bytes of the unpacked log
LAST_LINES = 40
DIGITS = b"0123456789"
# Parts of samples that trainers print, such as verl's reward managers.
DATA = re.compile(r"^(?:\([^)]{1,120}\) ?)?\[(?:prompt|response|ground_truth|question|answer)\] ")

# A line that reports a failure has one of these, in lower case.
SIGNALS = tuple(
    word.encode()
    for word in (
        *("rror", "xception", "traceback", "fail", "fatal", "abort", "kill", "oom", "out of"),
        *("memory", "undefined", "signal", "timed out", "timeout", "no such", "cannot", "can't"),
        *("not found", "unable", "denied", "refused", "core dumped", "mismatch", "unsupported"),
        *(
            "incompatib",
            "no space",
            "support",
            "panic",
            "critical",
            'file "',
            'file \\"',
            "watchdog",
            "invalid",
        ),
        *(
            "required",
            "requires",
            "unrecognized",
            "no module",
            "could not",
            "nccl work",
            "unexpected",
        ),
        *("export ", "driver version", "site-packages", "already in use", "exceed", "gated", "nan"),
        *("worker", "version", "conflict", "not ", "bus ", "limit", "stuck", "no matching", "exit"),
        *(
            "==",
            "none)",
            "missing",
            "corrupt",
            "expired",
            "unknown",
            "warn",
            "lost",
            "dead",
            "reset",
        ),
        *("attribute", "argument", "keyword", "import name", "too ", "less than", "exclude"),
        *("nvrm: xid", "low on ", "no mig dev", "did you mean", "wheels are"),
    )
)
TRACE = (b"traceback", b'file "', b'file \\"', b"the above exception", b"during handling", b"rror:")


def read_lines(stream: BinaryIO, name: str) -> Iterator[LogLine]:
    """Yield the lines of `stream` that may report a failure, in order.

    The lines are decoded, and have no prefixes and control characters. The last lines of the log
    are always included. Raises InputError if the log is not text. `name` is used in error messages.
    """
    reader = LineReader()
    for block in _blocks(stream, name):
        yield from reader.feed_block(block)
    yield from reader.close()


def _blocks(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the log in UTF-8, in blocks.

    A block ends with a line, unless a line is longer than a block.
    """
    first = stream.read(BLOCK)
    chunks = _chunks(first, stream)
    if first[:2] == b"\x1f\x8b":
        chunks = _unpack_gzip(chunks, name)
        first = next(chunks, b"")
        chunks = _chain_chunks(first, chunks)
    encoding = _encoding(first)
    if encoding:
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        chunks = (decoder.decode(chunk).encode("utf-8", "replace") for chunk in chunks)
    elif _is_binary(first[:65536]):
        message = f"{name}: binary data, not a log"
        raise InputError(message, hint="pass the output of the run: imgbuild diagnose run.log")
    total, rest = 0, b""
    for chunk in chunks:
        total += len(chunk)
        if total > LARGEST_LOG:
            return
        data = rest + chunk
        end = data.rfind(b"\n") + 1
        if end:
            yield data[:end]
            rest = data[end:]
        elif len(data) > 2 * BLOCK:
            rest = data[:LONGEST_LINE] + data[-LONGEST_LINE:]
        else:
            rest = data
    if rest:
        yield rest


def _chunks(first: bytes, stream: BinaryIO) -> Iterator[bytes]:
    while first:
        yield first
        first = stream.read(BLOCK)


def _chain_chunks(first: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from chunks


def _unpack_gzip(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Yield the content of a gzip file. A damaged end is omitted."""
    inflater = zlib.decompressobj(wbits=31)
    try:
        for chunk in chunks:
            data = chunk
            while data:
                if inflater.eof:  # the next member
                    if data[:2] != b"\x1f\x8b":
                        return
                    inflater = zlib.decompressobj(wbits=31)
                unpacked = inflater.decompress(data, BLOCK)
                if unpacked:
                    yield unpacked
                data = inflater.unconsumed_tail or inflater.unused_data
    except zlib.error as error:
        message = f"{name}: damaged gzip data: {error}"
        raise InputError(message, hint="decompress it, and pass the log") from error


def _encoding(first: bytes) -> str | None:
    """Return the encoding of a log that is not UTF-8, according to its first bytes."""
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = first[:2048]
    if len(sample) > 16 and sample[1::2].count(0) > 0.4 * len(sample) > 4 * sample[::2].count(0):
        return "utf-16-le"
    return None


def _is_binary(sample: bytes) -> bool:
    """Whether more than a thirtieth of the bytes are control characters that logs do not contain.

    In compressed data they are a thirteenth. A log that was truncated while a process wrote to it
    starts with NUL bytes, which are not counted.
    """
    text = sample.replace(b"\0", b"")
    strange = len(text) - len(text.translate(None, bytes(range(7)) + bytes(range(14, 27))))
    return strange > len(text) / 30


class LineReader:
    """Selects the lines of blocks, which are passed to `feed_block` in order."""

    def __init__(self) -> None:
        self._number = 0
        self._window = 0
        self._lines = 0
        self._shapes: Counter[int] = Counter()
        self._prefixes = LearnedPrefixes()
        self._last: deque[bytes] = deque()  # the latest two blocks, which are read in any case

    def feed_block(self, block: bytes) -> Iterator[LogLine]:
        """Add a block, and yield the lines of the block that precedes the last two."""
        self._last.append(block)
        if len(self._last) > 2:
            yield from self._read_block(self._last.popleft(), last=False)

    def close(self) -> Iterator[LogLine]:
        """Yield the lines of the last two blocks."""
        last = [*self._last]
        remaining = sum(block.count(b"\n") for block in last)
        last_number = self._number + remaining + (bool(last) and not last[-1].endswith(b"\n"))
        for block in last:
            yield from self._read_block(block, last=True, whole_from=last_number - LAST_LINES)

    def _read_block(
        self, block: bytes, *, last: bool, whole_from: int | None = None
    ) -> Iterator[LogLine]:
        count = block.count(b"\n")
        if self._lines > MOST_LINES and not last:
            self._number += count
            return
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        start, self._number = self._number, self._number + len(lines)
        near_end = whole_from is not None and self._number > whole_from
        texts = block.translate(None, DIGITS).split(b"\n")[: len(lines)]
        chosen: Iterable[int] = range(len(lines))
        often = self._shapes.get
        skips = start > HEAD and not near_end
        if skips and all(often(hash(text), 0) >= REPEATS for text in set(texts)):
            return
        shapes = [hash(text) for text in texts]
        if skips:  # lines that occurred often are not searched for words
            chosen = [at for at in chosen if often(shapes[at], 0) < REPEATS]
            text = b"\n".join([lines[at] for at in chosen])
        else:
            text = block
        low = text.lower()
        present = tuple(word for word in SIGNALS if word in low)
        if present or not text.isascii() or start <= HEAD or self._window or near_end:
            for at in chosen:
                number = start + at + 1
                whole = number <= HEAD or (whole_from is not None and number > whole_from)
                if whole or self._shapes.get(shapes[at], 0) < REPEATS:
                    yield from self._parts(number, lines[at], present, whole=whole, last=last)

    def _parts(
        self, number: int, raw: bytes, present: tuple[bytes, ...], *, whole: bool, last: bool
    ) -> Iterator[LogLine]:
        """Yield a line, or its latest states if a progress bar has rewritten it many times."""
        for part in raw.split(b"\r")[-50:] if b"\r" in raw else (raw,):
            if part or part is raw:
                yield from self._line(number, part, present, whole=whole, last=last)

    def _line(
        self, number: int, raw: bytes, present: tuple[bytes, ...], *, whole: bool, last: bool
    ) -> Iterator[LogLine]:
        if len(raw) > LONGEST_LINE:
            raw = raw[: LONGEST_LINE // 2] + raw[-LONGEST_LINE // 2 :]
        shape = hash(raw.translate(None, DIGITS))
        times = self._shapes[shape]
        if times >= REPEATS and not whole:
            return
        if times or len(self._shapes) < MOST_SHAPES:
            self._shapes[shape] = times + 1
        low = raw.lower()
        hit = any(word in low for word in present) or not raw.isascii()
        if hit and any(word in low for word in TRACE):
            self._window = WINDOW
        elif self._window:
            self._window -= 1
        elif not hit and not whole:
            return
        if not whole and not last:
            self._lines += 1
            if self._lines > MOST_LINES:
                return
        text = system_messages.translate_message(raw.decode("utf-8", "replace"))
        hit = (hit or number <= EXCERPT) and not DATA.search(text)
        record = records.unwrap_record(text)
        if record is None:
            yield self._prefixes.parse(number, text, hit=hit)
            return
        if not record.lines:
            yield LogLine(number, "", text, hit=False)
        for part in record.lines:
            yield self._prefixes.parse(number, part, hit=hit, level=record.level)
