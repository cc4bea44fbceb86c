"""Writes the failures in logs, with the patterns by which browsers find them, and their causes."""

# A separate module: the rules of diagnose.
from __future__ import annotations

import re
from collections.abc import Iterator

from imgbuild.audit.names import releases
from imgbuild.diagnose import codes, rules
from imgbuild.diagnose.rules import FailureRule
from imgbuild.site.scripts import packed_script

TEXT_FILE = "failures.txt"
SCRIPT = "failures.js"
VARIABLE = "imgbuildFailures"
# Messages of failures that `diagnose` derives from facts, such as versions of names.
MESSAGES = {
    "IMG901": "undefined symbol",
    "IMG902": "cannot import name",
    "IMG903": "No module named",
    "IMG904": "unexpected keyword argument",
    "IMG905": "has no attribute",
    "IMG906": "cannot open shared object file",
    "IMG910": "ResolutionImpossible|No solution found when resolving",
    "IMG915": r"missing \d+ required positional argument",
    "IMG916": "GLIBC(?:XX)?_.* not found",
    "IMG917": "unrecognized arguments|No such option",
}
_FRAME_SEPARATOR = re.compile(r"(?<!\(\?):(?![^\[\]]*\])")  # not in (?:…) or […]
_GROUP_NAME = re.compile(r"\(\?P<\w+>")
_FLAGS = re.compile(r"\(\?([is]+)([:)])")


def failures_script() -> bytes:
    """Return the script that assigns the failures to a variable.

    Each entry has a code, a title, patterns of which a line matches one, patterns that must all be
    in the text. The order is that of priorities; those that follow from facts are last.
    """
    entries: list[tuple[str, str, list[str], list[str]]] = [
        (rule.code, rule.title, [*map(_browser_pattern, rule.match)], [*_conditions(rule)])
        for rule in rules.load_rules()
    ]
    entries += [
        (code, kind.title, [f":{MESSAGES[code]}"] if code in MESSAGES else [], [])
        for code, kind in rules.derived_kinds().items()
    ]
    return packed_script(VARIABLE, entries)


def _conditions(rule: FailureRule) -> Iterator[str]:
    """Yield the patterns `also` and `frames`. In a browser, frames are lines of the traceback."""
    yield from map(_browser_pattern, rule.also)
    if rule.frames:
        yield _browser_pattern(_line_pattern(rule.frames))


def _line_pattern(frames: str) -> str:
    """Return a pattern for lines of a traceback, in which a package is a folder.

    A frame is PACKAGE:PATH:FUNCTION.
    """
    pattern = _FRAME_SEPARATOR.sub(".{0,80}", frames)
    return pattern if "$" in pattern else re.sub(r"^\^", "/", pattern)


def _browser_pattern(pattern: str) -> str:
    """Return a pattern in the syntax of JavaScript, after its flags: "i:out of memory"."""
    flags = {flag for match in _FLAGS.finditer(pattern) for flag in match[1]}
    plain = _FLAGS.sub(lambda match: "(?:" if match[2] == ":" else "", pattern)
    return f"{''.join(sorted(flags))}:{_GROUP_NAME.sub('(?:', plain)}"


def failures_text() -> bytes:
    """Return the causes and cures of all failures as text, in UTF-8 with a byte order mark.

    Browsers read a text file without a mark in the encoding of the user's system.
    """
    return "\n".join(_text_lines()).encode("utf-8-sig")


def _text_lines() -> Iterator[str]:
    yield "The failures that `imgbuild diagnose` finds in logs, by title. Words in capitals stand"
    yield "for text from the log.\n"
    for failure in codes.all_failures():
        yield f"{failure.code}: {failure.title}\n"
        names = f"\n\nNew names: {'; '.join(_new_names())}." if failure.code == "IMG904" else ""
        yield failure.text.replace(" Cure: ", "\n\nCure: ", 1) + names + "\n\n"


def _new_names() -> Iterator[str]:
    """Yield each parameter that was renamed, with its new name and the packages."""
    packages: dict[tuple[str, str], list[str]] = {}
    for package, names in releases.renamed_parameters().items():
        for pair in names.items():
            packages.setdefault(pair, []).append(package)
    for (old, new), every in packages.items():
        yield f"{old} is {new} in {', '.join(every)}"
