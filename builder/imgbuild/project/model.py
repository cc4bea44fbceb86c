"""Defines types for the declarations in a project's files."""

from __future__ import annotations

import datetime
import posixpath
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from imgbuild.system.syntax import is_within, parse_requirement
from imgbuild.values import normalize_package


class FilePlace(msgspec.Struct, frozen=True, order=True):
    """A line of a file of the project.

    `file` is relative to the project. `line` is 0 for the whole file.
    """

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


# Files whose Python is that of developers or of an older image; metadata declares what is accepted.
PREFERENCE = re.compile(r"^\.python-version$|dockerfile|containerfile|\.ipynb$")
RequirementKind = Literal["requirement", "constraint", "override"]


def marker_holds(marker: Marker | str | None, markers: Mapping[str, str]) -> bool:
    """Return whether a PEP 508 marker is missing or true on a machine with `markers`."""
    if not marker:
        return True
    condition = Marker(marker) if isinstance(marker, str) else marker
    return condition.evaluate({**markers, "extra": ""})


def exact_version(spec: str | SpecifierSet) -> str | None:
    """Return the only version that `spec` accepts, as written, even if there are other bounds.

    Returns None for a range, for bounds that no version satisfies, and for invalid text.
    """
    try:
        specifier = SpecifierSet(spec) if isinstance(spec, str) else spec
    except InvalidSpecifier:
        return None
    exact = sorted(
        clause.version
        for clause in specifier
        if clause.operator in ("==", "===") and not clause.version.endswith(".*")
    )
    return next((each for each in exact if is_within(each, specifier)), None)


class DeclaredRequirement(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A PEP 508 requirement in a file of the project.

    `text` is the PEP 508 text, with ` @ URL` for a wheel or a git repository. For a folder or file
    of the project, `path` is the path relative to the project. `kind` is an installed package, a
    bound that applies if another package requires the package, or an override of METADATA. A
    `locked` requirement is from a lock file, which takes precedence over the ranges in other files.
    `hashes` have the form "sha256:…". A `no_deps` package is installed with `--no-deps`. A `conda`
    package is from Conda, and may be missing from the index.
    """

    text: str
    place: FilePlace
    kind: RequirementKind = "requirement"
    hashes: tuple[str, ...] = ()
    path: str = ""
    locked: bool = False
    no_deps: bool = False
    conda: bool = False

    @cached_property
    def parsed_requirement(self) -> Requirement:
        """The parsed text. All callers share the object, so it must not be modified."""
        return parse_requirement(self.text)

    @cached_property
    def package(self) -> str:
        """The normalized package name."""
        return normalize_package(self.parsed_requirement.name)

    def applies_to(self, markers: Mapping[str, str]) -> bool:
        """Return whether the marker is true on a machine with `markers` (PEP 508)."""
        return marker_holds(self.parsed_requirement.marker, markers)


class LocalPackage(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of an installable folder of the project, read without running code.

    `folder` is relative to the project ("." for the project itself). `roots` are the folders,
    relative to the project, that are added to `sys.path`. `scripts` maps console scripts to
    `module:function`. If `backend` is set, pip can install the folder. `dynamic` lists the fields
    that only the build backend can compute: "name", "version", "dependencies" or
    "optional-dependencies".
    """

    name: str
    folder: str
    place: FilePlace
    version: str | None = None
    roots: tuple[str, ...] = (".",)
    scripts: dict[str, str] = {}
    requires: tuple[str, ...] = ()
    requires_python: str = ""
    backend: bool = False
    dynamic: tuple[str, ...] = ()


class DeclaredPython(msgspec.Struct, frozen=True, kw_only=True):
    """A specifier of Python versions that the project accepts, such as ">=3.10,<3.13"."""

    spec: str
    place: FilePlace


class DeclaredName(msgspec.Struct, frozen=True, kw_only=True):
    """A Debian package, a CUDA release ("12.4") or another name in a file of the project.

    `marker` is the PEP 508 marker, or "" if the declaration always applies.
    """

    name: str
    place: FilePlace
    marker: str = ""


class DeclaredIndex(msgspec.Struct, frozen=True, kw_only=True):
    """A package index that a file of the project declares.

    `url` has no credentials, and is `file:PATH` for a folder of the project, with a relative path.
    `name` is the name of the index in the file, or "". A `flat` index is a page or a folder, as for
    `--find-links`. `packages` come only from this index. If `general` is set, other packages can
    also come from this index.
    """

    url: str
    place: FilePlace
    name: str = ""
    flat: bool = False
    packages: tuple[str, ...] = ()
    general: bool = True


def locate_indexes(indexes: Iterable[DeclaredIndex], folder: Path) -> tuple[DeclaredIndex, ...]:
    """Replace relative paths in `indexes` with absolute paths below `folder`."""
    return tuple(
        msgspec.structs.replace(
            each, url=f"file:{(folder / each.url.removeprefix('file:')).resolve()}"
        )
        if each.url.startswith("file:")
        else each
        for each in indexes
    )


class DeclaredDay(msgspec.Struct, frozen=True, kw_only=True):
    """A cut-off date: only files uploaded before `day`, 00:00 UTC, are used."""

    day: datetime.date
    place: FilePlace


class NotRead(msgspec.Struct, frozen=True, kw_only=True):
    """A line or a file that was not read, and the reason."""

    place: FilePlace
    text: str
    reason: str


class Declarations(msgspec.Struct, frozen=True, kw_only=True):
    """All declarations in the files of a project.

    `files` are the files that were read, relative to the project. `cuda` are the CUDA releases
    implied by URLs of indexes, local versions (`+cu124`) and images (`FROM`). `extras` and `groups`
    list all extras and groups, including those that were not chosen. `cut_off` is `exclude-newer`,
    or else the day after the newest upload in a lock file. `excluded` are packages that are not
    installed even if they are required. `unnamed` are URLs of git repositories that are required
    without a package name.
    """

    files: tuple[str, ...] = ()
    requirements: tuple[DeclaredRequirement, ...] = ()
    packages: tuple[LocalPackage, ...] = ()
    python: tuple[DeclaredPython, ...] = ()
    debian: tuple[DeclaredName, ...] = ()
    cuda: tuple[DeclaredName, ...] = ()
    images: tuple[DeclaredName, ...] = ()
    indexes: tuple[DeclaredIndex, ...] = ()
    cut_off: DeclaredDay | None = None
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    excluded: tuple[DeclaredName, ...] = ()
    unnamed: tuple[DeclaredName, ...] = ()
    not_read: tuple[NotRead, ...] = ()

    @property
    def required_python(self) -> tuple[DeclaredPython, ...]:
        """The Python versions that the metadata of the project accepts, except for development."""
        return tuple(
            item
            for item in self.python
            if not PREFERENCE.search(posixpath.basename(item.place.file).lower())
        )
