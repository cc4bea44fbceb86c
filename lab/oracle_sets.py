"""Draws random package sets for lab/oracle.py, and resolves and installs them with uv."""

from __future__ import annotations

import functools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

import msgspec
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from imgbuild.http.client import HttpClient
from imgbuild.index.candidates import best_wheel
from imgbuild.index.pages import IndexAddress, IndexLookup
from imgbuild.solve import uv
from imgbuild.system import uv_program
from imgbuild.values import Arch, normalize_package
from imgbuild.wheel.tags import WheelTags

TABLE = Path(__file__).with_suffix("").with_name("oracle.yaml")
PYTHON = "3.11"
GLIBC = "2.36"
MACHINE = WheelTags(python=PYTHON, glibc=GLIBC, arch=Arch.X86_64)
UV_PLATFORM = "x86_64-manylinux_2_36"
ATTEMPTS = 25  # draws of one seed that uv may refuse
MAIN_SHARE = 0.65  # of the forced packages; the others are required by a package of the set
PINNED_SHARE = 0.2  # of the main packages; of these, the control has any version, not the newest
# Dependencies of torch that no import on a CPU needs.
GPU_ONLY = ("nvidia-", "cuda-")


class ListedPackage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A package of the table, with its oldest version and the names to read from it.

    `beside` maps other packages to names that are read only if the set contains that package.
    """

    oldest: str
    names: tuple[str, ...] = ()
    beside: dict[str, tuple[str, ...]] = msgspec.field(default={}, name="with")

    def names_to_read(self, packages: Collection[str]) -> tuple[str, ...]:
        """Return the names to read in a set of these packages."""
        more = [name for other, names in self.beside.items() if other in packages for name in names]
        return (*self.names, *more)


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The packages from which sets are resolved.

    `torch` is the version of torch in all sets of the group. `companions` are requirements of all
    sets.
    """

    name: str
    weight: int
    mains: tuple[str, ...]
    torch: str = ""
    companions: tuple[str, ...] = ()


class PackageTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of lab/oracle.yaml."""

    packages: dict[str, ListedPackage]
    groups: tuple[Group, ...]


class ResolvedPins(msgspec.Struct, frozen=True):
    """A resolved set, with the version and the dependents of each package."""

    versions: dict[str, str]
    needed_by: dict[str, tuple[str, ...]]


class SetDraw(msgspec.Struct, frozen=True, kw_only=True):
    """Two sets from the same requirements: `control` as resolved, `forced` with one version forced.

    If `how` is "override", other packages' requirements on the forced package are ignored. If it is
    "resolve", they are satisfied. A `seed` yields the same draw as long as the index has the same
    files.
    """

    seed: int
    group: str
    torch: str
    mains: tuple[str, ...]
    requirements: tuple[str, ...]
    how: str
    package: str
    version: str
    control: ResolvedPins
    forced: ResolvedPins


def load_table() -> PackageTable:
    """Return the table of packages and groups."""
    return msgspec.convert(yaml.safe_load(TABLE.read_text(encoding="utf-8")), PackageTable)


class UnresolvedError(Exception):
    """Raised with uv's explanation if uv finds no set for the requirements."""


