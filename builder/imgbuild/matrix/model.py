"""What `matrix.yaml` says, as frozen values. The JSON Schema is generated from these types."""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

import msgspec

from imgbuild.values import Arch, Bytes

Name = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z0-9]+([._-][a-z0-9]+)*$",
        description="lower-case name, valid as an image tag",
    ),
]
Package = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="package name as PEP 503 normalizes it"
    ),
]
Version = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[0-9][0-9A-Za-z.!+]*$",
        description="one exact version, in quotes if YAML would read a number",
    ),
]
CudaVersion = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[0-9]+\.[0-9]+$", description='CUDA release, major.minor, in quotes: "12.4"'
    ),
]
Repository = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9.:-]*(/[a-z0-9]+([._-]+[a-z0-9]+)*)+$",
        description="a repository of a registry: host/owner/name",
    ),
]
Reason = Annotated[
    str,
    msgspec.Meta(min_length=8, description="why, for the person who reads the refusal or the diff"),
]


Check = Literal["metadata", "elf", "cuda", "imports", "calls", "support", "rules"]


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all matrix values: keyword-only, unknown keys are errors."""


class Index(Strict, frozen=True):
    """Where wheels come from. No `url`: the index that uv is set up for on this machine."""

    url: Annotated[
        str | None,
        msgspec.Meta(
            description="simple index; {cuda_tag} (cu124) and {torch} (2.6) are filled in; "
            "file:FOLDER is a folder of wheels, relative to the matrix"
        ),
    ] = None
    upload_times: Annotated[
        Literal["index", "none"],
        msgspec.Meta(
            description="`index`: PEP 700 or the JSON API beside it gives upload times; "
            "`none`: it has none, so the cut-off cannot judge its files"
        ),
    ] = "index"
    flat: Annotated[
        bool,
        msgspec.Meta(
            description="one page of links, as `--find-links` reads it, not one a package"
        ),
    ] = False


class Wanted(Strict, frozen=True):
    """A requirement beside the pins."""

    reason: Reason
    spec: Annotated[
        str, msgspec.Meta(description='version specifier, such as ">=78,<79"; empty for any')
    ] = ""


class DebianBase(Strict, frozen=True, tag_field="kind", tag="debian"):
    """A base made of locked Debian packages."""

    suite: Annotated[str, msgspec.Meta(description="code name: bookworm")]
    python: Annotated[
        str, msgspec.Meta(pattern=r"^3\.[0-9]+$", description='Python of the suite: "3.11"')
    ]
    glibc: Annotated[
        str, msgspec.Meta(pattern=r"^2\.[0-9]+$", description='glibc of the suite: "2.36"')
    ]
    packages: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="Debian packages wanted; their dependencies follow"),
    ]
    components: tuple[str, ...] = ("main",)
    mirrors: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="archives tried after the machine's own apt mirror"),
    ] = ()


class RegistryBase(Strict, frozen=True, tag_field="kind", tag="registry"):
    """A base taken, layer by layer, from a registry image."""

    image: Annotated[
        str,
        msgspec.Meta(
            pattern=r".+@sha256:[0-9a-f]{64}$",
            description="reference with a digest: host/name:tag@sha256:…",
        ),
    ]
    python: Annotated[str, msgspec.Meta(pattern=r"^3\.[0-9]+$")]
    glibc: Annotated[str, msgspec.Meta(pattern=r"^2\.[0-9]+$")]
    interpreter: Annotated[str, msgspec.Meta(description="path of the Python in it")] = (
        "/usr/bin/python3"
    )


Base = DebianBase | RegistryBase


class User(Strict, frozen=True):
    """Who the image runs as."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
    uid: Annotated[int, msgspec.Meta(ge=1, le=65533)]
    gid: Annotated[int, msgspec.Meta(ge=1, le=65533)]
    home: Annotated[str, msgspec.Meta(pattern=r"^/[^ ]+$")]


class Variable(Strict, frozen=True):
    """An environment variable of the image and why it is there."""

    value: str
    reason: Reason


class Image(Strict, frozen=True):
    """The part of the image configuration that all targets share."""

    prefix: Annotated[str, msgspec.Meta(description="the virtual environment")]
    user: User
    workdir: str
    cache: Annotated[str, msgspec.Meta(description="folder for caches, writable by any user")]
    env: dict[str, Variable]
    labels: dict[str, str]
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]


