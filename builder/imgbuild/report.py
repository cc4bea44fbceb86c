"""Findings: one shape for audit, smoke tests and doctor."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Literal

import msgspec

Tier = Literal["static", "cpu", "gpu", "multi-gpu"]  # of smoke tests, in the order of their needs
OUTCOMES = ("passed", "failed", "skipped")  # of a case


class Severity(enum.StrEnum):
    """How bad a finding is: an error fails the verb, a warning and a note do not."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Relation(enum.StrEnum):
    """How two packages clash, or what one of them lacks."""

    PACKAGE = "package"  # imports a package that nothing in the world provides
    MODULE = "module"  # imports a module that the other does not have
    NAME = "name"  # imports or reads a name that a module of the other does not have
    KEYWORD = "keyword"  # passes an argument that the other's callable does not take
    ARGUMENT = "argument"  # leaves out, or passes too many, positional arguments
    ATTRIBUTE = "attribute"  # reads an attribute that the other's class does not have
    REGISTERED = "registered"  # registers a name that the other has taken already
    SYMBOL = "symbol"  # links to a symbol that no library of the world defines
    LIBRARY = "library"  # links to a library that is not there
    ABI = "abi"  # compiled against another binary interface (numpy 1, another torch)
    CUDA = "cuda"  # of another CUDA release than the world
    WINDOW = "window"  # declares in its code which versions of the other it supports
    REQUIREMENT = "requirement"  # METADATA asks for something else
    RULE = "rule"  # a known failure of the rules file


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a finding rests on: a place in a file of one package, and what it clashes with.

    `subject` is what is missing or refused: "vllm.sampling_params:GuidedDecodingParams" for a
    name, "vllm.worker" for a module, "vllm.SamplingParams(best_of)" for a keyword,
    "vllm.AsyncEngineArgs.disable_log_requests" for an attribute, the mangled symbol, the SONAME,
    a requirement. `other` is empty where no package of the world is meant. `spec` says which
    versions of `other` would do, where the evidence itself tells (a window, a rule, a requirement).
    `symbols` are all that a shared object lacks, sorted, where it lacks several; the first finding
    of a file has them.
    """

    relation: Relation
    package: str
    version: str
    file: str = ""
    line: int = 0
    other: str = ""
    other_version: str = ""
    subject: str = ""
    spec: str = ""
    symbols: tuple[str, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One result: what was found, where, how bad it is, what to do.

    An error of an audit lies on the main path; in a corner the same is a note.
    """

    check: str
    severity: Severity
    message: str
    where: str = ""
    remedy: str = ""
    evidence: Evidence | None = None


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One test of a tier: how it ended and how long it took (seconds)."""

    name: str
    outcome: str  # "passed", "failed" or "skipped"
    seconds: float
    message: str = ""
    log: str = ""


def count(cases: Sequence[Case], outcome: str) -> int:
    """How many cases ended so."""
    return sum(case.outcome == outcome for case in cases)


def passed(cases: Sequence[Case]) -> bool:
    """No case failed, and at least one passed: a skip is never a pass."""
    return not count(cases, "failed") and count(cases, "passed") > 0


def counts(cases: Sequence[Case]) -> str:
    """How many cases ended in which way, in words."""
    return ", ".join(f"{count(cases, outcome)} {outcome}" for outcome in OUTCOMES)


class Floors(msgspec.Struct, frozen=True, kw_only=True):
    """The least that an image needs of its host.

    `driver` is the oldest that runs it at all; below `driver_full`, the one of the CUDA release,
    PTX is not compiled and newer functions are absent. `gpu` are compute capabilities ("9.0") that
    all libraries that everything needs have code for; for those in `gpu_ptx` some have only PTX,
    which the driver compiles at the first use. `glibc` is the newest version that a wheel's file
    asks for: a container brings its own, an installation from the same lock does not.
    """

    cuda: str
    driver: str = ""
    driver_full: str = ""
    gpu: tuple[str, ...] = ()
    gpu_ptx: tuple[str, ...] = ()
    glibc: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that a verb found out about one target on one architecture.

    `floors` are what the image needs of its host, where its shared objects were read.
    """

    target: str
    arch: str
    tier: str = ""
    floors: Floors | None = None
    findings: tuple[Finding, ...] = ()
    cases: tuple[Case, ...] = ()

    @property
    def ok(self) -> bool:
        """No error among the findings, no failed case, and something was checked."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings) and not any(
            case.outcome == "failed" for case in self.cases
        )
