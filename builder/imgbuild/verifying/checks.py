"""What was checked of an image, and how it came out.

Comes in: pieces of work that find something out. Goes out: `Check`s, in the order in which they
were made: passed, failed, or not checked and why.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TypeVar

import msgspec

from imgbuild.errors import InputError, IntegrityError, LockStale
from imgbuild.fetch_http import Refused
from imgbuild.registry.client import NotFound
from imgbuild.values import Arch, Digest

T = TypeVar("T")


class Outcome(enum.StrEnum):
    """How a check came out."""

    PASSED = "passed"
    FAILED = "failed"
    UNCHECKED = "not checked"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check: what of the image, and what was found, or why it was not looked at."""

    name: str
    arch: Arch | None = None
    outcome: Outcome
    detail: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """All that was checked of an image. `ok`: nothing failed."""

    reference: str
    digest: Digest | None
    target: str
    ok: bool
    checks: tuple[Check, ...]


class Failed(Exception):
    """The image is not what it should be."""


class Unchecked(Exception):
    """This cannot be checked here, which is nobody's fault."""


class Checklist:
    """Checks one after another."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    @property
    def ok(self) -> bool:
        """No check failed."""
        return all(check.outcome is not Outcome.FAILED for check in self.checks)

    def run(self, name: str, work: Callable[[], str], arch: Arch | None = None) -> bool:
        """Note what `work` found, or what it raised; whether it passed."""
        detail = self.read(name, work, arch)
        if detail is not None:
            self._note(name, arch, Outcome.PASSED, detail)
        return detail is not None

    def read(self, name: str, work: Callable[[], T], arch: Arch | None = None) -> T | None:
        """What `work` returns; None, and a note, if it raised what is wrong with the image."""
        try:
            return work()
        except Unchecked as reason:
            self._note(name, arch, Outcome.UNCHECKED, str(reason))
        except Failed as reason:
            self._note(name, arch, Outcome.FAILED, str(reason))
        except InputError as error:  # a document of the image is none
            text = "; ".join([error.message, *map(str, error.problems)])
            self._note(name, arch, Outcome.FAILED, text)
        except (IntegrityError, LockStale, NotFound) as error:
            self._note(name, arch, Outcome.FAILED, error.message)
        except Refused as error:  # named by a document, and not there
            if error.status != 404:
                raise
            self._note(name, arch, Outcome.FAILED, error.message)
        return None

    def _note(self, name: str, arch: Arch | None, outcome: Outcome, detail: str) -> None:
        self.checks.append(Check(name=name, arch=arch, outcome=outcome, detail=detail))
