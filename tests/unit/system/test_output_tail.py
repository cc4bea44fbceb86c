"""Tests that stderr is forwarded and its last lines are recorded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.system import output_tail
from imgbuild.system.output_tail import tail_of_stderr


@contextlib.contextmanager
def _streams(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Redirect stdout and stderr of this process to files."""
    saved = [os.dup(1), os.dup(2)]
    paths = (tmp_path / "out", tmp_path / "err")
    for stream, path in zip((1, 2), paths, strict=True):
        with path.open("wb") as file:
            os.dup2(file.fileno(), stream)
    try:
        yield paths
    finally:
        for stream, descriptor in zip((1, 2), saved, strict=True):
            os.dup2(descriptor, stream)
            os.close(descriptor)


def test_stderr_is_copied_and_the_end_of_stderr_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_tail, "TAIL_BYTES", 10)
    with _streams(tmp_path) as streams, tail_of_stderr() as tail:
        os.write(1, b"answer")
        for _ in range(30_000):
            os.write(2, b"0123456789")
        os.write(2, b"the end")
    assert tail.text() == "789the end"
    assert streams[0].read_bytes() == b"answer"
    assert streams[1].read_bytes() == b"0123456789" * 30_000 + b"the end"


def test_order_of_output_is_kept_if_both_streams_are_one_file(tmp_path: Path) -> None:
    with _streams(tmp_path) as streams:
        os.dup2(2, 1)
        with tail_of_stderr() as tail:
            for number in range(100):
                os.write(1 + number % 2, b"%d " % number)
    expected = "".join(f"{number} " for number in range(100))
    assert tail.text() == streams[1].read_text() == expected


def test_captured_stderr_keeps_the_terminal_settings(tmp_path: Path) -> None:
    leader, terminal = os.openpty()
    with _streams(tmp_path):
        os.dup2(terminal, 2)
        with tail_of_stderr() as tail:
            assert os.isatty(2)
            os.write(2, b"drawn")
    assert os.read(leader, 10) == b"drawn"
    assert tail.text() == ""
    os.close(leader)
    os.close(terminal)


def test_output_streams_are_restored_after_an_error(tmp_path: Path) -> None:
    with _streams(tmp_path) as streams:
        with pytest.raises(KeyError), tail_of_stderr():
            raise KeyError
        os.write(2, b"later")
    assert streams[1].read_bytes() == b"later"
