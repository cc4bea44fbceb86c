"""Defines the contents of `matrix.yaml` as types, from which the JSON Schema is generated."""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from imgbuild.matrix.accepted import AcceptedCves, Waivers
from imgbuild.matrix.fields import (
    CudaVersion,
    FlashinferMode,
    FormVersion,
    GlibcVersion,
    Line,
    Name,
    Package,
    Prose,
    PythonVersion,
    Reason,
    RegistryImage,
    Repository,
    Source,
    Specifier,
    Version,
)
from imgbuild.values import CONTROLS, Arch, Bytes, Sha256


class StrictStruct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base class of all values in a matrix. Unknown keys are errors."""


class PackageIndex(StrictStruct, frozen=True):
    """An index of wheels. Without `url`, the default index of uv on this machine."""

    url: Annotated[
        Line | None,
        Meta(
            description="simple index; {cuda_tag} (cu124) and {torch} (2.6) are replaced; "
            "file:FOLDER is a folder of wheels, relative to the matrix"
        ),
    ] = None
    upload_times: Annotated[
        Literal["index", "none"],
        Meta(
            description="source of upload times; `index`: PEP 700, or the JSON API of the same "
            "server; `none`: no upload times, so the cut-off date does not apply to "
            "this index"
        ),
    ] = "index"
    flat: Annotated[
        bool,
        Meta(
            description=(
                "the URL is a single page of links, as for `--find-links`, instead of a page "
                "for each package"
            )
        ),
    ] = False


class RequiredPackage(StrictStruct, frozen=True):
    """A requirement in addition to the pins."""

    reason: Reason
    spec: Specifier = ""


class ExtraPackage(RequiredPackage, frozen=True, kw_only=True):
    """A package in a set of `extras`, which tutorials import but no wheel requires."""

    source: Annotated[
        tuple[Source, ...], Meta(min_length=1, description="the code that imports the package")
    ]


class StandalonePython(StrictStruct, frozen=True, kw_only=True):
    """A standalone build of CPython, in an archive with the layout of python-build-standalone."""

    version: Annotated[PythonVersion, Meta(description='release of Python: "3.12"')]
    origin: Annotated[
        Literal["standalone"],
        Meta(description="origin of the build; only `standalone` is supported"),
    ] = msgspec.field(name="from")
    archives: Annotated[
        dict[Arch, Line], Meta(description="URL of the archive, a .tar.gz, for each architecture")
    ]
    sha256: Annotated[
        dict[Arch, Sha256],
        Meta(
            description="sha256 of the archives, as published; if missing, the first lock records "
            "the hash of the downloaded file"
        ),
    ] = {}
    releases: Annotated[
        Line | None,
        Meta(
            description="URL of the list of releases for `outdated` and `update`: JSON lines, "
            "newest first; default: the list of python-build-standalone"
        ),
    ] = None


class DebianBase(StrictStruct, frozen=True, tag_field="kind", tag="debian"):
    """A base made of locked Debian packages."""

    suite: Annotated[Line, Meta(description="code name: bookworm")]
    python_source: Annotated[
        PythonVersion | StandalonePython,
        Meta(description='Python of the suite: "3.11"; or a standalone build'),
    ] = msgspec.field(name="python")
    glibc: Annotated[GlibcVersion, Meta(description='glibc of the suite: "2.36"')]
    packages: Annotated[
        tuple[str, ...], Meta(description="requested Debian packages; dependencies are included")
    ]
    tools: Annotated[
        tuple[str, ...],
        Meta(
            description="Debian packages for interactive use, which form a separate layer above the"
            " wheels with their dependencies, so that other targets can share the base"
        ),
    ] = ()
    components: Annotated[
        tuple[Line, ...], Meta(description="components of the archive, such as main")
    ] = ("main",)
    mirrors: Annotated[
        tuple[Line, ...], Meta(description="archives to try after the apt mirror of this machine")
    ] = ()
    security: Annotated[
        tuple[Line, ...] | None,
        Meta(
            description="security archives to try after the machine's security mirror, for "
            "updates of the suite; without this key, updates are not used"
        ),
    ] = None
    hardened: Annotated[
        bool,
        Meta(
            description="remove setuid and setgid bits, and make the cache folder writable only "
            "by the image's user"
        ),
    ] = False

    @property
    def python(self) -> str:
        """The minor release of the base's Python, such as "3.12"."""
        source = self.python_source
        return source.version if isinstance(source, StandalonePython) else source

    @property
    def standalone_python(self) -> StandalonePython | None:
        """The standalone build of Python, or None if the base does not use one."""
        return self.python_source if isinstance(self.python_source, StandalonePython) else None


