"""The interface of progress and warnings: stages report through it, and print nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol


class ProgressBar(Protocol):
    """One line of progress, counted in bytes or in items."""

    def advance(self, amount: int) -> None:
        """Add `amount` to what is done."""

    def describe(self, text: str) -> None:
        """Replace the text in front of the bar."""


class Reporter(Protocol):
    """What a stage may report. `system.console.Console` shows it on a terminal."""

    def info(self, text: str) -> None:
        """Report what happens."""

    def detail(self, text: str) -> None:
        """Report what only `-v` shows."""

    def warn(self, text: str) -> None:
        """Report what the user should look at, though the work goes on."""

    def error(self, text: str, *, hint: str | None = None) -> None:
        """Report that one of several pieces of work failed, and what to do about it."""

    def step(self, title: str) -> AbstractContextManager[None]:
        """Report the start of a step and, at its end, how long it took."""

    def progress(
        self, title: str, total: int | None, *, unit: str = "bytes", done: int = 0
    ) -> AbstractContextManager[ProgressBar]:
        """A bar from `done` to `total`. `unit` is "bytes" or the name of what is counted."""


class Silent:
    """A reporter that reports nothing: for library use and tests."""

    def info(self, text: str) -> None:
        """Ignore `text`."""

    def detail(self, text: str) -> None:
        """Ignore `text`."""

    def warn(self, text: str) -> None:
        """Ignore `text`."""

    def error(self, text: str, *, hint: str | None = None) -> None:
        """Ignore `text` and `hint`."""

    def advance(self, amount: int) -> None:
        """Ignore `amount`."""

    def describe(self, text: str) -> None:
        """Ignore `text`."""

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Ignore `title`."""
        yield

    @contextlib.contextmanager
    def progress(
        self, title: str, total: int | None, *, unit: str = "bytes", done: int = 0
    ) -> Iterator[ProgressBar]:
        """Ignore all of it."""
        yield self


SILENT: Reporter = Silent()
