"""Lists the failures in logs, with words by which browsers find them, and with their causes."""

# A separate module: words of patterns.
from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from imgbuild.diagnose import codes, rules
from imgbuild.diagnose.codes import Explanation

TEXT_FILE = "failures.txt"
SCRIPT = "failures.js"
VARIABLE = "imgbuildFailures"
KEYWORDS = 4  # the rarest words of a failure's patterns, in addition to those of its title
WORD = re.compile(r"[a-z][a-z0-9]{2,}")  # as in failures.js
# What is no literal text in a pattern: flags and groups, classes, sets of characters, repetitions.
_SYNTAX = re.compile(r"\(\?[a-z]+\)|\(\?[:!=<>]+|\\[A-Za-z]|\[[^\]]*\]|\{[\d,]+\}")


class ListedFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A title, with the codes of all failures that have it, and with further words of logs."""

    title: str
    codes: tuple[str, ...]
    keywords: tuple[str, ...]


def listed_failures() -> list[ListedFailure]:
    """Return the failures by title."""
    by_title: dict[str, list[Explanation]] = {}
    for failure in codes.all_failures():
        by_title.setdefault(failure.title, []).append(failure)
    words = {title: _log_words(failures) for title, failures in by_title.items()}
    number = Counter(word for each in words.values() for word in each)
    return [
        ListedFailure(
            title=title,
            codes=tuple(failure.code for failure in failures),
            keywords=tuple(
                sorted(
                    words[title] - _words(title), key=lambda word: (number[word], -len(word), word)
                )[:KEYWORDS]
            ),
        )
        for title, failures in by_title.items()
    ]


def _log_words(failures: Sequence[Explanation]) -> set[str]:
    """Return the words in the patterns of failures, or in the examples of those without."""
    patterns = {rule.code: (*rule.match, *rule.also) for rule in rules.load_rules()}
    texts = (" ".join(patterns.get(each.code, (each.example,))) for each in failures)
    return {word for text in texts for word in _words(_SYNTAX.sub(" ", text))}


def _words(text: str) -> set[str]:
    return {*WORD.findall(text.lower())}


def keyword_script(failures: Sequence[ListedFailure]) -> bytes:
    """Return the script that assigns the keywords of `failures` to a variable, in this order."""
    text = json.dumps([" ".join(each.keywords) for each in failures], separators=(",", ":"))
    return f"var {VARIABLE} = {text};\n".encode()


def failures_text() -> bytes:
    """Return the causes and cures of all failures as text, in UTF-8 with a byte order mark.

    Browsers read a text file without a mark in the encoding of the user's system.
    """
    return "\n".join(_text_lines()).encode("utf-8-sig")


def _text_lines() -> Iterator[str]:
    yield "The failures that `imgbuild diagnose` finds in logs. Words in capitals stand for"
    yield "text from the log.\n"
    for failure in codes.all_failures():
        yield f"{failure.code}: {failure.title}\n"
        yield failure.text.replace(" Cure: ", "\n\nCure: ", 1) + "\n\n"
