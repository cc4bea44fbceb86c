"""Parses Debian's control format: paragraphs of fields, and relations between packages.

`Packages`, `Release` and the `control` file of a package have this format. The case of field names
and the newlines of continuation lines are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

RELATION = re.compile(
    r"^(?P<name>[a-z0-9][a-z0-9+.-]*)(?::(?P<arch>[a-z0-9-]+))?"
    r"(?:\s*\(\s*(?P<relation><<|<=|=|>=|>>)\s*(?P<version>[^\s)]+)\s*\))?$"
)
GAP = re.compile(r"\n[ \t]*\n+")


class DebRelation(msgspec.Struct, frozen=True):
    """A package name in a relation field, with an optional bound on the version."""

    name: str
    relation: str = ""
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.relation} {self.version})" if self.relation else self.name


Clause = tuple[DebRelation, ...]  # alternatives, in order of preference


def parse_paragraphs(text: str) -> Iterator[dict[str, str]]:
    """Yield the fields of each paragraph of `text`."""
    start = 0
    for match in GAP.finditer(text):  # one at a time: a Debian index has 60,000
        block, start = text[start : match.start()], match.end()
        if block.strip():
            yield parse_fields(block)
    if text[start:].strip():
        yield parse_fields(text[start:])


def parse_fields(block: str) -> dict[str, str]:
    """Parse the fields of a paragraph.

    Raises ValueError for a line that is neither a field nor a continuation line.
    """
    result: dict[str, str] = {}
    name = ""
    for line in block.strip("\n").split("\n"):
        if line.startswith((" ", "\t")) and name:
            result[name] += "\n" + line
        elif ":" in line:
            name, _, value = line.partition(":")
            result[name] = value.lstrip()
        else:
            message = f"not a control file field: {line!r}"
            raise ValueError(message)
    return result


def parse_clauses(text: str) -> tuple[Clause, ...]:
    """Parse the value of Depends, Provides or similar fields.

    Raises ValueError if the value is invalid according to Debian policy 7.1.
    """
    parts = (part.strip() for part in text.replace("\n", " ").split(","))
    return tuple(
        tuple(_relation(alternative) for alternative in part.split("|")) for part in parts if part
    )


def _relation(text: str) -> DebRelation:
    match = RELATION.match(text.strip())
    if match is None:
        message = f"invalid package relation: {text.strip()!r}"
        raise ValueError(message)
    # Only one architecture is installed, so `:any` has no effect.
    return DebRelation(match["name"], match["relation"] or "", match["version"] or "")
