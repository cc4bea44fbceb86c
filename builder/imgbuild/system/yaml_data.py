"""Reads the YAML files that come with imgbuild, by libyaml where PyYAML has it."""

from __future__ import annotations

from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(text: str | bytes) -> Any:
    """The value of a YAML document; yaml.YAMLError if it is none."""
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, of which ruff knows one
