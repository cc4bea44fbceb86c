"""Plans an image: its ordered layers with their inputs, and its configuration.

A layer's ID is the digest of the canonical JSON of its recipe. The recipe contains a format number.
Increase the number if a change to the code changes the bytes of layers with this kind of recipe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from packaging.specifiers import SpecifierSet

from imgbuild import codec
from imgbuild.lock.lock_file import AddedFile, AddedFolder, Lock, published_lock
from imgbuild.lock.resolution import (
    Deb,
    LockedFile,
    PythonArchive,
    RegistryLayer,
    Resolution,
    Wheel,
    installed_wheels,
)
from imgbuild.matrix.fields import STANDALONE_PREFIX
from imgbuild.matrix.model import DroppedFiles, User
from imgbuild.plan.cut import cut_wheels
from imgbuild.values import Arch, Digest, Sha256, digest_of

DEBIAN_FORMAT = 1
PYTHON_FORMAT = 1
VENV_FORMAT = 1
WHEELS_FORMAT = 1
FILES_FORMAT = 1
USER_PACKAGES_FORMAT = 2  # of the files that `user_packages` adds
ADDED_DEBS_FORMAT = 1
ADDED_FILES_FORMAT = 1
MOST_LAYERS = 120  # of an extension with the image below it: engines allow at most 127
SYSTEM = ("/usr/", "/bin", "/sbin")  # the folders of a base's programs
DEFAULT_PATH = "PATH=/usr/local/bin:/usr/bin:/bin"  # of a base whose image sets none
COMMANDS = "/opt/imgbuild/bin"  # pip and uv, which add packages for a user
USER_BASE = "PYTHONUSERBASE"  # the folder of a user's packages for Python, pip and uv


class _LayerRecipe(msgspec.Struct, frozen=True):
    @property
    def inputs(self) -> tuple[LockedFile, ...]:
        return ()

    @property
    def contents(self) -> tuple[LockedFile, ...]:
        """The inputs whose contents the layer adds to the image."""
        return self.inputs

    @property
    def input_size(self) -> int:
        """The total size of the inputs in bytes, which estimates the build time."""
        return sum(file.size for file in self.inputs)


class DebianRecipe(_LayerRecipe, frozen=True, kw_only=True, tag_field="kind", tag="debian"):
    """A root file system of Debian packages, including the effects of maintainer scripts.

    If `hardened` is set, no file has a setuid or setgid bit.
    """

    arch: Arch
    suite: str
    debs: tuple[Deb, ...]
    user: User
    hardened: bool = False

    @property
    def inputs(self) -> tuple[LockedFile, ...]:
        """The Debian packages."""
        return self.debs


class RegistryRecipe(_LayerRecipe, frozen=True, kw_only=True, tag_field="kind", tag="registry"):
    """A layer of a registry image. `image` is the reference of the image."""

    image: str
    layer: RegistryLayer

    @property
    def inputs(self) -> tuple[LockedFile, ...]:
        """The registry layer."""
        return (self.layer.as_locked_file,)


class PythonRecipe(_LayerRecipe, frozen=True, kw_only=True, tag_field="kind", tag="python"):
    """A standalone build of CPython in the folder `prefix`. `python` is its release."""

    prefix: str
    python: str
    archive: PythonArchive

    @property
    def inputs(self) -> tuple[LockedFile, ...]:
        """The archive of the CPython build."""
        return (self.archive,)


class VenvRecipe(_LayerRecipe, frozen=True, kw_only=True, tag_field="kind", tag="venv"):
    """The empty virtual environment: pyvenv.cfg, links to the interpreter, and activation script.

    With `user_site`, Python also imports packages that a user installs (PEP 370).
    """

    prefix: str
    python: str
    interpreter: str
    user_site: bool | msgspec.UnsetType = msgspec.UNSET


class WheelsRecipe(_LayerRecipe, frozen=True, kw_only=True, tag_field="kind", tag="wheels"):
    """Installed wheels, sorted by sha256. `omit` maps packages to patterns of paths to omit."""

    prefix: str
    python: str
    wheels: tuple[Wheel, ...]
    omit: dict[str, tuple[str, ...]] = {}

    @property
    def inputs(self) -> tuple[LockedFile, ...]:
        """The wheels."""
        return self.wheels

    @property
    def omitted_by_sha256(self) -> dict[Sha256, tuple[str, ...]]:
        """The paths to omit, by the sha256 of wheels."""
        return {
            wheel.sha256: self.omit[wheel.package]
            for wheel in self.wheels
            if wheel.package in self.omit
        }


class UserPackages(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with which a user can add packages with pip and uv.

    `versions` maps packages to versions. `site` is the folder from which the interpreter imports
    packages outside of environments. It is not set for Debian's Python.
    """

    prefix: str
    python: str
    versions: dict[str, str]
    site: str | msgspec.UnsetType = msgspec.UNSET


