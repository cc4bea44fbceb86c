"""Finds files of a user by the paths in code and commands, and reads settings in YAML and JSON."""

from __future__ import annotations

import functools
import json
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from imgbuild.audit.code.model import CodeText
from imgbuild.system import yaml_data


def find_text(
    texts: Sequence[CodeText], path: str, near: CodeText | None = None
) -> CodeText | None:
    """Return the file to which a path refers, or None if there are none or several.

    The folder in which a program runs is unknown, so a file matches if its path ends with `path`. A
    file with this path in the folder of `near` takes precedence.
    """
    path = posixpath.normpath(path)
    end = f"/{path.lstrip('./')}"
    matches = [text for text in texts if f"/{text.file}".endswith(end)]
    if near is not None:
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(near.file), path))
        nearest = [text for text in matches if posixpath.normpath(text.file) == beside]
        matches = nearest or matches
    return matches[0] if len(matches) == 1 else None


def parse_settings(text: CodeText) -> Any:
    """Return the content of a YAML or JSON file, or None for other and invalid files."""
    if text.kind not in ("yaml", "json"):
        return None
    try:
        source = text.source
        return json.loads(source) if text.kind == "json" else yaml_data.parse_yaml(source)
    except (ValueError, yaml.YAMLError, RecursionError):
        return None


def place_key(text: CodeText, path: str) -> tuple[int, int]:
    """Return the line and column of a dotted key in a YAML or JSON file, counted from 1.

    If the key is not found, the place of its innermost parent is returned.
    """
    node = _compose(text.source)
    place = (1, 1)
    for part in path.split("."):
        pair = _members(node).get(part)
        if pair is None:
            break
        mark, node = pair[0].start_mark, pair[1]
        place = (mark.line + 1, mark.column + 1)
    return place


@functools.lru_cache(maxsize=8)  # for all findings in a file
def _compose(source: bytes) -> yaml.Node | None:
    try:
        return yaml.compose(source.decode("utf-8", "replace"), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


@functools.lru_cache(maxsize=64)
def _members(node: yaml.Node | None) -> Mapping[Any, tuple[yaml.Node, yaml.Node]]:
    """Return the first key and value of each name in a mapping."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return {pair[0].value: pair for pair in reversed(pairs) if isinstance(pair[0], yaml.ScalarNode)}
