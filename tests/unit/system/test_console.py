"""Tests escaping and wrapping messages, and progress bars."""

from __future__ import annotations

import re

import pytest
from rich.progress import Progress

from imgbuild.cli import _output
from imgbuild.system.amounts import wrap_paragraph, wrap_text
from imgbuild.system.console import Console, amount_text, time_text
from imgbuild.system.control_characters import escape_control
from tests.support import terminal
from tests.support.rows import each_row

# Clear screen, colours, erase, move cursor, other line ends, bidirectional controls.
WICKED = "a\x1b[2J\x1b[32mb\x9b1K\x08\r\x7fc\u202ed"
SHOWN = r"a\x1b[2J\x1b[32mb\x9b1K\x08\x0d\x7fc\u202ed"


def test_control_characters_in_output_are_escaped() -> None:
    assert escape_control(WICKED) == SHOWN
    assert escape_control("one\ttwo\nthree - 四 🙂") == "one\ttwo\nthree - 四 🙂"


@each_row("way", ["info", "detail", "warn", "error"])
def test_messages_on_stderr_are_escaped(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.configure(verbosity=1, json=False)
    getattr(console, way)(f"[bold]{WICKED}[/]")
    shown = capsys.readouterr().err
    assert f"[bold]{SHOWN}[/]" in shown
    assert "\x1b[2J" not in shown


def test_table_cells_are_escaped() -> None:
    assert _output.align_columns([["x\nrebuild  passed", WICKED], ["yy", "z"]]) == [
        rf"x\nrebuild  passed  {SHOWN}",
        "yy                  z",
    ]


LONG = (
    "images/cu124-vllm/lock.json: a reason of several words that does not fit:"
    " `imgbuild lock TARGET` or imgbuild lock cu124-vllm cu130-vllm --as-of 2026-01-01; then see"
    " https://example.org/a-path/that-is-longer/than-a-whole-line/of-a-terminal-with-80-columns/x"
)


def test_lines_wrap_between_words_but_not_inside_commands() -> None:
    assert wrap_text(f"two\n  {LONG}", 80).split("\n") == [
        "two",
        "  images/cu124-vllm/lock.json: a reason of several words that does not fit:",
        "    `imgbuild lock TARGET` or",
        "    imgbuild lock cu124-vllm cu130-vllm --as-of 2026-01-01; then see",
        f"    {LONG.rsplit(maxsplit=1)[-1]}",
    ]


def test_wrapping_counts_the_label_width_and_keeps_spaces_of_short_lines() -> None:
    assert wrap_text("  3 | a:    b", 14) == "  3 | a:    b"
    assert wrap_text("a  b   c", 6) == "a  b\n  c"
    assert wrap_text("one two", 10, taken=4) == "one\n  two"
    assert wrap_text("longerthanthat", 10, taken=7) == "longerthanthat"
    assert wrap_text("a word and mark *", 15) == "a word and\n  mark *"


def test_paragraphs_do_not_break_commands_that_are_too_wide() -> None:
    assert wrap_paragraph("to do it, run: imgbuild audit a b c", 20, "# ", "#   ") == [
        "# to do it, run:",
        "#   imgbuild audit a b c",
    ]


@each_row("way", ["info", "detail", "warn", "error"])
def test_messages_wrap_only_on_terminal(
    way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(["word"] * 25)
    with terminal.terminal_stderr(monkeypatch) as drawn:
        monkeypatch.setenv("NO_COLOR", "1")
        console = Console()
        console.configure(verbosity=1, json=False)
        getattr(console, way)(text)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in drawn.lines]
    assert [len(line) <= terminal.COLUMNS for line in lines] == [True, True]
    assert " ".join(" ".join(lines).split()).endswith(text)
    console = Console()
    console.configure(verbosity=1, json=False)
    getattr(console, way)(text)
    assert text in capsys.readouterr().err


def drawn_lines(drawn: terminal.Terminal) -> list[str]:
    """The successive states of a redrawn line."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(drawn.lines))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "\n", text)
    return [line for line in text.split("\n") if line.strip()]


def test_progress_bar_is_one_line_with_labelled_times(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal.terminal_stderr(monkeypatch) as drawn:
        monkeypatch.setenv("TERM", "xterm")
        console = Console()
        with console.progress("auditing", 80, unit="packages read") as outer:
            outer.advance(12)
            with console.progress("downloading", 2_900_000_000, done=900_000_000) as inner:
                inner.advance(100_000_000)
            outer.advance(1)
    lines = drawn_lines(drawn)
    assert max(map(len, lines)) <= terminal.COLUMNS
    assert any("1.0 of 2.9 GB" in line for line in lines)
    assert not any("packages read" in line and "GB" in line for line in lines)
    assert "13 of 80 packages read" in lines[-1]
    assert all(re.search(r"elapsed \d+:\d\d", line) for line in lines)


def test_sizes_and_times_are_formatted() -> None:
    progress = Progress()
    progress.add_task("x", total=2_900_000_000, unit="bytes")
    (task,) = progress.tasks
    task.completed = 1_200_000_000
    assert amount_text(task) == "1.2 of 2.9 GB"
    task.completed = 990_000_000
    assert amount_text(task) == "990.0 MB of 2.9 GB"
    task.total = None
    assert amount_text(task) == "990.0 MB"
    task.fields["unit"] = "manifests"
    task.completed = 7
    assert amount_text(task) == "7 manifests"
    now = [100.0]
    timed = Progress(get_time=lambda: now[0])
    timed.add_task("y", total=100, unit="files")
    (other,) = timed.tasks
    assert time_text(other) == "elapsed 0:00"
    for _ in range(2):
        now[0] += 10
        timed.advance(other.id, 10)
    assert time_text(other) == "elapsed 0:20, remaining 1:20"
    now[0] += 3650
    assert time_text(other).startswith("elapsed 1:01:10, remaining ")
    timed.advance(other.id, 80)  # the last file; what follows it has no estimate
    assert time_text(other) == "elapsed 1:01:10"
