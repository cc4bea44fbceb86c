"""Translates messages of the C library and of bash in logs of Chinese locales to English."""

# A separate module: a table.
from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from imgbuild.system import files, yaml_data

# As in `./run.sh: line 5:`, in two translations.
LINE = re.compile(r"(?:第 ?(\d{1,7}) ?行|行 (\d{1,7}))(?=: )")
PUNCTUATION = str.maketrans(
    {"\u201c": "'", "\u201d": "'", "\u2018": "'", "\u2019": "'", "\uff1a": ": "}
)


@lru_cache(maxsize=1)
def load_messages() -> Mapping[str, str]:
    """Map messages to their English text."""
    return yaml_data.load_yaml_data(
        files.data("diagnose/facts/system_messages.yaml"), dict[str, str]
    )


@lru_cache(maxsize=1)
def _messages() -> re.Pattern[str]:
    """Return the pattern of a message at the end of a line, or before a command or a file."""
    listed = "|".join(map(re.escape, load_messages()))
    return re.compile(
        rf"(?P<colon>^\s{{0,8}}|[:\uff1a\]]\s?|\d\s{{1,8}})(?P<message>{listed})"
        r"(?:(?P<core>\s{0,20}[\uff08(](?:核心已转储|core dumped)[)\uff09])|"
        r"(?=\s*$|[:\uff1a]|\s{2,}|\s?['\"]))"
    )


def translate_message(text: str) -> str:
    """Return `text` with a message of the system in English, and with ASCII punctuation.

    Other texts are returned unchanged.
    """
    if text.isascii():
        return text
    changed, count = _messages().subn(_in_english, text)
    if not count:
        return text
    changed = changed.translate(PUNCTUATION).replace(":  ", ": ")
    return LINE.sub(lambda place: f"line {place[1] or place[2]}", changed)


def _in_english(match: re.Match[str]) -> str:
    core = " (core dumped) " if match["core"] else ""
    return f"{match['colon']}{load_messages()[match['message']]}{core}"
