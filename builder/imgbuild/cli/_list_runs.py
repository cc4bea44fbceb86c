"""Prints which targets run a user's code, for `list --runs`."""

# A separate module: the size of `list`.
from __future__ import annotations

import itertools
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from imgbuild.cli._output import fold_lines, format_count, print_result, size_text
from imgbuild.cli._targets import SelectionOptions
from imgbuild.cli._verb import TARGETS_PANEL, OptionGroup, option
from imgbuild.errors import InputError, NothingSelected
from imgbuild.pipeline import cached_code_audit
from imgbuild.pipeline.cached_code_audit import CodeFit
from imgbuild.pipeline.session import SessionOptions, open_session
from imgbuild.report import Severity
from imgbuild.system.console import console
from imgbuild.values import Arch

SHOWN_FINDINGS = 3  # findings of a target that are shown
CHECKED_STATES = ("runs", "unknown", "fails")  # of targets with an image for the architecture


class RunsOptions(OptionGroup, frozen=True, kw_only=True):
    """The code to compare with the targets."""

    runs: Annotated[
        list[Path] | None,
        option(
            "--runs",
            "List which targets can run the code at this path, best match first, with errors and "
            "warnings. Uses facts in the cache and bundled tables of releases. The result is "
            "`unknown` if both lack a package. Can be repeated.",
            metavar="PATH",
            panel=TARGETS_PANEL,
            often=True,
        ),
    ] = None
    fetch: Annotated[
        bool,
        option(
            "--fetch",
            "With --runs, read the packages that are not in the cache from the index. Without this "
            "option, their size is printed.",
            panel=TARGETS_PANEL,
        ),
    ] = False

    def check(self) -> None:
        """Raise InputError if the options do not belong together."""
        if self.fetch and not self.runs:
            message = "--fetch requires --runs"
            raise InputError(message, hint="add --runs PATH, or omit --fetch")


def answer_runs(selection: SelectionOptions, names: Sequence[str], code: RunsOptions) -> None:
    """Print which targets can run the code."""
    options = SessionOptions(offline=not code.fetch)
    session = open_session(selection.matrix, options, selection.named_targets)
    arches = selection.arches or [Arch.parse(platform.machine())]
    results = cached_code_audit.check_code_fits(
        session, names, arches, code.runs or (), fetch=code.fetch
    )
    checked = [fit for fit in results if fit.state in CHECKED_STATES]
    if not checked:
        message = f"no selected target is locked for {', '.join(arches)}"
        others = sorted({fit.arch for fit in results if fit.arch is not None})
        pass_arch = f"pass --arch {','.join(others)}"
        raise NothingSelected(
            message, hint=pass_arch if others else "lock a target, or omit --runs"
        )
    print_result(results, fold_lines([*_runs_lines(checked), *_unchecked_lines(results)]))
    if partial := [fit for fit in checked if fit.fetch]:
        _report_partial(partial)


def _report_partial(partial: Sequence[CodeFit]) -> None:
    """Print what was compared without the code of packages, and the option that reads it."""
    if any(fit.compared for fit in partial):
        console.info(
            "by releases: imports and keyword arguments were compared with the releases that have "
            "them; the code of the packages was not read"
        )
    size = size_text(sum(fit.fetch for fit in partial))
    console.info(
        f"to read the code of these packages for {format_count(len(partial), 'target')}, add "
        f"--fetch (parts of wheels with {size} in all); for one target, also specify its name"
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
            partial = [
                f"{title}: {', '.join(packages)}"
                for title, packages in (("by releases", fit.compared), ("not read", fit.unread))
                if packages
            ]
            notes = f" ({'; '.join(partial)})" if partial else ""
            yield f"{names[id(fit)]:<{width}}  {fit.state}{after}{notes}"
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
