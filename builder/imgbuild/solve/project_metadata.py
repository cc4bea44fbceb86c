"""Gets metadata that only a project's build backend provides.

The folder is packed as an sdist. The backend's hook runs in the sandbox (`sdist_wheel`), with the
build requirements in the folder's pyproject.toml. Backends that fail are reported.
"""

# A separate module: runs project code.
from __future__ import annotations

import configparser
import io
import os
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from packaging.metadata import parse_email
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild import codec
from imgbuild.cache.context import Context
from imgbuild.errors import FetchFailed, ImgbuildError, InputError, ToolMissing
from imgbuild.index import cuda_releases
from imgbuild.lock.model import EditablePackage
from imgbuild.lock.project_requirements import UNKNOWN_VERSION, image_roots
from imgbuild.lock.resolution import LockedFile
from imgbuild.matrix.project_paths import MATRIX
from imgbuild.project.model import DeclaredRequirement, LocalPackage
from imgbuild.project.project_files import ProjectFiles
from imgbuild.project.reading import ProjectReading
from imgbuild.solve import git_tree
from imgbuild.solve.sdist_wheel import SdistResult
from imgbuild.solve.sdists import SdistWheels
from imgbuild.system import decoding, git
from imgbuild.system.git_fetch import GitObjects
from imgbuild.system.syntax import parse_requirement
from imgbuild.values import normalize_package, sha256

FACT = "project-metadata-1"
FILE_LIMIT = 1 << 20  # bytes of a file that a build backend is given
TOTAL_LIMIT = 64 << 20  # bytes of all of them
FILES = 20_000
SHOWN_FILES = 3  # lines of a backend's output: its error is at the end
# Folders that metadata hooks do not read: outputs, environments, hidden folders.
SKIPPED_FOLDERS = frozenset({"__pycache__", "build", "dist", "node_modules", "venv", "wandb"})
# Files whose content build backends read as text, and modules that have the version of a package.
TEXT_SUFFIXES = frozenset({"", ".cfg", ".in", ".ini", ".md", ".rst", ".toml", ".txt"})
_WORD = re.compile(r"\w+")
VERSION_FILE = re.compile(r"^(setup|__init__)$|version|about|meta", re.IGNORECASE)


class BackendAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata that the build backends of the project's packages provide.

    `packages` are entries for the lock, and `requirements` the values of dynamic fields.
    """

    packages: dict[str, EditablePackage] = {}
    requirements: tuple[DeclaredRequirement, ...] = ()


def run_backends(
    packages: Iterable[LocalPackage],
    folder: Path,
    workdir: str,
    extras: Iterable[str],
    markers: Mapping[str, str],
    wheels: SdistWheels,
    context: Context,
) -> BackendAnswer:
    """Run the build backends of `packages`, which are in `folder`, and report those that fail.

    `extras` are those of the project, `markers` those of the target, and `workdir` is the mount
    point of the project.
    """
    described: dict[str, EditablePackage] = {}
    requirements: list[DeclaredRequirement] = []
    for item in packages:
        try:
            result = _describe_project(item, folder / item.folder, wheels, context)
            name, package = _package(item, result, workdir)
        except FetchFailed:
            raise
        except ImgbuildError as error:
            _report(item, error, context)
            continue
        described[name] = package
        if {"dependencies", "optional-dependencies"} & set(item.dynamic):
            chosen = extras if item.folder == "." else ()
            active = cuda_releases.active_requirements(result.metadata.encode(), markers, chosen)
            reading = ProjectReading(ProjectFiles(folder))
            for requirement in active:
                requirement.marker = None
                reading.add_requirement(str(requirement), item.place)
            requirements += reading.requirements
    return BackendAnswer(packages=described, requirements=tuple(requirements))


def _report(item: LocalPackage, error: ImgbuildError, context: Context) -> None:
    fields = " or ".join(item.dynamic)
    reasons = "".join(f"\n  {line}" for line in getattr(error, "reasons", ())[-SHOWN_FILES:])
    effect = f"the version is set to {UNKNOWN_VERSION}" if "version" in item.dynamic else ""
    if "dependencies" in item.dynamic:
        effect = ", ".join(filter(None, (effect, "add the requirements with imgbuild add")))
    hint = error.hint if isinstance(error, InputError) else None
    context.reporter.warn(
        f"{item.place}: the build backend provides no {fields}: {error.message}{reasons}\n"
        f"  {'; '.join(filter(None, (hint, effect)))}"
    )


def _describe_project(
    item: LocalPackage, folder: Path, wheels: SdistWheels, context: Context
) -> SdistResult:
    """Return the stored result if the same files and variables were used before."""
    texts = {
        name: (folder / name).read_text(encoding="utf-8", errors="replace")
        for name in git_tree.TEXTS
        if (folder / name).is_file() and not (folder / name).is_symlink()
    }
    env = _variables(item, folder, texts)
    label = item.name or folder.resolve().name
    key = sha256(codec.encode_compact([_inputs(folder, texts), env, wheels.python]))
    stored = context.store.fact(FACT, key)
    if stored is not None:
        return decoding.decode_json(stored, SdistResult)
    data = _archive(folder)
    digest = sha256(data)
    context.store.add_bytes(data, digest)
    source = LockedFile(file=f"{normalize_package(label)}.tar.gz", size=len(data), sha256=digest)
    result = wheels.describe_source(normalize_package(label), source, env)
    context.store.put_fact(FACT, key, msgspec.json.encode(result))
    return result


def _inputs(folder: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """Map each file on which metadata can depend to its sha256.

    Python files are included if a build file refers to them directly or indirectly, or if they
    contain the version of a package.
    """
    code: dict[str, Path] = {}
    inputs: dict[str, str] = {}
    for name, path in _files(folder):
        is_code = path.suffix == ".py"
        if path.suffix in TEXT_SUFFIXES or (is_code and VERSION_FILE.search(path.stem)):
            inputs[name] = sha256(path.read_bytes())
        elif is_code:
            code[name] = path
    unread = list(texts.values())
    while unread:
        words = set(_WORD.findall(unread.pop()))
        for name in [name for name, path in code.items() if path.stem in words]:
            data = code.pop(name).read_bytes()
            inputs[name] = sha256(data)
            unread.append(data.decode("utf-8", "replace"))
    return inputs


def _variables(item: LocalPackage, folder: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for a version that the backend would read from git.

    The values are from the environment, or else from the git history. Raises InputError if neither
    has a value.
    """
    variables = git_tree.scm_variables(texts)
    named = [
        f"{name}_FOR_{normalize_package(item.name).replace('-', '_').upper()}" for name in variables
    ]
    given = {name: os.environ[name] for name in (*variables, *named) if os.environ.get(name)}
    if given or not variables or "version" not in item.dynamic:
        return given
    try:
        inside = git.run_git(folder, "rev-parse", "--absolute-git-dir")
    except ToolMissing:
        inside = None
    if inside is not None and inside.status == 0:
        repository = GitObjects(Path(inside.stdout.strip()))
        commit = repository.resolve_object("HEAD^{commit}")
        if commit is not None:
            return dict.fromkeys(variables, git_tree.version_from_history(repository, commit))
    message = f"its version comes from a git tag, and {folder} is not in a git repository"
    raise InputError(message, hint=f"set the version: {variables[0]}=1.0 imgbuild lock")


def _package(item: LocalPackage, result: SdistResult, workdir: str) -> tuple[str, EditablePackage]:
    fields, _ = parse_email(result.metadata)
    name, version = fields.get("name", ""), fields.get("version", "")
    try:
        version = str(Version(version))
        requires = [str(parse_requirement(line)) for line in fields.get("requires_dist", ())]
        python = str(SpecifierSet(fields.get("requires_python", "")))
    except ValueError as error:
        message = f"its build backend wrote invalid METADATA: {error}"
        raise InputError(message) from error
    if not name or (item.name and normalize_package(name) != normalize_package(item.name)):
        message = (
            f"its build backend returns {'the package name ' + name if name else 'no package name'}"
        )
        raise InputError(message)
    return normalize_package(name), EditablePackage(
        version=version,
        roots=image_roots(item, workdir),
        scripts=_console_scripts(result.entry_points),
        requires=tuple(requires),
        python=python,
    )


def _console_scripts(text: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    items = parser.items("console_scripts") if parser.has_section("console_scripts") else ()
    return {name: place.partition("[")[0].strip() for name, place in items}


def _archive(folder: Path) -> bytes:
    """Pack a folder as an sdist whose bytes depend only on the files."""
    buffer, total = io.BytesIO(), 0
    with tarfile.open(
        fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8"
    ) as archive:
        for number, (name, path) in enumerate(_files(folder)):
            data = path.read_bytes()
            total += len(data)
            if number >= FILES or total > TOTAL_LIMIT:
                message = f"{folder} has more than {FILES} small files, or {TOTAL_LIMIT >> 20} MB"
                raise InputError(
                    message,
                    hint="write the version and dependencies into pyproject.toml",
                )
            info = tarfile.TarInfo(f"source/{name}")
            info.size, info.mtime, info.mode = len(data), git_tree.TIME, 0o644
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in SKIPPED_FOLDERS
            and not name.endswith(".egg-info")
            and not Path(place, name, "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            path = Path(place, name)
            status = path.lstat()
            if path == folder / MATRIX:
                continue
            if stat.S_ISREG(status.st_mode) and status.st_size <= FILE_LIMIT:
                yield path.relative_to(folder).as_posix(), path
