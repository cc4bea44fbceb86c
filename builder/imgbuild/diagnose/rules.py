"""Reads the known failures in `data/diagnose/*.yaml`, and matches a log with them.

A pattern is a regular expression that is searched for in one event: an exception with its type and
message, or a line. Its named groups can be used in `cause` and `cure`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal

import msgspec
from packaging.specifiers import SpecifierSet

from imgbuild.audit.code.kinds import FindingKind
from imgbuild.diagnose import literals
from imgbuild.diagnose.facts import LogFacts
from imgbuild.system import files, yaml_data

FindingRole = Literal["cause", "consequence", "symptom"]
FindingConfidence = Literal["high", "medium", "low"]
PLACEHOLDER = re.compile(r"\{(\w+)\}")


class FailureRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One known failure.

    The rule applies to an event that one of the patterns `match` matches, if the log meets these
    conditions. Each pattern in `also`, and none in `unless`, matches some event. The pattern
    `frames` matches a frame of the exception (PACKAGE:FILE:FUNCTION:CODE), or "" if the exception
    has no frame, and the pattern `no_frame` matches none of its frames. Versions in the log are in
    the ranges `packages`. The machine is arm64, or is not, as `arm` requires. With `failed`, the
    log shows a failure elsewhere, because the matched text does not. With `last`, one of the last
    lines matches, because programs also print the text and continue.

    With `warns`, an event that is a warning is sufficient. With `follows`, the failure is a
    consequence if an exception of the program precedes it. For one event, the rule with the highest
    `priority` is used. `role` is a cause, a consequence of another failure, or a text about one. If
    the metadata of the calling package contains a version of the package `requires`, the cure
    begins with that version. `{user}` in cause and cure is the calling package. The groups of the
    patterns `names` are taken from any event. Groups without a match are replaced by their names in
    capitals. `earlier` are codes of former rules that this one replaces.
    """

    code: str
    title: str
    match: tuple[str, ...]
    cause: str
    cure: str
    also: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    frames: str = ""
    no_frame: str = ""
    packages: Mapping[str, str] = {}
    arm: bool | None = None
    failed: bool = False
    warns: bool = False
    last: bool = False
    follows: bool = False
    requires: str = ""
    names: tuple[str, ...] = ()
    role: FindingRole = "cause"
    confidence: FindingConfidence = "high"
    priority: int = 50
    sources: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()
    example: str = ""

    @property
    def compiled_patterns(self) -> tuple[re.Pattern[str], ...]:
        """The compiled patterns in `match`."""
        return _compile_patterns(self.match)

    @property
    def empty_groups(self) -> Mapping[str, str]:
        """The groups of all patterns, each with an empty text."""
        return _groups(self.match)

    def named_groups(self, texts: Sequence[str]) -> Mapping[str, str]:
        """Return the groups of `names`, each from the first text that contains it.

        A group without a match is replaced by its name in capitals, or by "" if the name ends with
        an underscore.
        """
        groups = {name: name.upper() * (name[-1] != "_") for name in _groups(self.names)}
        for pattern in reversed(_compile_patterns(self.names)):
            match = next(filter(None, map(pattern.search, texts)), None)
            groups |= match.groupdict() if match else {}
        return groups

    def conditions_hold(
        self, facts: LogFacts, texts: Sequence[str], end: Sequence[str] = ()
    ) -> bool:
        """Whether the rest of the log meets the rule's conditions.

        `end` contains the last lines.
        """
        if self.last and not any(_matches_any(pattern, end) for pattern in self.compiled_patterns):
            return False
        if self.arm is not None and self.arm != facts.arm:
            return False
        for package, spec in self.packages.items():
            version = facts.version(package)
            if version is not None and not SpecifierSet(spec).contains(version, prereleases=True):
                return False
        if not all(_matches_any(pattern, texts) for pattern in _compile_patterns(self.also)):
            return False
        return not any(_matches_any(pattern, texts) for pattern in _compile_patterns(self.unless))


@lru_cache(maxsize=8192)
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def _compile_patterns(patterns: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    return tuple(map(_compile_pattern, patterns))


@lru_cache(maxsize=1024)
def _groups(patterns: tuple[str, ...]) -> Mapping[str, str]:
    return {name: "" for pattern in _compile_patterns(patterns) for name in pattern.groupindex}


def _matches_any(pattern: re.Pattern[str], texts: Sequence[str]) -> bool:
    return any(pattern.search(text) for text in texts)


@lru_cache(maxsize=1)
def load_rules() -> tuple[FailureRule, ...]:
    """Load all rules. Rules with a higher priority come first."""
    rules = [
        yaml_data.load_yaml_data(path, FailureRule)
        for path in sorted(files.data("diagnose").glob("*.yaml"))
    ]
    return tuple(sorted(rules, key=lambda rule: (-rule.priority, rule.code)))


@lru_cache(maxsize=1)
def derived_kinds() -> Mapping[str, FindingKind]:
    """Load the failures that are derived from facts, by code.

    The file is `data/diagnose/facts/kinds.yaml`.
    """
    return yaml_data.load_yaml_data(files.data("diagnose/facts/kinds.yaml"), dict[str, FindingKind])


@lru_cache(maxsize=1)
def _searched_patterns() -> tuple[tuple[tuple[FailureRule, str], ...], literals.WordIndex]:
    """Return the patterns of all rules, each with its rule, and the index of their words.

    A pattern is compiled when a text contains its words, because a log contains the words of few.
    """
    rows = tuple((rule, pattern) for rule in load_rules() for pattern in rule.match)
    return rows, literals.WordIndex(pattern for _, pattern in rows)


@lru_cache(maxsize=1024)  # logs repeat their failures, on all ranks
def matching_rules(
    text: str, frames: tuple[str, ...]
) -> tuple[tuple[FailureRule, Mapping[str, str]], ...]:
    """Return the rules with a pattern that matches `text`, each with the groups of the pattern."""
    return tuple(_iterate_matches(text, frames))


def _iterate_matches(
    text: str, frames: Sequence[str]
) -> Iterator[tuple[FailureRule, Mapping[str, str]]]:
    rows, index = _searched_patterns()
    matched = None
    for number in index.candidate_patterns(text):
        rule, pattern = rows[number]
        if rule is matched:
            continue
        match = _compile_pattern(pattern).search(text)
        if match is None:
            continue
        matched = rule
        if rule.frames and not any(re.search(rule.frames, frame) for frame in frames or ("",)):
            continue
        if rule.no_frame and any(re.search(rule.no_frame, frame) for frame in frames):
            continue
        found = {name: value for name, value in match.groupdict().items() if value}
        yield rule, {**rule.empty_groups, **found}


def fill_placeholders(text: str, groups: Mapping[str, str]) -> str:
    """Return `text` with its placeholders replaced.

    Empty values are removed with their punctuation.
    """
    full = PLACEHOLDER.sub(lambda match: groups.get(match[1], match[0]), text)
    if "" not in groups.values():
        return full
    full = re.sub(r" {2,}", " ", re.sub(r" \( ?\)", "", full))
    return re.sub(r":? +$", "", re.sub(r" +(?=[,:;])", "", full))
