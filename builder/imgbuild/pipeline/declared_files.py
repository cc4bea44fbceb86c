"""Reads files that declare a project's requirements, in folders or git repositories."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec
from packaging.requirements import InvalidRequirement

from imgbuild.cache.context import Context
from imgbuild.deb import apt
from imgbuild.errors import ImgbuildError, InputError, InputProblem, ToolMissing
from imgbuild.matrix.model import DebianBase, Matrix
from imgbuild.matrix.project_paths import FOLDER
from imgbuild.project import fetch, read
from imgbuild.project.model import (
    Declarations,
    DeclaredIndex,
    DeclaredName,
    DeclaredRequirement,
    FilePlace,
    NotRead,
    locate_indexes,
)
from imgbuild.resolve import project_indexes
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import IndexPages
from imgbuild.resolve.project_indexes import ProjectIndexes
from imgbuild.resolve.resolve_request import today_utc
from imgbuild.solve import repository_name
from imgbuild.system.console import console
from imgbuild.system.files import expand_home
from imgbuild.system.syntax import parse_requirement
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags

LISTS = (".txt", ".in")
COPIES = f"{FOLDER}/read"
NAMED_PACKAGES = 6  # entries of one file that are omitted for one reason; --json has all


class ReadFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The declarations of a project's files, and their locations.

    `copies` maps external files to their new locations in the project. `names` maps URLs of git
    repositories to package names. `failures` are the errors of repositories whose package name
    could not be read.
    """

    declared: Declarations
    folder: Path
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    copies: tuple[tuple[Path, str], ...] = ()
    names: Mapping[str, str] = {}
    failures: tuple[ImgbuildError, ...] = ()


def read_files(
    folder: Path,
    places: Sequence[str],
    scratch: Path,
    context: Context,
    *,
    extras: Sequence[str],
    groups: Sequence[str],
) -> ReadFiles:
    """Read the declarations of `places`, and the package names of git repositories.

    A place is a file, a folder or a git URL, by default the project's `folder`. Repositories are
    cloned into `scratch`. Raises InputError for a place that does not exist.
    """
    files = _read_files(folder, places, scratch / "first", extras, groups, {})
    if not files.declared.unnamed:
        return files
    names, failures = repository_name.read_repository_names(files.declared.unnamed, context)
    files = _read_files(folder, places, scratch / "named", extras, groups, names)
    return msgspec.structs.replace(files, failures=tuple(failures))


def _read_files(
    folder: Path,
    places: Sequence[str],
    scratch: Path,
    extras: Sequence[str],
    groups: Sequence[str],
    names: Mapping[str, str],
) -> ReadFiles:
    """List files outside of the project as copies: a matrix can only refer to its folder."""
    inside: list[str] = []
    outside: list[Path] = []
    for place in places:
        if fetch.is_address(place):
            fetched = fetch.clone_repository(
                fetch.parse_revision_address(place), scratch / f"repository-{len(outside)}"
            )
            outside.append(fetched.folder.resolve())
            continue
        path = expand_home(place)
        if not path.exists():
            message = f"--from {place}: no such file or folder"
            raise InputError(message, hint="specify a file or a folder of the project")
        led = path.resolve()
        if not led.is_relative_to(folder.resolve()):
            outside.append(led)
        elif led.is_dir():
            top = led.relative_to(folder.resolve())
            inside += [
                (top / file).as_posix()
                for file in read.read_declared(led, extras=extras, groups=groups).files
            ]
        else:
            inside.append(led.relative_to(folder.resolve()).as_posix())
    if outside and (inside or len(outside) > 1):
        message = "the files in --from belong to several projects"
        raise InputError(message, hint="specify files of one project")
    top, files = folder, tuple(dict.fromkeys(inside))
    for place_ in outside:
        top = place_ if place_.is_dir() else place_.parent
        files = () if place_.is_dir() else (place_.name,)
    declared = read.read_declared(top, files, extras=extras, groups=groups, names=names)
    if outside:
        declared = _drop_outside_indexes(declared)
    copies = [(top / file, f"{COPIES}/{top.name}/{file}") for file in declared.files]
    return ReadFiles(
        declared=declared,
        folder=top,
        extras=tuple(extras),
        groups=tuple(groups),
        copies=tuple(copies if outside else ()),
        names=names,
    )


