"""Text from elsewhere cannot control the terminal."""

from __future__ import annotations

import re

import pytest

from imgbuild.cli import _output
from imgbuild.system.console import Console, wrapped
from imgbuild.system.quoting import visible
from tests.support import terminal

# Clears the screen, colours, erases, moves back, ends a line in another way, turns the direction.
WICKED = "a\x1b[2J\x1b[32mb\x9b1K\x08\r\x7fc\u202ed"
SHOWN = r"a\x1b[2J\x1b[32mb\x9b1K\x08\x0d\x7fc\u202ed"


def test_control_characters_are_escaped() -> None:
    assert visible(WICKED) == SHOWN
    assert visible("one\ttwo\nthree - 四 🙂") == "one\ttwo\nthree - 四 🙂"


@pytest.mark.parametrize("way", ["info", "detail", "warn", "error"])
def test_messages_are_escaped(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.configure(verbosity=1, json=False)
    getattr(console, way)(f"[bold]{WICKED}[/]")
    shown = capsys.readouterr().err
    assert f"[bold]{SHOWN}[/]" in shown
    assert "\x1b[2J" not in shown


def test_cells_of_tables_are_escaped() -> None:
    assert _output.aligned([["x\nrebuild  passed", WICKED], ["yy", "z"]]) == [
        rf"x\nrebuild  passed  {SHOWN}",
        "yy                  z",
    ]


LONG = (
    "images/cu124-vllm/lock.json: a reason of several words that does not fit:"
    " `imgbuild lock TARGET` or imgbuild lock cu124-vllm cu130-vllm --as-of 2026-01-01; then see"
    " https://example.org/a-path/that-is-longer/than-a-whole-line/of-a-terminal-with-80-columns/x"
)


def test_lines_are_broken_between_words_and_commands_stay_whole() -> None:
    assert wrapped(f"two\n  {LONG}", 80).split("\n") == [
        "two",
        "  images/cu124-vllm/lock.json: a reason of several words that does not fit:",
        "    `imgbuild lock TARGET` or",
        "    imgbuild lock cu124-vllm cu130-vllm --as-of 2026-01-01; then see",
        f"    {LONG.rsplit(maxsplit=1)[-1]}",
    ]


def test_what_fits_keeps_its_spaces_and_a_label_counts() -> None:
    assert wrapped("  3 | a:    b", 14) == "  3 | a:    b"
    assert wrapped("a  b   c", 6) == "a  b\n  c"
    assert wrapped("one two", 10, taken=4) == "one\n  two"
    assert wrapped("longerthanthat", 10, taken=7) == "longerthanthat"


@pytest.mark.parametrize("way", ["info", "detail", "warn", "error"])
def test_messages_fit_a_terminal_and_are_whole_elsewhere(
    way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(["word"] * 25)
    with terminal.stderr(monkeypatch) as drawn:
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
