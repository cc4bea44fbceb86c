"""Defines findings, test cases and reports, which audit, smoke tests and doctor share."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

TierName = Literal[
    "static", "cpu", "gpu", "multi-gpu"
]  # of smoke tests; each needs more than the last
OUTCOMES = ("passed", "failed", "skipped")  # of a test case


class Severity(enum.StrEnum):
    """The severity of a finding. Only errors make a command fail."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class ConflictRelation(enum.StrEnum):
    """The type of a conflict: incompatible packages, or an item that a package lacks."""

    PACKAGE = "package"  # imports a package that is not in the package set
    MODULE = "module"  # imports a module that the other does not have
    NAME = "name"  # imports or reads a name that a module of the other does not have
    KEYWORD = "keyword"  # passes a keyword argument that the other's callable does not accept
    ARGUMENT = "argument"  # passes too few or too many positional arguments
    ATTRIBUTE = "attribute"  # reads an attribute that the other's class does not have
    SUBSCRIPT = "subscript"  # subscripts a class that is not subscriptable in this Python
    REGISTERED = "registered"  # registers a name that the other has registered already
    RESULT = "result"  # unpacks a result of the other's function into a wrong number of names
    VALUE = "value"  # passes a string that the other's callable does not accept
    ANNOTATION = "annotation"  # passes a string that the annotation of a parameter does not list
    SYMBOL = "symbol"  # links to a symbol that no library of the package set defines
    LIBRARY = "library"  # links to a library that is missing
    ABI = "abi"  # compiled against a different binary interface (numpy 1, an older torch)
    CUDA = "cuda"  # built for a different CUDA release than the package set's
    WINDOW = "window"  # declares in its code which versions of the other it supports
    REQUIREMENT = "requirement"  # its METADATA requires a different version
    RULE = "rule"  # a known failure of the rules file


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The evidence for a finding: a place in a file of a package, and the conflicting item.

    `subject` is the missing or rejected item: "vllm.sampling_params:GuidedDecodingParams" for a
    name, "vllm.worker" for a module, "vllm.SamplingParams(best_of)" for a keyword,
    "vllm.AsyncEngineArgs.disable_log_requests" for an attribute, or a mangled symbol, a SONAME or a
    requirement. `other` is empty if no other package of the set is involved. `spec` is the
    specifier of compatible versions of `other`, if the evidence contains it (a window, a rule or a
    requirement). `symbols` lists all undefined symbols of a shared object, sorted, if there are
    several, in the first finding of the file. For code that runs only after earlier imports from
    `other` failed, `preferred` lists the subjects of each import; a version that has all subjects
    of one import is also compatible.
    """

    relation: ConflictRelation
    package: str
    version: str
    file: str = ""
    line: int = 0
    other: str = ""
    other_version: str = ""
    subject: str = ""
    spec: str = ""
    symbols: tuple[str, ...] = ()
    preferred: tuple[tuple[str, ...], ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A result of a check: the problem, its place, the severity, and the remedy.

    In an audit, findings outside the main path are notes, not errors.
    """

    check: str
    severity: Severity
    message: str
    where: str = ""
    remedy: str = ""
    evidence: Evidence | None = None


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a smoke test. `seconds` is the duration.

    `notes` has log lines about packages that run without an optional part.
    """

    name: str
    outcome: str  # "passed", "failed" or "skipped"
    seconds: float
    message: str = ""
    log: str = ""
    notes: tuple[str, ...] = ()


def count_cases(cases: Sequence[CaseResult], outcome: str) -> int:
    """Return the number of `cases` with this outcome."""
    return sum(case.outcome == outcome for case in cases)


def has_passed(cases: Sequence[CaseResult]) -> bool:
    """Whether no case failed, and at least one case passed."""
    return not count_cases(cases, "failed") and count_cases(cases, "passed") > 0


def case_counts(cases: Sequence[CaseResult]) -> str:
    """Return the number of cases by outcome, such as "3 passed, 0 failed, 1 skipped"."""
    return ", ".join(f"{count_cases(cases, outcome)} {outcome}" for outcome in OUTCOMES)


ReleaseText = Annotated[
    str,
    msgspec.Meta(pattern=r"^[0-9A-Za-z.]*\Z", description='version numbers such as "550.54.14"'),
]


class Floors(msgspec.Struct, frozen=True, kw_only=True):
    """The minimum requirements of an image on the host.

    `driver` is the oldest NVIDIA driver that can run the image. `driver_full` is the driver of the
    CUDA release; older drivers do not compile PTX and lack newer functions. `gpu` lists the compute
    capabilities ("9.0") that all required libraries have code for. For compute capabilities in
    `gpu_ptx`, some libraries have only PTX, which the driver compiles at first use. `glibc` is the
    newest glibc version that a wheel requires; it is relevant only without a container.
    """

    cuda: ReleaseText
    driver: ReleaseText = ""
    driver_full: ReleaseText = ""
    gpu: tuple[ReleaseText, ...] = ()
    gpu_ptx: tuple[ReleaseText, ...] = ()
    glibc: ReleaseText = ""


class UncheckedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part that an audit did not check: a package (name==version), or a part of each package.

    If `required` is set, the user requested this part, and the audit fails because it was not
    checked.
    """

    what: str
    why: str
    required: bool = False


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The findings and test cases for one target on one architecture.

    `floors` are the requirements on the host, if shared objects were read. `unread` lists the parts
    that an audit did not check.
    """

    target: str
    arch: str
    tier: str = ""
    floors: Floors | None = None
    findings: tuple[Finding, ...] = ()
    cases: tuple[CaseResult, ...] = ()
    unread: tuple[UncheckedPart, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no finding is an error, no case failed, and all required parts were checked."""
        return not (
            any(finding.severity is Severity.ERROR for finding in self.findings)
            or any(case.outcome == "failed" for case in self.cases)
            or any(one.required for one in self.unread)
        )
