"""Parses the YAML files in the package's folder `data`, and files of users, with libyaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from yaml.composer import Composer

from imgbuild.system import decoding

T = TypeVar("T")
MOST_LEVELS = 100  # of lists and mappings in a user's document
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml_data(path: Path, kind: type[T]) -> T:
    """Read the YAML file at `path` as a value of type `kind`. `path` is from `files.data`."""
    document = yaml.load(path.read_bytes(), Loader=_LOADER)  # noqa: S506 - a safe loader
    return decoding.convert(document, kind)


def parse_yaml(text: str | bytes) -> Any:
    """Parse a YAML document. Raises yaml.YAMLError if it is invalid or nested too deeply."""
    return yaml.load(text, Loader=_BoundedLoader)  # noqa: S506 - a safe loader


class _BoundedComposer(Composer):
    """Composes nodes in Python with a depth limit, because libyaml's composer crashes."""

    _levels = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if isinstance(self.peek_event(), yaml.ScalarEvent):  # type: ignore[attr-defined]
            return super().compose_node(parent, index)
        self._levels += 1
        if self._levels > MOST_LEVELS:
            message = f"nested in more than {MOST_LEVELS} levels"
            raise yaml.YAMLError(message)
        node = super().compose_node(parent, index)
        self._levels -= 1
        return node


class _BoundedLoader(_BoundedComposer, _LOADER):  # type: ignore[misc, valid-type]
    def __init__(self, text: str | bytes) -> None:
        _LOADER.__init__(self, text)
        Composer.__init__(self)
