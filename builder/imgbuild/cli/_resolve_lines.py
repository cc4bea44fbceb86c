"""The text of `imgbuild resolve`: results on stdout, warnings and errors on stderr."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from imgbuild.cli._output import aligned, count
from imgbuild.resolve.answer import ArchOutcome, ChosenVersion, ResolveAnswer
from imgbuild.resolve.locked import LockedTarget
from imgbuild.system.console import console
from imgbuild.values import Arch

WHY = 3  # reasons shown for a package; --json has all
WIDTH = 80
TARGETS = 3  # shown without --full


def locked_lines(answer: ResolveAnswer, *, everything: bool = False) -> list[str]:
    """The locked targets of an answer with their versions and the commands to use them."""
    shown = answer.locked if everything else answer.locked[:TARGETS]
    found = [line for target in shown for line in (*_locked(target), "")]
    left = [target.target for target in answer.locked[len(shown) :]]
    if left:
        found += [*_comment(f"also: {', '.join(left)}; --full shows their versions"), ""]
    return [*found, "# to solve for other versions, add --solve"]


def _locked(target: LockedTarget) -> list[str]:
    versions = ", ".join(f"{package} {version}" for package, version in target.versions.items())
    tested = f"tested: {target.tested}" if target.tested else "not tested"
    text = f"{target.target} has {versions} (CUDA {target.cuda}, {tested})"
    return [*_wrapped(text, "", "  "), *(f"  {command}" for command in target.commands)]


def lines(answer: ResolveAnswer, *, everything: bool = False) -> list[str]:
    """The requested packages of each architecture with a solution, the row, what was checked.

    With `everything` all other packages follow.
    """
    solved = [(arch, found) for arch, found in answer.arch.items() if found.refused is None]
    found: list[str] = []
    for arch, outcome in solved:
        found += [f"# {answer.name} on {arch}", *_table(_requested(answer, outcome)), ""]
    if answer.row:
        found += ["# a row for matrix.yaml, under targets:", *answer.row, ""]
    if answer.driver and answer.target is not None:
        found += _comment(f"CUDA {answer.target.cuda}: driver {answer.driver} or newer")
    if answer.row:
        found += _comment(f"checked: {', '.join(answer.checks)}")
        unchecked = ", ".join(answer.unchecked)
        found += _comment(f"not checked: {unchecked}; imgbuild lock reads shared objects")
    for arch, outcome in solved:
        number = count(len(outcome.packages), "package")
        if everything:
            found += ["", f"# {number} on {arch}", *_table(outcome.packages)]
        else:
            found += _comment(f"{number} on {arch}: --full lists them")
    return found


def _requested(answer: ResolveAnswer, outcome: ArchOutcome) -> list[ChosenVersion]:
    """The packages that were asked for, and those that the row pins beside them."""
    pins = answer.target.pins if answer.target is not None else {}
    names = dict.fromkeys((*answer.requested, *pins))
    chosen = {item.package: item for item in outcome.packages}
    return [chosen[name] for name in names if name in chosen]


def _table(packages: Sequence[ChosenVersion]) -> list[str]:
    if not packages:
        return []
    rows = [(item.package, item.version, "; ".join(item.why[:WHY])) for item in packages]
    return aligned(rows, width=WIDTH)


def _comment(text: str) -> list[str]:
    return _wrapped(text, "# ", "#   ")


def _wrapped(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def say_refusals(answer: ResolveAnswer) -> bool:
    """Print warnings, and the reasons where there is no solution; returns whether one has none."""
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
        named = error.message if arch in error.message else f"{arch}: {error.message}"
        console.error("\n  ".join((named, *details)), hint=error.hint)
