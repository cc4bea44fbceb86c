"""Every error that a user can meet: its text, its remedy, and the exit code of its class.

Comes in: what went wrong. Goes out: an exception that only the command line's entry point catches.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with an input: where it stands, what stands there, what should."""

    file: str
    message: str
    line: int | None = None
    column: int | None = None
    path: str | None = None
    value: str | None = None
    expected: str | None = None
    nearest: str | None = None

    def __str__(self) -> str:
        place = ":".join(
            str(part) for part in (self.file, self.line, self.column) if part is not None
        )
        text = f"{place}: {self.path}: {self.message}" if self.path else f"{place}: {self.message}"
        if self.value is not None:
            text += f" (found {self.value})"
        if self.expected is not None:
            text += f"; expected {self.expected}"
        if self.nearest is not None:
            text += f"; did you mean {self.nearest}?"
        return text


class ImgbuildError(Exception):
    """What users see: a message, a hint that says what to do, and an exit code by class."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class WorkFailed(ImgbuildError):
    """The work itself failed: a build, a smoke test, an engine that refused."""

    exit_code = 1


class InputError(ImgbuildError):
    """A file or a flag is wrong. Carries every problem that was found, not just the first."""

    exit_code = 2

    def __init__(
        self, message: str, *, problems: tuple[Problem, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems


class NothingSelected(ImgbuildError):
    """No target has that name, or no architecture of it is left."""

    exit_code = 3


class AuditFailed(ImgbuildError):
    """An audit found an error: parts of a world that cannot work together."""

    exit_code = 4


class LockStale(ImgbuildError):
    """A lock is missing, was made by another format, or no longer follows from the matrix."""

    exit_code = 5


class ToolMissing(ImgbuildError):
    """A program that imgbuild needs for this verb is absent or too old."""

    exit_code = 6


class FetchFailed(ImgbuildError):
    """A download or an upload failed: no route, no such file, no permission."""

    exit_code = 7


class WorldImpossible(ImgbuildError):
    """No set of packages satisfies the target: the chain of reasons, the nearest worlds."""

    exit_code = 8

    def __init__(
        self,
        message: str,
        *,
        reasons: tuple[str, ...] = (),
        nearest: tuple[str, ...] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.reasons = reasons
        self.nearest = nearest


class IntegrityError(ImgbuildError):
    """A file is not what its hash, its own directory or the lock says, or is unsafe to unpack."""

    exit_code = 9


class Interrupted(ImgbuildError):
    """The user stopped the work; what was finished is kept."""

    exit_code = 130


class SomeFailed(WorkFailed):
    """Of several targets some failed: what each said, and their exit code if they share one."""

    def __init__(self, failed: Mapping[str, ImgbuildError]) -> None:
        codes = {error.exit_code for error in failed.values()}
        lines = "".join(f"\n  {name}: {error.message}" for name, error in failed.items())
        super().__init__(
            f"{len(failed)} targets failed:{lines}", hint="the others are done; name one to see why"
        )
        self.exit_code = codes.pop() if len(codes) == 1 else 1
        self.failed = dict(failed)