class RegistryBase(StrictStruct, frozen=True, tag_field="kind", tag="registry"):
    """A base that consists of the layers of an image in a registry."""

    image: RegistryImage
    python: Annotated[PythonVersion, Meta(description='version of Python in the image: "3.11"')]
    glibc: Annotated[GlibcVersion, Meta(description='version of glibc in the image: "2.36"')]
    interpreter: Annotated[str, Meta(description="path of Python in the image")] = (
        "/usr/bin/python3"
    )


Base = DebianBase | RegistryBase


class User(StrictStruct, frozen=True):
    """The user of the image's processes."""

    name: Annotated[
        str, Meta(pattern=r"^[a-z][a-z0-9-]{0,30}\Z", description="name of the user and the group")
    ]
    uid: Annotated[int, Meta(ge=1, le=65533, description="user ID")]
    gid: Annotated[int, Meta(ge=1, le=65533, description="group ID")]
    home: Annotated[str, Meta(pattern=r"^/[^ ]+\Z", description="home folder")]


class Variable(StrictStruct, frozen=True):
    """An environment variable of the image, with its reason."""

    value: Annotated[Line, Meta(description="used literally; nothing is substituted")]
    reason: Reason
    source: Annotated[
        tuple[Source, ...], Meta(description="source of the reason: documentation or code")
    ] = ()


Variables = Annotated[dict[str, Variable], Meta(description="environment variables by name")]
Labels = Annotated[dict[str, Line], Meta(description="labels of the image by name")]


class Image(StrictStruct, frozen=True):
    """The image configuration that all targets share."""

    prefix: Annotated[str, Meta(description="the virtual environment")]
    user: User
    workdir: Annotated[str, Meta(description="working folder of commands")]
    cache: Annotated[
        str, Meta(description="folder for caches, writable by any user unless the base is hardened")
    ]
    env: Variables
    labels: Labels
    entrypoint: Annotated[
        tuple[Line, ...], Meta(description="program that starts every command of a container")
    ]
    cmd: Annotated[tuple[Line, ...], Meta(description="the default command")]


class Layers(StrictStruct, frozen=True):
    """The rules that assign wheels to layers."""

    own_from: Annotated[
        Bytes, Meta(description="minimum size, in bytes, of wheels that get a separate layer")
    ]
    named: Annotated[
        tuple[Package, ...],
        Meta(
            description="packages with a separate layer regardless of size; these layers are last"
        ),
    ]
    groups: Annotated[
        int,
        Meta(
            ge=1,
            le=16,
            description=(
                "number of layers for all other wheels; a fixed hash of the package name "
                "selects the layer"
            ),
        ),
    ]
    order: Annotated[
        tuple[Line, ...],
        Meta(
            description=(
                "order of layers, as shell patterns of packages: most shared and most stable first"
            )
        ),
    ]
    limit: Annotated[
        int, Meta(ge=8, le=100, description="maximum number of layers of an image")
    ] = 40


class Sdist(StrictStruct, frozen=True):
    """A package that may be built from its sdist into a pure wheel."""

    reason: Reason
    env: Annotated[dict[str, Line], Meta(description="environment variables of the build")] = {}
    requires: Annotated[
        tuple[Package, ...], Meta(description="packages in the same lock that the build requires")
    ] = ()


Sdists = Annotated[
    dict[Package, Sdist], Meta(description="packages that may be built from their sdist")
]


class Flashinfer(StrictStruct, frozen=True):
    """The source of FlashInfer's kernels in a target."""

    mode: FlashinferMode
    reason: Reason


class DroppedFiles(StrictStruct, frozen=True):
    """Files of a package to exclude, because another package contains the same paths."""

    package: Package
    paths: Annotated[tuple[Line, ...], Meta(description="shell patterns of paths below the prefix")]
    reason: Reason
    beside: Annotated[
        Package | None,
        Meta(
            description="drop the files only if this package, which has the same files, is also"
            " installed"
        ),
    ] = None
    versions: Annotated[
        Specifier,
        Meta(
            description='versions of the package to which the entry applies: "<4.6"; empty for any'
        ),
    ] = ""


DroppedFileList = Annotated[
    tuple[DroppedFiles, ...], Meta(description="files excluded from this target only")
]


