"""Finds reasons for texts without an exception: descriptions, and truncated tracebacks."""

# A separate module: the texts have no line that a rule matches.
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice

import msgspec

from imgbuild.diagnose import rules
from imgbuild.diagnose.exceptions import TraceFrame
from imgbuild.diagnose.finding import Reason
from imgbuild.diagnose.log import ParsedLog
from imgbuild.system import files, yaml_data

MOST_LINES = 12  # of a description
MOST_CHARACTERS = 2000
IMPORT = re.compile(r"from (?P<module>[\w.]{2,100}) import \(?(?P<names>[\w, ]{2,200})")
NAMES = re.compile(r"(?<!as )\b(?!as\b)\w+")
FINISHED = "'train_runtime':"  # of transformers' Trainer at the end of a training
INNERMOST = 4  # frames


class Topic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The words of descriptions of the failure `code`.

    Each pattern in `words`, and none in `without`, matches the description, in any order. `cause`
    and `cure` replace those of the rule, which need the message.
    """

    code: str
    words: tuple[str, ...]
    without: tuple[str, ...] = ()
    cause: str = ""
    cure: str = ""


@lru_cache(maxsize=1)
def _topics() -> tuple[Topic, ...]:
    path = files.data("diagnose/facts/topics.yaml")
    return tuple(yaml_data.load_yaml_data(path, list[Topic]))


class TruncatedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The failure `code` that is raised below a frame that one of the patterns `frames` matches.

    `cause` and `cure` replace those of the rule, which need the message.
    """

    code: str
    frames: tuple[str, ...]
    cause: str = ""
    cure: str = ""


@lru_cache(maxsize=1)
def _truncated_calls() -> tuple[TruncatedCall, ...]:
    path = files.data("diagnose/facts/truncated_calls.yaml")
    return tuple(yaml_data.load_yaml_data(path, list[TruncatedCall]))


def described_reason(log: ParsedLog) -> Reason | None:
    """Return the reason for a failure that a few lines describe, or None."""
    script = log.script and log.number > 1  # a sentence may begin with a command
    if not log.note or script or log.number > MOST_LINES:
        return None
    text = "\n".join(line.text for line in log.last)[:MOST_CHARACTERS]
    if FINISHED in text:
        return None
    for topic in _topics():
        matches = [_search(pattern, text) for pattern in topic.words]
        if all(matches) and not any(_search(pattern, text) for pattern in topic.without):
            groups = {
                name: word for match in matches if match for name, word in match.groupdict().items()
            }
            return _reason(topic, groups)
    return None


def truncated_reason(frames: Iterable[TraceFrame]) -> Reason | None:
    """Return the reason for a traceback without its exception, from its frames, innermost first."""
    for frame in islice(frames, INNERMOST):
        text = f"{frame.file}:{frame.name}:{frame.code}"
        for call in _truncated_calls():
            match = next(filter(None, (re.search(row, text) for row in call.frames)), None)
            if match is not None:
                reason = _reason(call, match.groupdict())
                return msgspec.structs.replace(reason, role="cause")
    return None


def imported_names(code: str) -> list[tuple[str, str]]:
    """Return the names that a line of code imports, each with its module first."""
    match = IMPORT.match(code)
    return [(match["module"], each) for each in NAMES.findall(match["names"])] if match else []


def _search(pattern: str, text: str) -> re.Match[str] | None:
    return re.search(pattern, text, re.ASCII | re.IGNORECASE | re.DOTALL)


def _reason(text: Topic | TruncatedCall, groups: Mapping[str, str | None]) -> Reason:
    rule = next(rule for rule in rules.load_rules() if rule.code == text.code)
    named = {**rule.empty_groups, "user": "a package"}
    named |= {name: word for name, word in groups.items() if word}
    return Reason(
        code=rule.code,
        cause=rules.fill_placeholders(text.cause or rule.cause, named),
        cure=rules.fill_placeholders(text.cure or rule.cure, named),
        role="symptom",
        confidence="medium",
        source="rule",
    )
