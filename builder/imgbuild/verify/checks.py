"""The outcomes of the checks of `verify`: verified, failed, unchecked, lacking."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TypeVar

import msgspec

from imgbuild.errors import InputError, IntegrityError, LockStale
from imgbuild.registry.client import NotFound
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Arch, Digest

T = TypeVar("T")


class CheckOutcome(enum.StrEnum):
    """How a check came out."""

    PASSED = "passed"
    FAILED = "failed"
    UNCHECKED = "not checked"


class ImageCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One check: its subject, its outcome, and what was found or why it was not made."""

    name: str
    arch: Arch | None = None
    outcome: CheckOutcome
    detail: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """All that was checked of an image. `ok`: something passed, and nothing failed."""

    reference: str
    digest: Digest | None
    target: str
    ok: bool
    checks: tuple[ImageCheck, ...]


class Failed(Exception):
    """The image differs from what is expected."""


class Unchecked(Exception):
    """The check cannot be made here, which is not a failure."""


class Lacking(Unchecked):
    """What is to be checked is missing: a failure where an option asks for the check.

    Anyone who can write to a registry can also delete there, so that absence proves nothing.
    """


class Checklist:
    """Checks one after another.

    A check is requested by an option, whose name is recorded, or by none.
    """

    def __init__(self, reporter: Reporter = SILENT) -> None:
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
        """Note what `work` found, or what it raised; whether it passed."""
        detail = self.read(name, work, arch, option=option)
        if detail is not None:
            self._note(name, arch, CheckOutcome.PASSED, detail)
        return detail is not None

    def read(
        self, name: str, work: Callable[[], T], arch: Arch | None = None, *, option: str = ""
    ) -> T | None:
        """What `work` returns; None, and a note, if it raised what is wrong with the image."""
        try:
            return work()
        except Lacking as reason:
            outcome = CheckOutcome.FAILED if option else CheckOutcome.UNCHECKED
            more = f"; {option} requires this check" if option else ""
            self._note(name, arch, outcome, f"{reason}{more}")
        except Unchecked as reason:
            self._note(name, arch, CheckOutcome.UNCHECKED, str(reason))
        except Failed as reason:
            self._note(name, arch, CheckOutcome.FAILED, str(reason))
        except InputError as error:  # a document of the image is none
            text = "; ".join([error.message, *map(str, error.problems)])
            self._note(name, arch, CheckOutcome.FAILED, text)
        except (IntegrityError, LockStale, NotFound) as error:
            self._note(name, arch, CheckOutcome.FAILED, error.message)
        return None

    def _note(self, name: str, arch: Arch | None, outcome: CheckOutcome, detail: str) -> None:
        self.checks.append(ImageCheck(name=name, arch=arch, outcome=outcome, detail=detail))
