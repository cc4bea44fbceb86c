"""Opens an environment on this machine for `audit --environment`: a venv, a Python or a folder.

A virtual environment is read without running its interpreter, because `pyvenv.cfg` contains the
Python version. The interpreter runs only if no file contains the version. It then prints its
version and folders, in isolated mode and without site-packages.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from imgbuild.audit.packages.installed import FOLDERS, InstalledContent, pth_folders
from imgbuild.errors import ImgbuildError, InputError, IntegrityError
from imgbuild.lock.resolution import Wheel
from imgbuild.report import UncheckedPart
from imgbuild.system import boundary, files, process, programs
from imgbuild.values import normalize_package

CONFIG = "pyvenv.cfg"
FOLDER = ".venv"  # of the current folder, if no environment is active
# Files at the top of site-packages that belong to no package and change none.
IGNORED_NAMES = frozenset(("__pycache__", "_virtualenv.py", "sitecustomize.py", "usercustomize.py"))
_VERSION = re.compile(r"(\d+\.\d+)")
_SITE = ("site-packages", "dist-packages")
_PROBE = (
    "import json, site, sys; print(json.dumps(['%d.%d.%d' % sys.version_info[:3],"
    " [site.getusersitepackages(), *site.getsitepackages()]]))"
)


class InstalledPackage(msgspec.Struct, frozen=True, kw_only=True):
    """An installed package with its folder `NAME-VERSION.dist-info` (or `.egg-info`).

    `wheel` represents the package in a package set, with `InstalledContent.digest` as sha256.
    `tops` are the files and folders in site-packages that belong to the package.
    """

    wheel: Wheel
    info: Path
    tops: frozenset[str]


class InstalledEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """The packages of a Python installation.

    `python` is "3.12.4", or "3.12" if the interpreter was not run. `folders` are the site-packages
    folders in the order of `sys.path`. If several folders contain a package, the first one is used.
    `unread` are packages and modules in the folders that cannot be read.
    """

    python: str
    folders: tuple[Path, ...]
    packages: tuple[InstalledPackage, ...]
    unread: tuple[UncheckedPart, ...] = ()


class _EnvironmentPlace(msgspec.Struct, frozen=True):
    python: str
    folders: tuple[Path, ...]


def open_environment(where: str | None, *, python: str | None = None) -> InstalledEnvironment:
    """Return the environment at `where`: a folder, a Python or site-packages.

    If `where` is None, the active environment is opened. `python` is the version for a folder from
    which it cannot be determined. Raises InputError if there is no environment or it contains no
    package.
    """
    path = files.expand_home(where) if where is not None else active_environment()
    place = _place(path, python, named=where is not None)
    packages, unread = _packages(place.folders)
    if not packages:
        folders = ", ".join(map(str, place.folders)) or str(path)
        message = f"no package is installed in {folders}"
        raise InputError(message, hint="pass an environment, its Python or its site-packages")
    unread += _unowned_modules(place.folders, packages)
    return InstalledEnvironment(
        python=place.python, folders=place.folders, packages=packages, unread=unread
    )


def active_environment() -> Path:
    """Return the path of the active environment.

    This is $VIRTUAL_ENV, $CONDA_PREFIX, ./.venv or python3 on PATH, whichever is found first.
    """
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if os.environ.get(name):
            return Path(os.environ[name])
    if Path(FOLDER, CONFIG).is_file():
        return Path(FOLDER)
    program = programs.find_on_path("python3") or programs.find_on_path("python")
    if program is None:
        message = "no environment is active, and neither .venv nor python3 on PATH exists"
        raise InputError(message, hint="pass an environment, such as --environment .venv")
    return Path(program)


def _place(path: Path, python: str | None, *, named: bool) -> _EnvironmentPlace:
    if not path.exists() and os.sep not in str(path):
        path = Path(programs.find_on_path(str(path)) or path)  # a program, such as python3.12
    if not path.exists():
        message = f"--environment {path}: no such file or folder"
        raise InputError(message, hint="pass an environment, its Python or its site-packages")
    root = path if path.is_dir() else path.parent.parent  # not resolved: a link to its base
    if (root / CONFIG).is_file():
        return _read_virtual_environment(root, python, named=named)
    if path.is_dir() and _is_site(path):
        return _EnvironmentPlace(python or _version_in_path(path), (path,))
    program = path if path.is_file() else path / "bin" / "python3"
    if not program.is_file():
        message = f"--environment {path} is neither an environment nor a folder of packages"
        raise InputError(message, hint="pass an environment, its Python or its site-packages")
    return _interpreter_place(program)


def _read_virtual_environment(root: Path, python: str | None, *, named: bool) -> _EnvironmentPlace:
    """Return a virtual environment, read from its pyvenv.cfg.

    The environment may include the packages of another Python, whose interpreter then has to run.
    Raises InputError for a `.venv` that the user did not pass (`named`).
    """
    text = boundary.read_regular_file(root / CONFIG).decode(errors="replace")
    pairs = (line.partition("=") for line in text.splitlines())
    config = {name.strip().lower(): value.strip() for name, _, value in pairs}
    # lib64 is a link to lib in some environments, and a separate folder in others.
    unique: dict[Path, Path] = {}
    for folder in sorted(root.glob("lib*/python3*/site-packages")):
        unique.setdefault(folder.resolve(), folder)
    folders = tuple(unique.values())
    version = config.get("version_info") or config.get("version") or python
    version = ".".join((version or _version_in_path(*folders)).split(".")[:3])
    if config.get("include-system-site-packages", "").lower() == "true":
        program = Path(config.get("home", "/usr/bin"), "python3")
        if not named and root == Path(FOLDER):
            message = (
                f"{root / CONFIG} includes the packages of {program}, which is run only for an "
                "environment that is passed with --environment"
            )
            raise InputError(message, hint=f"if you trust it, pass --environment {FOLDER}")
        beside = _interpreter_place(program)
        folders += beside.folders
    return _EnvironmentPlace(version, folders)


def _interpreter_place(program: Path) -> _EnvironmentPlace:
    command = [str(program), "-I", "-S", "-c", _PROBE]
    try:
        result = process.run_command(command)
        version, folders = json.loads(result.stdout)
    except (ImgbuildError, OSError, ValueError) as error:
        message = f"--environment: {program} cannot be run as Python: {error}"
        raise InputError(
            message, hint="pass its site-packages with --environment, and its version with --python"
        ) from error
    there = (Path(folder) for folder in dict.fromkeys(folders))
    return _EnvironmentPlace(version, tuple(folder for folder in there if folder.is_dir()))


def _is_site(path: Path) -> bool:
    return path.name in _SITE or any(path.glob("*.dist-info"))


def _version_in_path(*folders: Path) -> str:
    """Return the Python version in a path such as lib/python3.12/site-packages."""
    for folder in folders:
        for part in reversed(folder.absolute().parts):
            match = _VERSION.search(part) if part.startswith("python3.") else None
            if match is not None:
                return match[1]
    message = f"the Python version of {', '.join(map(str, folders))} is unknown"
    raise InputError(message, hint="pass the version with --python, such as --python 3.12")


def _packages(
    folders: Iterable[Path],
) -> tuple[tuple[InstalledPackage, ...], tuple[UncheckedPart, ...]]:
    packages: dict[str, InstalledPackage] = {}
    unread: list[UncheckedPart] = []
    for folder in folders:
        here: dict[str, InstalledPackage] = {}
        for info in _metadata_folders(folder):
            package = _package(info)
            if isinstance(package, UncheckedPart):
                unread.append(package)
                continue
            name = package.wheel.package
            if name in here:
                if here[name].wheel.version == package.wheel.version:
                    continue  # Debian has metadata of two kinds for some packages
                why = f"{here[name].info.name} is also in {folder}; remove one of them"
                unread.append(UncheckedPart(what=info.name, why=why, required=True))
                continue
            here[name] = package
            packages.setdefault(name, package)
    return tuple(packages[name] for name in sorted(packages)), tuple(unread)


def _metadata_folders(folder: Path) -> Iterator[Path]:
    """Yield the metadata folders, except pip's remnants, whose names start with a tilde."""
    for name in sorted(path.name for path in folder.iterdir()):
        if name.endswith(FOLDERS) and not name.startswith(("~", ".")):
            path = folder / name
            if path.is_dir():
                yield path


