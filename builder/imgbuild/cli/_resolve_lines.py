"""The text of `imgbuild resolve`: packages and a row on stdout, warnings and errors on stderr."""

from __future__ import annotations

from imgbuild.cli._output import aligned, count
from imgbuild.resolve.answer import ArchOutcome, ResolveAnswer
from imgbuild.system.console import console
from imgbuild.values import Arch

WHY = 3  # reasons shown for a package; --json has all


def lines(answer: ResolveAnswer) -> list[str]:
    """The packages of each architecture with a solution, what was checked, and the row."""
    found: list[str] = []
    for arch, outcome in answer.arch.items():
        if outcome.refused is None:
            found += [
                f"# {answer.name} on {arch}: {count(len(outcome.packages), 'package')}",
                *_table(outcome),
                "",
            ]
    if answer.driver and answer.target is not None:
        found += [f"# CUDA {answer.target.cuda}: driver {answer.driver} or newer", ""]
    if answer.row:
        found += [
            f"# checked: {', '.join(answer.checks)}",
            f"# not checked: {', '.join(answer.unchecked)}; imgbuild lock reads shared objects",
            "",
        ]
        found += ["# a row for matrix.yaml, under targets:", *answer.row]
    return found


def _table(outcome: ArchOutcome) -> list[str]:
    return aligned(
        [(item.package, item.version, "; ".join(item.why[:WHY])) for item in outcome.packages]
    )


def say_refusals(answer: ResolveAnswer) -> bool:
    """Print warnings, and the reasons where there is no solution; whether there is such a one."""
    refused = False
    for arch, outcome in answer.arch.items():
        for text in outcome.warnings:
            console.warn(f"{arch}: {text}")
        if outcome.refused is not None:
            refused = True
            _say(arch, outcome)
    return refused


def _say(arch: Arch, outcome: ArchOutcome) -> None:
    error = outcome.refused
    if error is not None:
        details = [f"because {reason}" for reason in error.reasons]
        details += [f"suggestion: {each}" for each in error.nearest]
        console.error("\n  ".join((f"{arch}: {error.message}", *details)), hint=error.hint)
