"""Formats the test records of an image as a table of cases by GPU and tier."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence

import msgspec

from imgbuild.report import TierName
from imgbuild.smoke.records import CASES, TIERS, RecordedRun
from imgbuild.smoke.result import CaseMessage
from imgbuild.system import decoding, files
from imgbuild.system.amounts import format_count

HEAD = ("GPU", "tier", "passed", "failed", "skipped", "min", "driver", "date", "in")
NUMBERS = frozenset({2, 3, 4, 5})
NO_GPU = "none"
IMPORT = "import "  # how the names of cases begin that import a package
REASON = 160  # characters of a reason, of a case that was skipped


class SkippedCases(msgspec.Struct, frozen=True, kw_only=True):
    """The skipped cases with the same reason. `cases` are joined by semicolons.

    `known` is set for a known limitation, which is a failure that allowed.json accepts. Other
    reasons are cut after REASON characters, without the errors of failed imports.
    """

    cases: str
    reason: str
    known: bool = False


class _AcceptedCase(msgspec.Struct, frozen=True):
    name: str
    reason: str


class _AcceptedFailures(msgspec.Struct, frozen=True):
    cases: tuple[_AcceptedCase, ...]


def run_rows(runs: Sequence[RecordedRun]) -> list[tuple[str, ...]]:
    """Return a header and a row for each run, by GPU (runs without a GPU first) and tier."""
    ordered = sorted(runs, key=lambda run: (_gpus(run) != NO_GPU, _gpus(run), _tier(run)))
    return [
        HEAD,
        *(
            (
                run.gpu_models or NO_GPU,
                run.tier,
                str(run.passed),
                str(run.failed),
                str(run.skipped),
                f"{run.seconds / 60:.1f}",
                run.driver or "-",
                run.started[:10],
                run.through,
            )
            for run in ordered
        ),
    ]


def skipped_cases(runs: Sequence[RecordedRun]) -> Iterator[str]:
    """Lines with the skipped cases of each run by reason, or with the number of cases."""
    for run in sorted(runs, key=_tier):
        title = f"skipped, {run.tier}{f' on {_gpus(run)}' if run.gpu else ''}: {run.skipped}"
        if run.skipped and not run.skips:
            yield f"{title}; the record has no case names"
            continue
        if run.skips:
            yield title
        for group in skip_groups(run):
            known = "known limitation: " if group.known else ""
            yield f"  {known}{group.cases}: {group.reason}"


def passed_cases(runs: Sequence[RecordedRun]) -> Iterator[str]:
    """Lines with the passed cases of each run, or the current cases that it can have passed."""
    for run in sorted(runs, key=_tier):
        title = f"passed, {run.tier}{f' on {_gpus(run)}' if run.gpu else ''}: {run.passed}"
        if run.passes:
            yield from (title, f"  {'; '.join(run.passes)}")
        elif run.passed:
            yield f"{title}, without names in the record; current cases that did not fail or skip:"
            yield f"  {'; '.join(_other_cases(run))}"


def _other_cases(run: RecordedRun) -> Iterator[str]:
    """Yield the current cases of the tier that the run did not record as failed or skipped."""
    recorded = {each.case for each in (*run.further, *run.skips)}
    recorded |= {run.first.case} if run.first else set()
    return (name for name in case_names()[run.tier] if name not in recorded)


def skip_groups(run: RecordedRun) -> list[SkippedCases]:
    """Group the skipped cases of a run by reason, with known limitations first."""
    reasons: dict[tuple[bool, str], list[str]] = {}
    for each in run.skips:
        known = _is_known(each)
        _, _, reason = each.message.partition("; ")  # modules and error; why it is so
        if not (each.case.startswith(IMPORT) and reason):
            reason = each.message
        cut = reason if known or len(reason) <= REASON else f"{reason[:REASON]}…"
        reasons.setdefault((not known, cut), []).append(each.case)
    return [
        SkippedCases(cases="; ".join(dict.fromkeys(cases)), reason=reason, known=not other)
        for (other, reason), cases in sorted(reasons.items(), key=lambda item: item[0][0])
    ]


def _is_known(skip: CaseMessage) -> bool:
    """Whether allowed.json accepts the failure of a case with the recorded reason."""
    recorded = skip.message.removesuffix("…")
    return any(
        entry.name == skip.case and " ".join(entry.reason.split()).startswith(recorded)
        for entry in _accepted_cases()
    )


@functools.cache
def _accepted_cases() -> tuple[_AcceptedCase, ...]:
    text = files.data("smoke_tests/allowed.json").read_bytes()
    return decoding.decode_json(text, _AcceptedFailures).cases


def case_names() -> dict[TierName, tuple[str, ...]]:
    """Return the names of the current cases of each tier."""
    text = files.data("smoke_cases.json").read_bytes()
    return decoding.decode_json(text, dict[TierName, tuple[str, ...]])


def tier_descriptions(tiers: Collection[TierName]) -> Iterator[str]:
    """Lines with the cases of each tier in `tiers`."""
    names = case_names()
    if tiers:
        yield "current cases of each tier, which run if the image has the required packages:"
    for tier in sorted(tiers, key=TIERS.index):
        yield f"  {tier}: {CASES[tier]}"
        yield f"    {'; '.join(names[tier])}"


def failure_lines(runs: Sequence[RecordedRun]) -> Iterator[str]:
    """Lines with the failed cases of each run and their messages."""
    for run in sorted(runs, key=_tier):
        if run.first is None:
            continue
        where = f"{run.tier}{f' on {_gpus(run)}' if run.gpu else ''}"
        yield f"first failure of {where}: {run.first.case}: {run.first.message}"
        yield from (f"  also failed: {each.case}: {each.message}" for each in run.further)
        if unnamed := run.failed - 1 - len(run.further):
            yield f"  and {format_count(unnamed, 'more case')}, without a name in the record"


def _tier(run: RecordedRun) -> int:
    return TIERS.index(run.tier)


def _gpus(run: RecordedRun) -> str:
    """Return the GPUs of a run without the manufacturer, such as "2 H200", or "none"."""
    return run.gpus.replace("NVIDIA ", "") or NO_GPU
