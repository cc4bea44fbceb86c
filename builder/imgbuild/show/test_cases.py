"""Formats the test records of an image as a table of cases by GPU and tier."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import msgspec

from imgbuild.smoke.records import CASES, TIERS, RecordedRun
from imgbuild.smoke.result import CaseMessage
from imgbuild.system import files

HEAD = ("GPU", "tier", "passed", "failed", "skipped", "min", "driver", "date", "in")
NUMBERS = frozenset({2, 3, 4, 5})
NO_GPU = "none"
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
    """Yield a line with the names of the passed cases of each run, if they are recorded."""
    for run in sorted(runs, key=_tier):
        if run.passes:
            on = f" on {_gpus(run)}" if run.gpu else ""
            yield f"passed, {run.tier}{on}: {'; '.join(run.passes)}"


def skip_groups(run: RecordedRun) -> list[SkippedCases]:
    """Group the skipped cases of a run by reason, with known limitations first."""
    reasons: dict[tuple[bool, str], list[str]] = {}
    for each in run.skips:
        known = _is_known(each)
        _, _, reason = each.message.partition("; ")  # modules and error; why it is so
        if not (each.case.startswith("import ") and reason):
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
    return msgspec.json.decode(text, type=_AcceptedFailures).cases


def tier_descriptions(runs: Sequence[RecordedRun]) -> list[str]:
    """Lines with the cases of each tier in `runs`."""
    ran = sorted({run.tier for run in runs}, key=TIERS.index)
    head = (
        ["current cases of each tier, which run if the image has the required packages:"]
        if ran
        else []
    )
    return [*head, *(f"  {tier}: {CASES[tier]}" for tier in ran)]


def failure_lines(runs: Sequence[RecordedRun]) -> list[str]:
    """Return a line for each run with failures: the first failed case, and its message."""
    return [
        f"first failure of {run.tier}{f' on {_gpus(run)}' if run.gpu else ''}:"
        f" {run.first.case}: {run.first.message}"
        for run in sorted(runs, key=_tier)
        if run.first is not None
    ]


def _tier(run: RecordedRun) -> int:
    return TIERS.index(run.tier)


def _gpus(run: RecordedRun) -> str:
    """Return the GPUs of a run without the manufacturer, such as "2 H200", or "none"."""
    return run.gpus.replace("NVIDIA ", "") or NO_GPU
