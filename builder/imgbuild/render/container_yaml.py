"""Writes YAML that YAML 1.1 and YAML 1.2 parsers read in the same way."""

from __future__ import annotations

import re
from typing import Any

import yaml

# Text that every parser reads as text without quotes; all other text is quoted.
_PLAIN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*", re.ASCII)
_WORDS = frozenset(
    {"true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf", "infinity"}
)


class _QuotingDumper(yaml.SafeDumper):
    """Quotes strings that could be read as other types, and writes no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = _PLAIN_TEXT.fullmatch(text) and text.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


class _CompactDumper(_QuotingDumper):
    """Writes lists and mappings of scalars on one line."""

    def represent_mapping(self, tag: str, mapping: Any, flow_style: Any = None) -> yaml.MappingNode:
        node = super().represent_mapping(tag, mapping, flow_style)
        values = [value for _, value in node.value]
        node.flow_style = all(isinstance(value, yaml.ScalarNode) for value in values)
        return node

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: Any = None
    ) -> yaml.SequenceNode:
        node = super().represent_sequence(tag, sequence, flow_style)
        node.flow_style = all(isinstance(value, yaml.ScalarNode) for value in node.value)
        return node


_QuotingDumper.add_representer(str, _text)
_CompactDumper.add_representer(str, _text)


def yaml_document(value: Any, comment: str = "", *, compact: bool = False) -> str:
    """Format `value` as a YAML document after comment lines.

    With `compact`, lists and mappings of scalars are on one line, such as {name: shm}.
    """
    text = yaml.dump(
        value,
        Dumper=_CompactDumper if compact else _QuotingDumper,
        sort_keys=False,
        width=1 << 30,
        allow_unicode=False,
        default_flow_style=False,
    )
    head = "".join(f"# {line}\n" for line in comment.split("\n") if comment)
    return f"{head}{text}"
