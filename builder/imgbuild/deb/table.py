"""Reads the reviewed effects of a suite's maintainer scripts, and the files to exclude.

The file is `data/debian/SUITE.yaml`. A package with a script that is not in the table is an error.
If you change the data, increase `plan.DEBIAN_FORMAT`, because the base changes.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
import yaml

from imgbuild.deb.archive import DebContents
from imgbuild.errors import InputError, InputProblem, IntegrityError
from imgbuild.system import files, yaml_data
from imgbuild.values import Sha256, sha256

DATA = files.data("debian")
# scripts that dpkg runs on installation to an empty root
SCRIPTS = ("preinst", "postinst", "config")

FileMode = Annotated[str, msgspec.Meta(pattern="^[0-7]{4}$")]


class Effect(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", forbid_unknown_fields=True):
    """A change on disk that a script makes.

    If `arch` is set, other architectures have no such change.
    """

    arch: Literal["", "amd64", "arm64"] = ""


class DebFolder(Effect, frozen=True, kw_only=True, tag="folder"):
    """An empty folder owned by root."""

    path: str
    mode: FileMode = "0755"
    gid: int = 0


class DebFile(Effect, frozen=True, kw_only=True, tag="file"):
    """A file with the content `text`, owned by root."""

    path: str
    text: str = ""
    mode: FileMode = "0644"
    gid: int = 0


class CopyEffect(Effect, frozen=True, kw_only=True, tag="copy"):
    """A copy of a package's file.

    `match` selects lines, and `fill` maps lines to their replacements.
    """

    source: str
    path: str
    match: str = ""
    fill: dict[str, str] = {}


class DebLink(Effect, frozen=True, kw_only=True, tag="link"):
    """A symbolic link."""

    path: str
    target: str


class OwnerEffect(Effect, frozen=True, kw_only=True, tag="owner"):
    """A change to the group and mode of a package's file."""

    path: str
    gid: int
    mode: FileMode


class DebGroup(Effect, frozen=True, kw_only=True, tag="group"):
    """A system group with a fixed ID, although dpkg would assign the next free ID."""

    name: str
    gid: int


class DiversionEffect(Effect, frozen=True, kw_only=True, tag="diversion"):
    """A line in dpkg's list of diversions. No file is moved."""

    path: str
    to: str
    package: str


class SlaveLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link that follows the selected alternative."""

    name: str
    link: str
    path: str


class AlternativeEffect(Effect, frozen=True, kw_only=True, tag="alternative"):
    """An alternative of `update-alternatives`.

    The alternative with the highest priority is selected.
    """

    name: str
    link: str
    path: str
    priority: int
    slaves: tuple[SlaveLink, ...] = ()


class ComputeEffect(Effect, frozen=True, kw_only=True, tag="compute"):
    """A file that code computes from all packages."""

    what: Literal["accounts", "certificates", "libraries"]


AnyEffect = (
    DebFolder
    | DebFile
    | CopyEffect
    | DebLink
    | OwnerEffect
    | DebGroup
    | DiversionEffect
    | AlternativeEffect
    | ComputeEffect
)


class DebEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scripts of a package: their known hashes, the reviewer's notes, and their effects."""

    why: str
    scripts: dict[str, tuple[Sha256, ...]] = {}
    effects: tuple[AnyEffect, ...] = ()


class ExcludedPaths(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dpkg pattern for paths that are not unpacked. `*` also matches `/`."""

    path: str
    why: str


class EffectTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table of a suite. `include` lists exceptions to `exclude`.

    Unless `set_id` is set, the setuid and setgid bits of files are removed.
    """

    suite: str
    set_id: bool = True
    exclude: tuple[ExcludedPaths, ...]
    include: tuple[ExcludedPaths, ...]
    triggers: dict[str, str]  # the triggers that packages may activate, and the equivalent effects
    packages: dict[str, DebEntry]


def load_table(suite: str) -> EffectTable:
    """Read the table of `suite`. Raises InputError if it is missing or invalid."""
    path = DATA / f"{suite}.yaml"
    if not path.exists():
        suites = ", ".join(sorted(item.stem for item in DATA.glob("*.yaml")))
        message = f"imgbuild has no table of script effects for Debian {suite}"
        raise InputError(message, hint=f"use a suite with a table: {suites}")
    try:
        return yaml_data.load_yaml_data(path, EffectTable)
    except (msgspec.ValidationError, yaml.YAMLError) as error:
        message = f"{path.name} is not a valid table of script effects"
        raise InputError(
            message, problems=(InputProblem(file=str(path), message=str(error)),)
        ) from error


def check_scripts(table: EffectTable, packages: Iterable[DebContents]) -> None:
    """Raise IntegrityError if the table lacks the hash of a script or the name of a trigger."""
    unknown = []
    for package in packages:
        entry = table.packages.get(package.name)
        for script, data in _scripts(package):
            if entry is None or sha256(data) not in entry.scripts.get(script, ()):
                version = package.control.get("Version", "?")
                unknown.append(f"{package.name} {version}: {script} {sha256(data)}")
        for verb, trigger in _triggers(package):
            if verb.startswith("activate") and trigger not in table.triggers:
                unknown.append(f"{package.name}: activates the trigger {trigger}")
    if unknown:
        message = "maintainer scripts that are not in the reviewed table:\n  " + "\n  ".join(
            unknown
        )
        hint = (
            "read each script (dpkg-deb --control PACKAGE.deb), then add its hash and its effects"
            f" to imgbuild/data/debian/{table.suite}.yaml; or remove the package from the base"
        )
        raise IntegrityError(message, hint=hint)


def excluded_pattern(table: EffectTable) -> re.Pattern[str]:
    """Return a pattern that matches excluded paths (without leading slash)."""
    return _union(item.path for item in table.exclude)


def included_pattern(table: EffectTable) -> re.Pattern[str]:
    """Return a pattern that matches paths (without leading slash) that are exceptions."""
    return _union(item.path for item in table.include)


def dpkg_configuration(table: EffectTable) -> bytes:
    """Return the exclusions in dpkg's format, which apply to packages that users install later."""
    lines = [
        "# What the base leaves out, left out of added packages too. Delete this file to undo it."
    ]
    lines += [f"path-exclude={item.path}" for item in table.exclude]
    lines += [f"path-include={item.path}" for item in table.include]
    return ("\n".join(lines) + "\n").encode()


def _union(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(pattern.lstrip("/")) for pattern in patterns))


def _scripts(package: DebContents) -> list[tuple[str, bytes]]:
    scripts = [(name, package.files[name]) for name in SCRIPTS if name in package.files]
    if any(verb.startswith("interest") for verb, _ in _triggers(package)):
        scripts.append(("triggers", package.files["triggers"]))
    return scripts


def _triggers(package: DebContents) -> list[tuple[str, str]]:
    lines = package.files.get("triggers", b"").decode().splitlines()
    pairs = (line.partition("#")[0].split() for line in lines)
    return [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]


def trigger_interests(package: DebContents) -> list[tuple[str, str]]:
    """Return the triggers in which `package` is interested, each with "/noawait" or ""."""
    return [
        (trigger, "/noawait" if verb.endswith("noawait") else "")
        for verb, trigger in _triggers(package)
        if verb.startswith("interest")
    ]
