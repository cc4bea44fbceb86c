"""Reads the YAML files in the package's folder `data`. libyaml is used if PyYAML has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

T = TypeVar("T")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml_data(path: Path, kind: type[T]) -> T:
    """Read the file at `path`, which `files.data` returned, as a value of type `kind`."""
    return msgspec.convert(parse_yaml(path.read_bytes()), kind)


def parse_yaml(text: str | bytes) -> Any:
    """Parse a YAML document. Raises yaml.YAMLError if it is invalid."""
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, of which ruff knows one