class PackageShop:
    """Lists versions of the index and runs uv. `folder` contains the cache of uv."""

    def __init__(self, table: PackageTable, folder: Path) -> None:
        self.table = table
        self.folder = folder
        self._http = HttpClient()
        place = IndexAddress(name="default", address=uv.default_index())
        self._indexes = IndexLookup({place.name: place}, {}, place.name, self._http)

    @functools.cache  # noqa: B019 - one shop lives as long as the program
    def versions(self, package: str) -> tuple[str, ...]:
        """Return the final versions with a wheel, in ascending order.

        They start with the oldest version in the table.
        """
        files = self._indexes.files(package)
        oldest = Version(self.table.packages[package].oldest)
        candidates = {file.version for file in files if file.version is not None and file.is_wheel}
        return tuple(
            str(version)
            for version in sorted(candidates)
            if version >= oldest
            and not version.is_prerelease
            and best_wheel(files, version, MACHINE)
        )

    def resolve(
        self, requirements: Iterable[str], override: str = "", torch: str = ""
    ) -> ResolvedPins:
        """Return the newest set of wheels for `requirements`.

        Raises UnresolvedError if there is none.
        """
        floors = [f"{name}>={listed.oldest}" for name, listed in self.table.packages.items()]
        if torch:
            floors.append(f"torch=={torch}")
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            constraints = Path(folder, "constraints.txt")
            constraints.write_text("\n".join(floors) + "\n", encoding="utf-8")
            overrides = Path(folder, "overrides.txt")
            overrides.write_text(f"{override}\n", encoding="utf-8")
            command = [
                *("pip", "compile", "-", "--no-header", "--annotation-style", "line"),
                *("--constraints", str(constraints), "--overrides", str(overrides)),
                *("--python-version", PYTHON, "--python-platform", UV_PLATFORM),
                *("--only-binary", ":all:", "--no-progress", "--color", "never", "--no-sources"),
            ]
            done = self._uv(command, "\n".join(requirements) + "\n")
        if done.returncode != 0:
            raise UnresolvedError(done.stderr.strip())
        chosen = uv.parse_output(done.stdout)
        return ResolvedPins(
            {pinned.package: pinned.version for pinned in chosen},
            {
                pinned.package: tuple(sorted({normalize_package(each) for each in pinned.via}))
                for pinned in chosen
            },
        )

    def install(self, pins: Mapping[str, str], target: Path) -> None:
        """Install exactly `pins` into the folder `target`, as hard links to uv's cache."""
        requirements = "\n".join(f"{name}=={version}" for name, version in sorted(pins.items()))
        command = [
            *("pip", "install", "--no-deps", "--link-mode", "hardlink", "--target", str(target)),
            *("--python", sys.executable, "--only-binary", ":all:", "--no-progress"),
            *("--requirements", "-"),
        ]
        done = self._uv(command, requirements + "\n")
        if done.returncode != 0:
            raise UnresolvedError(done.stderr.strip())

    def _uv(self, arguments: list[str], text: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "UV_CACHE_DIR": str(self.folder / "uv-cache"),
            "UV_DEFAULT_INDEX": uv.default_index(),
        }
        # A folder of wheels configured for pip may have a torch for the CPU.
        if "PIP_FIND_LINKS" in environment and arguments[:2] == ["pip", "install"]:
            environment.setdefault("UV_FIND_LINKS", environment["PIP_FIND_LINKS"])
        return subprocess.run(
            [uv_program.uv_path(), *arguments],
            input=text,
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )


def is_sampled(seed: int, share: float) -> bool:
    """Return whether the draw of `seed` is audited even without a failure."""
    return random.Random(f"sample {seed}").random() < share  # noqa: S311


def draw_sets(seed: int, shop: PackageShop) -> SetDraw | None:
    """Return the draw of `seed`, or None if uv rejects all attempts."""
    dice = random.Random(seed)  # noqa: S311 - a sample, no secret
    groups = shop.table.groups
    (group,) = dice.choices(groups, weights=[group.weight for group in groups])
    for _ in range(ATTEMPTS):
        try:
            attempt = _attempt_draw(seed, dice, group, shop)
        except UnresolvedError:
            continue
        if attempt is not None:
            return attempt
    return None


def _attempt_draw(
    seed: int, dice: random.Random, group: Group, shop: PackageShop
) -> SetDraw | None:
    mains = dice.sample(group.mains, dice.randint(1, 4))
    requirements = {Requirement(companion).name: companion for companion in group.companions}
    requirements |= {name: _pinned_requirement(name, dice, shop) for name in mains}
    control = shop.resolve(requirements.values(), torch=group.torch)
    needed = sorted(
        name
        for name, users in control.needed_by.items()
        if name in shop.table.packages and set(users) & control.versions.keys()
    )
    package = dice.choice(mains if dice.random() < MAIN_SHARE or not needed else needed)
    others = [
        candidate for candidate in shop.versions(package) if candidate != control.versions[package]
    ]
    if not others:
        return None
    # The older of two: old releases combined with new ones are likely to break.
    version = others[min(dice.randrange(len(others)), dice.randrange(len(others)))]
    how = dice.choice(("override", "resolve"))
    pin = f"{package}=={version}"
    if how == "override":
        forced = shop.resolve(requirements.values(), override=pin, torch=group.torch)
    else:
        forced = shop.resolve({**requirements, package: pin}.values(), torch=group.torch)
    return SetDraw(
        seed=seed,
        group=group.name,
        torch=group.torch,
        mains=tuple(mains),
        requirements=tuple(requirements.values()),
        how=how,
        package=package,
        version=version,
        control=control,
        forced=forced,
    )