def declares_anything(declared: Declarations) -> bool:
    """Return whether the files of a project declare requirements."""
    named = (*declared.requirements, *declared.packages, *declared.debian, *declared.unnamed)
    return bool(named or declared.python or declared.cuda)


def require_read(declared: Declarations) -> None:
    """Raise InputError if only files that are not read by default declare requirements."""
    whole = [each for each in declared.not_read if each.text == each.place.file]
    if not whole:
        return
    problems = tuple(InputProblem(file=each.place.file, message=each.reason) for each in whole)
    message = "the project declares its requirements only in files that are not read by default"
    hint = (
        "to read a file, run `imgbuild init --from FILE`; to start without requirements, add "
        "--extends TARGET"
    )
    raise InputError(message, problems=problems, hint=hint)


def _drop_outside_indexes(declared: Declarations) -> Declarations:
    folders = [each for each in declared.indexes if each.url.startswith("file:")]
    notes = [
        NotRead(place=each.place, text=each.url, reason="a folder of another project")
        for each in folders
    ]
    return msgspec.structs.replace(
        declared,
        indexes=tuple(each for each in declared.indexes if each not in folders),
        not_read=(*declared.not_read, *notes),
    )


def read_places(places: Sequence[str], lines: Sequence[str] = ()) -> Declarations:
    """Read the declarations of files and folders, and add requirement `lines`.

    Raises InputError if a place does not exist or a file is invalid.
    """
    paths = [expand_home(place).resolve() for place in places]
    for place, path in zip(places, paths, strict=True):
        if not path.exists():
            message = f"{place}: no such file or folder"
            raise InputError(
                message, hint="specify a requirements file, or a file or folder of a project"
            )
    if len(paths) == 1 and paths[0].is_dir():
        return add_requirements(_locate_indexes(read.read_declared(paths[0]), paths[0]), lines)
    tops = [path if path.is_dir() else path.parent for path in paths]
    here = Path.cwd()
    inside = all(top.is_relative_to(here) for top in tops)
    folder = here if inside else Path(os.path.commonpath(tops))
    files = [
        (top.relative_to(folder) / name).as_posix()
        for path, top in zip(paths, tops, strict=True)
        for name in (read.read_declared(top).files if path.is_dir() else (path.name,))
    ]
    return add_requirements(
        _locate_indexes(read.read_declared(folder, tuple(dict.fromkeys(files))), folder), lines
    )


def _locate_indexes(declared: Declarations, folder: Path) -> Declarations:
    return msgspec.structs.replace(declared, indexes=locate_indexes(declared.indexes, folder))


def listed_files(files: ReadFiles) -> tuple[str, ...]:
    """Return the files to list in a row of the matrix, without files that other files include.

    Included files in the root folder of the project are omitted only if they are requirements
    files.
    """
    every = {(each.text, each.place) for each in files.declared.requirements}
    nested = set()
    for file in files.declared.files if len(files.declared.files) > 1 else ():
        alone = _read_alone(files, file)
        # If there are other files, less is read from a Dockerfile.
        if alone is not None and every.issuperset((r.text, r.place) for r in alone.requirements):
            nested |= {*alone.files} - {file}
    top = [
        file
        for file in files.declared.files
        if file not in nested or ("/" not in file and not file.endswith(LISTS))
    ]
    places = dict(files.copies)
    return tuple(places.get(files.folder / file, file) for file in top)


def _read_alone(files: ReadFiles, file: str) -> Declarations | None:
    try:
        return read.read_declared(
            files.folder, (file,), extras=files.extras, groups=files.groups, names=files.names
        )
    except InputError:  # an extra belongs to another file, or the file is a part of one
        with contextlib.suppress(InputError):
            return read.read_declared(files.folder, (file,), names=files.names)
    return None


def copy_files(files: ReadFiles, folder: Path) -> list[Path]:
    """Copy external files into the project's `folder`, and return their paths."""
    paths = []
    for source, name in files.copies:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)
        paths.append(path)
    return paths


