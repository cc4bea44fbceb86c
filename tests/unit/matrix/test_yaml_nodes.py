"""Tests that invalid YAML is reported with place and message."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from imgbuild.matrix import yaml_nodes
from imgbuild.matrix.yaml_nodes import MAX_BYTES
from tests.support.matrix_text import (
    FILE,
    VALID_MATRIX,
    break_matrix,
    check_broken,
    find_problems,
    only_problem,
)
from tests.support.rows import each_row

ROOT = Path(__file__).parents[3]
YAML = {
    "duplicate key": (
        "default_index: main",
        "default_index: main\n§default_index: torch",
        (None, "duplicate key default_index: first defined on line 5", None, "each key once", None),
    ),
    "a key that is a number": (
        "labels: {org.example.team: rl}",
        "labels: {§12: rl}",
        (None, "YAML reads this as a number", "12", 'in quotes: "12"', None),
    ),
    "a key that is a truth value": (
        "labels: {org.example.team: rl}",
        "labels: {§on: rl}",
        (None, "YAML reads this as a boolean", "on", 'in quotes: "on"', None),
    ),
    "a key that is a default value": (
        "labels: {org.example.team: rl}",
        "labels: {§=: rl}",
        (None, "YAML reads this as a default value", "=", 'in quotes: "="', None),
    ),
    "a key that is a list": (
        "labels: {org.example.team: rl}",
        "labels: {§[a]: rl}",
        (None, "a key must be text", "a list", "text", None),
    ),
    "an alias": (
        "default_index: main",
        "default_index: §*here",
        (None, "aliases are not supported", "*here", "instead of an alias", None),
    ),
    "a merge key": (
        "labels: {org.example.team: rl}",
        "labels: {§<<: {a: b}}",
        (
            None,
            "merge keys are not supported",
            "<<",
            "the keys and values instead of a merge key",
            None,
        ),
    ),
    "a tag": (
        "summary: an old image",
        "summary: §!!python/name:os.system x",
        (None, "tags are not supported", "!!python/name:os.system", "no tag", None),
    ),
    "a tab": (
        "    base: debian-12",
        "§\tbase: debian-12",
        (None, "cannot be indented with tabs", "base: debian-12", "spaces", None),
    ),
    "a second document": (
        "targets:\n",
        "§---\ntargets:\n",
        (None, "a second document starts", "---", "one document", None),
    ),
    "a control character": (
        "summary: an old image",
        "summary: an §\x07old image",
        (None, "not allowed in YAML", "U+0007", None, None),
    ),
}


@each_row("name", [*YAML])
def test_invalid_yaml_is_reported(name: str) -> None:
    check_broken(*YAML[name])


def test_second_target_with_same_name_is_reported() -> None:
    text, line, column = break_matrix(
        "targets:\n  cu124-vllm:", "targets:\n  cu124-vllm: {}\n  §cu124-vllm:"
    )
    duplicates = [problem for problem in find_problems(text) if "duplicate" in problem.message]
    assert [(problem.line, problem.column) for problem in duplicates] == [(line, column)]


def test_unclosed_bracket_is_reported() -> None:
    text = VALID_MATRIX.replace("cmd: [bash]", "cmd: [bash")
    problem = only_problem(text)
    assert problem.line == text[: text.index("env:")].count("\n") + 1
    assert "flow sequence" in problem.message
    assert problem.value == "env:"


def test_invalid_utf8_is_reported() -> None:
    problem = only_problem(b"version: 1\n# caf\xe9\n")
    assert (problem.line, problem.column, problem.value) == (2, 6, "0xe9")
    assert problem.expected == "a file in UTF-8"


@pytest.mark.parametrize("text", ["", "\n\n", "# only words\n"])
def test_empty_file_is_reported(text: str) -> None:
    problem = only_problem(text)
    assert (problem.line, problem.column, problem.message) == (1, 1, "the file is empty")
    assert problem.expected is not None
    assert "version: 1" in problem.expected


def test_list_at_top_level_is_reported() -> None:
    problem = only_problem("- a\n- b\n")
    assert (problem.line, problem.column, problem.value) == (1, 1, "a list")


def test_byte_order_mark_is_accepted() -> None:
    from imgbuild.matrix.load import parse_matrix

    assert parse_matrix(b"\xef\xbb\xbf" + VALID_MATRIX.encode(), FILE) == parse_matrix(
        VALID_MATRIX.encode(), FILE
    )


def test_alias_bomb_is_refused() -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 30)]
    aliases = [problem for problem in find_problems("\n".join(lines)) if problem.value == "*a7"]
    assert [(problem.line, problem.column) for problem in aliases] == [(9, 10), (9, 15)]


def test_deep_nesting_is_refused() -> None:
    problem = only_problem("a: " + "[" * 5000)
    assert problem.line == 1
    assert "deep" in problem.message


def test_oversized_file_is_refused() -> None:
    problem = only_problem(b"#" * (MAX_BYTES + 1))
    assert problem.message == "the file is too large"
    assert problem.expected == f"at most {MAX_BYTES} bytes"


def _tree(node: yaml.Node | None) -> object:
    """The attributes of a node that readers use, as nested tuples."""
    if node is None:
        return None
    mark = node.start_mark
    head = (node.tag, getattr(node, "style", None), mark.line, mark.column)
    if isinstance(node, yaml.ScalarNode):
        return (*head, node.value)
    if isinstance(node, yaml.MappingNode):
        return (*head, *((_tree(key), _tree(value)) for key, value in node.value))
    return (*head, *map(_tree, node.value))


def _assert_same(text: str) -> bool:
    """Check that libyaml and Python read `text` as the same nodes. Returns False for a problem."""
    root = yaml_nodes._read_by_libyaml(text)
    if root is not None:
        loader = yaml_nodes._StrictLoader(text)
        assert _tree(loader.get_single_node()) == _tree(root)
        assert not loader.problems
    return root is not None


def test_libyaml_and_python_agree_on_matrix() -> None:
    assert _assert_same((ROOT / "matrix.yaml").read_text(encoding="utf-8"))
    assert _assert_same(VALID_MATRIX)


SINGLE = "\n\r\t :#,[]{}!|>'\"%@`\\~=é\U0001f600\ufeff\x85\u2028\x07"
LONGER = (
    *("  ", ": ", "- ", "? ", " #", "&a", "*a", "!!str ", "|-\n", "---\n", "...\n", "\\x41"),
    *("null", "on", "0x1f", "1_0", "1e3", "2026-01-01", "<<: ", ".inf"),
)
PIECES = st.sampled_from([*SINGLE, *LONGER])


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.integers(0, len(VALID_MATRIX)), PIECES, st.integers(0, 2)), max_size=4)
)
def test_libyaml_and_python_agree_on_changed_matrices(changes: list[tuple[int, str, int]]) -> None:
    text = VALID_MATRIX
    for place, piece, removed in changes:
        text = text[:place] + piece + text[place + removed :]
    _assert_same(text)


@given(st.lists(PIECES, max_size=12))
@example(["|", "#"])
@example([">", "-#"])
def test_libyaml_and_python_agree_on_short_texts(pieces: list[str]) -> None:
    _assert_same("".join(pieces))
