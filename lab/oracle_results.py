"""The results of lab/oracle.py: a line of JSON for each seed, read and printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from oracle_sets import Draw
from oracle_verdicts import (
    METADATA,
    Row,
    SetResult,
    Verdict,
    metadata_verdict,
    same_reason,
    verdict,
)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the results. Without a draw, uv refused all attempts; `failure` says the rest."""

    seed: int
    draw: Draw | None = None
    control: SetResult | None = None
    forced: SetResult | None = None
    failure: str = ""
    commit: str = ""


def seeds_of(text: str) -> Iterable[int]:
    """The seeds of "5" or "1-200"."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def read(path: Path) -> dict[int, Measured]:
    """The results of a file, by seed."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    decoded = (msgspec.json.decode(line, type=Measured) for line in lines if line.strip())
    return {one.seed: one for one in decoded}


def row(one: Measured) -> Row | None:
    """The verdicts of a seed; None if it was not audited."""
    if one.draw is None or one.control is None or one.forced is None:
        return None
    return Row(
        seed=one.seed,
        fails=one.forced.fails,
        metadata_clean=not one.forced.unmet,
        forced=verdict(one.forced, one.draw.package),
        control=verdict(one.control, one.draw.package),
        forced_metadata=metadata_verdict(one.forced),
        control_metadata=metadata_verdict(one.control),
        metadata_said=any(alarm.finding.check == METADATA for alarm in one.forced.alarms),
        same_reason=same_reason(one.forced, one.draw.package),
    )


def left_out(results: Iterable[Measured]) -> Iterator[str]:
    """Why draws were not audited, and how many of each half."""
    counts: dict[str, list[int]] = {}
    for one in results:
        if row(one) is None:
            reason = one.failure if one.draw is None or len(one.failure) < 40 else "not installed"
            counts.setdefault(reason, [0, 0])[one.seed % 2] += 1
    for reason, (even, odd) in sorted(counts.items()):
        yield f"Not audited: {reason}: {even} of development, {odd} held out."


def details(one: Measured) -> Iterator[str]:
    """Misses and false alarms of a seed, for who mends the audit."""
    verdicts = row(one)
    if verdicts is None or one.draw is None or one.control is None or one.forced is None:
        return
    sets = (
        ("control", one.control, verdicts.control, verdicts.control_metadata),
        ("forced", one.forced, verdicts.forced, verdicts.forced_metadata),
    )
    for name, result, code, metadata in sets:
        wrong = (Verdict.MISS, Verdict.FALSE_ALARM, Verdict.LATENT, Verdict.UNANSWERED)
        another = code is Verdict.TRUE and not verdicts.same_reason
        if code not in wrong and metadata not in wrong and not another:
            continue
        pins = one.draw.control if name == "control" else one.draw.forced
        said = f"{code} for another reason" if another else code
        yield f"- seed {one.seed}, {name}: **{said}**, METADATA {metadata}"
        yield f"  - {one.draw.how} {one.draw.package}=={pins.versions.get(one.draw.package)}"
        yield f"  - from {', '.join(one.draw.requirements)}; torch {one.draw.torch or 'none'}"
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
