"""`data/audit/entry_points.yaml`: the entry points of the main path and the packages to follow."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from imgbuild.system import files, yaml_data


class MainPathEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A place where users' programs start: a module, a function, or a class that they construct.

    It applies where its package is installed with one of `versions`, and so are those in `beside`;
    a name that such a version does not have is skipped. `also` are objects that it loads by names
    in strings, or in separate processes, where no statement leads to them. An `optional` one may
    import packages that are not installed; it does not work then, and nobody misses it.
    """

    name: str
    why: str
    versions: str = ""
    beside: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    optional: bool = False


class NameRegistry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A `method` that refuses names which the `table` in one of `files` has already.

    The keyword `allowed_by` makes it accept them.
    """

    method: str
    files: tuple[str, ...]
    table: str
    allowed_by: str


class MainPathPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Packages whose code is followed (`walk`), entry points, and registries of names.

    Of packages in `imported`, only what importing them certainly runs is followed.
    """

    walk: frozenset[str]
    entries: tuple[MainPathEntry, ...]
    imported: frozenset[str] = frozenset()
    registries: tuple[NameRegistry, ...] = ()


@lru_cache(maxsize=1)
def load() -> MainPathPolicy:
    """The policy of this version of imgbuild."""
    return yaml_data.load(files.data("audit/entry_points.yaml"), MainPathPolicy)


def within(version: str, spec: str) -> bool:
    """Whether `version` matches `spec`, pre-releases included."""
    try:
        return SpecifierSet(spec).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False
