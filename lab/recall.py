#!/usr/bin/env python3
"""Measures the recall and precision of the audit on broken combinations of packages.

Audits the records of tests/data/combinations against the default index and prints a Markdown table.
Recall is the share of broken package sets with the expected finding at the expected place.
Precision is the share of true alarms. Every error in the valid variant of a set counts as a false
alarm.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from imgbuild.system.console import console  # noqa: E402 - tests are beside the tools, not installed
from tests.support.combinations import HALVES, Combination, Outcome, audit_all, load_combinations  # noqa: E402


def format_table(rows: Iterable[tuple[str, Sequence[Outcome]]]) -> list[str]:
    """Return the table, with a line for each group of outcomes."""
    lines = [
        "| | records | found | recall | healthy neighbours with an error | precision |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for title, outcomes in rows:
        hits = sum(bool(outcome.found) for outcome in outcomes)
        alarms = sum(bool(outcome.alarms) for outcome in outcomes)
        precision = f"{hits / (hits + alarms):.0%}" if hits + alarms else "-"
        recall = f"{hits / len(outcomes):.0%}" if outcomes else "-"
        lines.append(f"| {title} | {len(outcomes)} | {hits} | {recall} | {alarms} | {precision} |")
    return lines


def fault_lines(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the missed findings, and the messages of false alarms."""
    lines = []
    for outcome in outcomes:
        if not outcome.found:
            lines.append(f"- missed: `{outcome.record.id}`: {outcome.record.why}")
        lines += [
            f"- false alarm: `{outcome.record.id}`: {alarm.message} ({alarm.where})"
            for alarm in outcome.alarms
        ]
    return lines


def main() -> None:
    """Audit both halves and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--half", choices=HALVES, action="append", help="audit only this half")
    parser.add_argument("--cache", type=Path, help="folder in which to store facts (default: none)")
    parser.add_argument("--processes", type=int, help="number of processes (default: one per core)")
    given = parser.parse_args()
    halves: dict[str, tuple[Combination, ...]] = {
        half: load_combinations(half) for half in given.half or HALVES
    }
    records = [record for half in halves.values() for record in half]
    with tempfile.TemporaryDirectory() as folder:
        cache = given.cache or Path(folder)
        outcomes = audit_all(records, cache, processes=given.processes)
    rows = [(half, [outcomes[record.id] for record in group]) for half, group in halves.items()]
    checks = sorted({record.check for record in records})
    rows += [
        (
            f"expected of {check}",
            [outcomes[record.id] for record in records if record.check == check],
        )
        for check in checks
    ]
    rows.append(("all", list(outcomes.values())))
    console.data(
        "\n".join(
            [*format_table(rows), "", *fault_lines(outcomes[record.id] for record in records)]
        )
    )


if __name__ == "__main__":
    main()
