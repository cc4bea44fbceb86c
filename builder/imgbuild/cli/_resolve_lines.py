"""What `imgbuild resolve` says: packages and a row as data, warnings and refusals as talk."""

from __future__ import annotations

from imgbuild.cli import _options
from imgbuild.resolve.answer import ArchOutcome, ResolveAnswer
from imgbuild.system.console import console
from imgbuild.values import Arch

WHY = 3  # reasons shown for a package; --json has all


def lines(answer: ResolveAnswer) -> list[str]:
    """The packages of each architecture that is possible, what was checked, and the row."""
    found: list[str] = []
    for arch, outcome in answer.arch.items():
        if outcome.refused is None:
            found += [
                f"# {answer.name} on {arch}: {len(outcome.packages)} packages",
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
        found += ["# a row for matrix.yaml, below targets:", *answer.row]
    return found


def _table(outcome: ArchOutcome) -> list[str]:
    return _options.aligned(
        [(item.package, item.version, "; ".join(item.why[:WHY])) for item in outcome.packages]
    )


def say_refusals(answer: ResolveAnswer) -> bool:
    """Say warnings, and why the world is impossible where it is; whether it is somewhere."""
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
        told = [f"because {reason}" for reason in error.reasons]
        told += [f"nearest: {world}" for world in error.nearest]
        console.error("\n  ".join((f"{arch}: {error.message}", *told)), hint=error.hint)
