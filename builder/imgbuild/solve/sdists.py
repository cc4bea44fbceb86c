"""Builds wheels of packages that are published only as sdists, for `sdists:` in the matrix.

The resolver gets METADATA of the wheel. The lock gets a `BuiltWheel`: the sdist, its build
requirements (resolved with the same cut-off, for this machine) and the wheel, which
`sdist_wheel.build_wheel` builds. Fetching from a lock builds the same wheel again if it is not in
the cache.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imgbuild import codec
from imgbuild.cache.context import Context
from imgbuild.cache.download import FileRequest, fetch_all
from imgbuild.cache.store import Store
from imgbuild.errors import IntegrityError, NoSolution
from imgbuild.index.candidates import FileRules
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.pages import GIT, PROJECT, IndexFile, IndexLookup
from imgbuild.index.remote_wheel import lock_file, lock_wheel
from imgbuild.lock import addresses
from imgbuild.lock.addresses import GitAddress
from imgbuild.lock.resolution import BuiltWheel, LockedFile, Wheel
from imgbuild.matrix.model import Sdist
from imgbuild.solve import git_tree, sdist_wheel, uv
from imgbuild.solve.refusal import resolver_lines
from imgbuild.system import decoding
from imgbuild.system.amounts import format_count, size_text
from imgbuild.values import Arch, sha256
from imgbuild.wheel.tags import WheelTags

FACT = "built-wheel"
BuildResult = TypeVar("BuildResult")
ROUNDS = 4  # of builds that request more requirements than they declare


def host_arch() -> Arch:
    """Return the architecture of this machine. Pure wheels for all targets are built on it."""
    return Arch.parse(platform.machine())


def host_rules(rules: FileRules) -> FileRules:
    """Return `rules` for the architecture of this machine."""
    tags = WheelTags(python=rules.tags.python, glibc=rules.tags.glibc, arch=host_arch())
    return msgspec.structs.replace(rules, tags=tags)


class SdistWheels:
    """Builds wheels of sdists for a resolution, each at most once.

    `catalogue` contains the files for this machine's architecture, which are also subject to
    `constraints`. `root` creates the root folder of the image for this machine, and is called only
    for builds.
    """

    def __init__(
        self,
        sdists: Mapping[str, Sdist],
        catalogue: FileCatalogue,
        constraints: Sequence[str],
        root: Callable[[], Path],
        context: Context,
    ) -> None:
        self._sdists = sdists
        self._catalogue = catalogue
        self._bounds = uv.ResolverBounds(constraints=tuple(constraints))
        self._root = root
        self._context = context
        self._store = context.store
        self._made: dict[str, BuiltWheel] = {}

    def metadata(self, package: str, sdist: IndexFile) -> bytes:
        """Return METADATA of the wheel of `sdist`, which is built if necessary."""
        built = self.built(package, sdist)
        path = self._store.file(built.wheel.sha256)
        if path is None:
            message = f"{built.wheel.file} was removed from the cache while it was in use"
            raise IntegrityError(message, hint="run the same command again")
        return sdist_wheel.wheel_metadata(path)

    def built(self, package: str, sdist: IndexFile) -> BuiltWheel:
        """Build the wheel of `sdist`. Raises NoSolution if the wheel is not pure."""
        if sdist.name not in self._made:
            self._made[sdist.name] = self._build_recipe(package, sdist, str(sdist.version))
        return self._made[sdist.name]

    def earlier_wheel(self, package: str, sdist: IndexFile) -> BuiltWheel | None:
        """Return the wheel that an earlier build of `sdist` wrote to the store, or None."""
        path = self._store.file(sdist.sha256) if sdist.sha256 else None
        if sdist.name in self._made or path is None:
            return self._made.get(sdist.name)
        recipe = self._recipe(package, sdist, str(sdist.version))
        lines = [
            *sdist_wheel.read_build_system(path, sdist.name).requires,
            *self._same_lock_requirements(package),
        ]
        more: Sequence[str] = lines
        while more:
            recipe = msgspec.structs.replace(recipe, requires=self._resolve_lines(package, lines))
            more = [each for each in self._earlier_requirements(recipe) if each not in lines]
            lines += more
        wheel = remembered_wheel(recipe, self.python, self._store)
        if wheel is not None:
            self._made[sdist.name] = msgspec.structs.replace(recipe, wheel=wheel)
        return self._made.get(sdist.name)

    def build_unversioned(self, package: str, sdist: IndexFile) -> BuiltWheel:
        """Build an sdist without a version in its name. The wheel determines the version."""
        built = self._build_recipe(package, sdist, "")
        version = str(parse_wheel_filename(built.wheel.file)[1])
        name = f"{package.replace('-', '_')}-{version}.tar.gz"
        locked = msgspec.structs.replace(built.sdist, file=name)
        self._made[name] = msgspec.structs.replace(built, version=version, sdist=locked)
        return self._made[name]

    def _recipe(self, package: str, sdist: IndexFile, version: str) -> BuiltWheel:
        return BuiltWheel(
            package=package,
            version=version,
            index=self._catalogue.indexes.place(package).name,
            sdist=lock_file(sdist, self._context.http),
            env=dict(self._sdists[package].env),
            requires=(),
            wheel=LockedFile(file="", size=0, sha256="0" * 64),
        )

    def _build_recipe(self, package: str, sdist: IndexFile, version: str) -> BuiltWheel:
        recipe = self._recipe(package, sdist, version)
        wants = [FileRequest(locked=recipe.sdist, urls=partial(_single_url, sdist.url))]
        paths = fetch_all(wants, self._context, title=f"fetching {sdist.name}")
        lines = list(sdist_wheel.read_build_system(paths[recipe.sdist.sha256], sdist.name).requires)

        def _make_wheel(recipe: BuiltWheel) -> BuiltWheel:
            cached = remembered_wheel(recipe, self.python, self._store)
            wheel = cached or make_wheel(recipe, self._root(), self.python, self._context)
            refuse_other(recipe, wheel)
            return msgspec.structs.replace(recipe, wheel=wheel)

        return self._run_with_builders(
            recipe, [*lines, *self._same_lock_requirements(package)], _make_wheel
        )

    def describe_source(
        self, package: str, source: LockedFile, env: Mapping[str, str]
    ) -> sdist_wheel.SdistResult:
        """Return metadata of `source`, a folder packed as an sdist, from its build backend."""
        recipe = BuiltWheel(
            package=package, version="", index=PROJECT, sdist=source, env=dict(env), requires=(),
            wheel=LockedFile(file="", size=0, sha256="0" * 64),
        )  # fmt: skip

        def _describe_recipe(recipe: BuiltWheel) -> sdist_wheel.SdistResult:
            with (
                self._context.reporter.step(f"running the build backend of {package}"),
                self._store.scratch() as folder,
            ):
                task = sdist_job(recipe, self._root(), self._store, folder)
                return sdist_wheel.describe_wheel(msgspec.structs.replace(task, metadata=True))

        path = self._store.file(source.sha256)
        lines = (
            sdist_wheel.read_build_system(path, source.file).requires if path is not None else ()
        )
        return self._run_with_builders(recipe, list(lines), _describe_recipe)

    def _run_with_builders(
        self, recipe: BuiltWheel, lines: list[str], run: Callable[[BuiltWheel], BuildResult]
    ) -> BuildResult:
        for _ in range(ROUNDS):
            recipe = self._resolve_requirements(recipe, lines)
            more = self._earlier_requirements(recipe)
            if not more:
                try:
                    return run(recipe)
                except sdist_wheel.MissingRequirements as lacking:
                    more = lacking.requirements
                    key = f"{recipe_hash(recipe, self.python)}-lacking"
                    self._store.put_fact(FACT, key, msgspec.json.encode(more))
            lines += more
        message = (
            f"the build of {recipe.package} keeps requesting more packages: {', '.join(lines)}"
        )
        raise NoSolution(message, hint="pin a version that has a wheel")

    def _earlier_requirements(self, recipe: BuiltWheel) -> tuple[str, ...]:
        stored = self._store.fact(FACT, f"{recipe_hash(recipe, self.python)}-lacking")
        return () if stored is None else decoding.decode_json(stored, tuple[str, ...])

    def drop_builds(self, catalogue: FileCatalogue) -> tuple[FileCatalogue, Collection[str]]:
        """Return `catalogue` without the requirements of wheels that still have to be built.

        The second value collects the packages of these wheels while the catalogue is used.
        """
        unbuilt: set[str] = set()

        def _metadata(package: str, sdist: IndexFile) -> bytes:
            if self.earlier_wheel(package, sdist) is not None:
                return self.metadata(package, sdist)
            unbuilt.add(package)
            head = f"Metadata-Version: 2.1\nName: {package}\nVersion: {sdist.version}\n\n"
            return head.encode()

        builders = dict.fromkeys(self._sdists.keys() - catalogue.locked.keys(), _metadata)
        return catalogue.replace_builders(builders), unbuilt

    @property
    def python(self) -> str:
        """The minor release of Python with which wheels are built."""
        return self._catalogue.rules.tags.python

    def _same_lock_requirements(self, package: str) -> list[str]:
        pins = self._catalogue.rules.pins
        required = self._sdists[package].requires
        missing = [name for name in required if name not in pins]
        if missing:
            message = (
                f"building {package} requires an exact version of {', '.join(missing)}, which is"
                " not pinned"
            )
            hint = (
                f"request {missing[0]}==VERSION, or pin it in the target; `imgbuild init` uses the"
                " versions of a locked target"
            )
            raise NoSolution(message, hint=hint)
        return [f"{name}=={pins[name]}" for name in required]

    def _resolve_requirements(self, recipe: BuiltWheel, lines: Sequence[str]) -> BuiltWheel:
        requires = self._resolve_lines(recipe.package, lines)
        urls = {file.sha256: file.url for file in self._chosen_files(requires)}
        wants = [
            FileRequest(locked=wheel, urls=partial(_single_url, urls[wheel.sha256]))
            for wheel in requires
        ]
        missing = [want.locked for want in wants if want.stored(self._store) is None]
        if missing:
            largest = max(missing, key=lambda locked: locked.size)
            size = size_text(sum(locked.size for locked in missing))
            self._context.reporter.info(
                f"{recipe.package} {recipe.version} is built, because the index has no wheel of it:"
                f" {format_count(len(missing), 'build requirement')} to download, {size}; the"
                f" largest is {largest.file.partition('-')[0]}"
            )
        fetch_all(
            wants, self._context, title=f"fetching the build requirements of {recipe.package}"
        )
        return msgspec.structs.replace(recipe, requires=requires)

    def _chosen_files(self, wheels: Sequence[Wheel]) -> list[IndexFile]:
        files = []
        for wheel in wheels:
            offer = self._catalogue.chosen(wheel.package, Version(wheel.version))
            if offer is not None:
                files.append(msgspec.structs.replace(offer.wheel, sha256=wheel.sha256))
        return files

    def _resolve_lines(self, package: str, lines: Sequence[str]) -> tuple[Wheel, ...]:
        try:
            chosen = uv.run_resolver(self._catalogue, lines, self._bounds, self._store)
        except uv.UnsolvableError as error:
            message = f"no package set satisfies the build requirements of {package}"
            raise NoSolution(message, reasons=resolver_lines(str(error))) from error
        wheels = []
        for item in chosen:
            offer = self._catalogue.chosen(item.package, Version(item.version))
            if offer is not None:
                name = self._catalogue.indexes.place(item.package).name
                wheels.append(
                    lock_wheel(item.package, item.version, name, offer.wheel, self._context.http)
                )
        return tuple(wheels)


def refuse_other(recipe: BuiltWheel, wheel: LockedFile) -> None:
    """Raise NoSolution if the wheel built from `recipe` is of another package."""
    package = parse_wheel_filename(wheel.file)[0]
    if package != recipe.package:
        message = f"{recipe.sdist.file} does not produce a wheel of {recipe.package}"
        reasons = (f"the build produced {wheel.file}, a wheel of {package}",)
        raise NoSolution(message, reasons=reasons, hint=f"use the name {package}")


def _single_url(url: str) -> list[str]:
    return [url]


def recipe_hash(recipe: BuiltWheel, python: str) -> str:
    """Return the hash of a wheel's inputs: sdist, environment, build requirements and Python.

    Only the minor release of Python is included, because the patch release is not known yet.
    """
    inputs = [
        ".".join(python.split(".")[:2]),
        recipe.sdist.sha256,
        recipe.env,
        sorted(wheel.sha256 for wheel in recipe.requires),
    ]
    return sha256(codec.encode_compact(inputs))


def remembered_wheel(recipe: BuiltWheel, python: str, store: Store) -> LockedFile | None:
    """Return the wheel from an earlier build of this recipe if it is still in the store."""
    stored = store.fact(FACT, recipe_hash(recipe, python))
    wheel = decoding.decode_json(stored, LockedFile) if stored is not None else None
    return wheel if wheel is not None and store.file(wheel.sha256) is not None else None


def sdist_job(recipe: BuiltWheel, root: Path, store: Store, folder: Path) -> sdist_wheel.SdistJob:
    """Return a job in `folder` for `recipe`, with inputs from the store."""
    paths = {
        locked.sha256: store.file(locked.sha256) for locked in (recipe.sdist, *recipe.requires)
    }
    present = {key: path for key, path in paths.items() if path is not None}
    if len(present) < len(paths):
        message = f"inputs of {recipe.package} were removed from the cache during the build"
        raise IntegrityError(message, hint="run the same command again")
    return sdist_wheel.SdistJob(
        package=recipe.package,
        version=recipe.version,
        sdist=present[recipe.sdist.sha256],
        requires=tuple(present[wheel.sha256] for wheel in recipe.requires),
        root=root,
        env=recipe.env,
        folder=folder,
    )


def make_wheel(recipe: BuiltWheel, root: Path, python: str, context: Context) -> LockedFile:
    """Build the wheel of `recipe` with the Python in `root`, and write it to the store."""
    store = context.store
    with (
        context.reporter.step(
            f"building {f'{recipe.package} {recipe.version}'.strip()} from its sdist"
        ),
        store.scratch() as folder,
    ):
        path = sdist_wheel.build_wheel(sdist_job(recipe, root, store, folder))
        data = path.read_bytes()
        wheel = LockedFile(file=path.name, size=len(data), sha256=sha256(data))
        store.add_file(path, wheel.sha256)
    store.put_fact(FACT, recipe_hash(recipe, python), msgspec.json.encode(wheel))
    return wheel


def recipe_inputs(recipe: BuiltWheel) -> tuple[tuple[str, LockedFile], ...]:
    """Return package and file of the sdist and of each build requirement."""
    return (
        (recipe.package, recipe.sdist),
        *((wheel.package, wheel) for wheel in recipe.requires),
    )


def fetch_tree(recipe: BuiltWheel, indexes: IndexLookup, context: Context) -> None:
    """Fetch the archive of the git tree from which `recipe` is built, if there is one.

    Raises IntegrityError if the archive differs from the lock. Also raises the same errors as
    `git_tree.fetch_tree`.
    """
    if recipe.index != GIT or context.store.file(recipe.sdist.sha256) is not None:
        return
    address = addresses.parse_address(indexes.place(recipe.package).address)
    tree = git_tree.fetch_tree(address, context) if isinstance(address, GitAddress) else None
    if tree is None or tree.sha256 != recipe.sdist.sha256:
        actual = tree.sha256 if tree is not None else "none"
        message = (
            f"{recipe.sdist.file} of {address} has sha256 {actual}, but the lock has"
            f" {recipe.sdist.sha256}"
        )
        raise IntegrityError(message, hint="to lock it again, run: imgbuild lock TARGET")


def rebuild_wheel(
    recipe: BuiltWheel,
    indexes: IndexLookup,
    root: Path,
    python: str,
    context: Context,
    *,
    hint: str,
) -> Path:
    """Build a locked wheel again, and return its path in the store.

    Raises FetchFailed if an input is unavailable, and IntegrityError with `hint` if the bytes
    differ from the locked wheel.
    """
    fetch_tree(recipe, indexes, context)
    requests = [
        FileRequest(locked=locked, urls=partial(indexes.file_urls, package, locked))
        for package, locked in recipe_inputs(recipe)
    ]
    fetch_all(requests, context, title=f"fetching the build requirements of {recipe.package}")
    wheel = make_wheel(recipe, root, python, context)
    path = context.store.file(wheel.sha256)
    if wheel != recipe.wheel or path is None:
        message = (
            f"{recipe.package} {recipe.version} built from its sdist has sha256 {wheel.sha256},"
            f" but the lock has {recipe.wheel.sha256}"
        )
        raise IntegrityError(message, hint=hint)
    return path