class FilesRecipe(_LayerRecipe, frozen=True, kw_only=True, tag_field="kind", tag="files"):
    """imgbuild's entry point, links by absolute path, and home, work and cache folders.

    `passwd` and `group` are files of a registry base. The user is added to these files. If
    `private` is set, only the image's user can write to the cache folder, otherwise all users.
    """

    user: User
    workdir: str
    cache: str
    passwd: str = ""
    group: str = ""
    links: dict[str, str] = {}
    private: bool | msgspec.UnsetType = msgspec.UNSET
    user_packages: UserPackages | msgspec.UnsetType = msgspec.UNSET
    readme: str | msgspec.UnsetType = msgspec.UNSET


class AddedDebsRecipe(_LayerRecipe, frozen=True, kw_only=True, tag_field="kind", tag="added-debs"):
    """Debian packages on top of a base, as the difference between two root folders."""

    base: DebianRecipe
    debs: tuple[Deb, ...]

    @property
    def inputs(self) -> tuple[LockedFile, ...]:
        """The packages of the base and the added packages."""
        return (*self.base.debs, *self.debs)

    @property
    def contents(self) -> tuple[LockedFile, ...]:
        """The added packages."""
        return self.debs


class AddedFilesRecipe(
    _LayerRecipe, frozen=True, kw_only=True, tag_field="kind", tag="added-files"
):
    """A user's files and links by absolute path, on top of the layer `below`.

    `folders` lists parent folders in the base that have a non-root owner or a non-default mode.
    With `user_packages`, the layer also has pip's constraints, which include the added packages.
    """

    files: dict[str, AddedFile]
    links: dict[str, str]
    below: FilesRecipe
    folders: dict[str, AddedFolder] = {}
    user_packages: UserPackages | msgspec.UnsetType = msgspec.UNSET

    @property
    def inputs(self) -> tuple[LockedFile, ...]:
        """The files, without the links."""
        return tuple(self.files.values())


