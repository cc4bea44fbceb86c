"""Tests processes that read stdin and write output at the same time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from imgbuild.errors import WorkFailed
from imgbuild.system import process

pytestmark = pytest.mark.timeout(60)
TALKATIVE = """
import sys
for number, line in enumerate(sys.stdin.buffer):
    print(f"line {number} of what is said" * 4, file=sys.stderr)
    print(f"line {number} of what is told" * 4)
sys.stdout.flush()
sys.exit(int(sys.argv[1]))
"""
CHUNKS = [b"a line that is fed\n" * 100] * 100  # five times more than a pipe holds


def test_program_can_print_while_it_reads_stdin():
    process.feed_command([sys.executable, "-c", TALKATIVE, "0"], CHUNKS)


def test_last_output_of_failed_program_is_reported():
    with pytest.raises(WorkFailed) as raised:
        process.feed_command([sys.executable, "-c", TALKATIVE, "3"], CHUNKS)
    text = str(raised.value)
    assert "ended with status 3" in text
    assert "line 9999 of what is said" in text
    assert "line 9000 of" not in text


def test_program_that_closes_stdin_fails_with_its_own_message():
    code = "import sys; sys.stdin.close(); sys.exit('no room is left')"
    with pytest.raises(WorkFailed, match="no room is left"):
        process.feed_command([sys.executable, "-c", code], CHUNKS * 10)


def test_interrupt_before_the_first_chunk_stops_program(monkeypatch):
    """A thread already reads the output, so closing the pipe would wait for the program."""
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        started.append(thread)
        if len(started) == 2:
            raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.feed_command([sys.executable, "-c", TALKATIVE, "0"], CHUNKS)


def test_exception_while_input_is_generated_stops_the_program(tmp_path):
    """Otherwise, the program would treat the partial input as complete."""
    code = f"import sys; sys.stdin.read(); open({str(tmp_path / 'finished')!r}, 'w')"

    def broken() -> Iterator[bytes]:
        yield from CHUNKS
        message = "the layer is damaged"
        raise ValueError(message)

    with pytest.raises(ValueError, match="the layer is damaged"):
        process.feed_command([sys.executable, "-c", code], broken())
    assert list(tmp_path.iterdir()) == []