def _pinned_requirement(name: str, dice: random.Random, shop: PackageShop) -> str:
    """Return a requirement on a main package, usually for the newest compatible version."""
    versions = shop.versions(name)
    pinned = bool(versions) and dice.random() < PINNED_SHARE
    return f"{name}=={dice.choice(versions)}" if pinned else name


def packages_to_import(
    package: str, pins: ResolvedPins, table: PackageTable, most: int = 6
) -> tuple[str, ...]:
    """Return at most `most` packages: `package` and its direct dependents in `pins`.

    Packages of the table are first.
    """
    users = [name for name in pins.needed_by.get(package, ()) if name in pins.versions]
    users.sort(key=lambda name: (name not in table.packages, name))
    return (package, *users[:most])


def pins_to_install(pins: Mapping[str, str]) -> dict[str, str]:
    """Return the pins that a set installs in addition to the base of its group."""
    return {
        name: version
        for name, version in pins.items()
        if name != "torch" and not name.startswith(GPU_ONLY)
    }


def modules_to_import(target: Path, package: str) -> tuple[str, ...]:
    """Return the modules of a package to import: top-level modules, or those in namespaces."""
    for each in distributions(path=[str(target)]):
        if normalize_package(each.metadata["Name"]) == package:
            return _top_modules(each, target)
    return ()


ASIDE = frozenset(
    ("test", "tests", "testing", "docs", "doc", "examples", "example", "benchmarks", "scripts")
)


def _top_modules(distribution: Distribution, target: Path) -> tuple[str, ...]:
    modules: set[str] = set()
    for file in distribution.files or ():
        parts = file.parts
        if parts[0].endswith((".dist-info", ".data", ".libs")) or parts[0] in ("..", "bin"):
            continue
        if len(parts) == 1:
            if file.suffix in (".py", ".so"):
                modules.add(file.name.partition(".")[0])
            continue
        if file.name != "__init__.py":
            continue
        depth = next(
            depth
            for depth in range(1, len(parts))
            if target.joinpath(*parts[:depth], "__init__.py").exists()
        )
        modules.add(".".join(parts[:depth]))
    return tuple(
        sorted(
            name
            for name in modules
            if not name.startswith("_")
            and not ASIDE & set(name.split("."))
            and all(part.isidentifier() for part in name.split("."))
        )
    )


def metadata_conflicts(target: Path, extra: Mapping[str, str]) -> tuple[str, ...]:
    """Return the requirements in METADATA, without extras, that the installed set does not satisfy.

    Each item is "package: requirement". `extra` contains versions of packages installed elsewhere.
    """
    installed = list(distributions(path=[str(target)]))
    versions = {
        normalize_package(each.metadata["Name"]): each.version for each in installed
    } | dict(extra)
    unmet = []
    for each in installed:
        for line in each.requires or ():
            need = Requirement(line)
            if need.marker is not None and not need.marker.evaluate({"extra": ""}):
                continue
            version = versions.get(normalize_package(need.name))
            if version is None or not need.specifier.contains(version, prereleases=True):
                unmet.append(f"{normalize_package(each.metadata['Name'])}: {line}")
    return tuple(sorted(unmet))


def remove_set(folder: Path) -> None:
    """Remove an installed set, in the background."""
    if folder.exists():
        gone = tempfile.mkdtemp(prefix="removed-", dir=folder.parent)
        folder.rename(Path(gone, "set"))
        threading.Thread(target=shutil.rmtree, args=[gone, True]).start()
