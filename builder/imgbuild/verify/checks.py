"""Records the outcomes of the checks of `imgbuild verify`."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TypeVar

import msgspec

from imgbuild.errors import InputError, IntegrityError, LockStale
from imgbuild.registry.client import NotFound
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Arch, Digest

T = TypeVar("T")


class CheckOutcome(enum.StrEnum):
    """The outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    UNCHECKED = "not checked"


class ImageCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A check: its subject, its outcome, and the result or the reason why it was not made."""

    name: str
    arch: Arch | None = None
    outcome: CheckOutcome
    detail: str


class VerifiedImage(msgspec.Struct, frozen=True, kw_only=True):
    """The checks of an image. `ok` is whether at least one check passed and none failed."""

    reference: str
    digest: Digest | None
    target: str
    ok: bool
    checks: tuple[ImageCheck, ...]


class CheckFailed(Exception):
    """The image differs from the expected image."""


class CheckImpossible(Exception):
    """The check could not be made, which does not count as a failure."""


class SubjectMissing(CheckImpossible):
    """The subject of the check is missing, which is a failure only if an option requires the check.

    Anyone with write access to a registry can delete documents, so their absence proves nothing.
    """


class Checklist:
    """Runs checks and records their outcomes.

    If an option requires a check, the name of the option is recorded.
    """

    def __init__(self, reporter: Reporter = SILENT_REPORTER) -> None:
        self.reporter = reporter
        self.checks: list[ImageCheck] = []

    @property
    def ok(self) -> bool:
        """Whether at least one check passed and none failed."""
        outcomes = {check.outcome for check in self.checks}
        return CheckOutcome.PASSED in outcomes and CheckOutcome.FAILED not in outcomes

    def run(
        self, name: str, work: Callable[[], str], arch: Arch | None = None, *, option: str = ""
    ) -> bool:
        """Call `work`, and record its result or error. Returns whether the check passed."""
        detail = self.read(name, work, arch, option=option)
        if detail is not None:
            self._note(name, arch, CheckOutcome.PASSED, detail)
        return detail is not None

    def read(
        self, name: str, work: Callable[[], T], arch: Arch | None = None, *, option: str = ""
    ) -> T | None:
        """Return the result of `work`, or record its error and return None."""
        try:
            return work()
        except SubjectMissing as reason:
            outcome = CheckOutcome.FAILED if option else CheckOutcome.UNCHECKED
            more = f"; {option} requires this check" if option else ""
            self._note(name, arch, outcome, f"{reason}{more}")
        except CheckImpossible as reason:
            self._note(name, arch, CheckOutcome.UNCHECKED, str(reason))
        except CheckFailed as reason:
            self._note(name, arch, CheckOutcome.FAILED, str(reason))
        except InputError as error:  # a document of the image is invalid
            text = "; ".join([error.message, *map(str, error.problems)])
            self._note(name, arch, CheckOutcome.FAILED, text)
        except (IntegrityError, LockStale, NotFound) as error:
            self._note(name, arch, CheckOutcome.FAILED, error.message)
        return None

    def _note(self, name: str, arch: Arch | None, outcome: CheckOutcome, detail: str) -> None:
        self.checks.append(ImageCheck(name=name, arch=arch, outcome=outcome, detail=detail))
