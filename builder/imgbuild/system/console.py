"""Writes results to stdout, and messages, progress bars and spinners to stderr.

`-q`, `-v`, `NO_COLOR`, `FORCE_COLOR` and dumb terminals are respected (the last three by rich).
rich is imported for the first message on a terminal. Messages that are not written to a terminal
are plain text.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from imgbuild.system.amounts import size_text, wrap_text
from imgbuild.system.control_characters import escape_control

if TYPE_CHECKING:
    from rich.console import Console as Rich
    from rich.progress import Progress, Task, TaskID


def escape_markup(text: str) -> str:
    """Escape control characters and rich markup in `text`."""
    from rich.markup import escape as escaped

    return escaped(escape_control(text))


class ConsoleBar:
    """A progress bar that counts bytes or items."""

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress = progress
        self._task = task

    def advance(self, amount: int) -> None:
        """Add `amount` to the completed amount."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, amount)

    def describe(self, text: str) -> None:
        """Replace the title of the bar."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=escape_markup(text))


class Console:
    """Writes results to stdout and messages to stderr.

    `verbosity` is -1 (quiet), 0, or 1 (with commands and cache hits).
    """

    def __init__(self) -> None:
        self.verbosity = 0
        self.json = False
        self._progress: Progress | None = None  # on the terminal, while there is a bar

    @cached_property
    def _terminal(self) -> Rich:
        from rich.console import Console as Rich

        return Rich(stderr=True, highlight=False, soft_wrap=True, emoji=False)

    def configure(self, *, verbosity: int, json: bool) -> None:
        """Set the verbosity, and whether results are printed as JSON."""
        self.verbosity = verbosity
        self.json = json

    def data(self, text: str) -> None:
        """Write `text` and a newline to stdout.

        Control characters are escaped only if stdout is a terminal.
        """
        if sys.stdout.isatty():
            text = escape_control(text)
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()

    def print_styled(self, lines: Iterable[Sequence[tuple[str, str]]]) -> None:
        """Write lines to a terminal. Each line is a sequence of pairs of a text and a rich style.

        Control characters are escaped. Without colours (NO_COLOR, TERM=dumb), the output is the
        same as that of `data`.
        """
        from rich.console import Console as Rich
        from rich.text import Text

        terminal = Rich(file=sys.stdout, highlight=False, soft_wrap=True, emoji=False)
        for line in lines:
            terminal.print(Text.assemble(*((escape_control(text), style) for text, style in line)))

    def info(self, text: str) -> None:
        """Print a message, unless `-q` is set."""
        if self.verbosity >= 0:
            self._message(text)

    def detail(self, text: str) -> None:
        """Print details if `-v` is set."""
        if self.verbosity >= 1:
            self._message(text, style="dim")

    def warn(self, text: str) -> None:
        """Print a warning, even if `-q` is set."""
        self._print_labelled("warning:", "bold yellow", text)

    def error(self, text: str, *, hint: str | None = None) -> None:
        """Print an error and its hint."""
        self._print_labelled("error:", "bold red", text)
        if hint:
            self._print_labelled("hint:", "bold cyan", hint)

    def _print_labelled(self, label: str, style: str, text: str) -> None:
        if _is_plain():
            self._message(f"{label} {text}")
            return
        fitted = self._fit_text(text, taken=len(label) + 1)
        self._terminal.print(f"[{style}]{label}[/] {fitted}")

    def _message(self, text: str, *, style: str | None = None) -> None:
        if _is_plain():
            sys.stderr.write(f"{escape_control(text).expandtabs()}\n")
            sys.stderr.flush()
        else:
            self._terminal.print(self._fit_text(text), style=style)

    def _fit_text(self, text: str, *, taken: int = 0) -> str:
        shown = escape_control(text)
        if self._terminal.file.isatty():
            shown = wrap_text(shown, self._terminal.width, taken=taken)
        return escape_markup(shown)

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Report the start of a step and, at the end, its duration."""
        started = time.monotonic()
        self.info(f"{title} …")
        yield
        self.info(f"{title}: done in {time.monotonic() - started:.1f} s")

    @property
    def on_terminal(self) -> bool:
        """Whether messages are enabled and stderr is a terminal, so that progress can be shown."""
        return self.verbosity >= 0 and not _is_plain() and self._terminal.is_terminal

    @contextlib.contextmanager
    def progress(
        self, title: str, total: int | None, *, unit: str = "bytes", done: int = 0
    ) -> Iterator[ConsoleBar]:
        """Show a progress bar if stderr is a terminal. `unit` is "bytes" or the name of the items.

        Only one bar is shown at a time: a nested bar replaces the outer bar until the nested bar
        ends.
        """
        if not self.on_terminal:
            yield ConsoleBar(None, None)
            return
        if self._progress is not None:
            with _nested_bar(self._progress, unit, title, total, done) as bar:
                yield bar
            return
        with _progress_columns(self._terminal) as progress:
            self._progress = progress
            try:
                with _nested_bar(progress, unit, title, total, done) as bar:
                    yield bar
            finally:
                self._progress = None


def _is_plain() -> bool:
    """Return whether stderr is not a terminal and no variable of rich forces terminal output."""
    named = os.environ.get("FORCE_COLOR") or os.environ.get("TTY_COMPATIBLE") == "1"
    return not (named or sys.stderr.isatty())


@contextlib.contextmanager
def _nested_bar(
    progress: Progress, unit: str, title: str, total: int | None, done: int
) -> Iterator[ConsoleBar]:
    hidden = [task.id for task in progress.tasks if task.visible]
    for task in hidden:
        progress.update(task, visible=False)
    shown = progress.add_task(escape_markup(title), total=total, completed=done, unit=unit)
    try:
        yield ConsoleBar(progress, shown)
    finally:
        progress.refresh()
        progress.remove_task(shown)
        for task in hidden:
            progress.update(task, visible=True)


def _progress_columns(terminal: Rich) -> Progress:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
    from rich.table import Column
    from rich.text import Text

    class AmountColumn(TextColumn):
        def render(self, task: Task) -> Text:
            return Text(amount_text(task), style="progress.download")

    class TimeColumn(TextColumn):
        def render(self, task: Task) -> Text:
            return Text(time_text(task), style="progress.elapsed")

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=12),
        AmountColumn(""),
        TimeColumn(""),
        console=terminal,
        transient=True,
    )


def amount_text(task: Task) -> str:
    """Format the progress of a task: "0.9 of 2.9 GB, 11.5 MB/s" or "12 of 80 packages read"."""
    done, total, unit = int(task.completed), task.total, task.fields["unit"]
    if unit != "bytes":
        return f"{done} {unit}" if total is None else f"{done} of {int(total)} {unit}"
    speed = f", {size_text(int(task.speed))}/s" if task.speed else ""
    if total is None:
        return size_text(done) + speed
    whole, named = size_text(int(total)).split()
    part = size_text(done).removesuffix(f" {named}")
    return f"{part} of {whole} {named}{speed}"


def time_text(task: Task) -> str:
    """Format the elapsed time of a task and, if known, the estimated remaining time.

    If a task has reached its total but has not ended, no estimate is shown.
    """
    elapsed = f"elapsed {_format_duration(task.elapsed or 0)}"
    if task.total is None or task.time_remaining is None or task.time_remaining < 1:
        return elapsed
    return f"{elapsed}, remaining {_format_duration(task.time_remaining)}"


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


console = Console()
