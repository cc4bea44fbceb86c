"""Computes the steps of the Dockerfile of a lock, for all architectures.

Nothing is fetched or built.
"""

from __future__ import annotations

import datetime
import posixpath
import re
from collections.abc import Iterable, Sequence

import msgspec

from imgbuild import codec
from imgbuild.assemble import skeleton
from imgbuild.errors import InputError
from imgbuild.lock import extension, requirements
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import Wheel, installed_wheels
from imgbuild.matrix import flashinfer
from imgbuild.matrix.model import Matrix
from imgbuild.oci.tar import LayerMember, MemberKind
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.plan.plan import (
    AddedFilesRecipe,
    FilesRecipe,
    Plan,
    VenvRecipe,
    WheelsRecipe,
    base_plan,
    create_plan,
)
from imgbuild.render.tree import LayerTree, create_tree
from imgbuild.system import quoting
from imgbuild.system.quoting import QuotedText
from imgbuild.values import Arch, Digest, Sha256, sha256

INSTALLER = "uv"
CONTEXT = "base"


class OmittedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A package with omitted files.

    `paths` are patterns below the prefix. `rows` are regular expressions for the rows of these
    files in RECORD.
    """

    requirement: str
    record: str
    paths: tuple[str, ...]
    rows: tuple[str, ...]
    reasons: tuple[str, ...]

    def steps(self, folder: str) -> tuple[QuotedText, ...]:
        """Return commands that remove the files from `folder`, which contains only the package.

        The package is installed into a separate folder first. Otherwise, its files could replace
        files of other packages, which would then be removed.
        """
        paths = " -o ".join(
            f"-path {quoting.quote_word(f'{folder}/{path}')}" for path in self.paths
        )
        rows = " ".join(f"-e {quoting.quote_word(f'/{row}/d')}" for row in self.rows)
        return (
            QuotedText(f"find {quoting.quote_word(folder)} \\( {paths} \\) ! -type d -delete"),
            QuotedText(f"find {quoting.quote_word(folder)} -type d -empty -delete"),
            QuotedText(f"sed -i {rows} {quoting.quote_word(f'{folder}/{self.record}')}"),
        )


class SdistBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A package to build from an sdist. `requires` is the file with build requirements."""

    requirement: str
    env: dict[str, str]
    requires: str
    omission: OmittedFiles | None = None


class WheelLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer of wheels: packages to install unchanged, and packages with omitted files.

    `builds` are packages that are available only as sdists.
    """

    name: str
    requirements: tuple[str, ...]
    omissions: tuple[OmittedFiles, ...] = ()
    builds: tuple[SdistBuild, ...] = ()

    @property
    def without(self) -> tuple[OmittedFiles, ...]:
        """All packages in the layer that have omitted files."""
        built = (build.omission for build in self.builds)
        return (*self.omissions, *(omission for omission in built if omission is not None))


class InstallerWheel(msgspec.Struct, frozen=True, kw_only=True):
    """The wheel of the program that installs packages."""

    file: str
    version: str
    sha256: Sha256


class ArchStage(msgspec.Struct, frozen=True, kw_only=True):
    """The build stage for one architecture. `arch` is Docker's name of the architecture.

    `wheels` is the location of wheels: a named context, or if `urls` is set, a build stage.
    """

    arch: str
    platform: str
    requirements: str
    wheels: str = "wheels"
    urls: tuple[str, ...] = ()
    installer: InstallerWheel
    installs: tuple[WheelLayer, ...]


class DockerfileVariable(msgspec.Struct, frozen=True, kw_only=True):
    """An environment variable of the image, with the reason in the matrix, if any."""

    name: str
    value: str
    reason: str


class DockerfileBase(msgspec.Struct, frozen=True, kw_only=True):
    """The base image, as built by `imgbuild build --only base`.

    `reference` is the name in FROM: a named context, or an image in a registry.
    """

    name: str
    digest: Digest
    contents: str
    reference: str = CONTEXT


class DockerfileModel(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the template of a Dockerfile.

    `kept` is set if the Dockerfile is committed next to the lock. If the lock has other
    architectures, `narrowed` is the option of `imgbuild` that selects the architectures of the
    image.
    """

    target: str
    summary: str
    lock: Sha256
    image: Digest
    epoch: int
    created: str
    base: DockerfileBase
    python: str
    interpreter: str
    prefix: str
    stages: tuple[ArchStage, ...]
    venv: LayerTree
    files: LayerTree
    env: tuple[DockerfileVariable, ...]
    labels: dict[str, str]
    user: str
    workdir: str
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    kept: bool = True
    narrowed: str = ""

    @property
    def platforms(self) -> str:
        """The platforms in Docker's syntax, such as linux/amd64."""
        return ",".join(stage.platform for stage in self.stages)

    @property
    def online(self) -> bool:
        """True if the build downloads the base and the wheels."""
        return any(stage.urls for stage in self.stages)

    @property
    def by_arch(self) -> bool:
        """True if a file that the last steps add differs between architectures."""
        return any(file.by_arch for file in (*self.venv.files, *self.files.files))


