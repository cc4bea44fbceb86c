"""Defines the errors that users see, with a message, a hint, and an exit code for each class.

Only `cli.main` catches errors; it prints the error and exits. A `ControlSignal` is not an error.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class InputProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem in an input file: the place, the value, and the expected value.

    `line` and `column` start at 1. `path` is a key such as "targets.cu124.python". `nearest` is the
    valid value that is most similar to `value`. `source` is the text of the line.
    """

    file: str
    message: str
    line: int | None = None
    column: int | None = None
    path: str | None = None
    value: str | None = None
    expected: str | None = None
    nearest: str | None = None
    source: str | None = None

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


class ControlSignal(Exception):
    """The base class of exceptions that tell callers to stop or to retry. Users never see them."""


class ImgbuildError(Exception):
    """The base class of errors. `message` has the file, place and value. `hint` is the remedy."""

    exit_code = 1
    log = ""  # the output of a build that failed

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class WorkFailed(ImgbuildError):
    """A build or a smoke test failed, or a container engine returned an error."""

    exit_code = 1


class InputError(ImgbuildError):
    """A file or an option is invalid. `problems` lists all errors that were found in the file."""

    exit_code = 2

    def __init__(
        self, message: str, *, problems: tuple[InputProblem, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems


class NothingSelected(ImgbuildError):
    """No target or architecture matches the request."""

    exit_code = 3


class AuditFailed(ImgbuildError):
    """Packages of a set cannot work together, or have known vulnerabilities."""

    exit_code = 4


class LockStale(ImgbuildError):
    """A lock is missing, has a different format, or is out of date with the matrix."""

    exit_code = 5


class ToolMissing(ImgbuildError):
    """A required program is missing or too old."""

    exit_code = 6


class FetchFailed(ImgbuildError):
    """A download or an upload failed, for example without a connection or a permission."""

    exit_code = 7


class NoSolution(ImgbuildError):
    """No package set satisfies the target.

    `reasons` explains the conflict in lines. `nearest` lists similar requests with a solution.
    `cuda` is the CUDA release on which the same request has a solution, if one is known.
    """

    exit_code = 8

    def __init__(
        self,
        message: str,
        *,
        reasons: tuple[str, ...] = (),
        nearest: tuple[str, ...] = (),
        cuda: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.reasons = reasons
        self.nearest = nearest
        self.cuda = cuda


class ImpossibleRequirements(NoSolution):
    """No file in the index satisfies some requirements. `reasons` lists them with their places."""


class IntegrityError(ImgbuildError):
    """A file does not match its hash or the lock, is damaged, or is unsafe to unpack."""

    exit_code = 9


class FilesDisagree(IntegrityError):
    """Packages of one image have the same path with different contents."""


class Interrupted(ImgbuildError):
    """The user interrupted the work. Completed work is kept."""

    exit_code = 130


class Terminated(ImgbuildError):
    """SIGTERM, or SIGHUP (status 129), ended the work. Completed work is kept."""

    exit_code = 143


class SomeFailed(WorkFailed):
    """Several targets failed. The exit code is their common exit code, or 1 if they differ."""

    def __init__(self, failed: Mapping[str, ImgbuildError]) -> None:
        codes = {error.exit_code for error in failed.values()}
        lines = "".join(f"\n  {name}: {error.message}" for name, error in failed.items())
        super().__init__(
            f"{len(failed)} target{'' if len(failed) == 1 else 's'} failed:{lines}",
            hint="the other targets are complete; to see the full error of a failed target, run "
            "the command for this target only",
        )
        self.exit_code = codes.pop() if len(codes) == 1 else 1
        self.failed = dict(failed)
