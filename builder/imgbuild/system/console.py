"""The one place that prints: data to stdout, talk and progress to stderr.

Honours `-q`, `-v`, `NO_COLOR`, `FORCE_COLOR` and dumb terminals (rich reads the last three).
rich is imported when there is something to say, so that a verb with a word of data starts fast.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console as Rich
    from rich.progress import Progress, TaskID

    from imgbuild.system.progress import Steps


# What moves a terminal's cursor, colours its text or turns its direction, written out instead.
_CONTROLS = {
    number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160)) if number not in (9, 10)
} | {number: f"\\u{number:04x}" for number in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def visible(text: str) -> str:
    """`text` as a terminal may be shown it: servers and files of others put into it what they like.

    Lines stay lines.
    """
    return text.translate(_CONTROLS)


def escape(text: str) -> str:
    """`text` with nothing in it that rich would take for markup, nor a terminal for a command."""
    from rich.markup import escape as escaped

    return escaped(visible(text))


class Bar:
    """One moving line of progress, counted in bytes or in things."""

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress = progress
        self._task = task

    def advance(self, amount: int) -> None:
        """Add `amount` to what is done."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, amount)

    def describe(self, text: str) -> None:
        """Replace the text in front of the bar."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=escape(text))


class Console:
    """What imgbuild says. `verbosity` is -1 (quiet), 0, or 1 (also each command and cache hit)."""

    def __init__(self) -> None:
        self.verbosity = 0
        self.json = False

    @cached_property
    def _talk(self) -> Rich:
        from rich.console import Console as Rich

        return Rich(stderr=True, highlight=False, soft_wrap=True)

    def configure(self, *, verbosity: int, json: bool) -> None:
        """Set how much is said and whether stdout is to carry JSON."""
        self.verbosity = verbosity
        self.json = json

    def data(self, text: str) -> None:
        """Write `text` to stdout, untouched, with a newline at its end."""
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()

    def info(self, text: str) -> None:
        """Say what happens; silent under `-q`."""
        if self.verbosity >= 0:
            self._talk.print(escape(text))

    def detail(self, text: str) -> None:
        """Say what only `-v` wants to know."""
        if self.verbosity >= 1:
            self._talk.print(escape(text), style="dim")

    def warn(self, text: str) -> None:
        """Say what the user should look at, even under `-q`."""
        self._talk.print(f"[bold yellow]warning:[/] {escape(text)}")

    def error(self, text: str, *, hint: str | None = None) -> None:
        """Say what failed and what to do."""
        self._talk.print(f"[bold red]error:[/] {escape(text)}")
        if hint:
            self._talk.print(f"[bold cyan]hint:[/] {escape(hint)}")

    def table(self, title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
        """Show a table to people (stderr)."""
        if self.verbosity < 0:
            return
        from rich.table import Table

        table = Table(*columns, title=title, title_justify="left")
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        self._talk.print(table)

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Announce a step and, when it is done, how long it took."""
        started = time.monotonic()
        self.info(f"{title} …")
        yield
        self.info(f"{title}: done in {time.monotonic() - started:.1f} s")

    @property
    def on_terminal(self) -> bool:
        """Whether messages go to a terminal, where progress can be drawn, and are wanted."""
        return self.verbosity >= 0 and self._talk.is_terminal

    def steps(self, title: str) -> Steps:
        """A tree of steps that others do; on a terminal it moves, elsewhere each is a line."""
        from imgbuild.system.progress import Steps

        return Steps(title, self.info, self._talk if self.on_terminal else None)

    @contextlib.contextmanager
    def progress(self, title: str, total: int | None, *, unit: str = "bytes") -> Iterator[Bar]:
        """A bar on a terminal only. `unit`: "bytes", or the name of what is counted."""
        if not self.on_terminal:
            yield Bar(None, None)
            return
        with _bars(unit, self._talk) as progress:
            yield Bar(progress, progress.add_task(escape(title), total=total))


def _bars(unit: str, talk: Rich) -> Progress:
    from rich import progress

    counted = (
        [progress.DownloadColumn(), progress.TransferSpeedColumn()]
        if unit == "bytes"
        else [progress.TextColumn("{task.completed}/{task.total} " + escape(unit))]
    )
    return progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        *counted,
        progress.TimeElapsedColumn(),
        console=talk,
        transient=True,
    )


console = Console()
