"""Compares the audit of a package set with Python's results, and prints a table."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from imgbuild.report import ConflictRelation, Evidence, Finding, Severity

# A CPU has no driver: these are not failures of a set.
NO_GPU = re.compile(
    r"libcuda\.so|libnvidia-ml|NVIDIA driver|no NVIDIA GPU|No CUDA GPUs|CUDA driver"
    r"|not compiled with CUDA|CUDA is (?:not|required)|libcud\w+\.so|libnv\w+\.so|libnccl"
    r"|no (?:active|supported) (?:driver|gpu)|0 active drivers",
    re.IGNORECASE,
)
METADATA = "metadata"
# These cannot be verified on a CPU.
UNTESTABLE = ("cuda", "rules")
NOT_AUDITED = "not audited yet"
UNKNOWN = "unknown"  # of a fact: Python was not run, or gave no result


class Verdict(enum.StrEnum):
    """The result of a comparison of the audit of one set with Python."""

    TRUE = "true"  # an error names the failed import
    MISS = "miss"  # something failed, and no error but METADATA's names it
    HEALTHY = "healthy"  # nothing failed, no error
    FALSE_ALARM = "false alarm"  # nothing failed, an error
    LATENT = "latent"  # nothing failed; what the error says is missing is missing
    UNANSWERED = "unanswered"  # the audit ended without an answer


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A module or name of a set that Python could not import or read.

    `trace` contains the files and lines of the traceback inside the set, outermost first.
    """

    package: str
    name: str
    error: str
    trace: tuple[str, ...] = ()

    @property
    def needs_gpu(self) -> bool:
        """Whether the failure occurs on every machine without a GPU."""
        return NO_GPU.search(self.error) is not None


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """An error from the audit, and whether Python confirms it.

    `fact` is "fails" if the module in the error cannot be imported, "holds" if it can be imported
    but the reported object is missing, "refuted" if the object exists, and otherwise "unknown".
    """

    finding: Finding
    fact: str = UNKNOWN


class SetResult(msgspec.Struct, frozen=True, kw_only=True):
    """An installed set, with failures in Python, unmet requirements and errors from the audit.

    `audited` is empty if the audit succeeded. Otherwise, it is the audit's last output.
    """

    imported: tuple[str, ...]
    failures: tuple[Failure, ...]
    unmet: tuple[str, ...]
    alarms: tuple[Alarm, ...]
    audited: str = ""
    audit_seconds: float = 0.0

    @property
    def fails(self) -> bool:
        """Whether Python fails for a reason other than a missing GPU."""
        return any(not failure.needs_gpu for failure in self.failures)

    @property
    def errors(self) -> tuple[Alarm, ...]:
        """The alarms from checks that read code or libraries."""
        return tuple(alarm for alarm in self.alarms if alarm.finding.check != METADATA)


# Sets to audit again.
CHOICES: dict[str, Callable[[SetResult], bool]] = {
    "all": lambda _: True,
    "broken": lambda result: result.fails,
    "unaudited": lambda result: result.audited == NOT_AUDITED,
}


def set_verdict(result: SetResult, package: str) -> Verdict:
    """Return the verdict of a set in which the version of `package` was forced."""
    if result.audited:
        return Verdict.UNANSWERED
    tested = [alarm for alarm in result.errors if alarm.finding.check not in UNTESTABLE]
    if result.fails:
        seen = any(explains_failure(alarm, result.failures, package) for alarm in result.errors)
        return Verdict.TRUE if seen else Verdict.MISS
    if not tested:
        return Verdict.HEALTHY
    if all(alarm.fact in ("fails", "holds") for alarm in tested):
        return Verdict.LATENT
    return Verdict.FALSE_ALARM


def explains_failure(alarm: Alarm, failures: Iterable[Failure], package: str) -> bool:
    """Return whether an error is about one of `failures`, judged by its file or its packages.

    An error also explains a failure in a file of its first package if the message contains both
    packages.
    """
    evidence = alarm.finding.evidence
    if evidence is None:
        return False
    files = {place.rpartition(":")[0] for failure in failures for place in failure.trace}
    if evidence.file and evidence.file in files:
        return True
    if alarm.fact != "refuted" and any(_names_both(evidence, failure) for failure in failures):
        return True
    named = {evidence.package, evidence.other}
    failing = {failure.package for failure in failures}
    return package in named and bool(failing & named) and alarm.fact != "refuted"


def _names_both(evidence: Evidence, failure: Failure) -> bool:
    """Return whether a failure is in a file of the first package, and names both packages."""
    names = {name.replace("-", "_") for name in (evidence.package, evidence.other)}
    words = set(re.findall(r"\w+", failure.error.replace("-", "_").lower()))
    folder = evidence.package.replace("-", "_")
    inside = any(place.startswith(f"{folder}/") for place in failure.trace)
    return "" not in names and names <= words and inside


def same_reason(result: SetResult, package: str) -> bool:
    """Return whether the error that explains a failure has the same cause as the failure.

    The causes are the same if the error contains a file of the traceback or the missing name.
    """
    return any(
        _is_named(alarm, failure)
        for alarm in result.errors
        for failure in result.failures
        if not failure.needs_gpu and explains_failure(alarm, [failure], package)
    )


