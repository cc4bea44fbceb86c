"""Reads the files of an installed package in place.

RECORD lists the files of a package. For a package without RECORD, such as one installed by Debian,
the files of its top-level modules are read. An editable installation has only a pointer in
site-packages, and its modules are read from the source folder.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from imgbuild.audit.packages.content import WheelMember
from imgbuild.errors import IntegrityError
from imgbuild.oci.content import CHUNK
from imgbuild.system import boundary
from imgbuild.system.folder import LEVELS
from imgbuild.system.syntax import parse_literal

FOLDERS = (".dist-info", ".egg-info")
# Folders of a source tree that are not installed.
NOT_INSTALLED = frozenset(("test", "tests", "docs", "doc", "examples", "benchmarks", "scripts",
                           "build", "dist", "node_modules"))  # fmt: skip
_MAPPING = re.compile(r"^MAPPING(?::[^=]+)? = (\{.*\})\s*$", re.MULTILINE)


class InstalledContent:
    """An installed package as a `WheelContent`. `path` is the folder `NAME-VERSION.dist-info`.

    Members have the same paths as in a wheel, except for files in `.data`.
    """

    def __init__(self, path: Path, label: str) -> None:
        self.path: Path | None = path
        self.label = label
        self._info = path
        self._site = path.parent

    def members(self) -> Mapping[str, WheelMember]:
        """Return all files by path relative to site-packages.

        Bytecode and files outside site-packages, such as programs, are omitted. Raises
        IntegrityError if RECORD is damaged.
        """
        return {
            name: WheelMember(start=0, end=0, compressed=size, size=size, crc=0, method=0)
            for name, (size, _) in self._file_stats.items()
        }

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of the files `names`. Missing files are omitted."""
        contents = {}
        for name in names:
            place = self._place(name)
            if place is not None:
                contents[name] = boundary.read_regular_file(place)
        return contents

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file in pieces."""
        with self.file(name).open("rb") as file:
            while piece := file.read(CHUNK):
                yield piece

    def file(self, name: str) -> Path:
        """Return the path of a member. Raises IntegrityError if the file no longer exists."""
        place = self._place(name)
        if place is None:
            message = f"{self.label}: {self._site / name} does not exist"
            raise IntegrityError(message, hint="install the package again")
        return place

    def digest(self) -> str:
        """Return a hash of METADATA and of the paths, sizes and modification times of all files."""
        total = hashlib.sha256(b"installed\0")
        for name, (size, time) in sorted(self._file_stats.items()):
            total.update(f"{name}\0{size}\0{time}\n".encode())
        total.update("\0".join(f"{name}={place}" for name, place in self._roots).encode())
        return total.hexdigest()

    def top_level_names(self) -> frozenset[str]:
        """Return the first component of each path."""
        return frozenset(name.partition("/")[0] for name in self._file_stats)

    @cached_property
    def _file_stats(self) -> dict[str, tuple[int, int]]:
        """The size in bytes and modification time in nanoseconds of each existing file."""
        stats = {}
        for name, place in self._recorded_files():
            try:
                status = place.stat()
            except OSError:
                continue
            stats[name] = (status.st_size, status.st_mtime_ns)
        for name, place in self._metadata():
            status = place.stat()
            stats[name] = (status.st_size, status.st_mtime_ns)
        return stats

    def _metadata(self) -> Iterator[tuple[str, Path]]:
        """Yield METADATA or PKG-INFO, under its name in a wheel."""
        for file_name in ("METADATA", "PKG-INFO"):
            place = self._info / file_name
            if place.is_file():
                name = f"{self._info.name.removesuffix('.egg-info')}.dist-info/METADATA"
                yield (f"{self._info.name}/METADATA" if file_name == "METADATA" else name), place
                return

    def _recorded_files(self) -> Iterator[tuple[str, Path]]:
        record = self._info / "RECORD"
        if record.is_file():
            for name in _recorded_paths(record, self.label):
                if not name.startswith(("../", "/")) and not name.endswith(".pyc"):
                    yield name, self._site / name
        else:
            for top in self._top_level():
                yield from _files_below(self._site / top, top)
                yield from ((f"{top}{end}", self._site / f"{top}{end}") for end in (".py",))
        for top, folder in self._roots:
            yield from _files_below(folder, top)

    def _top_level(self) -> list[str]:
        listed = self._info / "top_level.txt"
        if listed.is_file():
            return boundary.read_regular_file(listed).decode(errors="replace").split()
        return [re.sub(r"[-.]+", "_", self._info.name.partition("-")[0])]

    @cached_property
    def _roots(self) -> tuple[tuple[str, Path], ...]:
        """The folder or file of each top-level module in an editable installation."""
        record = self._info / "RECORD"
        if self._info.suffix != ".dist-info" or not record.is_file():
            return ()
        roots: dict[str, Path] = {}
        for name in _recorded_paths(record, self.label):
            if "/" in name:
                continue
            if name.endswith(".pth"):
                for folder in pth_folders(self._site / name):
                    tops = self._source_packages(folder)
                    roots.update((top, folder / top) for top in tops)
            elif name.startswith("__editable__") and name.endswith(".py"):
                roots.update(_mapping(self._site / name))
        return tuple(sorted(roots.items()))

    def _source_packages(self, folder: Path) -> list[str]:
        """Return the packages in top_level.txt.

        If the file is missing, return the importable packages in the source folder.
        """
        listed = self._info / "top_level.txt"
        if listed.is_file():
            tops = boundary.read_regular_file(listed).decode(errors="replace").split()
            return [top if (folder / top).is_dir() else f"{top}.py" for top in tops]
        return sorted(
            each.name
            for each in os.scandir(folder)
            if each.name.isidentifier()
            and each.name not in NOT_INSTALLED
            and Path(each.path, "__init__.py").is_file()
        )

    def _place(self, name: str) -> Path | None:
        top, _, rest = name.partition("/")
        for root_name, folder in self._roots:
            if root_name == top:
                return folder / rest if rest else folder
        if name.endswith(".dist-info/METADATA") and not (self._site / name).is_file():
            name = f"{self._info.name}/PKG-INFO"
        place = self._site / name
        return place if place.is_file() else None


def pth_folders(path: Path) -> list[Path]:
    """Return the folders that a `.pth` file adds to `sys.path`. Code lines are ignored."""
    try:
        lines = boundary.read_regular_file(path).decode(errors="replace").splitlines()
    except OSError:
        return []
    plain = (line.strip() for line in lines if not line.startswith(("import ", "import\t", "#")))
    folders = (path.parent / line for line in plain if line)
    return [folder for folder in folders if folder.is_dir()]


def _mapping(path: Path) -> dict[str, Path]:
    """Map each top-level module to its folder in an editable installation by setuptools.

    The folders are read from the finder that setuptools installs.
    """
    match = _MAPPING.search(boundary.read_regular_file(path).decode(errors="replace"))
    try:
        mapping = parse_literal(match[1]) if match is not None else {}
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    if not isinstance(mapping, dict):
        return {}
    places = {str(name): Path(str(place)) for name, place in mapping.items()}
    return {
        name if place.is_dir() else f"{name}.py": place if place.is_dir() else Path(f"{place}.py")
        for name, place in places.items()
        if "." not in name
    }


def _recorded_paths(record: Path, label: str) -> Iterator[str]:
    try:
        with record.open(encoding="utf-8", newline="") as file:
            yield from (row[0] for row in csv.reader(file) if row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        message = f"{label}: {record} cannot be read: {error}"
        raise IntegrityError(message, hint="install the package again") from error


def _files_below(folder: Path, top: str) -> Iterator[tuple[str, Path]]:
    """Yield all files of a folder as `top/…`, without bytecode.

    If `folder` is a file, only this file is yielded.
    """
    if folder.is_file():
        yield top, folder
        return
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__" and name[0] != "."]
        inner = os.path.relpath(place, folder)
        if inner.count("/") >= LEVELS:
            folders.clear()
        start = top if inner == "." else f"{top}/{inner}"
        for name in files:
            yield f"{start}/{name}", Path(place, name)