def create_dockerfile(
    lock: Lock, target_digests: TargetDigests, matrix: Matrix, arches: Sequence[Arch] | None = None
) -> DockerfileModel:
    """Create the steps that build the image of `lock` on `arches`, by default all.

    Raises InputError if a step needs a package that is not in the lock.
    """
    plans = {arch: create_plan(lock, arch) for arch in arches or lock.arch}
    first = next(iter(plans.values()))
    venvs = {arch: layer_members(planned, VenvRecipe) for arch, planned in plans.items()}
    file_members = {
        arch: (*layer_members(planned, FilesRecipe), *added_members(lock, planned, matrix))
        for arch, planned in plans.items()
    }
    target = matrix.targets.get(lock.target)
    config = first.config
    return DockerfileModel(
        target=lock.target,
        summary=target.summary if target else "",
        lock=sha256(codec.encode(lock)),
        image=target_digests.digest
        if set(plans) == set(target_digests.arch)
        else target_digests.arch[first.arch].manifest,
        epoch=source_date_epoch(config.created),
        created=config.created,
        base=_base(lock, target_digests, plans.values()),
        python=lock.base.python,
        interpreter=lock.base.interpreter,
        prefix=lock.settings.prefix,
        stages=tuple(_stage(lock, arch, planned) for arch, planned in plans.items()),
        venv=create_tree(venvs),
        files=create_tree(file_members),
        env=_variables(config.env, _reasons(lock, matrix)),
        labels=config.labels,
        user=config.user,
        workdir=config.workdir,
        entrypoint=config.entrypoint,
        cmd=config.cmd,
        narrowed=QuotedText(
            "".join(f" --arch {arch}" for arch in plans if plans.keys() != lock.arch.keys())
        ),
    )


def source_date_epoch(created: str) -> int:
    """Convert the field `created` of an image configuration to seconds since 1970."""
    return int(datetime.datetime.fromisoformat(created).timestamp())


def layer_members(planned: Plan, kind: type[VenvRecipe | FilesRecipe]) -> Sequence[LayerMember]:
    """Return the members of the only layer of this kind in the plan."""
    recipe = next(layer.recipe for layer in planned.layers if isinstance(layer.recipe, kind))
    if isinstance(recipe, VenvRecipe):
        return skeleton.venv_members(recipe)
    return skeleton.files_members(recipe)


def added_members(lock: Lock, planned: Plan, matrix: Matrix) -> tuple[LayerMember, ...]:
    """Return the files and links that a user adds, without parent folders.

    Raises InputError for a file that is not text, and IntegrityError if a file has changed.
    """
    additions: list[LayerMember] = []
    for layer in planned.layers:
        if isinstance(layer.recipe, AddedFilesRecipe):
            contents = extension.added_contents(lock, matrix)
            additions += skeleton.added_members(layer.recipe, contents)
    for member in additions:
        try:
            _ = member.content.decode() if isinstance(member.content, bytes) else ""
        except UnicodeDecodeError as error:
            message = f"/{member.path} is not UTF-8, so it cannot be written next to a Dockerfile"
            raise InputError(
                message, hint="use the embedded builder, which supports any file name"
            ) from error
    return tuple(member for member in additions if member.kind is not MemberKind.FOLDER)


