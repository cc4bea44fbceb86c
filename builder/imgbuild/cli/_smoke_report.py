"""Prints the report of a tier of smoke tests."""

from __future__ import annotations

import shutil
from textwrap import indent

from imgbuild.cli._output import aligned
from imgbuild.report import Report, counts
from imgbuild.system.console import console

QUICK = 1.0  # seconds
TAIL = 30  # lines of a failed case's log
INDENT = "  "
COLUMNS = ("case", "outcome", "seconds")


def print_report(report: Report) -> None:
    """Print a table of the cases, then the skipped ones with the reason, then the failed ones.

    Without `-v`, quick passed cases share one row, and failed ones show only the end of their log.
    """
    title = f"{report.target} {report.arch}, tier {report.tier}"
    whole = console.verbosity > 0
    quick = [
        case.seconds
        for case in report.cases
        if not whole and case.outcome == "passed" and case.seconds < QUICK
    ]
    rows = [
        (case.name, case.outcome, f"{case.seconds:.1f}")
        for case in report.cases
        if whole or case.outcome != "passed" or case.seconds >= QUICK
    ]
    if quick:
        rows.append((f"{len(quick)} more, under {QUICK:.0f} s each", "passed", f"{sum(quick):.1f}"))
    width = shutil.get_terminal_size().columns - len(INDENT)
    table = aligned([COLUMNS, *rows], right=frozenset({2}), width=width)
    console.info("\n".join((title, *(f"{INDENT}{line}" for line in table))))
    console.info(f"{title}: {counts(report.cases)}")
    for case in report.cases:
        if case.outcome == "skipped":
            console.info(f"skipped: {case.name}: {case.message}")
        for note in case.notes:
            console.info(f"note: {case.name}: {note}")
    for case in report.cases:
        if case.outcome == "failed":
            console.error(f"{case.name}: {case.message}")
            lines = case.log.splitlines()
            if len(lines) > TAIL and not whole:
                console.info(f"the last {TAIL} of {len(lines)} lines of its log (all with -v):")
                lines = lines[-TAIL:]
            console.info(indent("\n".join(lines), "  "))
