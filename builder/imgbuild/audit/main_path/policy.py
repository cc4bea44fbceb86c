"""Reads `data/audit/entry_points.yaml`: entry points of the main path, and packages to follow."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from imgbuild.system import files, yaml_data


class MainPathEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A place where users' programs start: a module, a function, or a class that they construct.

    An entry applies if its package is installed in one of `versions` and all packages in `beside`
    are installed. A name that does not exist in the installed version is skipped. `also` lists
    objects that are loaded by name from strings or in separate processes, so no statement refers to
    them. For an `optional` entry, imports of packages that are not installed are not reported.
    """

    name: str
    why: str
    versions: str = ""
    beside: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    optional: bool = False


class NameRegistry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A `method` that rejects names that are already in the `table` of one of `files`.

    If the keyword `allowed_by` is passed, the method accepts these names.
    """

    method: str
    files: tuple[str, ...]
    table: str
    allowed_by: str


class MainPathPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The packages whose code is followed (`walk`), entry points, and registries of names.

    For packages in `imported`, only code that certainly runs at import is followed.
    """

    walk: frozenset[str]
    entries: tuple[MainPathEntry, ...]
    imported: frozenset[str] = frozenset()
    registries: tuple[NameRegistry, ...] = ()


@lru_cache(maxsize=1)
def load_policy() -> MainPathPolicy:
    """Load the bundled main path policy."""
    return yaml_data.load_yaml_data(files.data("audit/entry_points.yaml"), MainPathPolicy)
