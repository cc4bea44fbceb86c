"""Reads and prints the results of lab/oracle.py, which are one line of JSON per seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from oracle_sets import SetDraw
from oracle_verdicts import (
    METADATA,
    Row,
    SetResult,
    Verdict,
    metadata_verdict,
    same_reason,
    set_verdict,
)


class MeasuredDraw(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the results. If uv rejected all attempts, `failure` is set instead of `draw`."""

    seed: int
    draw: SetDraw | None = None
    control: SetResult | None = None
    forced: SetResult | None = None
    failure: str = ""
    commit: str = ""


def parse_seeds(text: str) -> Iterable[int]:
    """Return the seeds in a text such as "5" or "1-200"."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def read_results(path: Path) -> dict[int, MeasuredDraw]:
    """Return the results of a file, by seed."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    decoded = (msgspec.json.decode(line, type=MeasuredDraw) for line in lines if line.strip())
    return {measured.seed: measured for measured in decoded}


def verdict_row(measured: MeasuredDraw) -> Row | None:
    """Return the verdicts of a seed, or None if the seed was not audited."""
    if measured.draw is None or measured.control is None or measured.forced is None:
        return None
    return Row(
        seed=measured.seed,
        fails=measured.forced.fails,
        metadata_clean=not measured.forced.unmet,
        forced=set_verdict(measured.forced, measured.draw.package),
        control=set_verdict(measured.control, measured.draw.package),
        forced_metadata=metadata_verdict(measured.forced),
        control_metadata=metadata_verdict(measured.control),
        metadata_said=any(alarm.finding.check == METADATA for alarm in measured.forced.alarms),
        same_reason=same_reason(measured.forced, measured.draw.package),
    )


def exclusion_counts(results: Iterable[MeasuredDraw]) -> Iterator[str]:
    """Yield the reasons why draws were not audited, with counts for each half of the seeds."""
    counts: dict[str, list[int]] = {}
    for measured in results:
        if verdict_row(measured) is None:
            reason = (
                measured.failure
                if measured.draw is None or len(measured.failure) < 40
                else "not installed"
            )
            counts.setdefault(reason, [0, 0])[measured.seed % 2] += 1
    for reason, (even, odd) in sorted(counts.items()):
        yield f"Not audited: {reason}: {even} of development, {odd} held out."


def seed_details(measured: MeasuredDraw) -> Iterator[str]:
    """Yield the misses and false alarms of a seed."""
    verdicts = verdict_row(measured)
    if (
        verdicts is None
        or measured.draw is None
        or measured.control is None
        or measured.forced is None
    ):
        return
    sets = (
        ("control", measured.control, verdicts.control, verdicts.control_metadata),
        ("forced", measured.forced, verdicts.forced, verdicts.forced_metadata),
    )
    for name, result, code, metadata in sets:
        wrong = (Verdict.MISS, Verdict.FALSE_ALARM, Verdict.LATENT, Verdict.UNANSWERED)
        another = code is Verdict.TRUE and not verdicts.same_reason
        if code not in wrong and metadata not in wrong and not another:
            continue
        pins = measured.draw.control if name == "control" else measured.draw.forced
        label = f"{code} for another reason" if another else code
        yield f"- seed {measured.seed}, {name}: **{label}**, METADATA {metadata}"
        version = pins.versions.get(measured.draw.package)
        yield f"  - {measured.draw.how} {measured.draw.package}=={version}"
        requirements = ", ".join(measured.draw.requirements)
        yield f"  - from {requirements}; torch {measured.draw.torch or 'none'}"
        for failure in result.failures:
            about = f"{failure.package} {pins.versions.get(failure.package)}, {failure.name}"
            yield f"  - Python: {about}: {failure.error} ({', '.join(failure.trace[-3:])})"
        for alarm in result.alarms:
            finding = alarm.finding
            yield f"  - audit [{finding.check}, {alarm.fact}]: {finding.message} ({finding.where})"
        if metadata in wrong:
            yield f"  - unmet: {'; '.join(result.unmet)}"
        if result.audited:
            yield f"  - audit without an answer: {result.audited}"
