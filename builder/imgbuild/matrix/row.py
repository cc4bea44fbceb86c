"""A target as YAML lines, to be pasted below `targets:` of `matrix.yaml` and edited."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from imgbuild import codec
from imgbuild.matrix.model import Target

BARE = re.compile(r"[A-Za-z/][A-Za-z0-9_./+-]*(?: [A-Za-z0-9_./()+-]+)*")
WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
BLOCKS = ("pins", "requires", "env", "links", "exclude", "indexes")


def row(name: str, target: Target) -> list[str]:
    """The lines of `target`; a mapping that holds something has a line for each item."""
    lines = [f"  {name}:"]
    for field, value in codec.to_builtins(target).items():
        if value in ({}, [], (), ""):
            continue
        if field in BLOCKS:
            lines.append(f"    {field}:")
            lines += [f"      {key}: {_inline(item)}" for key, item in value.items()]
        else:
            lines.append(f"    {field}: {value if field == 'as_of' else _inline(value)}")
    return lines


def _inline(value: object) -> str:
    if isinstance(value, Mapping):
        inner = (f"{key}: {_inline(item)}" for key, item in value.items() if item != "")
        return f"{{{', '.join(inner)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_inline(item) for item in value)}]"
    text = str(value)
    plain = BARE.fullmatch(text) and text.lower() not in WORDS
    return text if plain else json.dumps(text, ensure_ascii=False)