def _package(info: Path) -> InstalledPackage | UncheckedPart:
    headers = _headers(info)
    name, version = headers.get("name", ""), headers.get("version", "")
    if not name or not version:
        return UncheckedPart(what=info.name, why="METADATA is missing", required=True)
    content = InstalledContent(info, info.name)
    try:
        digest = content.digest()
    except IntegrityError as error:
        return UncheckedPart(what=f"{name}=={version}", why=error.message, required=True)
    wheel = Wheel(
        package=normalize_package(name),
        version=version,
        index="installed",
        file=info.name,
        size=0,
        sha256=digest,
    )
    return InstalledPackage(wheel=wheel, info=info, tops=content.top_level_names())


def _headers(info: Path) -> dict[str, str]:
    for file_name in ("METADATA", "PKG-INFO"):
        try:
            with (info / file_name).open(encoding="utf-8", errors="replace") as file:
                headers: dict[str, str] = {}
                for line in file:
                    key, _, value = line.partition(":")
                    if not line.strip() or {"name", "version"} <= headers.keys():
                        break
                    headers.setdefault(key.lower(), value.strip())
                return headers
        except OSError:
            continue
    return {}


def _unowned_modules(
    folders: Iterable[Path], packages: Sequence[InstalledPackage]
) -> tuple[UncheckedPart, ...]:
    """Return modules and folders on `sys.path` that no package lists.

    Each folder has one entry.
    """
    by_folder: dict[Path, set[str]] = {}
    for package in packages:
        by_folder.setdefault(package.info.parent, set()).update(package.tops)
    unread = []
    for folder in folders:
        listed = by_folder.get(folder, set()) | IGNORED_NAMES
        names = sorted({path.name for path in folder.iterdir()} - listed)
        modules = [name for name in names if _is_module(folder / name)]
        added = [
            path for name in names if name.endswith(".pth") for path in pth_folders(folder / name)
        ]
        loose = [*modules, *map(str, added)]
        if loose:
            why = f"no package in {folder} lists them"
            unread.append(UncheckedPart(what=", ".join(loose), why=why))
    return tuple(unread)


def _is_module(path: Path) -> bool:
    if path.name.startswith("~"):  # a leftover of pip
        return False
    return path.suffix in (".py", ".so") or (path / "__init__.py").is_file()
