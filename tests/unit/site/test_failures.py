"""Tests that browsers find failures by the same patterns as `imgbuild diagnose`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from imgbuild.diagnose import codes, rules
from imgbuild.site import failures
from tests.support.site_scripts import read_packed

PYTHON_ONLY = re.compile(r"\(\?(?:P[<=>]|[#>]|[ailmsux]+[:)-])|\\[AZ]|(?<!\\)[*+?}]\+")


@pytest.fixture(scope="module")
def entries() -> list[Any]:
    return list(read_packed(failures.failures_script()))


def matches(pattern: str, texts: list[str]) -> bool:
    flags, _, source = pattern.partition(":")
    options = re.IGNORECASE * ("i" in flags) | re.DOTALL * ("s" in flags)
    return any(re.search(source, text, options) for text in texts)


def test_site_has_all_failures_with_causes(entries: list[Any]) -> None:
    text = failures.failures_text().decode("utf-8-sig")
    every = codes.all_failures()
    assert {(code, title) for code, title, *_ in entries} == {
        (each.code, each.title) for each in every
    }
    assert [line for line in text.splitlines() if re.match(r"IMG\d+: ", line)] == [
        f"{each.code}: {each.title}" for each in every
    ]
    assert failures.MESSAGES.keys() <= rules.derived_kinds().keys()
    (names,) = [line for line in text.splitlines() if line.startswith("New names: ")]
    assert "; tokenizer is processing_class in transformers, trl; " in names
    assert names.endswith(".")


def test_failures_on_the_site_match_their_examples(entries: list[Any]) -> None:
    listed = {code: (patterns, conditions) for code, _, patterns, conditions in entries}
    missed = []
    for rule in rules.load_rules():
        patterns, conditions = listed[rule.code]
        lines = [line.strip() for line in rule.example.splitlines()]
        texts = [*lines, "\n".join(lines)]
        if not any(matches(each, texts) for each in patterns) or not all(
            matches(each, texts) for each in conditions
        ):
            missed.append(rule.code)
    assert len(missed) < 0.01 * len(listed), missed  # their frames are in no line of a traceback


def test_patterns_on_the_site_have_no_syntax_of_python_alone(entries: list[Any]) -> None:
    patterns = [each for _, _, match, conditions in entries for each in (*match, *conditions)]
    assert not [each for each in patterns if PYTHON_ONLY.search(each.partition(":")[2])]
    assert len(patterns) > 1000
