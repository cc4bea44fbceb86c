"""Tests that YAML of users cannot end the process by its nesting."""

from __future__ import annotations

import pytest
import yaml

from imgbuild.system.yaml_data import MOST_LEVELS, parse_yaml


@pytest.mark.parametrize(
    "text", ["z: " + "[" * 100_000, "{a: " * 100_000, "- " * 100_000 + "x", "? " * 100_000 + "x"]
)
def test_deeply_nested_yaml_is_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="nested in more than"):
        parse_yaml(text)


def test_many_shallow_collections_are_read() -> None:
    assert parse_yaml("[" + "[1], " * 1000 + "]") == [[1]] * 1000
    assert parse_yaml("[" * MOST_LEVELS + "]" * MOST_LEVELS) is not None