def add_requirements(declared: Declarations, lines: Sequence[str]) -> Declarations:
    """Add requirement `lines` to `declared`. Raises InputError if a line is invalid."""
    added = []
    for line in lines:
        try:
            text = str(parse_requirement(line))
        except InvalidRequirement as error:
            message = f"invalid requirement: {line!r}"
            hint = "specify NAME, NAME[EXTRA], 'NAME>=LOW,<HIGH' or 'NAME @ URL'"
            raise InputError(message, hint=hint) from error
        added.append(DeclaredRequirement(text=text, place=FilePlace("--add")))
    return msgspec.structs.replace(declared, requirements=(*declared.requirements, *added))


def declared_summary(declared: Declarations) -> list[str]:
    """Summarize the declarations of each file on one line."""
    lines = []
    for file in declared.files:
        counts: dict[str, int] = {}
        for item in declared.requirements:
            if item.place.file == file:
                kind = f"locked {item.kind}" if item.locked else item.kind
                counts[kind] = counts.get(kind, 0) + 1
        words = [f"{number} {kind}{'s' * (number > 1)}" for kind, number in counts.items()]
        specs = dict.fromkeys(each.spec for each in declared.python if each.place.file == file)
        words += [f"Python {spec}" for spec in specs]
        words += [f"CUDA {name}" for name in _names(declared.cuda, file)]
        words += [f"image {name}" for name in _names(declared.images, file)]
        debs = _names(declared.debian, file)
        words += [f"{len(debs)} Debian package{'s' * (len(debs) > 1)}"] if debs else []
        lines.append(f"{file}: {', '.join(words) or 'no requirements'}")
    return lines


def _names(items: Sequence[DeclaredName], file: str) -> list[str]:
    return list(dict.fromkeys(item.name for item in items if item.place.file == file))


def unread_entries(declared: Declarations) -> list[str]:
    """Return a line for each file and reason, listing what was not read in the file."""
    reason = "the package name is missing; write `NAME @ git+https://…`, or add #egg=NAME"
    groups: dict[tuple[str, str], list[NotRead]] = {}
    for item in declared.not_read:
        groups.setdefault((item.place.file, item.reason), []).append(item)
    return [
        *map(_unread_entry_text, groups.values()),
        *(f"{each.place}: {each.name}: {reason}" for each in declared.unnamed),
    ]


def find_indexes(
    indexes: Sequence[DeclaredIndex],
    demands: Sequence[PackageDemand],
    matrix: Matrix,
    tags: WheelTags,
    context: Context,
    *,
    published: Collection[str] = (),
) -> ProjectIndexes:
    """Find the declared indexes that `demands` need, and report their packages and errors.

    Packages in `published` use a declared index only if the default index does not satisfy the
    requirement.
    """
    pages = IndexPages(matrix, context, today_utc())
    of_files = project_indexes.find_project_indexes(
        indexes, demands, pages, tags,
        published=published, folder=Path(), taken=matrix.indexes,
    )  # fmt: skip
    for line in of_files.failures:
        context.reporter.warn(line)
    for line in of_files.notes:
        context.reporter.info(line)
    return of_files


def _unread_entry_text(items: Sequence[NotRead]) -> str:
    first, last = items[0], items[-1]
    lines = f"-{last.place.line}" if last.place.line > first.place.line else ""
    texts = list(dict.fromkeys(each.text for each in items if each.text != each.place.file))
    more = len(texts) - NAMED_PACKAGES
    named = ", ".join([*texts[:NAMED_PACKAGES], f"{more} more"] if more > 0 else texts)
    return f"{first.place}{lines}: {named}{': ' if named else ''}{first.reason}"


def unknown_debs(
    matrix: Matrix, base: str, names: Sequence[str], arch: Arch, context: Context
) -> dict[str, str]:
    """Map Debian packages that the base's suite lacks to similar names, or to ""."""
    debian = matrix.bases[base]
    if not names:
        return {}
    if not isinstance(debian, DebianBase):
        message = f"Debian packages cannot be added, because the base {base} is a registry image"
        raise InputError(message, hint="omit --system")
    try:
        return apt.unknown_packages(debian, arch, names, context)
    except ToolMissing as error:
        console.warn(f"could not check Debian packages: {error.message}")
        return {}
