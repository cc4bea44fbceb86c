"""Tests that printed texts contain no control or invisible characters."""

from __future__ import annotations

import functools
import json
import sys
import unicodedata

import pytest

from imgbuild.system.console import Console
from imgbuild.system.control_characters import ascii_controls, escape_control
from tests.support.rows import each_row


@functools.cache
def hidden() -> str:
    """All control and format characters but the tab and the newline."""
    return "".join(
        sign
        for sign in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(sign) in ("Cc", "Cf", "Zl", "Zp") and sign not in "\t\n"
    )


def test_all_control_and_format_characters_are_escaped() -> None:
    shown = escape_control(hidden())
    assert shown.isascii()
    assert shown.isprintable()
    assert shown.encode().decode("unicode_escape") == hidden()


@each_row(
    ("text", "shown"),
    [
        ("a\u200bb", r"a\u200bb"),
        ("a\u200db", r"a\u200db"),
        ("\ufefftorch", r"\ufefftorch"),
        ("a\u2063b\u00adc", r"a\u2063b\xadc"),
        ("x\U000e0041\U000e007f", r"x\U000e0041\U000e007f"),
        ("a\tb\nc é 🙂 ❤\ufe0f العربية", "a\tb\nc é 🙂 ❤\ufe0f العربية"),
    ],
)
def test_texts_without_control_characters_are_unchanged(text: str, shown: str) -> None:
    assert escape_control(text) == shown


def test_control_characters_in_json_are_escaped_by_json() -> None:
    document = json.dumps({"a": hidden()}, ensure_ascii=False)
    written = ascii_controls(document)
    assert written.isascii()
    assert json.loads(written) == json.loads(document)


def test_printed_messages_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    Console().warn("tor\u200bch \U000e0041\u202e is old")
    assert r"tor\u200bch \U000e0041\u202e is old" in " ".join(capsys.readouterr().err.split())
