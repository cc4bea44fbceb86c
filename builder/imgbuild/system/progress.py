"""Progress of several steps: a tree on a terminal, elsewhere a line for each that is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console as Rich
    from rich.console import RenderableType
    from rich.live import Live

SHOWN = 12  # running steps; more are only counted
REFRESH = 8  # times a second
REPORTED_FROM = 0.05  # seconds; shorter steps were cached


class _Step:
    """One running step."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.started = time.monotonic()
        self.done = self.total = 0  # bytes

    @property
    def amount(self) -> str:
        """How far it is, where that is known."""
        if self.total > 1 << 20:
            return f"{self.done / 1e6:.0f}/{self.total / 1e6:.0f} MB"
        return f"{self.done / 1e6:.0f} MB" if self.done > 1 << 20 else ""

    @property
    def seconds(self) -> float:
        """The seconds since its start."""
        return time.monotonic() - self.started


class Steps:
    """A tree of steps under `title`, as a context manager.

    `terminal` shows it; without one, `print_line` is called for each finished step.
    """

    def __init__(
        self, title: str, print_line: Callable[[str], None], terminal: Rich | None
    ) -> None:
        self._title = title
        self._print_line = print_line
        self._terminal = terminal
        self._live: Live | None = None
        self._running: dict[str, _Step] = {}
        self._done: set[str] = set()
        self._cached: set[str] = set()

    def __enter__(self) -> Self:
        if self._terminal is not None:
            from rich.live import Live

            self._live = Live(
                console=self._terminal,
                get_renderable=self._tree,
                refresh_per_second=REFRESH,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, key: str, name: str) -> None:
        """Report that a step has started; no change if it runs already."""
        if key not in self._running:
            self._running[key] = _Step(name)

    def move(self, key: str, done: int, total: int) -> None:
        """A running step has come so far, in bytes."""
        if (step := self._running.get(key)) is not None:
            step.done, step.total = done, total

    def end(self, key: str, name: str, *, cached: bool) -> None:
        """Report that a step is done; `cached` if it was skipped because its result was cached."""
        step = self._running.pop(key, None)
        self._done.add(key)
        if cached:
            self._cached.add(key)
        if self._live is None and step is not None and step.seconds > REPORTED_FROM:
            self._print_line(f"  {name}: {step.seconds:.1f} s")

    def _tree(self) -> RenderableType:
        from rich.markup import escape
        from rich.tree import Tree

        kept = f", {len(self._cached)} of them cached" if self._cached else ""
        tree = Tree(f"{escape(self._title)}: {len(self._done)} steps done{kept}")
        running = list(self._running.values())
        for step in running[:SHOWN]:
            words = " ".join(word for word in (f"{step.seconds:.0f} s", step.amount) if word)
            tree.add(f"[dim]{words}[/] {escape(step.name)}")
        if len(running) > SHOWN:
            tree.add(f"[dim]and {len(running) - SHOWN} more[/]")
        return tree
