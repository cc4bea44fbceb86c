"""Tests the table of documented first commands, and the checks of their results."""

from __future__ import annotations

import json
import shlex
import string
from types import ModuleType
from typing import Any

import pytest

from tests.support.rows import each_row
from tests.support.smoke_scripts import smoke_module

WORDS = ("bin", "python", "trl", "model", "data", "out", "share", "port")


@pytest.fixture(name="table")
def _table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return smoke_module("quick_table", monkeypatch)


def test_each_quick_start_is_a_smoke_case_of_its_tier(table, monkeypatch):
    tiers = smoke_module("smoke_tiers", monkeypatch).TIERS
    names = [row.name for row in table.TABLE]
    assert len(names) == len(set(names))
    for row in table.TABLE:
        [case] = [case for case in tiers[row.tier] if case.name == row.name]
        assert (case.script, case.arguments) == ("quick_start.py", (row.name,))
        assert (case.needs, case.limit, case.usual) == (row.needs, row.limit, row.usual)
        assert (row.gpus > 1) == (row.tier == "multi-gpu")


def test_quick_start_commands_use_image_programs_and_known_placeholders(table):
    for row in table.TABLE:
        for command in row.commands.strip().splitlines():
            fields = {field for _, field, _, _ in string.Formatter().parse(command) if field}
            assert fields <= set(WORDS), row.name
            assert command.startswith(("{bin}/", "{python} ")), row.name
            assert bool({"model", "data"} & fields) <= bool(row.data), row.name
            typed = [word.format_map(dict.fromkeys(WORDS, "x")) for word in shlex.split(command)]
            assert not [word for word in typed if "{" in word or "\\" in word], row.name


def test_checks_and_data_formats_of_quick_starts_exist(table, monkeypatch):
    checks = smoke_module("quick_checks", monkeypatch).CHECKS
    kinds = smoke_module("quick_data", monkeypatch).KINDS
    for row in table.TABLE:
        assert row.checks, row.name
        assert {check[0] for check in row.checks} <= checks.keys(), row.name
        assert not row.data or row.data in kinds, row.name


def test_sample_data_of_a_quick_start_is_written_as_json_lines(tmp_path, monkeypatch):
    data = smoke_module("quick_data", monkeypatch)
    for kind, (make, name) in data.KINDS.items():
        if not name.endswith(".jsonl"):
            continue  # the others need packages of an image
        folder = data.write(kind, tmp_path / kind)
        rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        assert rows == make() * data.COPIES


def test_reward_of_a_quick_start_accepts_texts_and_conversations(monkeypatch):
    data = smoke_module("quick_data", monkeypatch)
    module: dict[str, Any] = {}
    exec(data.REWARD, module)
    assert module["letters"](["ab 1", [{"content": "1"}], ""]) == [0.75, 0.0, 0.0]


@each_row(
    ("installed", "since", "before"),
    [
        ("0.18.2", "0.24", True),
        ("0.24.0", "0.24", False),
        ("0.9.1", "0.9", False),
        ("1.12.0", "0.24", False),
        ("0.8.5.post1", "0.9", True),
        ("0.24.0.dev0", "0.24", False),
    ],
)
def test_versions_are_compared_by_their_numbers(installed, since, before, monkeypatch):
    assert smoke_module("quick_start", monkeypatch).before(installed, since) is before


def test_quick_start_output_without_the_expected_text_is_a_problem(monkeypatch):
    says = smoke_module("quick_checks", monkeypatch).says
    assert says("{'train_loss': '5.8'}", None, r"'train_loss': '?\d") == []
    assert says("nothing", None, "loss") == ["the output has nothing like loss"]


@each_row(
    ("text", "fits"),
    [
        ('{"colour": "red", "warm": true}', True),
        ('{"colour": "blue", "warm": true}', False),
        ('{"colour": "red", "warm": 1}', False),
        ('{"colour": "red"}', False),
        ('{"colour": "red", "warm"', False),
        ("[1]", False),
        ("", False),
    ],
)
def test_generated_documents_are_checked_by_schema(text, fits, monkeypatch):
    assert smoke_module("smoke_openai", monkeypatch).fits_schema(text) is fits


def test_most_generated_documents_must_be_complete_and_none_may_be_invalid(monkeypatch):
    openai = smoke_module("smoke_openai", monkeypatch)
    right, cut, other = '{"colour": "red", "warm": true}', '{"colour":', "a colour"

    def problems(*texts):
        return openai.complete(list(texts), openai.fits_schema)

    assert problems(right, right, cut) == []
    assert problems("", "") == ["the text is empty"]
    assert problems(right, cut, cut) == [
        f"2 of 3 documents do not match the schema, such as {cut!r}"
    ]
    assert problems(right, right, other) == [f"{other!r} is not the start of a valid document"]


@pytest.mark.parametrize("error", [None, ConnectionError("refused"), SystemExit("refused")])
def test_each_served_request_has_a_separate_result(error, tmp_path, monkeypatch):
    support = smoke_module("smoke_support", monkeypatch)
    monkeypatch.setenv("SMOKE_CASES", str(tmp_path / "cases"))

    def question():
        if error:
            raise error
        return []

    problems = support.judge("chat", question)
    [result] = map(json.loads, (tmp_path / "cases").read_text().splitlines())
    assert (result["name"], result["outcome"]) == ("chat", "failed" if error else "passed")
    assert problems == ([f"chat: {type(error).__name__}: refused"] if error else [])
