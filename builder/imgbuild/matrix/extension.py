"""Defines the `matrix.yaml` of a user's repository, which extends published targets.

A row contains only additions. All other values come from the lock of the published target (see
`imgbuild.lock.published`). `check_extensions` validates the file. The JSON Schema is generated from
these types.
"""

from __future__ import annotations

import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from imgbuild.matrix.accepted import AcceptedCves, Waivers
from imgbuild.matrix.fields import (
    CudaVersion,
    DebianPackage,
    FormVersion,
    Line,
    Name,
    Package,
    Prose,
    Reason,
    Version,
)
from imgbuild.matrix.model import (
    DroppedFileList,
    Labels,
    Link,
    PackageIndex,
    Registry,
    RequiredPackage,
    Sdists,
    Tested,
    Variable,
)
from imgbuild.values import Arch


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rejects unknown keys."""


class PublishedSource(_Strict, frozen=True, rename={"origin": "from"}):
    """A published target, with the locations of its lock and its layers."""

    lock: Annotated[
        Line,
        Meta(
            min_length=1,
            description="folder with the target's lock.json and digests.json, relative to this"
            " file",
        ),
    ]
    origin: Annotated[
        Line,
        Meta(
            description="origin of the folder: a URL, a path, or `catalogue` (included in"
            " imgbuild); `imgbuild init --refresh` copies the files again"
        ),
    ] = ""
    image: Annotated[
        Line,
        Meta(
            description="location of the layers: HOST/REPOSITORY, or oci:FOLDER; by default, the "
            "layers are built from the lock"
        ),
    ] = ""


class FileToAdd(_Strict, frozen=True, rename={"source": "from"}):
    """A file of the user's repository that is added to the image, owned by root."""

    source: Annotated[
        Line, Meta(min_length=1, description="path of the file, relative to this file")
    ]
    mode: Annotated[
        str, Meta(pattern=r"^0[0-7]{3}\Z", description='permissions, in quotes: "0755"')
    ] = "0644"


Files = Annotated[
    tuple[Line, ...],
    Meta(
        description="files of this project that declare its requirements, relative to this file:"
        " requirements.txt, pyproject.toml, uv.lock, environment.yml, Dockerfile, …"
    ),
]


class Extension(_Strict, frozen=True):
    """A row of the matrix: a published target, the requirements of a project, and additions."""

    summary: Annotated[Prose, Meta(description="one-line description for tables")]
    extends: Annotated[
        Name | None, Meta(description="a target in `published`; its packages and layers are kept")
    ] = None
    like: Annotated[
        Name | None,
        Meta(
            description="a target in `published`; its base, settings and layer rules are used, "
            "and imgbuild solves the requirements again, preferring the target's "
            "versions"
        ),
    ] = None
    requirements: Files = ()
    extras: Annotated[tuple[Line, ...], Meta(description="extras of the project itself")] = ()
    groups: Annotated[tuple[Line, ...], Meta(description="dependency groups of the project")] = ()
    add: Annotated[
        tuple[Line, ...],
        Meta(
            description="requirements in addition to the files, as `imgbuild add` writes them:"
            " 'ray[default]>=2.45', 'x @ https://…/x-1.0-py3-none-any.whl'"
        ),
    ] = ()
    names: Annotated[
        dict[Line, Package],
        Meta(
            description="names of packages that the files require only by a git URL, with the URL "
            "(without a revision) as key: git+https://…"
        ),
    ] = {}
    exclude: Annotated[
        dict[DebianPackage, Reason],
        Meta(
            description="Python and Debian packages that the files require, but the image "
            "excludes, with the reason"
        ),
    ] = {}
    relax: Annotated[
        dict[Package, RequiredPackage],
        Meta(
            description="versions that replace the versions in the files; `python` replaces the "
            "required Python version"
        ),
    ] = {}
    cuda: Annotated[
        CudaVersion | None,
        Meta(
            description="only with `like`: the CUDA release, if different from the published "
            "target's release"
        ),
    ] = None
    gpu: Annotated[
        tuple[str, ...],
        Meta(
            description="only with `like`: compute capabilities that the image must support,"
            ' such as "9.0"; default: those of the published target that all packages support'
        ),
    ] = ()
    arch: Annotated[
        tuple[Arch, ...], Meta(description="default: all architectures of the published target")
    ] = ()
    as_of: Annotated[
        datetime.date | None,
        Meta(
            description="cut-off for additions: only files uploaded before this day, 00:00 UTC; by"
            " default the date of the published target"
        ),
    ] = None
    pins: Annotated[
        dict[Package, Version], Meta(description="exact versions of added packages")
    ] = {}
    requires: Annotated[
        dict[Package, RequiredPackage], Meta(description="added packages, with the reason")
    ] = {}
    packages: Annotated[
        tuple[str, ...], Meta(description="added Debian packages; dependencies are included")
    ] = ()
    files: Annotated[
        dict[str, FileToAdd], Meta(description="added files, by absolute path in the image")
    ] = {}
    links: Annotated[
        dict[str, Link], Meta(description="added symbolic links, by absolute path")
    ] = {}
    indexes: Annotated[
        dict[Package, Name],
        Meta(description="indexes of added packages that are not from the default index"),
    ] = {}
    drop: DroppedFileList = ()
    env: Annotated[
        dict[str, Variable], Meta(description="added and changed environment variables")
    ] = {}
    labels: Labels = {}
    entrypoint: Annotated[
        tuple[Line, ...] | None, Meta(description="replaces the value of the published target")
    ] = None
    cmd: Annotated[
        tuple[Line, ...] | None, Meta(description="replaces the value of the published target")
    ] = None
    waive: Waivers = ()
    accept_cves: AcceptedCves = ()
    tested: Tested = ""

    @property
    def published_name(self) -> str:
        """The published target of the row."""
        return self.extends or self.like or ""


class Extensions(_Strict, frozen=True):
    """The content of a `matrix.yaml` that extends published targets."""

    version: FormVersion
    published: Annotated[dict[Name, PublishedSource], Meta(description="the published targets")]
    targets: Annotated[dict[Name, Extension], Meta(description="a row for each image")]
    indexes: Annotated[
        dict[Name, PackageIndex],
        Meta(description="indexes in addition to the default index of this machine"),
    ] = {}
    mirrors: Annotated[
        tuple[Line, ...],
        Meta(description="Debian archives to try after the apt mirror of this machine"),
    ] = ()
    sdists: Sdists = {}
    registry: Registry = None
