"""YAML, written with PyYAML, that has the same meaning in YAML 1.1 and 1.2."""

from __future__ import annotations

import re
from typing import Any

import yaml

# Text that every parser reads as text without quotes; all other text is quoted.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*", re.ASCII)
_WORDS = frozenset(
    {"true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf", "infinity"}
)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that could be read as something else; writes no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def document(value: Any, comment: str) -> str:
    """A YAML document of `value`, after lines of comment."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=1 << 30, allow_unicode=False)
    head = "".join(f"# {line}\n" for line in comment.split("\n"))
    return f"{head}{text}"
