"""Explains lines from compilers, apt, git, docker, Slurm and others.

`data/diagnose/facts/programs.yaml` lists the forms of the lines, and `program_cures.yaml` the cures
by message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from imgbuild.diagnose import literals, remedies, rules
from imgbuild.diagnose.finding import Reason
from imgbuild.system import files, yaml_data

MOST_MESSAGE = 300  # characters
CODE = "IMG911"
FATAL = re.compile(r"\w{1,20}: fatal: ")


class ProgramRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A form of a line.

    `build` means that a later exception only reports the failure of the build. `minor` means that
    programs also print the line and then continue.
    """

    match: str
    cause: str
    cure: str = ""
    build: bool = False
    minor: bool = False


@lru_cache(maxsize=1)
def load_programs() -> tuple[tuple[tuple[ProgramRow, re.Pattern[str]], ...], literals.WordIndex]:
    """Load the rows with their patterns, and the index of the texts that the patterns require."""
    rows = yaml_data.load_yaml_data(
        files.data("diagnose/facts/programs.yaml"), tuple[ProgramRow, ...]
    )
    index = literals.WordIndex(row.match for row in rows)
    return tuple((row, re.compile(row.match)) for row in rows), index


@lru_cache(maxsize=1)
def load_cures() -> Mapping[str, tuple[tuple[re.Pattern[str], str], ...]]:
    """Load the cures for each type of program, in order."""
    path = files.data("diagnose/facts/program_cures.yaml")
    table = yaml_data.load_yaml_data(path, dict[str, tuple[remedies.MessageRemedy, ...]])
    return {
        name: tuple((re.compile(row.match), row.cure) for row in rows)
        for name, rows in table.items()
    }


def program_reason(text: str) -> Reason | None:
    """Return the cause in a line of another program, or None if the line is not recognized."""
    text = text.lstrip()
    rows, index = load_programs()
    for number in index.candidate_patterns(text):
        row, pattern = rows[number]
        match = pattern.search(text)
        if match is not None:
            reason = _row_reason(
                row, {name: value or "" for name, value in match.groupdict().items()}
            )
            # The last lines of a program explain more than the errors that it printed before.
            ends = FATAL.match(text) is not None
            return msgspec.structs.replace(reason, confidence="high") if ends else reason
    return None


def absent_program_cure(program: str) -> str:
    """Return the cure for a program that is not on PATH."""
    return rules.fill_placeholders(_find_cure("absent_cure", f"{program}:"), {"name": program})


def _find_cure(kind: str, message: str) -> str:
    """Return the first cure of a kind in `program_cures.yaml` whose pattern matches a message."""
    return next(cure for pattern, cure in load_cures()[kind] if pattern.search(message))


def _row_reason(row: ProgramRow, groups: dict[str, str]) -> Reason:
    message = re.sub(r"\s+", " ", groups.get("message", "")).strip().rstrip(".")
    groups["message"] = message if len(message) <= MOST_MESSAGE else f"{message[:MOST_MESSAGE]}…"
    cure = row.cure
    if kind := rules.PLACEHOLDER.fullmatch(cure):
        wanted = groups.get("header") or message
        cure = _find_cure(kind[1], wanted)
    elif not cure:
        cure = remedies.find_cure(message, "the program", "the command") or "follow the message"
    return Reason(
        code=CODE,
        cause=rules.fill_placeholders(row.cause, groups).strip(),
        cure=rules.fill_placeholders(cure, groups),
        confidence="high" if row.build else "low" if row.minor else "medium",
        source="facts" if row.build else "first",
    )
