"""Defines the values of a lock. The decoder checks types, and `lock.check` checks other rules."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from imgbuild.lock.resolution import LockedFile, Resolution
from imgbuild.matrix.fields import (
    GPU_LABEL,
    NAME,
    REGISTRY_IMAGE,
    ArchiveUrl,
    CudaVersion,
    Day,
    DebianPackage,
    FlashinferMode,
    FolderPath,
    GlibcVersion,
    ImagePath,
    LabelName,
    Line,
    LockedVersion,
    Name,
    Package,
    PythonVersion,
    Specifier,
    VariableName,
)
from imgbuild.matrix.model import DroppedFiles, User
from imgbuild.values import Arch, Digest, Sha256

FileMode = Annotated[str, Meta(pattern=r"^[0-7]{3,4}\Z", description="octal mode, as for chmod")]
NumericId = Annotated[int, Meta(ge=0, lt=1 << 31, description="numeric ID of a user or group")]
Suite = Annotated[
    str,
    Meta(
        pattern=rf"^({NAME})?\Z",
        description="code name of the Debian release; empty for a registry base",
    ),
]
BaseImage = Annotated[
    str,
    Meta(
        pattern=rf"^({REGISTRY_IMAGE})?\Z",
        description="image reference with a digest; empty for a Debian base",
    ),
]


class ImageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a target's image, with defaults and overrides applied.

    If `user_packages` is set, users can add packages in a container. `readme` is the text of
    /opt/imgbuild/README.
    """

    prefix: ImagePath
    user: User
    workdir: ImagePath
    cache: ImagePath
    env: dict[VariableName, Line]
    labels: dict[LabelName, Line]
    entrypoint: tuple[Line, ...]
    cmd: tuple[Line, ...]
    links: dict[ImagePath, Line] = {}
    user_packages: bool | msgspec.UnsetType = msgspec.UNSET
    readme: str | msgspec.UnsetType = msgspec.UNSET


class LayerRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules in `layers:` of the matrix that distribute wheels over layers."""

    own_from: Annotated[int, Meta(ge=0)]
    named: tuple[Package, ...]
    groups: Annotated[int, Meta(ge=1)]
    order: tuple[Line, ...]
    limit: Annotated[int, Meta(ge=1)]


class LockedBase(msgspec.Struct, frozen=True, kw_only=True):
    """The base of a target.

    `standalone` contains the URLs of a standalone build of Python, whose archives are in the
    resolutions.
    """

    name: Name
    kind: Literal["debian", "registry"]
    suite: Suite
    python: PythonVersion
    glibc: GlibcVersion
    interpreter: ImagePath
    packages: tuple[DebianPackage, ...] = ()
    image: BaseImage = ""
    hardened: bool | msgspec.UnsetType = msgspec.UNSET
    tools: tuple[DebianPackage, ...] | msgspec.UnsetType = msgspec.UNSET
    standalone: dict[Arch, ArchiveUrl] | msgspec.UnsetType = msgspec.UNSET


class AddedFile(LockedFile, frozen=True, kw_only=True):
    """A file to add. `file` is a path in the user's repository, and `mode` is octal."""

    file: Line
    mode: FileMode


class AddedFolder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The octal mode and the owner of a folder."""

    mode: FileMode
    uid: NumericId = 0
    gid: NumericId = 0


class AddedInputs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The packages to add to the published image `manifest`, and folders of the base.

    `folders` are folders with a non-default owner or mode to which files are added.
    """

    manifest: Digest
    wheels: tuple[Package, ...]
    debs: tuple[DebianPackage, ...]
    folders: dict[FolderPath, AddedFolder] = {}


class Extends(msgspec.Struct, frozen=True, kw_only=True):
    """The published target that a target extends, and the additions.

    `lock` is the SHA-256 of the published lock.json, `digest` is the digest of the published image,
    and `packages` are added Debian packages. If `constraints` is set, pip's constraints in the
    image include the added packages. It is unset without `user_packages`, without added packages,
    and in older locks.
    """

    target: Name
    lock: Sha256
    digest: Digest
    packages: tuple[DebianPackage, ...]
    files: dict[ImagePath, AddedFile]
    links: dict[ImagePath, Line]
    arch: dict[Arch, AddedInputs]
    constraints: bool | msgspec.UnsetType = msgspec.UNSET


class EditablePackage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A package of the project. The image contains its metadata, and containers mount its code.

    `roots` are the folders of the package's modules in the image, `scripts` are console scripts as
    `module:function`, and `requires` are PEP 508 lines. `setup` is the hash of a setup.py that the
    build backend runs for dynamic metadata.
    """

    version: LockedVersion
    roots: tuple[ImagePath, ...]
    scripts: dict[Line, Line] = {}
    requires: tuple[Line, ...] = ()
    python: Line = ""
    setup: Sha256 | None = None


class LockedProject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The requirements of a user's project, and the sources of packages that are not from an index.

    `requirements` are the normalized and sorted lines of `files`. `sources` maps packages to the
    URL of a wheel or of a folder in a git commit (see `lock.addresses`). `trees` maps packages to
    the git hash of the folder. `packages` are packages of the project itself. `omitted_gpus` are
    compute capabilities of the published target that the packages do not support, sorted.
    """

    files: tuple[Line, ...] = ()
    requirements: tuple[Line, ...] = ()
    sources: dict[Package, Line] = {}
    trees: dict[Package, Line] = {}
    packages: dict[Package, EditablePackage] = {}
    omitted_gpus: tuple[Line, ...] = ()


class Lock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All inputs of a target's image.

    The lock determines the plan and, with `layers.json`, the digests. If `extends` is set, the lock
    includes the inputs of the published target and the additions. `project` describes a user's
    project whose files declare the requirements.
    """

    format: int
    target: Name
    cuda: CudaVersion
    as_of: Day
    flashinfer: FlashinferMode
    requirements: dict[Package, Specifier]
    indexes: dict[Package, Name]
    base: LockedBase
    settings: ImageSettings
    layers: LayerRules
    drop: tuple[DroppedFiles, ...]
    arch: dict[Arch, Resolution]
    extends: Extends | None = None
    project: LockedProject | None = None

    @property
    def gpu(self) -> tuple[str, ...]:
        """The compute capabilities of the GPUs that the image supports, such as "9.0"."""
        return tuple(self.settings.labels.get(GPU_LABEL, "").split())

    @property
    def omitted_gpus(self) -> tuple[str, ...]:
        """The compute capabilities that `with_gpus` removed."""
        return self.project.omitted_gpus if self.project is not None else ()

    def with_gpus(self, gpu: Collection[str]) -> Lock:
        """Return the lock with only the compute capabilities `gpu`, and record the omitted ones."""
        labels = {**self.settings.labels, GPU_LABEL: " ".join(gpu)}
        omitted = {*self.omitted_gpus, *self.gpu} - {*gpu}
        return msgspec.structs.replace(
            self,
            settings=msgspec.structs.replace(self.settings, labels=labels),
            project=msgspec.structs.replace(
                self.project or LockedProject(), omitted_gpus=tuple(sorted(omitted))
            ),
        )