Recipe = (
    DebianRecipe
    | RegistryRecipe
    | PythonRecipe
    | VenvRecipe
    | WheelsRecipe
    | FilesRecipe
    | AddedDebsRecipe
    | AddedFilesRecipe
)


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A planned layer. `name` is only displayed. `id` is the digest of `recipe`."""

    name: str
    id: Digest
    recipe: Recipe


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The runtime settings in an image configuration. `created` has the format of RFC 3339."""

    created: str
    user: str
    env: tuple[str, ...]
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    workdir: str
    labels: dict[str, str]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of an image for one architecture. Layers are bottom layer first."""

    target: str
    arch: Arch
    layers: tuple[Layer, ...]
    config: RuntimeConfig


def create_plan(lock: Lock, arch: Arch) -> Plan:
    """Return the plan of the image of `lock` for `arch`, without reading files.

    An extension has the layers of the published target, with added layers on top. Raises InputError
    if the lock's rules for layers need more layers than the limit allows.
    """
    recipes = _recipes(published_lock(lock, arch), arch)
    if lock.extends is not None:
        recipes += _extension_recipes(lock, arch, recipes)
    layers = tuple(Layer(name=name, id=layer_id(recipe), recipe=recipe) for name, recipe in recipes)
    return Plan(target=lock.target, arch=arch, layers=layers, config=_config(lock, arch))


def published_layers(lock: Lock) -> frozenset[Digest]:
    """Return the IDs of the layers that an extension shares with its published target."""
    if lock.extends is None:
        return frozenset()
    return frozenset(
        layer.id
        for arch in lock.arch
        for layer in create_plan(published_lock(lock, arch), arch).layers
    )


def _recipes(lock: Lock, arch: Arch) -> list[tuple[str, Recipe]]:
    resolution = lock.arch[arch]
    settings = lock.settings
    below = _base_layers(lock, arch, resolution)
    venv = VenvRecipe(
        prefix=settings.prefix,
        python=lock.base.python,
        interpreter=lock.base.interpreter,
        user_site=settings.user_packages,
    )
    files = FilesRecipe(
        user=settings.user,
        workdir=settings.workdir,
        cache=settings.cache,
        links=settings.links,
        passwd=resolution.base_files.get("etc/passwd", ""),
        group=resolution.base_files.get("etc/group", ""),
        private=lock.base.hardened,
        user_packages=UserPackages(
            prefix=settings.prefix,
            python=lock.base.python,
            versions=resolution.versions,
            site=f"{STANDALONE_PREFIX}/lib/python{lock.base.python}/site-packages"
            if resolution.python
            else msgspec.UNSET,
        )
        if settings.user_packages
        else msgspec.UNSET,
        readme=settings.readme,
    )
    installed = installed_wheels(resolution)
    tools = _tools(lock, arch, resolution)
    cut = cut_wheels(installed, lock.layers, taken=len(below) + len(tools) + 2)
    wheels = _wheel_recipes(lock, cut, omitted_paths(lock.drop, installed))
    return [*below, ("venv", venv), *wheels, *tools, ("files", files)]


def _extension_recipes(
    lock: Lock, arch: Arch, below: Sequence[tuple[str, Recipe]]
) -> list[tuple[str, Recipe]]:
    resolution, extends = lock.arch[arch], lock.extends
    if extends is None:
        return []
    names = extends.arch[arch]
    recipes: list[tuple[str, Recipe]] = []
    if debs := tuple(deb for deb in resolution.debs if deb.package in names.debs):
        present = tuple(deb for deb in resolution.debs if deb.package not in names.debs)
        base = _debian(lock, arch, present)
        recipes.append(("added-debs", AddedDebsRecipe(base=base, debs=debs)))
    installed = installed_wheels(resolution)
    wheels = [wheel for wheel in installed if wheel.package in names.wheels]
    rules = msgspec.structs.replace(lock.layers, limit=MOST_LAYERS)
    cut = cut_wheels(wheels, rules, taken=len(below) + 2)
    recipes += _wheel_recipes(
        lock, [(f"added-{name}", group) for name, group in cut], omitted_paths(lock.drop, installed)
    )
    if extends.files or extends.links or extends.constraints:
        files_recipe = next(recipe for _, recipe in below if isinstance(recipe, FilesRecipe))
        added = AddedFilesRecipe(
            files=extends.files,
            links=extends.links,
            below=files_recipe,
            folders=names.folders,
            user_packages=msgspec.structs.replace(
                files_recipe.user_packages, versions=resolution.versions
            )
            if extends.constraints and files_recipe.user_packages
            else msgspec.UNSET,
        )
        recipes.append(("added-files", added))
    return recipes


def _wheel_recipes(
    lock: Lock,
    cut: Iterable[tuple[str, tuple[Wheel, ...]]],
    omit: Mapping[str, tuple[str, ...]],
) -> list[tuple[str, Recipe]]:
    return [
        (
            name,
            WheelsRecipe(
                prefix=lock.settings.prefix,
                python=lock.base.python,
                wheels=group,
                omit={
                    wheel.package: omit[wheel.package] for wheel in group if wheel.package in omit
                },
            ),
        )
        for name, group in cut
    ]


def base_plan(planned: Plan) -> Plan:
    """Return a plan with only the base layers of `planned` and a minimal configuration.

    System packages that an extension adds are part of the base.
    """
    layers = tuple(
        layer
        for layer in planned.layers
        if isinstance(layer.recipe, DebianRecipe | RegistryRecipe | AddedDebsRecipe | PythonRecipe)
    )
    paths = (item for item in planned.config.env if item.startswith("PATH="))
    plain = next(paths, DEFAULT_PATH).partition("=")[2].split(":")
    config = RuntimeConfig(
        created=planned.config.created,
        user="0:0",
        env=("LANG=C.UTF-8", "PATH=" + ":".join(item for item in plain if item.startswith(SYSTEM))),
        entrypoint=(),
        cmd=("bash",),
        workdir="/",
        labels={},
    )
    return Plan(target=planned.target, arch=planned.arch, layers=layers, config=config)


def omitted_paths(
    drops: Iterable[DroppedFiles], wheels: Iterable[Wheel]
) -> dict[str, tuple[str, ...]]:
    """Map each package of `wheels` to sorted patterns for the paths that `drops` omits."""
    versions = {wheel.package: wheel.version for wheel in wheels}
    patterns: dict[str, tuple[str, ...]] = {}
    for drop in drops:
        version = versions.get(drop.package)
        if version is None or (drop.beside is not None and drop.beside not in versions):
            continue
        if not SpecifierSet(drop.versions).contains(version, prereleases=True):
            continue
        patterns[drop.package] = tuple(sorted({*patterns.get(drop.package, ()), *drop.paths}))
    return patterns


def layer_id(recipe: Recipe) -> Digest:
    """Return the digest of all inputs that determine the bytes of the layer."""
    inputs: dict[str, object]
    match recipe:
        case DebianRecipe():
            inputs = {
                "format": DEBIAN_FORMAT,
                "arch": recipe.arch,
                "suite": recipe.suite,
                "debs": sorted(deb.sha256 for deb in recipe.debs),
                "user": recipe.user,
                **({"hardened": True} if recipe.hardened else {}),
            }
        case RegistryRecipe():
            inputs = {"digest": recipe.layer.digest}
        case PythonRecipe():
            inputs = {
                "format": PYTHON_FORMAT,
                "prefix": recipe.prefix,
                "python": recipe.python,
                "archive": recipe.archive.sha256,
            }
        case VenvRecipe():
            inputs = {"format": VENV_FORMAT, **codec.to_builtins(recipe)}
        case WheelsRecipe():
            inputs = {
                "format": WHEELS_FORMAT,
                "prefix": recipe.prefix,
                "python": recipe.python,
                "wheels": sorted(wheel.sha256 for wheel in recipe.wheels),
            }
            if recipe.omit:
                inputs["omit"] = recipe.omitted_by_sha256
        case FilesRecipe():
            inputs = {"format": FILES_FORMAT, **codec.to_builtins(recipe)}
            if recipe.user_packages:
                inputs["user_packages_format"] = USER_PACKAGES_FORMAT
        case AddedDebsRecipe():
            inputs = {
                "format": ADDED_DEBS_FORMAT,
                "base": layer_id(recipe.base),
                "debs": sorted(deb.sha256 for deb in recipe.debs),
            }
        case AddedFilesRecipe():  # the last of them, so that every recipe has an id
            inputs = _added_file_inputs(recipe)
    kind = type(recipe).__struct_config__.tag
    return digest_of(codec.encode_compact({**inputs, "kind": kind}))


def _added_file_inputs(recipe: AddedFilesRecipe) -> dict[str, object]:
    inputs: dict[str, object] = {
        "format": ADDED_FILES_FORMAT,
        "files": {path: [file.sha256, file.mode] for path, file in recipe.files.items()},
        "links": recipe.links,
        "below": layer_id(recipe.below),
    }
    if recipe.folders:
        inputs["folders"] = codec.to_builtins(recipe.folders)
    if recipe.user_packages:
        inputs["constraints"] = recipe.user_packages.versions
    return inputs


def _base_layers(lock: Lock, arch: Arch, resolution: Resolution) -> list[tuple[str, Recipe]]:
    if lock.base.kind == "debian":
        layers: list[tuple[str, Recipe]] = [
            (lock.base.name, _debian(lock, arch, _split_debs(resolution)[0]))
        ]
        if resolution.python:
            archive, python = resolution.python, lock.base.python
            recipe = PythonRecipe(prefix=STANDALONE_PREFIX, python=python, archive=archive)
            layers.append(("python", recipe))
        return layers
    return [
        (f"{lock.base.name}-{number}", RegistryRecipe(image=lock.base.image, layer=layer))
        for number, layer in enumerate(resolution.base_layers)
    ]


def _tools(lock: Lock, arch: Arch, resolution: Resolution) -> list[tuple[str, Recipe]]:
    """Return the layer of tools. It is above the wheels, so that targets can share lower layers."""
    base, tools = _split_debs(resolution)
    if not tools:
        return []
    return [("tools", AddedDebsRecipe(base=_debian(lock, arch, base), debs=tools))]


def _split_debs(resolution: Resolution) -> tuple[tuple[Deb, ...], tuple[Deb, ...]]:
    names = frozenset(resolution.tools or ())
    base = tuple(deb for deb in resolution.debs if deb.package not in names)
    return base, tuple(deb for deb in resolution.debs if deb.package in names)


def _debian(lock: Lock, arch: Arch, debs: tuple[Deb, ...]) -> DebianRecipe:
    return DebianRecipe(
        arch=arch,
        suite=lock.base.suite,
        debs=debs,
        user=lock.settings.user,
        hardened=lock.base.hardened is True,
    )


def image_environment(lock: Lock, arch: Arch) -> dict[str, str]:
    """Return the environment variables of the image of `lock` for `arch`.

    The name of the folder for packages that a user adds depends on the packages of the image,
    because added packages can be incompatible with other images.
    """
    settings = lock.settings
    if not settings.user_packages:
        return settings.env
    installed = digest_of(codec.encode_compact([lock.base.python, lock.arch[arch].versions]))
    name = f"{lock.target}-{installed.removeprefix('sha256:')[:8]}"
    folder = f"{settings.workdir.rstrip('/')}/.imgbuild-packages/{name}"
    return {
        **settings.env,
        USER_BASE: folder,
        "PATH": f"{COMMANDS}:{settings.env.get('PATH', '')}:{folder}/bin",
    }


def _config(lock: Lock, arch: Arch) -> RuntimeConfig:
    settings = lock.settings
    return RuntimeConfig(
        created=f"{lock.as_of}T00:00:00Z",
        user=f"{settings.user.uid}:{settings.user.gid}",
        env=tuple(
            f"{name}={value}" for name, value in sorted(image_environment(lock, arch).items())
        ),
        entrypoint=settings.entrypoint,
        cmd=settings.cmd,
        workdir=settings.workdir,
        labels=settings.labels,
    )