def _is_named(alarm: Alarm, failure: Failure) -> bool:
    evidence = alarm.finding.evidence
    if evidence is None:
        return False
    if evidence.file in {place.rpartition(":")[0] for place in failure.trace}:
        return True
    if _names_both(evidence, failure):
        return True
    if evidence.relation in (ConflictRelation.WINDOW, ConflictRelation.ABI):
        name = evidence.other.replace("-", "_")
    else:
        name = next(iter(re.findall(r"\w+", evidence.subject)[-1:]), "")
    return bool(name) and name in re.findall(r"\w+", failure.error.replace("-", "_"))


def metadata_verdict(result: SetResult) -> Verdict:
    """Return the verdict that is based only on the requirements in the installed METADATA."""
    evidence = [
        alarm.finding.evidence for alarm in result.alarms if alarm.finding.check == METADATA
    ]
    reported = {
        claim.package
        for claim in evidence
        if claim is not None
        and claim.relation in (ConflictRelation.REQUIREMENT, ConflictRelation.PACKAGE)
    }
    unmet = {line.partition(":")[0] for line in result.unmet}
    if result.audited:
        return Verdict.UNANSWERED
    if unmet - reported:
        return Verdict.MISS
    if reported - unmet:
        return Verdict.FALSE_ALARM
    return Verdict.TRUE if unmet else Verdict.HEALTHY


def module_of_file(file: str) -> str:
    """Return the module name of a Python file in a wheel, or "" for other files."""
    if not file.endswith(".py"):
        return ""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def audit_errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the errors among `findings`."""
    return tuple(finding for finding in findings if finding.severity is Severity.ERROR)


def wilson_interval(hits: int, total: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share, or 0 to 1 if `total` is 0."""
    if not total:
        return 0.0, 1.0
    z, share = 1.959964, hits / total
    middle = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def format_share(hits: int, total: int) -> str:
    """Return a share as a cell of a table, such as "5 of 13: 38 % (18 to 64)"."""
    if not total:
        return "0 of 0"
    low, high = wilson_interval(hits, total)
    return f"{hits} of {total}: {hits / total:.0%} ({low:.0%} to {high:.0%})".replace("%", " %")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts on both sets of one seed, whose control can be imported."""

    seed: int
    fails: bool
    metadata_clean: bool
    forced: Verdict
    control: Verdict
    forced_metadata: Verdict
    control_metadata: Verdict
    metadata_said: bool
    same_reason: bool


Half = Callable[[Row], bool]


def verdict_table(rows: Sequence[Row]) -> list[str]:
    """Return the Markdown table of `rows`."""
    halves: list[tuple[str, Half]] = [
        ("development (even seeds)", lambda row: row.seed % 2 == 0),
        ("held out (odd seeds)", lambda row: row.seed % 2 == 1),
        ("all", lambda _: True),
    ]
    columns = [_column([row for row in rows if half(row)]) for _, half in halves]
    lines = [
        "| | " + " | ".join(title for title, _ in halves) + " |",
        "| --- |" + " ---: |" * len(halves),
    ]
    lines += [
        f"| {name} | " + " | ".join(column[name] for column in columns) + " |"
        for name in columns[0]
    ]
    return lines


def _column(rows: Sequence[Row]) -> dict[str, str]:
    failing = [row for row in rows if row.fails]
    answered = [row for row in failing if row.forced is not Verdict.UNANSWERED]
    hidden = [row for row in answered if row.metadata_clean]
    healthy = [row.control for row in rows]
    healthy += [row.forced for row in rows if not row.fails]
    healthy = [outcome for outcome in healthy if outcome is not Verdict.UNANSWERED]
    stated = [outcome for row in rows for outcome in (row.control_metadata, row.forced_metadata)]
    unmet = [outcome for outcome in stated if outcome in (Verdict.TRUE, Verdict.MISS)]
    met = [outcome for outcome in stated if outcome in (Verdict.HEALTHY, Verdict.FALSE_ALARM)]
    seen = [row for row in answered if row.forced is Verdict.TRUE]
    return {
        "audited draws": str(len(rows)),
        "sets": str(len(rows) * 2),
        "that fail": str(len(failing)),
        "not answered": str(sum(Verdict.UNANSWERED in (row.control, row.forced) for row in rows)),
        "failures seen by code or libraries": format_share(len(seen), len(answered)),
        "of these, for Python's reason": format_share(
            sum(row.same_reason for row in seen), len(seen)
        ),
        "failures seen by these or METADATA": format_share(
            sum(row.forced is Verdict.TRUE or row.metadata_said for row in answered),
            len(answered),
        ),
        "failures that METADATA allows, seen": format_share(
            sum(row.forced is Verdict.TRUE for row in hidden), len(hidden)
        ),
        "healthy sets with a false alarm": format_share(
            healthy.count(Verdict.FALSE_ALARM), len(healthy)
        ),
        "healthy sets with an error whose fact holds": format_share(
            healthy.count(Verdict.LATENT), len(healthy)
        ),
        "sets with unmet METADATA, seen": format_share(unmet.count(Verdict.TRUE), len(unmet)),
        "sets with met METADATA, refused": format_share(met.count(Verdict.FALSE_ALARM), len(met)),
    }