class Layers(Strict, frozen=True):
    """How wheels are cut into layers."""

    own_from: Annotated[
        Bytes,
        msgspec.Meta(description="a wheel of at least this many bytes has a layer of its own"),
    ]
    named: Annotated[
        tuple[Package, ...],
        msgspec.Meta(
            description="packages with a layer of their own, whatever their size; last in order"
        ),
    ]
    groups: Annotated[
        int,
        msgspec.Meta(
            ge=1, le=16, description="layers for all other wheels, by a fixed hash of the name"
        ),
    ]
    order: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="shell patterns of packages, most shared and most stable first"),
    ]
    limit: Annotated[
        int, msgspec.Meta(ge=8, le=100, description="most layers an image may have")
    ] = 40


class Sdist(Strict, frozen=True):
    """A package that may be built from its sdist into a pure wheel."""

    reason: Reason
    env: dict[str, str] = {}
    requires: Annotated[
        tuple[Package, ...],
        msgspec.Meta(description="packages of the same lock that its build needs"),
    ] = ()


class Flashinfer(Strict, frozen=True):
    """How a target has FlashInfer's kernels."""

    mode: Literal["prebuilt", "jit", "off"]
    reason: Reason


class Drop(Strict, frozen=True):
    """Files of a package that are left out because another package ships the same path."""

    package: Package
    paths: Annotated[
        tuple[str, ...], msgspec.Meta(description="shell patterns of paths below the prefix")
    ]
    reason: Reason
    beside: Annotated[
        Package | None,
        msgspec.Meta(description="only where this package is installed too: the one that is kept"),
    ] = None
    versions: Annotated[
        str,
        msgspec.Meta(description='only these versions of the package: "<4.6"; empty for any'),
    ] = ""


class Link(Strict, frozen=True):
    """A symbolic link that the image has beside the files of its packages."""

    to: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            description="what the link holds: a path, relative to its folder or absolute",
        ),
    ]
    reason: Reason


class Waiver(Strict, frozen=True):
    """A finding of the audit that a target lives with, and why."""

    check: Annotated[Check, msgspec.Meta(description="the check that finds it")]
    package: Annotated[Package, msgspec.Meta(description="the package whose file it stands in")]
    subject: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            description="shell pattern of what is missing or refused, as the finding names it",
        ),
    ]
    reason: Reason


# What a row of either kind of matrix says in the same words.
Waivers = Annotated[
    tuple[Waiver, ...], msgspec.Meta(description="findings of the audit that are accepted")
]
Proof = Annotated[str, msgspec.Meta(description="what is known to have run, in words")]
Registry = Annotated[
    Repository | None, msgspec.Meta(description="where the images and their bases are published")
]


class Target(Strict, frozen=True):
    """One row of the matrix: one image, on one or more architectures."""

    summary: Annotated[str, msgspec.Meta(description="one line for tables")]
    base: Name
    cuda: CudaVersion
    arch: Annotated[tuple[Arch, ...], msgspec.Meta(min_length=1)]
    as_of: Annotated[
        datetime.date,
        msgspec.Meta(
            description="only files uploaded before this day, 00:00 UTC: 2025-06-20",
            extra={
                "why": "without a cut-off day the newest release of every package is taken,"
                " and those never ran together"
            },
        ),
    ]
    pins: Annotated[
        dict[Package, Version], msgspec.Meta(description="the world: package and exact version")
    ]
    flashinfer: Flashinfer
    gpu: Annotated[
        tuple[str, ...], msgspec.Meta(description='compute capabilities it is meant for: "9.0"')
    ] = ()
    requires: Annotated[
        dict[Package, Wanted], msgspec.Meta(description="requirements beside the pins")
    ] = {}
    indexes: Annotated[
        dict[Package, Name],
        msgspec.Meta(description="packages that come from another index than the default"),
    ] = {}
    exclude: Annotated[
        dict[Arch, Reason], msgspec.Meta(description="architectures that this world cannot have")
    ] = {}
    drop: tuple[Drop, ...] = ()
    links: Annotated[
        dict[str, Link],
        msgspec.Meta(description="symbolic links added to the image, by absolute path"),
    ] = {}
    env: dict[str, Variable] = {}
    labels: dict[str, str] = {}
    waive: Waivers = ()
    proof: Proof = ""


class Matrix(Strict, frozen=True):
    """The whole of `matrix.yaml`."""

    version: Literal[1]
    indexes: dict[Name, Index]
    default_index: Name
    bases: dict[Name, Base]
    image: Image
    layers: Layers
    requires: Annotated[
        dict[Package, Wanted], msgspec.Meta(description="what every image has, such as pip and uv")
    ]
    targets: dict[Name, Target]
    sdists: dict[Package, Sdist] = {}
    drop: Annotated[
        tuple[Drop, ...], msgspec.Meta(description="files left out of every target that has them")
    ] = ()
    registry: Registry = None
