"""Tests that quoted texts are parsed back unchanged in each language."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from imgbuild.errors import InputError
from imgbuild.system import quoting
from imgbuild.values import CONTROLS
from tests.support.rows import each_row

TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)
LINES = TEXTS.filter(lambda text: not re.search(f"[{CONTROLS}]", text))


@given(LINES)
def test_quoted_argument_is_one_shell_word(text: str) -> None:
    assert shlex.split(quoting.quote_word(text)) == [text]
    assert not quoting.quote_word(text).startswith("%")


@given(st.lists(LINES, max_size=4))
def test_quoted_arguments_are_split_unchanged_by_shell(texts: list[str]) -> None:
    assert shlex.split(quoting.quote_words(texts)) == texts


@given(LINES)
def test_quoted_dockerfile_value_is_read_back_unchanged(text: str) -> None:
    written = quoting.dockerfile_value(text)
    if written.startswith('"'):
        assert re.fullmatch(r'"(?:[^"\\$]|\\["\\$])*"', written)
        assert re.sub(r"\\(.)", r"\1", written[1:-1]) == text
    else:
        assert written == text
        assert re.fullmatch(r"[!-~]+", text)


@given(TEXTS)
def test_string_quoted_for_json_and_python_is_read_back_unchanged(text: str) -> None:
    assert json.loads(quoting.json_string(text)) == text
    assert quoting.json_string(text).isascii()
    assert not re.search(f"[{CONTROLS}]", quoting.json_string(text))


@given(TEXTS)
def test_text_of_several_lines_stays_a_comment(text: str) -> None:
    comment = quoting.comment_lines(text, "    ")
    assert not comment or all(line.startswith("    #") for line in comment.split("\n"))
    assert not re.search(rf"(?!\n)[{CONTROLS}]", comment)
    assert "\n" not in quoting.comment_line(text)


def test_comment_lines_have_a_length_limit() -> None:
    comment = quoting.comment_lines("a line\nRUN evil   " + "word " * 60, "    ")
    assert all(re.match(r" {4}# \S", line) for line in comment.splitlines())
    assert max(map(len, comment.splitlines())) <= 100


@each_row("sign", ["\n", "\0", "\r", "\x1b", "\x7f", "\x9b", "\u202e", "\u2028"])
@each_row(
    "quote",
    [
        quoting.quote_word,
        quoting.for_double_quotes,
        quoting.dockerfile_value,
        quoting.sbatch_word,
        quoting.require_plain_word,
    ],
)
def test_quoting_refuses_control_characters(quote, sign: str) -> None:
    with pytest.raises(InputError, match=r"cannot be quoted there|is not a plain word"):
        quote(f"a{sign}b")


def test_script_arguments_can_contain_newlines() -> None:
    assert shlex.split(quoting.quote_word("a\n\tb", lines=True)) == ["a\n\tb"]
    with pytest.raises(InputError, match="cannot be quoted there"):
        quoting.quote_word("a\x1bb", lines=True)


@each_row(
    ("package", "version", "url"),
    [
        ("a\nb", "1", ""), ("a", "1 --index-url https://evil.example", ""), ("a", "1\nb==2", ""),
        ("a", "1", "https://x.example/a b"), ("a", "1", "https://x.example/a\n--pre"),
        ("a", "1; python_version>'3'", ""), ("a", "1", "https://x.example/${HOME}"),
    ],
)  # fmt: skip
def test_quoted_requirement_is_one_package_with_a_version(package, version, url) -> None:
    with pytest.raises(InputError):
        quoting.requirement_line(package, version, ["0" * 64], url=url)
    line = quoting.requirement_line("a", "1!2.0+cu124", ["0" * 64])
    read = Requirement(line.partition(" --hash")[0])
    assert (read.name, str(read.specifier)) == ("a", "==1!2.0+cu124")


@each_row(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"), ("<img src=x>", "&lt;img src=x&gt;"), ("[x](y)", r"\[x\](y)"),
        ("`a`", r"\`a\`"), ("a\n# b", r"a \# b"), ("**", r"\*\*"), ("\x1b", r"\\x1b"),
    ],
)  # fmt: skip
def test_markdown_text_is_escaped(text: str, shown: str) -> None:
    assert quoting.markdown_cell(text) == shown


def test_code_span_can_contain_backquotes() -> None:
    assert quoting.code_span("cu124-vllm") == "`cu124-vllm`"
    assert quoting.code_span("a`b``c") == "``` a`b``c ```"
