"""Defines the interface with which stages report progress and warnings instead of printing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol


class ProgressBar(Protocol):
    """A progress bar that counts bytes or items."""

    def advance(self, amount: int) -> None:
        """Add `amount` to the completed amount."""

    def describe(self, text: str) -> None:
        """Replace the title of the bar."""


class Reporter(Protocol):
    """Receives the messages of a stage. `system.console.Console` prints the messages."""

    def info(self, text: str) -> None:
        """Report a step of the work."""

    def detail(self, text: str) -> None:
        """Report a detail. It is only shown with `-v`."""

    def warn(self, text: str) -> None:
        """Report a problem that does not stop the work."""

    def error(self, text: str, *, hint: str | None = None) -> None:
        """Report the failure of one of several operations, with a hint."""

    def step(self, title: str) -> AbstractContextManager[None]:
        """Report the start of a step and, at the end, its duration."""

    def progress(
        self, title: str, total: int | None, *, unit: str = "bytes", done: int = 0
    ) -> AbstractContextManager[ProgressBar]:
        """Show a progress bar from `done` to `total`.

        `unit` is "bytes" or the name of the items.
        """


class SilentReporter:
    """A reporter without output, for tests and for programs that use imgbuild as a library."""

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
        """Ignore all arguments."""
        yield self


SILENT_REPORTER: Reporter = SilentReporter()
