"""Text from elsewhere cannot control the terminal."""

from __future__ import annotations

import pytest

from imgbuild.cli import _output
from imgbuild.system.console import Console, visible

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