def base_digest(target_digests: TargetDigests, plans: Iterable[Plan]) -> Digest:
    """Return the digest of the image that `imgbuild build --only base` writes."""
    records = image_digests.layer_records(target_digests)
    bases = [base_plan(planned) for planned in plans]
    return image_digests.top_digest(
        {base.arch: image_digests.create_documents(base, records).manifest for base in bases}
    )


def _base(lock: Lock, target_digests: TargetDigests, plans: Iterable[Plan]) -> DockerfileBase:
    first = next(iter(lock.arch.values()))
    contents = lock.base.image
    if lock.base.kind == "debian":
        python = f", CPython {first.python.version}" if first.python else ""
        contents = f"{len(first.debs)} Debian packages of {lock.base.suite}{python}"
    return DockerfileBase(
        name=lock.base.name, digest=base_digest(target_digests, plans), contents=contents
    )


def _stage(lock: Lock, arch: Arch, planned: Plan) -> ArchStage:
    resolution = lock.arch[arch]
    wheels = {wheel.package: wheel for wheel in installed_wheels(resolution)}
    if INSTALLER not in wheels:
        message = (
            f"{lock.target}: the Dockerfile requires {INSTALLER} to install packages, but it is "
            "not in the lock"
        )
        hint = f"add the package to matrix.yaml, under requires: `{INSTALLER}: {{reason: …}}`"
        raise InputError(message, hint=hint)
    installer = wheels[INSTALLER]
    return ArchStage(
        arch=arch.oci,
        platform=f"linux/{arch.oci}",
        requirements=requirements.file_name(arch),
        installer=InstallerWheel(
            file=installer.file, version=installer.version, sha256=installer.sha256
        ),
        installs=tuple(
            _wheel_layer(lock, layer.name, layer.recipe)
            for layer in planned.layers
            if isinstance(layer.recipe, WheelsRecipe)
        ),
    )


def _wheel_layer(lock: Lock, name: str, recipe: WheelsRecipe) -> WheelLayer:
    wheels = sorted(recipe.wheels, key=lambda wheel: wheel.package)
    return WheelLayer(
        name=name,
        requirements=tuple(
            f"{wheel.package}=={wheel.version}"
            for wheel in wheels
            if wheel.package not in recipe.omit
        ),
        omissions=tuple(
            omitted_files(lock, wheel, recipe.omit[wheel.package], recipe.python)
            for wheel in wheels
            if wheel.package in recipe.omit
        ),
    )


def omitted_files(lock: Lock, wheel: Wheel, paths: tuple[str, ...], python: str) -> OmittedFiles:
    """Return the files of `wheel` that match `paths`, and their rows in RECORD."""
    site = f"lib/python{python}/site-packages/"
    return OmittedFiles(
        requirement=f"{wheel.package}=={wheel.version}",
        record=f"{site}{_metadata_folder(wheel.file)}/RECORD",
        paths=paths,
        rows=tuple(_row(pattern, site) for pattern in paths),
        reasons=tuple(
            " ".join(drop.reason.split())
            for drop in lock.drop
            if drop.package == wheel.package and set(drop.paths) & set(paths)
        ),
    )


def _metadata_folder(file: str) -> str:
    name, version, *_ = file.split("-")
    return f"{name}-{version}.dist-info"


def _row(pattern: str, site: str) -> str:
    """Return a regular expression for sed that matches rows in RECORD with paths like `pattern`."""
    below = posixpath.relpath("/" + pattern, "/" + site)
    escaped = re.sub(r"[][\\.^$/]", r"\\\g<0>", below).replace("*", ".*").replace("?", ".")
    return f"^{escaped},"


def _reasons(lock: Lock, matrix: Matrix) -> dict[str, str]:
    target = matrix.targets.get(lock.target)
    every = dict(matrix.image.env)
    if target is not None:
        every |= flashinfer.mode_environment(target, matrix.image, matrix.bases[target.base])
        every |= target.env
    return {name: " ".join(variable.reason.split()) for name, variable in every.items()}


def _variables(env: Iterable[str], reasons: dict[str, str]) -> tuple[DockerfileVariable, ...]:
    pairs = [item.partition("=") for item in env]
    return tuple(
        DockerfileVariable(name=name, value=value, reason=reasons.get(name, ""))
        for name, _, value in pairs
    )
