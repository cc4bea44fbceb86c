"""Prints a project and the targets for it (separate: `init` is full of options)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from imgbuild.audit.binaries import gpus
from imgbuild.cli._output import aligned, count, folded, size_text, terminal_width
from imgbuild.pipeline import declared_files
from imgbuild.pipeline.choose_target import Choice
from imgbuild.pipeline.declared_files import ReadFiles
from imgbuild.project.model import Declared
from imgbuild.resolve import choose, python_support
from imgbuild.resolve.choose import Candidate
from imgbuild.system import boundary
from imgbuild.values import normalize

SHOWN = 3  # targets of the table
LEFT_OUT = 12  # lines of what was not read
CHOICES = 40  # extras and groups
CHANGES = 8  # lines of what changes; --json has all
WIDTH = 80
HEAD = ("target", "add", "change", "Python", "driver", "GPUs", "size", "tests")
RIGHT = frozenset((1, 2, 6))


def read_lines(files: ReadFiles) -> list[str]:
    """What was read of each file, then what was not, with its line and the reason."""
    declared = files.declared
    lines = [f"read {line}" for line in declared_files.summary(declared)]
    for option, names, chosen in (
        ("--extra", declared.extras, files.extras),
        ("--group", declared.groups, files.groups),
    ):
        others = [name for name in names if name not in set(map(normalize, chosen))]
        if others:
            more = len(others) - CHOICES
            words = f" and {more} more; --json has all" if more > 0 else ""
            also = " also" if chosen else ""
            lines.append(f"{option} takes{also} {', '.join(others[:CHOICES])}{words}")
    left_out = declared_files.left_out(declared)
    lines += [f"left out {line}" for line in left_out[:LEFT_OUT]]
    more = len(left_out) - LEFT_OUT
    return [*lines, f"and {more} more left out; --json has all"] if more > 0 else lines


def python_lines(declared: Declared, choice: Choice) -> list[str]:
    """Where the project accepts no Python of the chosen target: what that means for its wheels."""
    if choice.chosen.python_accepted:
        return []
    demanded = ", ".join(f"{item.spec} ({item.place})" for item in declared.python)
    minor = ".".join(choice.chosen.python.split(".")[:2])
    have = " or ".join(each.python for each in choice.wheels if not each.unlocked)
    where = f"images have {have}, {choice.chosen.target} has {minor}"
    lines = [f"the project requires Python {demanded}; {where}"]
    for each in choice.wheels:
        if each.pinned:
            missing = f", not {', '.join(each.missing)}" if each.missing else ""
            there = each.pinned - len(each.missing)
            lines.append(
                f"Python {each.python}: {there} of {count(each.pinned, 'pinned package')}"
                f" can be installed{missing}"
            )
    unlocked = [
        f"{name} has Python {each.python}, and is not locked: {python_support.HOW_TO}"
        for each in choice.wheels
        if choose.python_accepted(declared, f"{each.python}.2")
        for name in each.unlocked
    ]
    lines += unlocked or [python_support.OTHER]
    return ["\n  ".join(lines)]


def lines(choice: Choice | None, matrix: Path) -> list[str]:
    """The table of the nearest targets, what the first changes, and the row that was written."""
    if choice is None:
        return []
    return [
        *table(choice.candidates[:SHOWN]),
        "",
        *folded(changes(choice.chosen)),
        "",
        f"# {matrix.name}",
        *_row(matrix),
    ]


def table(candidates: Sequence[Candidate]) -> list[str]:
    """A row for each candidate, in at most 80 columns."""
    rows = [HEAD, *(_cells(each) for each in candidates)]
    return aligned(rows, right=RIGHT, width=min(terminal_width(), WIDTH))


def _cells(item: Candidate) -> tuple[str, ...]:
    minor = ".".join(item.python.split(".")[:2])
    capabilities = sorted(item.gpu, key=gpus.numbers)
    ends = dict.fromkeys((*capabilities[:1], *capabilities[-1:]))
    return (
        item.target,
        str(len(item.added)),
        str(len(item.changed)),
        minor if item.python_accepted else f"{minor} (!)",
        item.driver.partition(".")[0] + "+" if item.driver else "-",
        "-".join(ends) or "-",
        size_text(item.size),
        item.tested or "-",
    )


def changes(chosen: Candidate) -> list[str]:
    """What the first target lacks or has otherwise."""
    lines = [f"{chosen.form} {chosen.target}: {count(len(chosen.met), 'requirement')} met"]
    if chosen.added:
        lines.append(f"added: {', '.join(chosen.added)}")
    lines += [f"changed: {change}" for change in chosen.changed[:CHANGES]]
    if len(chosen.changed) > CHANGES:
        lines.append(f"and {len(chosen.changed) - CHANGES} more changes; --json has all")
    return lines


def _row(matrix: Path) -> list[str]:
    """The lines of the matrix from `targets:` on, without comments."""
    text = boundary.content(matrix).decode().splitlines()
    start = text.index("targets:")
    return [line for line in text[start:] if line.strip() and not line.lstrip().startswith("#")]
