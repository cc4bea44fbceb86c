"""The `matrix.yaml` of a user's own repository: published targets, and what is added to them.

A row has only what it adds; everything else is the published target's, from its lock (see
`imgbuild.lock.published`). `check_extensions` has the checks. The JSON Schema is generated from
these types.
"""

from __future__ import annotations

import datetime
from typing import Annotated

import msgspec

from imgbuild.matrix.accepted import AcceptedCves, Waivers
from imgbuild.matrix.fields import (
    CudaVersion,
    DebianPackage,
    Form,
    Line,
    Name,
    Package,
    Prose,
    Reason,
    Version,
)
from imgbuild.matrix.model import (
    Drops,
    Labels,
    Link,
    PackageIndex,
    Registry,
    Sdists,
    Tested,
    Variable,
    Wanted,
)
from imgbuild.values import Arch


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all values here: keyword-only, unknown keys are errors."""


class PublishedSource(_Strict, frozen=True, rename={"origin": "from"}):
    """A target that others published: what it is, and where its layers are."""

    lock: Annotated[
        Line,
        msgspec.Meta(
            min_length=1,
            description="folder with its lock.json and digests.json, relative to this file",
        ),
    ]
    origin: Annotated[
        Line,
        msgspec.Meta(
            description="where that folder was copied from: a URL, a path, or `catalogue`"
            " (comes with imgbuild); `imgbuild init --refresh` copies it again"
        ),
    ] = ""
    image: Annotated[
        Line,
        msgspec.Meta(
            description="where its layers are: HOST/REPOSITORY, or oci:FOLDER; without it they are"
            " built from the lock, byte for byte"
        ),
    ] = ""


class FileToAdd(_Strict, frozen=True, rename={"source": "from"}):
    """A file of the user's repository that is put into the image; it belongs to root."""

    source: Annotated[
        Line, msgspec.Meta(min_length=1, description="path of the file, relative to this file")
    ]
    mode: Annotated[
        str, msgspec.Meta(pattern=r"^0[0-7]{3}\Z", description='permissions, in quotes: "0755"')
    ] = "0644"


Files = Annotated[
    tuple[Line, ...],
    msgspec.Meta(
        description="files of this project that declare its requirements, relative to this file:"
        " requirements.txt, pyproject.toml, uv.lock, environment.yml, Dockerfile, …"
    ),
]


class Extension(_Strict, frozen=True):
    """One row: a published target, what a project requires, and what is added."""

    summary: Annotated[Prose, msgspec.Meta(description="one line for tables")]
    extends: Annotated[
        Name | None,
        msgspec.Meta(description="a target of `published`, whose packages and layers are kept"),
    ] = None
    like: Annotated[
        Name | None,
        msgspec.Meta(
            description="a target of `published`, whose base, settings and layer rules are used;"
            " all packages are solved again, its versions preferred"
        ),
    ] = None
    requirements: Files = ()
    extras: Annotated[
        tuple[Line, ...], msgspec.Meta(description="extras of the project itself")
    ] = ()
    groups: Annotated[
        tuple[Line, ...], msgspec.Meta(description="dependency groups of the project")
    ] = ()
    add: Annotated[
        tuple[Line, ...],
        msgspec.Meta(
            description="requirements in addition to those of the files, as `imgbuild add` writes"
            " them: 'ray[default]>=2.45', 'x @ https://…/x-1.0-py3-none-any.whl'"
        ),
    ] = ()
    names: Annotated[
        dict[Line, Package],
        msgspec.Meta(
            description="packages of git repositories that the files require by URL alone, keyed by"
            " that URL without a revision: git+https://…"
        ),
    ] = {}
    exclude: Annotated[
        dict[DebianPackage, Reason],
        msgspec.Meta(
            description="packages, of Python or Debian, that are left out although the files"
            " require them, and why"
        ),
    ] = {}
    relax: Annotated[
        dict[Package, Wanted],
        msgspec.Meta(
            description="versions that replace those of the files; `python` for the Python that"
            " they require"
        ),
    ] = {}
    cuda: Annotated[
        CudaVersion | None,
        msgspec.Meta(description="only with `like`, if it is another than that target's"),
    ] = None
    gpu: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            description="only with `like`: compute capabilities that the image is for, if they are"
            ' others than those of that target: "9.0"'
        ),
    ] = ()
    arch: Annotated[
        tuple[Arch, ...], msgspec.Meta(description="empty: all that the published target has")
    ] = ()
    as_of: Annotated[
        datetime.date | None,
        msgspec.Meta(
            description="what is added was uploaded before this day, 00:00 UTC;"
            " by default the day of the published target"
        ),
    ] = None
    pins: Annotated[
        dict[Package, Version], msgspec.Meta(description="added packages and exact versions")
    ] = {}
    requires: Annotated[
        dict[Package, Wanted], msgspec.Meta(description="added packages, and why")
    ] = {}
    packages: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="added Debian packages; their dependencies follow"),
    ] = ()
    files: Annotated[
        dict[str, FileToAdd], msgspec.Meta(description="added files, by absolute path in the image")
    ] = {}
    links: Annotated[
        dict[str, Link], msgspec.Meta(description="added symbolic links, by absolute path")
    ] = {}
    indexes: Annotated[
        dict[Package, Name],
        msgspec.Meta(description="added packages that come from another index than the default"),
    ] = {}
    drop: Drops = ()
    env: Annotated[
        dict[str, Variable], msgspec.Meta(description="variables that are added or changed")
    ] = {}
    labels: Labels = {}
    entrypoint: Annotated[
        tuple[Line, ...] | None, msgspec.Meta(description="instead of the published target's")
    ] = None
    cmd: Annotated[
        tuple[Line, ...] | None, msgspec.Meta(description="instead of the published target's")
    ] = None
    waive: Waivers = ()
    accept_cves: AcceptedCves = ()
    tested: Tested = ""

    @property
    def below(self) -> str:
        """The published target of the row."""
        return self.extends or self.like or ""


class Extensions(_Strict, frozen=True):
    """The whole of a `matrix.yaml` that extends published targets."""

    version: Form
    published: Annotated[
        dict[Name, PublishedSource], msgspec.Meta(description="the targets that others published")
    ]
    targets: Annotated[
        dict[Name, Extension], msgspec.Meta(description="a row for each of your images")
    ]
    indexes: Annotated[
        dict[Name, PackageIndex],
        msgspec.Meta(description="indexes in addition to the default one, which is this machine's"),
    ] = {}
    mirrors: Annotated[
        tuple[Line, ...],
        msgspec.Meta(description="Debian archives tried after the machine's own apt mirror"),
    ] = ()
    sdists: Sdists = {}
    registry: Registry = None
