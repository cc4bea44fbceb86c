"""Reads the YAML files of the package's folder `data` as values, by libyaml where PyYAML has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

T = TypeVar("T")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(path: Path, kind: type[T]) -> T:
    """The file at `path`, which `files.data` gives, as a value of `kind`."""
    return msgspec.convert(read(path.read_bytes()), kind)


def read(text: str | bytes) -> Any:
    """The value of a YAML document; yaml.YAMLError if it is none."""
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, of which ruff knows one
