"""What BuildKit says while it builds, read line by line (`--progress=rawjson`).

Comes in: lines of JSON about vertexes, their parts and their logs, and plain words between them.
Goes out: steps on the console, and for a build that failed the step, its last lines and the cause.
"""

from __future__ import annotations

import base64
import binascii
import collections
import contextlib
import re

import msgspec

from imgbuild.system.console import console
from imgbuild.system.progress import Steps

LOG_LINES = 20  # of a step, kept for its error
WORDS_LINES = 20
NAME_LIMIT = 110
INTERNAL = "[internal]"


class _Vertex(msgspec.Struct, frozen=True):
    digest: str
    name: str = ""
    started: str = ""
    completed: str = ""
    cached: bool = False
    error: str = ""


class _Status(msgspec.Struct, frozen=True):
    vertex: str
    id: str = ""
    current: int = 0
    total: int = 0


class _Log(msgspec.Struct, frozen=True):
    vertex: str
    data: str = ""


class _Warning(msgspec.Struct, frozen=True):
    short: str = ""


class _Line(msgspec.Struct, frozen=True):
    vertexes: tuple[_Vertex, ...] | None = None
    statuses: tuple[_Status, ...] | None = None
    logs: tuple[_Log, ...] | None = None
    warnings: tuple[_Warning, ...] | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a build failed: the step (empty if none did), its last lines, what was said besides."""

    step: str
    error: str
    lines: tuple[str, ...]
    words: tuple[str, ...]


class Progress:
    """Reads the lines of one build and shows its steps."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._names: dict[str, str] = {}
        self._ended: set[str] = set()
        self._logs: dict[str, collections.deque[str]] = {}
        self._failed: _Vertex | None = None
        self._words: collections.deque[str] = collections.deque(maxlen=WORDS_LINES)

    def line(self, text: str) -> None:
        """One line of the builder's, whatever it is."""
        found = None
        if text.startswith("{"):
            with contextlib.suppress(msgspec.MsgspecError):
                found = msgspec.json.decode(text, type=_Line)
        if found is None:
            if text.strip():
                self._words.append(text)
                console.detail(text)
            return
        for vertex in found.vertexes or ():
            self._vertex(vertex)
        for status in found.statuses or ():
            self._steps.move(status.vertex, status.id, status.current, status.total)
        for log in found.logs or ():
            self._log(log)
        for warning in found.warnings or ():
            with contextlib.suppress(binascii.Error):
                console.detail(_text(warning.short).strip())

    def failure(self) -> Failure:
        """What is known of a build that failed."""
        failed = self._failed
        return Failure(
            step=self._names.get(failed.digest, "") if failed else "",
            error=failed.error if failed else "",
            lines=tuple(self._logs.get(failed.digest, ())) if failed else (),
            words=tuple(self._words),
        )

    def _vertex(self, vertex: _Vertex) -> None:
        name = self._names.setdefault(vertex.digest, short(vertex.name))
        if vertex.error:
            # What is cancelled because another step failed says so in these words.
            if self._failed is None or "context canceled" in self._failed.error:
                self._failed = vertex
        elif vertex.completed:
            if vertex.digest not in self._ended and not name.startswith(INTERNAL):
                self._ended.add(vertex.digest)
                self._steps.end(vertex.digest, name, cached=vertex.cached)
        elif vertex.started and not name.startswith(INTERNAL):
            self._ended.discard(vertex.digest)
            self._steps.begin(vertex.digest, name)

    def _log(self, log: _Log) -> None:
        kept = self._logs.setdefault(log.vertex, collections.deque(maxlen=LOG_LINES))
        with contextlib.suppress(binascii.Error):
            for line in _text(log.data).splitlines():
                kept.append(line)
                console.detail(f"  {self._names.get(log.vertex, '')}: {line}")


def short(name: str) -> str:
    """The name of a step on one line: what mounts it has is in the Dockerfile."""
    words = " ".join(re.sub(r"--mount=\S+\s+", "", name).split())
    return words if len(words) <= NAME_LIMIT else f"{words[: NAME_LIMIT - 1]}…"


def _text(data: str) -> str:
    return base64.b64decode(data).decode(errors="replace")
