"""Tests that each rule for a known failure finds its example, also in a long log."""

from __future__ import annotations

import io
import re

import pytest

from imgbuild.audit.code.kinds import load_finding_kinds
from imgbuild.diagnose import codes, lines, literals, rules
from imgbuild.diagnose.diagnosis import diagnose_log, first_finding_sentence
from imgbuild.diagnose.rules import FailureRule
from tests.support import needs
from tests.support.rows import each_row

RULES = sorted(rules.load_rules(), key=lambda rule: rule.code)
SOME = RULES if needs.is_long_run() else RULES[::4]
HEAD = 60  # lines that are all read at the start of a log, as are the last 40
FILLER = "".join(
    f"step:{number} - actor/loss:0.{number} - lr:1e-06\n" for number in range(2 * HEAD)
)
# The steps do not continue after a failure.
END = "".join(f"[monitor:{number}] no new step\n" for number in range(2 * HEAD))


def code_ids(rule: FailureRule) -> str:
    return rule.code


def first_code(text: str) -> str | None:
    answers = diagnose_log(io.BytesIO(text.encode()), "log").findings
    return answers[0].code if answers else None


@each_row("rule", RULES, ids=code_ids)
def test_rule_is_the_first_finding_for_its_example(rule: FailureRule) -> None:
    assert first_code(rule.example) == rule.code


@each_row("rule", [rule for rule in SOME if rule.example.isascii()], ids=code_ids)
def test_failure_in_the_middle_of_a_long_log_is_found(
    rule: FailureRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "HEAD", HEAD)
    monkeypatch.setattr(lines, "EXCERPT", 1)  # is searched for the patterns of all rules
    answers = diagnose_log(io.BytesIO((FILLER + rule.example + END).encode()), "log").findings
    ignored = rule.failed or rule.role == "symptom" or rule.warns or rule.arm
    assert rule.code in [each.code for each in answers] or ignored


@each_row("rule", RULES, ids=code_ids)
def test_placeholders_of_a_rule_are_groups_of_its_pattern(rule: FailureRule) -> None:
    patterns = (*rule.compiled_patterns, *map(re.compile, rule.names))
    groups = {"user", *(name for pattern in patterns for name in pattern.groupindex)}
    assert set(rules.PLACEHOLDER.findall(rule.cause + rule.cure)) <= groups
    for answer in diagnose_log(io.BytesIO(rule.example.encode()), "log").findings:
        assert not rules.PLACEHOLDER.search(answer.cause + answer.cure)


def test_every_diagnosis_code_belongs_to_one_rule() -> None:
    every = [rule.code for rule in RULES]
    assert len(set(every)) == len(every)
    assert not set(every) & set(rules.derived_kinds())
    assert all(
        re.fullmatch(r"IMG(?:[5-9]\d\d|1\d{3})", code) for code in [*every, *rules.derived_kinds()]
    )


def test_patterns_of_rules_have_bounded_repetition() -> None:
    """With `.*` or `.+` in the middle, searching a long line takes quadratic time."""
    wrong = [
        f"{rule.code}: {pattern}"
        for rule in RULES
        for pattern in (*rule.match, *rule.also, *rule.unless, *rule.names)
        if re.search(
            r"(?<!\\)\.[*+]", re.sub(r"\[(?:\\.|[^\]])+\]", "x", pattern).removesuffix("$")[:-4]
        )
    ]
    assert not wrong


@each_row("rule", SOME, ids=code_ids)
def test_a_hostile_line_is_searched_in_few_steps(rule: FailureRule) -> None:
    """The lines repeat the words of each example up to the maximum length."""
    words = " ".join(rule.example.split())[:200]
    for text in (words * 20, "a" * 4000, "1" * 4000, "(" * 4000, " " * 4000, "error: " * 500):
        for pattern in rule.compiled_patterns:
            pattern.search(text[:4000])


def test_every_diagnosis_code_has_an_explanation() -> None:
    every = codes.all_explanations()
    assert {rule.code for rule in RULES} <= every.keys()
    assert set(rules.derived_kinds()) <= every.keys()
    assert not [each.code for each in every.values() if "{" in each.text.replace("{'use_", "")]


def test_every_code_of_the_audit_has_an_example() -> None:
    every = codes.all_explanations()
    assert not [code for code in load_finding_kinds() if not every[code].example]


def test_codes_of_earlier_versions_lead_to_current_ones() -> None:
    assert codes.current_code("IMG768") == "IMG906"
    assert codes.current_code("IMG1434") == "IMG634"
    earlier = [code for kind in rules.derived_kinds().values() for code in kind.earlier]
    assert not codes.all_explanations().keys() & set(earlier)


def test_explanation_of_a_code_has_both_cause_and_cure_or_neither() -> None:
    text = next(rule for rule in RULES if rule.code == "IMG504").example
    assert first_finding_sentence(text).startswith("IMG504: an installed package")
    assert "; cure: " in first_finding_sentence(text)
    assert first_finding_sentence("Traceback (most recent call last):\nacme.OddError: x\n") == ""
    assert first_finding_sentence("") == ""


def test_bus_error_after_a_ray_warning_is_explained_by_shared_memory() -> None:
    warning = (
        "WARNING: The object store is using /tmp instead of /dev/shm because /dev/shm has only"
        " 67108864 bytes available.\n"
    )
    assert first_code(warning) is None
    assert first_code(f"{warning}Bus error (core dumped)\n") == "IMG530"


def test_type_that_a_quantization_method_rejects_is_not_a_gpu_error() -> None:
    text = "ValueError: torch.bfloat16 is not supported for quantization method awq."
    assert first_code(text) == "IMG810"


def test_exit_message_of_hydra_is_a_failure() -> None:
    text = (
        "Could not override 'actor.use_kl'.\nKey 'use_kl' is not in struct\n\n"
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"
    )
    assert first_code(text) == "IMG918"


def test_an_exception_that_mentions_a_fallback_is_a_failure() -> None:
    text = (
        "RuntimeError: CUDA error: no kernel image is available for execution; falling back is off"
    )
    assert first_code(text) == "IMG504"


def test_word_index_finds_patterns_by_the_words_of_a_text() -> None:
    index = literals.WordIndex(["slots (?:full|gone)", r"\d+", "Pump|valve", "pumps? of"])
    assert index.candidate_patterns("All SLOTS are FULL") == [0, 1]
    assert index.candidate_patterns("the pump of") == [1, 2, 3]
    assert index.candidate_patterns("") == [1]


@each_row("rule", RULES, ids=code_ids)
def test_word_index_includes_every_matching_pattern(rule: FailureRule) -> None:
    index = literals.WordIndex(rule.match)
    for line in rule.example.splitlines():
        matching = {at for at, each in enumerate(rule.compiled_patterns) if each.search(line)}
        assert matching <= set(index.candidate_patterns(line))


def test_waiting_for_a_server_is_reported_only_at_the_end_of_a_log() -> None:
    text = next(rule for rule in RULES if rule.code == "IMG526").example
    assert first_code(text) == "IMG526"
    assert first_code(f"{text}Server is up\nstep 1\nstep 2\n") is None
