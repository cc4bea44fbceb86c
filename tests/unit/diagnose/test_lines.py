"""Tests that logs of any encoding and size are read with bounded time and memory."""

from __future__ import annotations

import gzip
import io
import lzma
import random
import tracemalloc
from collections.abc import Iterator

import pytest

from imgbuild.diagnose import lines
from imgbuild.diagnose.diagnosis import diagnose_log
from imgbuild.errors import InputError
from tests.support.rows import each_row

FAILURE = b"RuntimeError: CUDA error: no kernel image is available for execution on the device\n"


class Repeated(io.BytesIO):
    """A stream that repeats a block `times` times and ends with `tail`."""

    def __init__(self, block: bytes, times: int, tail: bytes = b"") -> None:
        super().__init__()
        self._pieces: Iterator[bytes] = iter([*([block] * times), tail])

    def read(self, size: int | None = -1) -> bytes:
        """Return the next block, regardless of `size`."""
        return next(self._pieces, b"")


def code(text: bytes) -> str | None:
    findings = diagnose_log(io.BytesIO(text), "log").findings
    return findings[0].code if findings else None


@each_row("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-8-sig"])
def test_encoding_of_a_log_is_detected(encoding: str) -> None:
    assert code(("训练 start\n" * 9 + FAILURE.decode()).encode(encoding)) == "IMG504"


def test_invalid_utf_8_and_line_ends_are_handled() -> None:
    assert code(b"\xfd\xff\xfe\r\n" + b"x\xff\r\n" + FAILURE.replace(b"\n", b"\r\n")) == "IMG504"
    assert code(b"10%|#|\r20%|##|\r" + FAILURE) == "IMG504"


def test_gzip_log_is_unpacked_and_a_damaged_gzip_log_is_an_error() -> None:
    packed = gzip.compress(FAILURE)
    assert code(packed) == "IMG504"
    assert code(packed + packed) == "IMG504"
    with pytest.raises(InputError, match="gzip"):
        code(packed[:12] + b"\0\0\0" + packed[15:])


@pytest.mark.parametrize(
    "data",
    [
        b"\x7fELF\x02\x01\x01" + bytes(4000),
        lzma.compress(random.Random(1).randbytes(4000)),
        gzip.compress(gzip.compress(random.Random(2).randbytes(4000))),
    ],
)
def test_binary_file_given_as_log_is_an_error(data: bytes) -> None:
    with pytest.raises(InputError, match="not a log"):
        code(data)


def test_nul_bytes_at_the_start_of_a_truncated_log_are_ignored() -> None:
    assert code(bytes(200_000) + FAILURE) == "IMG504"


def test_an_empty_log_has_no_finding() -> None:
    assert code(b"") is None


def test_very_long_line_is_truncated() -> None:
    assert code(b"x" * (5 << 20) + b"\n" + FAILURE) == "IMG504"
    (line,) = lines.read_lines(io.BytesIO(b"y" * (5 << 20)), "log")
    assert len(line.text) <= lines.LONGEST_LINE


def test_identical_log_lines_are_read_only_a_few_times() -> None:
    text = "".join(f"step {number} error 0.{number}\n" for number in range(100_000)).encode()
    read = list(lines.read_lines(io.BytesIO(text), "log"))
    assert len(read) < lines.HEAD + 200
    assert read[-1].number == 100_000


def test_distinct_log_lines_are_read_up_to_a_limit() -> None:
    numbers = random.Random(7)
    block = b"".join(b"error %x\n" % numbers.getrandbits(200) for _ in range(20_000))
    stream = Repeated(block, 12, FAILURE)
    read = list(lines.read_lines(stream, "log"))
    assert len(read) <= lines.HEAD + lines.MOST_LINES + 4 * 20_000
    assert read[-1].text == FAILURE.decode().strip()


@pytest.mark.long  # the previous test has the limits
def test_memory_does_not_grow_with_the_log() -> None:
    numbers = random.Random(7)
    block = b"".join(
        b"(W pid=%d) step %d loss %x\n" % (number, number, numbers.getrandbits(60))
        for number in range(20_000)
    )
    tracemalloc.start()
    try:
        assert diagnose_log(Repeated(block, 8, FAILURE), "log").findings[0].code == "IMG504"
        assert tracemalloc.get_traced_memory()[1] < 60 << 20
    finally:
        tracemalloc.stop()


@each_row(
    "piece",
    [
        b"\x1b[",
        b"\x1b]",
        b"(a ",
        b'File "',
        b"Because a depends on ",
        b"Traceback ",
        b"aaaa.",
        b"[E",
        b"/x.so",
        b"A",
        b" x is required version",
    ],
)
def test_hostile_log_lines_are_handled(piece: bytes) -> None:
    assert code(piece * 200_000 + b"\n" + FAILURE) == "IMG504"
    assert code((piece * 900 + b"\n") * 40 + FAILURE) == "IMG504"