class Link(StrictStruct, frozen=True):
    """A symbolic link in the image, in addition to the files of its packages."""

    to: Annotated[
        Line,
        Meta(
            min_length=1,
            description="target of the link: an absolute path, or a path relative to the link",
        ),
    ]
    reason: Reason


# Fields of rows of both types of matrix.
GuideText = Annotated[Prose, Meta(min_length=8)]
Tested = Annotated[Prose, Meta(description="description of the tested use")]
Registry = Annotated[
    Repository | None,
    Meta(description="repository in which the images and their bases are published"),
]


class Target(StrictStruct, frozen=True):
    """A row of the matrix: an image, on one or more architectures."""

    summary: Annotated[Prose, Meta(description="one-line description for tables")]
    base: Annotated[Name, Meta(description="one of `bases`")]
    cuda: CudaVersion
    arch: Annotated[tuple[Arch, ...], Meta(min_length=1, description="architectures of the target")]
    as_of: Annotated[
        datetime.date,
        Meta(
            description="only files uploaded before this day, 00:00 UTC: 2025-06-20",
            extra={
                "why": "without a cut-off date, the newest release of every package is used, "
                "which is an untested combination"
            },
        ),
    ]
    pins: Annotated[dict[Package, Version], Meta(description="package and exact version")]
    flashinfer: Flashinfer
    gpu: Annotated[tuple[str, ...], Meta(description='supported compute capabilities: "9.0"')] = ()
    requires: Annotated[
        dict[Package, RequiredPackage], Meta(description="requirements in addition to the pins")
    ] = {}
    extras: Annotated[
        tuple[Name, ...], Meta(description="sets of `extras` that the image includes")
    ] = ()
    indexes: Annotated[
        dict[Package, Name],
        Meta(description="indexes of packages that are not from the default index"),
    ] = {}
    exclude: Annotated[
        dict[Arch, Reason], Meta(description="architectures without a solution, with the reason")
    ] = {}
    drop: DroppedFileList = ()
    links: Annotated[
        dict[str, Link], Meta(description="symbolic links added to the image, by absolute path")
    ] = {}
    user_packages: Annotated[
        bool,
        Meta(
            description="let any user of a container add packages with `pip install` and `uv pip"
            " install`; also adds /opt/imgbuild/README"
        ),
    ] = False
    guide: Annotated[
        tuple[GuideText, ...],
        Meta(description="information for users of this image, for README and `--guide`"),
    ] = ()
    known_issues: Annotated[
        tuple[GuideText, ...],
        Meta(description="limitations found after the image was locked, for `--guide`"),
    ] = ()
    env: Variables = {}
    labels: Labels = {}
    waive: Waivers = ()
    accept_cves: AcceptedCves = ()
    tested: Tested = ""
    recommended: Annotated[
        str,
        Meta(
            pattern=r"^([a-z0-9]+([._-][a-z0-9]+)*)?\Z",
            description="the stack that this target is recommended for, such as vllm",
        ),
    ] = ""
    retired: Annotated[
        str,
        Meta(
            pattern=rf"^([^{CONTROLS}]{{8,}})?\Z",
            description="why another target replaces this target; lists and CI omit a retired "
            "target",
        ),
    ] = ""


class Matrix(StrictStruct, frozen=True):
    """The content of `matrix.yaml`."""

    version: FormVersion
    indexes: Annotated[dict[Name, PackageIndex], Meta(description="indexes of wheels")]
    default_index: Annotated[
        Name, Meta(description="the index of all packages without another index")
    ]
    bases: Annotated[dict[Name, Base], Meta(description="bases of images")]
    image: Image
    layers: Layers
    requires: Annotated[
        dict[Package, RequiredPackage],
        Meta(description="packages that every image requires, such as pip and uv"),
    ]
    targets: Annotated[dict[Name, Target], Meta(description="a row for each image")]
    extras: Annotated[
        dict[Name, dict[Package, ExtraPackage]],
        Meta(description="sets of packages that tutorials require, for use in targets"),
    ] = {}
    sdists: Sdists = {}
    drop: Annotated[
        tuple[DroppedFiles, ...], Meta(description="files excluded from every target")
    ] = ()
    registry: Registry = None
    accept_cves: AcceptedCves = ()

    def requirements_of(self, target: Target) -> dict[str, RequiredPackage]:
        """Return the requirements in `extras` and `requires` of `target`, by package.

        `requires` takes precedence over `extras`, and a pin takes precedence over both.
        """
        required: dict[str, RequiredPackage] = {}
        for name in target.extras:
            required |= self.extras[name]
        return {**required, **target.requires}
