"""What the audit calls the main path, as data: entry points, and the packages that are walked.

Input: `data/audit/entry_points.yaml`. Output: a `Policy`.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

import msgspec
import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

FILE = "data/audit/entry_points.yaml"


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A place where people's programs begin: a module, a function, or a class that they construct.

    It counts where its package is in the world with one of `versions`, and `beside` too; what such
    a version does not have is skipped. `also` are things that it loads by names in strings, or
    in processes of its own, where no statement leads to them.
    """

    name: str
    why: str
    versions: str = ""
    beside: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


class Registry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A `method` that refuses names which the `table` in one of `files` has already.

    The keyword `allowed_by` makes it take them all the same.
    """

    method: str
    files: tuple[str, ...]
    table: str
    allowed_by: str


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose code is followed (`walk`), from where (`entries`), and who keeps lists of names."""

    walk: frozenset[str]
    entries: tuple[Entry, ...]
    registries: tuple[Registry, ...] = ()


@lru_cache(maxsize=1)
def load() -> Policy:
    """The policy of this release."""
    text = resources.files("imgbuild").joinpath(FILE).read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), Policy)


def within(version: str, spec: str) -> bool:
    """Whether `version` is one of `spec`, pre-releases included."""
    try:
        return SpecifierSet(spec).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False
