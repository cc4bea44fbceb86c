"""Reads the YAML files in the package's folder `data`. libyaml is used if PyYAML has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

T = TypeVar("T")
MOST_LEVELS = 100  # libyaml's loader is recursive: some ten thousand levels end the process
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml_data(path: Path, kind: type[T]) -> T:
    """Read the file at `path`, which `files.data` returned, as a value of type `kind`."""
    return msgspec.convert(_load(path.read_bytes()), kind)


def parse_yaml(text: str | bytes) -> Any:
    """Parse a YAML document. Raises yaml.YAMLError if it is invalid or nested too deeply."""
    _refuse_deep_nesting(text.encode(errors="replace") if isinstance(text, str) else text)
    return _load(text)


def _load(text: str | bytes) -> Any:
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, of which ruff knows one


def _refuse_deep_nesting(text: bytes) -> None:
    """Raise yaml.YAMLError for more than `MOST_LEVELS` levels, without loading the document.

    Levels by indentation need a file of quadratic size, so only those on one line are counted.
    """
    if text.count(b"[") + text.count(b"{") <= MOST_LEVELS and not any(
        line.count(b"- ") + line.count(b"? ") + line.count(b": ") > MOST_LEVELS
        for line in text.splitlines()
    ):
        return
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MOST_LEVELS:
            message = f"nested in more than {MOST_LEVELS} levels"
            raise yaml.YAMLError(message)
