"""Prints which targets run a user's code, for `list --runs`."""

# A separate module: the size of `list`.
from __future__ import annotations

import itertools
import platform
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from imgbuild.cli._output import fold_lines, format_count, print_result
from imgbuild.cli._targets import SelectionOptions
from imgbuild.errors import NothingSelected
from imgbuild.pipeline import cached_code_audit
from imgbuild.pipeline.cached_code_audit import CodeFit
from imgbuild.pipeline.session import SessionOptions, open_session
from imgbuild.report import Severity
from imgbuild.system.console import console
from imgbuild.values import Arch

SHOWN_FINDINGS = 3  # findings of a target that are shown
CHECKED_STATES = ("runs", "unknown", "fails")  # of targets with an image for the architecture


def answer_runs(selection: SelectionOptions, names: Sequence[str], paths: Sequence[Path]) -> None:
    """Print which targets can run the code at `paths`."""
    session = open_session(selection.matrix, SessionOptions(offline=True), selection.named_targets)
    arches = selection.arches or [Arch.parse(platform.machine())]
    results = cached_code_audit.check_code_fits(session, names, arches, paths)
    checked = [fit for fit in results if fit.state in CHECKED_STATES]
    if not checked:
        message = f"no selected target is locked for {', '.join(arches)}"
        others = sorted({fit.arch for fit in results if fit.arch is not None})
        pass_arch = f"pass --arch {','.join(others)}"
        raise NothingSelected(
            message, hint=pass_arch if others else "lock a target, or omit --runs"
        )
    print_result(results, fold_lines([*_runs_lines(checked), *_unchecked_lines(results)]))
    words = shlex.join(word for path in paths for word in ("--code", str(path)))
    if unread := [shlex.quote(fit.target) for fit in checked if fit.unread]:
        only = f" --arch {','.join(arches)}" if selection.arches else ""
        console.info(
            f"to check {unread[0]} with the packages that were not read (downloads files), run:"
            f" imgbuild audit {unread[0]}{only} {words}"
        )


def _runs_lines(results: Sequence[CodeFit]) -> Iterator[str]:
    """Yield a line for each target, and the first findings of consecutive targets once."""
    several = len({fit.arch for fit in results}) > 1
    names = {id(fit): f"{fit.target} {fit.arch}" if several else fit.target for fit in results}
    width = max(map(len, names.values()), default=0)
    for lines, fits in itertools.groupby(results, _finding_lines):
        same = list(fits)
        for fit in same:
            counts = [
                format_count(number, word)
                for number, word in ((fit.errors, "error"), (fit.warnings, "warning"))
                if number
            ]
            after = f": {', '.join(counts)}" if counts else ""
            unread = f" (not read: {', '.join(fit.unread)})" if fit.unread else ""
            yield f"{names[id(fit)]:<{width}}  {fit.state}{after}{unread}"
        if lines and len(same) > 1:
            yield f"    in each of these {len(same)} targets:"
        yield from lines


def _finding_lines(fit: CodeFit) -> list[str]:
    """Return the first findings, errors first."""
    findings = sorted(fit.findings, key=lambda each: each.severity is not Severity.ERROR)
    lines = []
    for finding in findings[:SHOWN_FINDINGS]:
        severity = "" if finding.severity is Severity.ERROR else "warning: "
        lines.append(f"    {finding.where}: {finding.code} {severity}{finding.message}")
    if more := len(findings[SHOWN_FINDINGS:]):
        lines.append(f"    and {more} more")
    return lines


def _unchecked_lines(results: Sequence[CodeFit]) -> Iterator[str]:
    """Yield lines for targets without an image or a lock, with the next command."""
    others: dict[Arch, list[str]] = {}
    for fit in results:
        if fit.state == "other architecture" and fit.arch is not None:
            others.setdefault(fit.arch, []).append(fit.target)
    for arch, names in others.items():
        yield f"not checked, only for {arch}: {', '.join(names)}; to check them, add --arch {arch}"
    if planned := [fit.target for fit in results if fit.state == "not locked"]:
        command = "imgbuild lock TARGET"
        yield f"not checked, not locked: {', '.join(planned)}; to lock one, run: {command}"
