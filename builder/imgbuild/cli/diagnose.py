"""Implements `imgbuild diagnose`, which finds the first failure in a log."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from imgbuild.cli._help import create_command
from imgbuild.cli._output import fold_lines, print_result
from imgbuild.cli._verb import create_verb, option
from imgbuild.diagnose import codes, diagnosis
from imgbuild.diagnose.finding import LogFinding, LogFindings
from imgbuild.errors import InputError
from imgbuild.matrix import near
from imgbuild.system.console import console

# A requirement on a package that determines the target.
REQUIREMENT = re.compile(rf"\b({'|'.join(near.FIRST_PINS)})((?:[<>=]=?\d[\d.]*\d,?)+)")

FILES = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE...",
        help="A log file (gzip is supported), or the flight recorder dumps of all ranks, as files "
        "or a folder. Default: -, which reads stdin.",
        show_default=False,
    ),
]


SHORT = Annotated[
    bool,
    option(
        "--short",
        "Print only the first cause and its fix, in one sentence. Print nothing if no likely "
        "cause is found.",
    ),
]


@create_verb
def diagnose(files: FILES = None, short: SHORT = False) -> None:
    """Find the first failure in a log, with its cause and fix.

    The log can have any size, be truncated, and contain interleaved ranks, colours, and prefixes of
    Ray, Slurm, docker and torchrun. Causes are derived from rules for common failures and from
    facts, such as the versions of a package that define a name, or the rank that stopped first.
    Failures that a listed cause explains, such as timeouts of other ranks and exit codes, are in
    the last line. `imgbuild explain CODE` explains a finding.

    Nothing is downloaded. The exit status is 0 even if a failure is found.

    Examples:

        imgbuild diagnose slurm-4711.out

        imgbuild diagnose --json train.log

        imgbuild diagnose --short slurm-4711.out

        imgbuild diagnose /tmp/nccl_trace_rank_*
    """
    names = files or [diagnosis.STDIN]
    if diagnosis.STDIN in names and sys.stdin.isatty():
        message = "no log was specified, and stdin is a terminal"
        hint = "run imgbuild diagnose FILE, or COMMAND 2>&1 | imgbuild diagnose"
        raise InputError(message, hint=hint)
    result = diagnosis.diagnose_paths(names)
    if short:
        result = LogFindings(findings=tuple(diagnosis.likely_findings(result)[:1]))
        print_result(result, [diagnosis.finding_sentence(finding) for finding in result.findings])
        return
    print_result(result, fold_lines(_lines(result)))
    cure = result.findings[0].cure if result.findings else ""
    if not console.json and (match := REQUIREMENT.search(cure)):
        required = match[0].rstrip(",")
        console.info(f"to list the images with {required}, run: imgbuild list --with '{required}'")


def _lines(result: LogFindings) -> Iterator[str]:
    if not result.findings:
        yield "no failure found"
        yield (
            "if the log contains a failure, report it, and include the log and the output of "
            "imgbuild doctor --collect"
        )
        return
    for finding in result.findings:
        yield from _finding(finding)
    if result.consequences:
        titles = codes.all_explanations()
        listed = dict.fromkeys(
            f"{each.code} {titles[each.code].title}" for each in result.consequences
        )
        yield f"also in the log, as a consequence: {'; '.join(listed)}"


def _finding(finding: LogFinding) -> Iterator[str]:
    yield f"{finding.code} {finding.cause} ({finding.confidence} confidence)"
    for line in finding.lines:
        place = f"{line.file}:{line.number}" if line.file else str(line.number)
        yield f"  {place}: {line.text}"
    yield f"  cure: {finding.cure}"


COMMAND = create_command(diagnose)
